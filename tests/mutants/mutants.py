#!/usr/bin/env python3
"""The known faults that the tests must catch, and the writer of sources that have them.

A fault is a name, the tests that must catch it, and one place or more: a file of src/, a piece of its text, in which « » mark what is right, and what is wrong.
In the copies that this script writes, what is marked becomes (ra__mutant == number ? (wrong) : (right)), or for whole statements, which end with a semicolon or
are nothing yet, an if. The piece must occur exactly once in its file: who changes the source changes the fault with it.

    mutants.py --files              the files that have faults
    mutants.py --write SRC FOLDER   writes their copies to FOLDER
    mutants.py --list               number, name and places
"""
import os
import sys

SPANS, MASK, MASKS = "plan/spans.c", "block/mask.c", "plan/masks.c"
FORWARD, BACKWARD, DECODE = "block/attn_forward.c", "block/attn_backward.c", "block/attn_decode.c"
MODIFY, KERNELS, SCHEDULE = "block/modify.c", "block/kernels_body.h", "ring/schedule.c"
WALK, WALK_BACK, EXCHANGE, LAYOUT, SHARED = "ring/forward.c", "ring/backward.c", "ring/exchange.c", "ring/layout.c", "ring/shared_gradients.c"

ANY = "--random 40"
NON_FINITE = "test_attn"  # verify draws no NaN


def only(kinds, n=40):
    return "--random %d --only %s" % (n, kinds)


