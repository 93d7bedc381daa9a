/* Compiled programs on disk: one file each, named by the hash of all that decides what is in it. An entry is written under another name and
 * renamed, so that readers find it whole or not at all; a checksum tells whether it still is. Deleting files is always safe. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "pjrt/internal.h"

struct entry_header {
    char magic[8];
    struct ra__pjrt_key key, sum;
    uint64_t bytes;
};
static const char magic[8] = "raprog1";

/* Two chains of FNV-1a with different multipliers: 128 bits against accidents, not against malice. */
void ra__pjrt_key_begin(struct ra__pjrt_key *key) {
    *key = (struct ra__pjrt_key){{14695981039346656037u, 0x9e3779b97f4a7c15u}};
}

void ra__pjrt_key_add(struct ra__pjrt_key *key, const void *data, size_t bytes) {
    const unsigned char *x = data;
    for (size_t i = 0; i < bytes; i++) {
        key->half[0] = (key->half[0] ^ x[i]) * 1099511628211u;
        key->half[1] = (key->half[1] ^ x[i]) * 0xd6e8feb86659fd93u;
        key->half[1] ^= key->half[1] >> 32;
    }
    uint64_t length = bytes; /* "ab", "c" is not "a", "bc" */
    key->half[0] = (key->half[0] ^ length) * 1099511628211u;
    key->half[1] = (key->half[1] ^ length) * 0xd6e8feb86659fd93u;
}

static struct ra__pjrt_key sum_of(const void *data, size_t bytes) {
    struct ra__pjrt_key sum;
    ra__pjrt_key_begin(&sum);
    ra__pjrt_key_add(&sum, data, bytes);
    return sum;
}

static bool same(struct ra__pjrt_key a, struct ra__pjrt_key b) {
    return a.half[0] == b.half[0] && a.half[1] == b.half[1];
}

void ra__pjrt_cache_folder(char *path, size_t n) {
    const char *cache = ra__environment("XDG_CACHE_HOME"), *home = ra__environment("HOME");
    int length = 0;
    if (cache && *cache == '/')
        length = snprintf(path, n, "%s/ringattention/programs", cache);
    else if (home)
        length = snprintf(path, n, "%s/.cache/ringattention/programs", home);
    if (length <= 0 || (size_t)length >= n)
        *path = 0;
}

static bool entry_path(char *path, size_t n, const char *folder, struct ra__pjrt_key key) {
    int length = snprintf(path, n, "%s/%016" PRIx64 "%016" PRIx64, folder, key.half[0], key.half[1]);
    return length > 0 && (size_t)length < n;
}

static void *read_entry(const ra_allocator *a, FILE *file, struct ra__pjrt_key key, size_t *bytes) {
    struct entry_header header;
    struct stat status;
    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.magic, magic, sizeof magic) != 0 || !same(header.key, key))
        return NULL;
    if (fstat(fileno(file), &status) != 0 || header.bytes == 0 || (uint64_t)status.st_size != sizeof header + header.bytes)
        return NULL;
    void *data = ra__alloc(a, (size_t)header.bytes);
    if (!data)
        return NULL;
    if (fread(data, (size_t)header.bytes, 1, file) == 1 && same(header.sum, sum_of(data, (size_t)header.bytes))) {
        *bytes = (size_t)header.bytes;
        return data;
    }
    ra__free(a, data);
    return NULL;
}

void *ra__pjrt_cache_read(const ra_allocator *a, const char *folder, struct ra__pjrt_key key, size_t *bytes) {
    char path[4200];
    FILE *file = *folder && entry_path(path, sizeof path, folder, key) ? fopen(path, "rb") : NULL;
    if (!file)
        return NULL;
    void *data = read_entry(a, file, key, bytes);
    fclose(file);
    return data;
}

/* Each missing folder on the way; nobody else may put programs into them. */
static bool make_folder(const char *folder) {
    char path[4096];
    if (strlen(folder) >= sizeof path)
        return false;
    strcpy(path, folder);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return false;
        *slash = '/';
    }
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool write_entry(int fd, struct ra__pjrt_key key, const void *data, size_t bytes) {
    struct entry_header header = {.key = key, .sum = sum_of(data, bytes), .bytes = bytes};
    memcpy(header.magic, magic, sizeof magic);
    FILE *file = fdopen(fd, "wb");
    if (!file) {
        close(fd);
        return false;
    }
    bool written = fwrite(&header, sizeof header, 1, file) == 1 && fwrite(data, bytes, 1, file) == 1;
    return fclose(file) == 0 && written;
}

void ra__pjrt_cache_write(const char *folder, struct ra__pjrt_key key, const void *data, size_t bytes) {
    char path[4200], temporary[4200];
    if (!*folder || !bytes || !make_folder(folder) || !entry_path(path, sizeof path, folder, key) ||
        snprintf(temporary, sizeof temporary, "%s/new-XXXXXX", folder) >= (int)sizeof temporary)
        return;
    int fd = mkstemp(temporary);
    if (fd < 0)
        return;
    if (!write_entry(fd, key, data, bytes) || rename(temporary, path) != 0)
        unlink(temporary);
}
