/* Writing GGUF files: keys, tensors, one file or several. */
#include "gguf_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "quant/half.h"

enum { T_F32 = 0, T_I32 = 26, T_BF16 = 30, MAX_FILES = 9 };

/* Blocks of 32: F16 d, F16 m if there is one, fifth bits if there are, codes. value = (code - zero) d + m */
typedef struct block_type {
    const char *name;
    uint32_t number;
    int bits, zero;
    bool has_m;
} block_type;

static const block_type BLOCKS[] = {{"q4_0", 2, 4, 8, false},
                                    {"q4_1", 3, 4, 0, true},
                                    {"q5_0", 6, 5, 16, false},
                                    {"q5_1", 7, 5, 0, true},
                                    {"q8_0", 8, 8, 128, false}};
static const block_type *quantized; /* NULL: matrices as they are */
static bool values_only;
static const char *arch;
static mf__strbuf keys, infos[MAX_FILES], data[MAX_FILES];
static int n_keys, n_tensors[MAX_FILES], n_files = 1, n_written;

void gguf_begin(const char *architecture, int files) {
    arch = architecture;
    n_files = files;
    CHECK(n_files >= 1 && n_files <= MAX_FILES);
    key_text("general.architecture", arch);
}

void gguf_quantize(const char *type, bool only_values) {
    for (size_t i = 0; i < sizeof BLOCKS / sizeof BLOCKS[0]; i++)
        if (!strcmp(type, BLOCKS[i].name)) quantized = &BLOCKS[i];
    CHECK(quantized);
    values_only = only_values;
}

static void put(mf__strbuf *b, const void *p, size_t n) {
    CHECK(mf__strbuf_append(b, p, n, NULL) == MF_OK);
}

static void put_u32(mf__strbuf *b, uint32_t v) {
    put(b, &v, 4);
}

static void put_u64(mf__strbuf *b, uint64_t v) {
    put(b, &v, 8);
}

static void put_text(mf__strbuf *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void put_key(const char *key, uint32_t type) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    put_text(&keys, strchr(key, '.') && !strncmp(key, "general.", 8) ? key : full);
    put_u32(&keys, type);
    n_keys++;
}

void key_u32(const char *key, int64_t v) {
    put_key(key, 4);
    put_u32(&keys, (uint32_t)v);
}

void key_f32(const char *key, double v) {
    float f = (float)v;
    put_key(key, 6);
    put(&keys, &f, 4);
}

void key_bool(const char *key, bool v) {
    put_key(key, 7);
    put(&keys, &(char){v}, 1);
}

void key_text(const char *key, const char *v) {
    put_key(key, 8);
    put_text(&keys, v);
}

void key_list(const char *key, const int64_t *v, int n) {
    put_key(key, 9);
    put_u32(&keys, 5);
    put_u64(&keys, (uint64_t)n);
    for (int i = 0; i < n; i++) put_u32(&keys, (uint32_t)v[i]);
}

void key_reals(const char *key, double v, int n) {
    float f = (float)v;
    put_key(key, 9);
    put_u32(&keys, 6);
    put_u64(&keys, (uint64_t)n);
    for (int i = 0; i < n; i++) put(&keys, &f, 4);
}

static bool fits_bf16(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        if (u & 0xffff) return false;
    }
    return true;
}

