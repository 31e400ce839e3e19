/* Expert files with known contents: byte i of expert e of layer l is a function of all three. */
#ifndef MF_TESTS_EXPERT_FILES_H
#define MF_TESTS_EXPERT_FILES_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LAYERS 64

typedef struct expert_files {
    char dir[256];
    char paths[MAX_LAYERS][300];
    const char *files[MAX_LAYERS];
    int n_layers, n_experts;
    int64_t stride, bytes;
} expert_files;

static inline uint64_t blob_word(int layer, int expert, int64_t i) {
    uint64_t x = (uint64_t)layer * 1000003 + (uint64_t)expert * 10007 + (uint64_t)i;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* Makes DIR/layer_NN.bin; the files end with the last expert's used bytes. Returns false when the disk refuses. */
static inline bool expert_files_make(expert_files *f, const char *name, int n_layers, int n_experts, int64_t stride,
                                     int64_t bytes) {
    char base[] = "store_test_XXXXXX";
    memset(f, 0, sizeof *f);
    if (!mkdtemp(base)) return false;
    snprintf(f->dir, sizeof f->dir, "%s_%s", base, name);
    if (rename(base, f->dir)) return false;
    f->n_layers = n_layers;
    f->n_experts = n_experts;
    f->stride = stride;
    f->bytes = bytes;
    int64_t words = bytes / 8 + 1;
    uint64_t *blob = calloc((size_t)(stride / 8 + 2), 8);
    for (int l = 0; blob && l < n_layers; l++) {
        snprintf(f->paths[l], sizeof f->paths[l], "%s/layer_%02d.bin", f->dir, l);
        f->files[l] = f->paths[l];
        FILE *out = fopen(f->paths[l], "wb");
        if (!out) return false;
        for (int e = 0; e < n_experts; e++) {
            for (int64_t i = 0; i < words; i++) blob[i] = blob_word(l, e, i);
            size_t n = (size_t)(e + 1 < n_experts ? stride : bytes);
            if (fwrite(blob, 1, n, out) != n) return false;
        }
        if (fclose(out)) return false;
    }
    free(blob);
    return true;
}

static inline void expert_files_remove(expert_files *f) {
    for (int l = 0; l < f->n_layers; l++) unlink(f->paths[l]);
    rmdir(f->dir);
}

/* All bytes of the expert are as they were written. */
static inline bool blob_is(const expert_files *f, int layer, int expert, const void *blob) {
    int64_t i = 0;
    for (; (i + 1) * 8 <= f->bytes; i++) {
        uint64_t word;
        memcpy(&word, (const char *)blob + i * 8, 8);
        if (word != blob_word(layer, expert, i)) return false;
    }
    uint64_t word = blob_word(layer, expert, i);
    return !memcmp((const char *)blob + i * 8, &word, (size_t)(f->bytes - i * 8));
}

#endif
