/* Writing GGUF files, from their description and without the library's reader. Any failure ends the program. */
#ifndef MF_TESTS_GGUF_FILE_H
#define MF_TESTS_GGUF_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "weights/catalog.h"

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "make_gguf: %s (line %d)\n", #x, __LINE__);                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

void gguf_begin(const char *architecture, int files);
void gguf_quantize(const char *type, bool only_values); /* matrices from now on; or the values that they would have */
void gguf_end(const char *out);

/* "general.X" as it is, others with the architecture in front. */
void key_u32(const char *key, int64_t v);
void key_f32(const char *key, double v);
void key_bool(const char *key, bool v);
void key_text(const char *key, const char *v);
void key_list(const char *key, const int64_t *v, int n);
void key_reals(const char *key, double v, int n); /* n times the same */

/* dims as ggml has them: the contiguous one first; 0 ends. BF16 where that is exact, else F32. */
void tensor(const char *name, const float *x, int64_t a, int64_t b, int64_t c);

/* make_gguf.c: all values of a tensor of the checkpoint, decoded; n is checked when not 0. Freed by the caller. */
float *values(const char *name, int64_t n);
/* ... a layer's kv_b_proj, in two, the keys' half transposed */
void split_kv_b(int layer);

/* make_gguf2.c: a checkpoint of a family that came later; false: it is none. */
bool later_family(const char *type, const json_t *config, const mf__catalog *cat, int files);

#endif