/* 32 values: written as a block, or their decoded values as F32. */
static void put_block(mf__strbuf *to, const float *x) {
    const block_type *t = quantized;
    float lo = 0, hi = 0, top = (float)((1 << t->bits) - 1), back[32];
    uint8_t codes[32], packed[32] = {0};
    uint32_t fifths = 0;
    for (int i = 0; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    float span = t->has_m ? (hi - lo) / top : (hi > -lo ? hi : -lo) / (float)(t->zero - 1);
    uint16_t d16 = mf__f32_to_f16(span), m16 = mf__f32_to_f16(t->has_m ? lo : 0);
    float d = mf__f16_to_f32(d16), m = mf__f16_to_f32(m16);
    for (int i = 0; i < 32; i++) {
        float code = d > 0 ? rintf((x[i] - m) / d) + (float)t->zero : 0;
        codes[i] = (uint8_t)(code < 0 ? 0 : code > top ? top : code);
        back[i] = ((float)codes[i] - (float)t->zero) * d + m;
        fifths |= (uint32_t)(codes[i] >> 4 & 1) << i;
        if (t->bits == 8)
            packed[i] = (uint8_t)(codes[i] - 128);
        else
            packed[i % 16] |= (uint8_t)((codes[i] & 15) << (i < 16 ? 0 : 4));
    }
    if (values_only) {
        put(to, back, sizeof back);
        return;
    }
    put(to, &d16, 2);
    if (t->has_m) put(to, &m16, 2);
    if (t->bits == 5) put_u32(to, fifths);
    put(to, packed, t->bits == 8 ? 32 : 16);
}

/* dims as ggml has them: the contiguous one first; 0 ends. */
void tensor(const char *name, const float *x, int64_t a, int64_t b, int64_t c) {
    int f = n_written++ % n_files;
    int64_t dims[3] = {a, b, c}, n = a * (b ? b : 1) * (c ? c : 1);
    bool matrix = b && !strstr(name, ".bias"), blocks = matrix && quantized && a % 32 == 0;
    uint32_t type = matrix && fits_bf16(x, n) ? T_BF16 : T_F32;
    if (blocks) type = values_only ? T_F32 : quantized->number;
    if (strstr(name, "tid2eid")) type = T_I32;
    while (data[f].size % 32) put(&data[f], "", 1);
    put_text(&infos[f], name);
    put_u32(&infos[f], b ? c ? 3 : 2 : 1);
    for (int i = 0; i < 3 && dims[i]; i++) put_u64(&infos[f], (uint64_t)dims[i]);
    put_u32(&infos[f], type);
    put_u64(&infos[f], data[f].size);
    n_tensors[f]++;
    for (int64_t i = 0; blocks && i < n; i += 32) put_block(&data[f], x + i);
    if (blocks) return;
    if (type == T_F32) {
        put(&data[f], x, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; type == T_I32 && i < n; i++) put_u32(&data[f], (uint32_t)x[i]);
    for (int64_t i = 0; type == T_BF16 && i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        uint16_t h = (uint16_t)(u >> 16);
        put(&data[f], &h, 2);
    }
}

void gguf_end(const char *out) {
    for (int f = 0; f < n_files; f++) {
        mf__strbuf head = {0}, own = {0};
        char path[1024];
        int extra = n_files > 1 ? 2 : 0;
        snprintf(path, sizeof path, "%s", out);
        if (extra) snprintf(path, sizeof path, "%.*s-%05d-of-%05d.gguf", (int)strlen(out) - 5, out, f + 1, n_files);
        put(&head, "GGUF", 4);
        put_u32(&head, 3);
        put_u64(&head, (uint64_t)n_tensors[f]);
        put_u64(&head, (uint64_t)(f == 0 ? n_keys + extra : extra));
        if (f == 0) put(&head, keys.data, keys.size);
        if (extra) {
            put_text(&own, "split.count");
            put_u32(&own, 4);
            put_u32(&own, (uint32_t)n_files);
            put_text(&own, "split.no");
            put_u32(&own, 4);
            put_u32(&own, (uint32_t)f);
            put(&head, own.data, own.size);
        }
        put(&head, infos[f].data, infos[f].size);
        while (head.size % 32) put(&head, "", 1);
        FILE *file = fopen(path, "wb");
        CHECK(file && fwrite(head.data, 1, head.size, file) == head.size);
        CHECK(fwrite(data[f].data, 1, data[f].size, file) == data[f].size && fclose(file) == 0);
        mf__strbuf_free(&head);
        mf__strbuf_free(&own);
    }
    for (int f = 0; f < n_files; f++) {
        mf__strbuf_free(&infos[f]);
        mf__strbuf_free(&data[f]);
    }
    mf__strbuf_free(&keys);
}