# (name, who must catch it: arguments of verify or the name of a test, (file, piece, wrong)...)
FAULTS = [
    # ---- which keys a query sees
    ("window one short on the left", only("window"),
     (SPANS, "begin = «q - rule->left»;", "q - rule->left + 1")),
    ("window one long on the left", only("window"),
     (SPANS, "begin = «q - rule->left»;", "q - rule->left - 1")),
    ("window one short on the right", only("window"),
     (SPANS, "end = least(end, «q + rule->right + 1»);", "q + rule->right")),
    ("prefix one short", only("prefix,causal"),
     (SPANS, "end = least(end, most(last < nk ? last + 1 : nk, «rule->prefix»));", "rule->prefix - 1")),
    ("first kept keys one short", only("keep-first,window"),
     (SPANS, "kept = least(«rule->keep_first», end);", "rule->keep_first - 1")),
    ("bottom-right taken as top-left", only("causal,window"),
     (SPANS, "i - s->q0 + («rule->bottom_right» ? s->nk - s->nq : 0)", "0")),
    ("packed: the corner of the whole, not of the sequence", only("packed,causal,causal-block,prefix,window,alibi", 200),
     (SPANS, "(rule->bottom_right ? «s->nk - s->nq» : 0)", "rule->Skv - rule->Sq")),
    ("packed: keys begin where queries do", only("packed"),
     (SPANS, "rule->cu_q[low], «rule->cu_k[low]»,", "rule->cu_q[low]")),
    ("causal: one key too many", only("causal"),
     (MASK, ": «(group + 1) * N - 1»;", "(group + 1) * N")),
    ("causal blocks: positions below 0 rounded towards 0", only("causal-block", 120),
     (MASK, "group = «q / N - (q % N < 0)»;", "q / N")),
    ("causal slices start at the wrong corner", only("slices"),
     (SPANS, "least(s->k1, «s->k1 + (i - s->q1) + 1»)", "s->k0 + (i - s->q0) + 1")),
    ("inverse causal slices are full", only("slices"),
     (SPANS, "begin = «s->type & 2» ?", "0")),
    ("lengths of keys one long", only("kv-lens"),
     (MASK, "v->kv_lens ? «v->kv_lens[b]» : INT64_MAX", "v->kv_lens[b] + 1")),
    ("lengths of keys of the first batch element", only("kv-lens"),
     (MASK, "v->kv_lens ? «v->kv_lens[b]» : INT64_MAX", "v->kv_lens[0]")),
    ("segments: earlier ones are seen", only("segments"),
     (MASK, "const int32_t in = «(l->segment[lane] == segment)» & (out[lane] == 0.0f);", "l->segment[lane] >= segment")),
    ("segments: a rank that shares one at its edge is left out", only("segments"),
     (MASKS, "if («q->q_min <= k->k_max» && k->k_min <= q->q_max)", "q->q_min < k->k_max")),
    ("a tile that some of its queries see is full", only("causal,window"),
     (MASK, "full &= covers(«q->all_first», first, last)", "q->first")),
    # ---- what is added to a score
    ("ALiBi: sign", only("alibi"),
     (MASK, "sum -= «slope» * fabs(", "-slope")),
    ("ALiBi: distances from the top-left corner", only("alibi,packed"),
     (MASKS, "ring->q_aligned[t] = «ra__mask_aligned(&plan->rule, ra__shard_position(&ring->q, t))»;", "ra__shard_position(&ring->q, t)")),
    ("ALiBi: the first head's slope", only("alibi"),
     (MASK, "slope = v->alibi ? «v->alibi[h]» : 0;", "v->alibi[0]")),
    ("bias of the first head", only("bias"),
     (MASK, "q * stride[1] + «h» * stride[2]", "0")),
    ("bias at the key's place in its block", only("bias"),
     (MASK, "        «»for (int64_t i = 0; i < n; i++) {\n            float *x = out + (first + i) * lanes;",
      """for (int64_t i = 0; i < n * t->nq && v->bias; i++)
             bias[i / t->nq][i % t->nq] = element(v->bias, t->b * v->bias->stride[0] + (t->q0 + i % t->nq) * v->bias->stride[1] +
                                                               h * v->bias->stride[2] + (t->k0 + first + i / t->nq) * v->bias->stride[3]);""")),
    ("dbias at the key's place in its block", only("bias,dbias"),
     (BACKWARD, "row[«c->block->position[t->k0 + lane]» * x->stride[3]]", "(t->k0 + lane)")),
    ("dbias: one head's stride for another's", only("bias,dbias"),
     (BACKWARD, "(t->q0 + i) * x->stride[1] + h * «x->stride[2]»;", "x->stride[0]")),
    ("dbias of this rank's queries only", only("bias,dbias"),
     (SHARED, "RA__TRY(«sum(ring, values, n, all)»);", "RA_OK")),
    ("softcap after the bias", only("softcap,bias", 80),
     (FORWARD, "    «»if (a->softcap > 0)\n        a->k->softcap(s, NULL,",
      """for (int64_t i = 0; a->softcap > 0 && i < (t.nk - clear) * a->k->lanes; i++)
             if (mask[i] != -INFINITY) { s[clear * a->k->lanes + i] += mask[i] / a->s_scale; mask[i] = 0; }""")),
    ("softcap: no slope in the backward", only("softcap"),
     (BACKWARD, "    if («a->softcap > 0»)\n        a->k->multiply(", "0")),
    ("softcap missing in the backward's scores", only("softcap"),
     (BACKWARD, "    if («a->softcap > 0»)\n        a->k->softcap(", "0")),
    ("softcap forgotten for short queries", only("softcap", 80),
     (DECODE, "if («a->softcap > 0»)\n", "0")),
    ("temperature missing in dq", only("temperature"),
     (BACKWARD, "a->scale * («temperature» ?", "(const float *)0")),
    ("temperature missing in dk", only("temperature"),
     (BACKWARD, "    «»q = ra__finite_rows(a->k, q,", "q = ra__query_rows(a->k, &w->q, b, tile.t0, n, h, a->D, NULL, rows, &ld);")),
    ("temperature missing for short queries", only("temperature", 80),
     (DECODE, "* («temperature» ?", "(const float *)0")),
    # ---- sinks
    ("sink counted at every step", only("sinks"),
     (FORWARD, "    «»for (int64_t p = 0; p < t.panels && c->last; p++) {",
      """for (int64_t i = 0; i < t.panels * lanes && c->f->q_shard.sinks && !c->last; i++)
             if (t.state.m[i] != -INFINITY)
                 t.state.l[i] += exp2f(c->f->q_shard.sinks[head % a->H] * 1.442695f - t.state.m[i]);""")),
    ("sink missing in lse", only("sinks"),
     (MODIFY, "(float)(exp2(m - top) / sum), «(float)((top + log2(sum)) * ln2)»,", "(float)((m + log2(l)) * ln2)")),
    ("dsinks of this rank's queries only", only("sinks,dsinks"),
     (SHARED, "    «RA__TRY(sum(ring, parts + h, H - h < SUMMED ? H - h : SUMMED, all));»", "")),
    # ---- dropout
    ("dropout: another counter in the backward", only("dropout"),
     (BACKWARD, "const struct ra__drop_tile tile = {«head», c->w->q_shard.position + t->q0,", "head + 1")),
    ("dropout: counters of places in the block", only("dropout", 80),
     (FORWARD, "{head, c->f->q_shard.position + t->q0, «c->block->position + t->k0»,", "c->block->position")),
    ("dropout: no 1/(1-p)", only("dropout"),
     (FORWARD, "a->k->drop(p, mask, «a->keep_scale»,", "1")),
    ("dropout: what should be kept is dropped", only("dropout"),
     (MODIFY, "return «word >= a->threshold» ?", "word < a->threshold")),
    ("dropout missing in the gradient of probabilities", only("dropout"),
     (BACKWARD, "    «a->k->drop(dp, mask, a->keep_scale, t->nq * a->k->lanes);»", "")),
    # ---- the running softmax
    ("output not rescaled to a new maximum", ANY,
     (FORWARD, "if («a->k->softmax(s, t.nk, full ? NULL : mask, clear, a->s_scale, state.m, state.l, alpha)»)",
      "a->k->softmax(s, t.nk, full ? NULL : mask, clear, a->s_scale, state.m, state.l, alpha) && 0")),
    ("sum not rescaled to a new maximum", ANY,
     (KERNELS, "vec_store(l + j * W, vec_fma(vec_load(l + j * W), «decay[j]», sum[j]));", "vec_set1(1)")),
    ("-inf minus -inf where nothing is seen yet", ANY,
     (KERNELS, "reference[j] = «vec_finite_or_zero(max[j])»;", "max[j]")),
    ("lse in units of log2", ANY,
     (MODIFY, "{1 / l, «(float)((m + log2(l)) * ln2)»,", "(float)(m + log2(l))")),
    ("short queries: merging with what saw nothing gives NaN", only("segments,window,causal"),
     (DECODE, "if («from.m[i] == -INFINITY && from.l[i] == 0»)", "0"),
     (DECODE, "reference = «m == -INFINITY ? 0 : m»;", "m")),
    ("short queries: what was there before is not rescaled", "--Sq 3 --Skv 1100 --H 4 --G 2 --D 16 --ring 2",
     (DECODE, "o[d] = o[d] * «old» + add[d] * new;", "1")),
    ("short queries: the last chunk is lost", "--Sq 3 --Skv 1100 --H 4 --G 2 --D 16 --ring 2",
     (DECODE, "chunk < «c.chunks»; chunk++)\n                merge(", "c.chunks - (c.chunks > 1)")),
    # ---- heads, gradients
    ("kv heads dealt out in turn", ANY,
     (FORWARD, "g = «h / (a->H / a->G)», kv_head", "h % a->G")),
    ("dk, dv of the last head of a group only", ANY,
     (BACKWARD, "i < c->map.q_tiles; i++) {\n            «»if (kt.panels && ra__mask_meets(",
      """if (i == 0) {
             memset(mine(c, c->map.dkt), 0, sizeof(float) * (size_t)(kt.panels * c->w->a->k->lanes * c->map.d));
             memset(mine(c, c->map.dvt), 0, sizeof(float) * (size_t)(kt.panels * c->w->a->k->lanes * c->map.dv));
         }""")),
    ("delta without dlse", ANY,
     (BACKWARD, "- («w->dlse» ?", "(const float *)0")),
    ("scale applied to dk twice", ANY,
     (BACKWARD, "lane_scale[lane] = «a->scale»;", "a->scale * a->scale")),
    # ---- the ring
    ("the backward computes on its own keys and values at every step", ANY,
     (WALK_BACK, "const struct ra__kv_block *block = «&k->traveller.block»;",
      """&(struct ra__kv_block){k->traveller.block.T <= k->ring->kv.T ? k->args->k : k->traveller.block.k,
                                k->traveller.block.T <= k->ring->kv.T ? k->args->v : k->traveller.block.v, k->traveller.block.T,
                                k->traveller.block.stretches, k->traveller.block.position, k->traveller.block.segment}""")),
    ("this rank's part of travelling gradients is not added", ANY,
     (WALK_BACK, "const int64_t part_at = «step->computes ? ra__rows_find(&computed, t, &n) : -1»;", "-1")),
    ("gradients that come home are lost", ANY,
     (WALK_BACK, "add(sum, sum, «rows_at(a, from, head, at)», rows->range[range].n", "NULL")),
    ("gradients of rows that go home from here are those of the step before", only("causal,window", 80),
     (WALK_BACK, "    «sum_up(k, i, &step->home, k->leaving + ra__dkv_bytes(k->ring, step->pass.n) / (int64_t)sizeof *k->leaving);»", "")),
    ("the second zigzag half is taken as going on from the first", ANY,
     (LAYOUT, "positions[t] = «ra__shard_position(s, t)»;", "s->position[0] + t * s->stride")),
    ("the last block but one is skipped", ANY,
     (WALK, "if («s->step[i].computes») {", "s->step[i].computes && !(i > 0 && i == last - 1)")),
    ("visiting rows have the position of the row before", only("causal,window"),
     (EXCHANGE, "*positions++ = «ra__shard_position(shard, t)»;", "ra__shard_position(shard, t > 0 ? t - 1 : 0)")),
    ("a block of which only the last key is seen is not sent", only("window,causal", 80),
     (MASKS, "«seen->span[i].begin <= last»; i++) {\n            const int64_t begin =", "seen->span[i].begin < last")),
    ("only the first rank that a block comes to computes on it", "--random 8 --ring 4",
     (SCHEDULE, "step->computes = «j->computes[d]»;", "j->computes[d] && d < 2")),
    # ---- NaN and infinity that nobody may see
    ("NaN in v reaches queries that do not see it", NON_FINITE,
     (FORWARD, "const bool hidden = «mask && key >= clear && mask[(key - clear) * lanes + lane] == -INFINITY»;", "false")),
    ("NaN in k reaches dq of queries that do not see it", NON_FINITE,
     (BACKWARD, "if («!mask || mask[i * lanes + lane] != -INFINITY»)", "true")),
    ("NaN in k is multiplied with zero probabilities", NON_FINITE,
     (BACKWARD, "        «k = ra__finite_rows(a->k, k, &ld, n, a->D, rows, &clean);»", "clean = true;")),
]


