#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

char *scratch_make(void) {
    char *dir = strdup("scratch-XXXXXX");
    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    return dir;
}

void scratch_free(char *dir) {
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
    free(dir);
}

char *join(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    assert_non_null(path);
    return path;
}

void write_file(const char *dir, const char *name, const void *data, size_t size) {
    char *path = join(dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(path);
}

void write_text(const char *dir, const char *name, const char *text) {
    write_file(dir, name, text, strlen(text));
}

void *read_whole(const char *dir, const char *name, size_t *size) {
    char *path = join(dir, name), *data;
    assert_int_equal(mf__file_read(path, (size_t)1 << 30, &data, size, NULL), MF_OK);
    free(path);
    return data;
}

uint8_t *safetensors_bytes(const char *header, size_t n_data, size_t *size) {
    uint64_t length = strlen(header);
    *size = 8 + (size_t)length + n_data;
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, (size_t)length);
    for (size_t i = 0; i < n_data; i++) bytes[8 + length + i] = (uint8_t)i;
    return bytes;
}

void write_safetensors(const char *dir, const char *name, const char *header, size_t n_data) {
    size_t size;
    uint8_t *bytes = safetensors_bytes(header, n_data, &size);
    write_file(dir, name, bytes, size);
    free(bytes);
}

void assert_error(mf_status got, const mf_error *err, mf_status want, ...) {
    if (got != want) fail_msg("%s (%s), expected %s", mf_status_name(got), err->text, mf_status_name(want));
    assert_int_equal(err->status, want);
    va_list ap;
    va_start(ap, want);
    for (const char *s; (s = va_arg(ap, const char *));)
        if (!strstr(err->text, s)) fail_msg("\"%s\" does not say \"%s\"", err->text, s);
    va_end(ap);
}

static void check_span(const void *p, int64_t n, const uint8_t *data, size_t size, const char *name) {
    const uint8_t *q = p;
    if (n == 0) return;
    if (n < 0 || q < data || (size_t)n > size || q > data + size - n) fail_msg("%s lies outside the file", name);
}

static void decode_all(const mf__tensor *t, const uint8_t *data, size_t size, const char *name) {
    int64_t rows = t->n_planes * t->n_rows, scale_bytes = 0;
    if (t->type == MF_TYPE_AFFINE) {
        scale_bytes = rows * (t->n_cols / t->group) * mf__type_bits(t->scale_type) / 8;
        check_span(t->scales, scale_bytes, data, size, name);
        check_span(t->biases, scale_bytes, data, size, name);
    }
    check_span(t->data, mf__tensor_bytes(t) - 2 * scale_bytes, data, size, name);
    if (rows == 0 || t->n_cols == 0) return;
    float *out = malloc((size_t)t->n_cols * sizeof *out);
    assert_non_null(out);
    for (int64_t p = 0; p < t->n_planes; p++) {
        mf__tensor plane = mf__tensor_plane(t, p);
        for (int64_t r = 0; r < t->n_rows; r++) mf__tensor_row_f32(&plane, r, out);
    }
    free(out);
}

void check_catalog(const mf__catalog *cat, const uint8_t *data, size_t size) {
    for (int64_t i = 0; i < mf__catalog_count(cat); i++) {
        const mf__entry *e = mf__catalog_at(cat, i);
        check_span(e->data, e->size, data, size, e->name);
        assert_ptr_equal(mf__catalog_find(cat, e->name), e);
        if (i > 0) assert_true(strcmp(mf__catalog_at(cat, i - 1)->name, e->name) < 0);
        mf__tensor t;
        mf_error err;
        if (mf__catalog_tensor(cat, e->name, 0, &t, &err) == MF_OK) decode_all(&t, data, size, e->name);
    }
}

mf__entry make_entry(const char *name, mf__type type, int64_t rows, int64_t cols, const void *data) {
    mf__entry e = {.name = name, .type = type, .n_dims = 2, .dims = {rows, cols}, .data = data};
    e.size = rows * cols * mf__type_bits(type) / 8;
    return e;
}