def fail(fault, place, why):
    sys.exit("mutants.py: fault %d, %s: in %s %s:\n%s" % (fault, FAULTS[fault - 1][0], place[0], why, place[1]))


def marked(number, place, text):
    """Where what is right begins and ends in the file."""
    before, right = place[1].split("«")
    right, after = right.split("»")
    found = text.count(before + right + after)
    if found != 1:
        fail(number, place, "this occurs %d times, not once" % found)
    begin = text.index(before + right + after) + len(before)
    return begin, begin + len(right)


def replaced(right, wrongs):
    """wrongs: (number, text) of all faults of this place."""
    if right == "" or right.endswith(";"):
        for number, wrong in wrongs:
            right = "{ if (ra__mutant == %d) { %s } else { %s } }" % (number, wrong, right)
        return right
    for number, wrong in wrongs:
        right = "(ra__mutant == %d ? (%s) : (%s))" % (number, wrong, right)
    return right


def mutated(path, text):
    places = {}
    for number, fault in enumerate(FAULTS, 1):
        for place in fault[2:]:
            if place[0] == path:
                begin, end = marked(number, place, text)
                for other in places:
                    if other != (begin, end) and begin < other[1] and other[0] < end:
                        fail(number, place, "this overlaps another fault")
                places.setdefault((begin, end), []).append((number, place[2]))
    for (begin, end), wrongs in sorted(places.items(), reverse=True):
        text = text[:begin] + replaced(text[begin:end], wrongs) + text[end:]
    return 'extern int ra__mutant;\n#line 1 "src/%s"\n%s' % (path, text)


def files():
    return sorted({place[0] for fault in FAULTS for place in fault[2:]})


def write(src, folder):
    for path in files():
        with open(os.path.join(src, path), encoding="utf-8") as f:
            text = mutated(path, f.read())
        to = os.path.join(folder, path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--files"]:
        print(";".join(files()), end="")
    elif sys.argv[1:] == ["--list"]:
        for i, fault in enumerate(FAULTS, 1):
            print("%2d  %s (%s)" % (i, fault[0], ", ".join(sorted({place[0] for place in fault[2:]}))))
    elif len(sys.argv) == 4 and sys.argv[1] == "--write":
        write(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
