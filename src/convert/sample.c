/* The file: per layer the rows, the ids, the shares, each with room for max_tokens. Holes cost nothing. */
#include "convert/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "quant/half.h"

struct mf__sample {
    mf__sample_shape shape;
    int64_t n_tokens;
    int fd;
    char *name;    /* of the file, and the way out, for errors */
    uint16_t *row; /* [n_hidden] */
    int32_t *ids;  /* [top_k] */
};

static int64_t row_bytes(const mf__sample *s) {
    return s->shape.n_hidden * 2;
}

static int64_t choice_bytes(const mf__sample *s) {
    return (int64_t)s->shape.top_k * 4;
}

enum piece { ROWS, IDS, SHARES };

static int64_t place(const mf__sample *s, int layer, enum piece piece, int64_t token) {
    int64_t max = s->shape.max_tokens, layer_bytes = max * (row_bytes(s) + 2 * choice_bytes(s));
    int64_t at = layer * layer_bytes;
    if (piece == ROWS) return at + token * row_bytes(s);
    return at + max * (row_bytes(s) + (piece == SHARES ? choice_bytes(s) : 0)) + token * choice_bytes(s);
}

/* A file that nobody else sees: where the system has none without a name, it loses it at once. */
static int open_nameless(const char *folder) {
    char *path = mf__path_join(folder, ".moeflux-calibration-XXXXXX");
    int fd = -1;
#ifdef O_TMPFILE
    fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
    if (fd < 0 && path) {
        fd = mkstemp(path);
        if (fd >= 0) unlink(path);
    }
    free(path);
    return fd;
}

mf_status mf__sample_create(const char *folder, const mf__sample_shape *shape, mf__sample **out, mf_error *err) {
    mf__sample *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return mf__fail(err, MF_E_NOMEM, "no memory for a calibration");
    s->shape = *shape;
    s->row = malloc((size_t)row_bytes(s));
    s->ids = malloc((size_t)choice_bytes(s));
    mf__strbuf name = {0};
    mf__strbuf_printf(&name, NULL, "a temporary file of the calibration in %s (smaller with fewer --calibrate-tokens)",
                      folder);
    s->name = name.data;
    s->fd = open_nameless(folder);
    if (s->fd >= 0 && s->name && s->row && s->ids) {
        *out = s;
        return MF_OK;
    }
    mf_status st = s->fd < 0 ? mf__fail(err, errno == ENOSPC ? MF_E_NO_SPACE : MF_E_IO,
                                        "cannot make a temporary file in %s: %s", folder, strerror(errno))
                             : mf__fail(err, MF_E_NOMEM, "no memory for a calibration");
    mf__sample_free(s);
    return st;
}

void mf__sample_free(mf__sample *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    free(s->name);
    free(s->row);
    free(s->ids);
    free(s);
}

const mf__sample_shape *mf__sample_shape_of(const mf__sample *s) {
    return &s->shape;
}

int64_t mf__sample_tokens(const mf__sample *s) {
    return s->n_tokens;
}

static mf_status check_room(const mf__sample *s, int layer, int64_t n, mf_error *err) {
    if (layer >= 0 && layer < s->shape.n_layers && n >= 0 && n <= s->shape.max_tokens - s->n_tokens) return MF_OK;
    return mf__fail(err, MF_E_INVALID,
                    "a calibration of %lld tokens and %d layers has no room for %lld more at layer %d",
                    (long long)s->shape.max_tokens, s->shape.n_layers, (long long)n, layer);
}

mf_status mf__sample_rows(mf__sample *s, int layer, const float *rows, int64_t n, mf_error *err) {
    MF__TRY(check_room(s, layer, n, err));
    for (int64_t t = 0; t < n; t++, rows += s->shape.n_hidden) {
        for (int64_t i = 0; i < s->shape.n_hidden; i++) s->row[i] = mf__f32_to_bf16(rows[i]);
        MF__TRY(
            mf__pwrite_all(s->fd, s->row, (size_t)row_bytes(s), place(s, layer, ROWS, s->n_tokens + t), s->name, err));
    }
    return MF_OK;
}

mf_status mf__sample_ids(mf__sample *s, int layer, const float *ids, int64_t n, mf_error *err) {
    MF__TRY(check_room(s, layer, n, err));
    for (int64_t t = 0; t < n; t++, ids += s->shape.top_k) {
        for (int k = 0; k < s->shape.top_k; k++) {
            s->ids[k] = (int32_t)ids[k];
            if (s->ids[k] < 0 || s->ids[k] >= s->shape.n_experts)
                return mf__fail(err, MF_E_INVALID, "layer %d chose expert %d of %d", layer, s->ids[k],
                                s->shape.n_experts);
        }
        MF__TRY(mf__pwrite_all(s->fd, s->ids, (size_t)choice_bytes(s), place(s, layer, IDS, s->n_tokens + t), s->name,
                               err));
    }
    return MF_OK;
}

mf_status mf__sample_shares(mf__sample *s, int layer, const float *shares, int64_t n, mf_error *err) {
    MF__TRY(check_room(s, layer, n, err));
    return mf__pwrite_all(s->fd, shares, (size_t)(n * choice_bytes(s)), place(s, layer, SHARES, s->n_tokens), s->name,
                          err);
}

void mf__sample_count(mf__sample *s, int64_t n) {
    s->n_tokens += n;
}

mf_status mf__sample_layer(const mf__sample *s, int layer, uint16_t *rows, int32_t *ids, float *shares, mf_error *err) {
    int64_t n = s->n_tokens;
    if (!n) return MF_OK;
    MF__TRY(mf__pread_all(s->fd, rows, (size_t)(n * row_bytes(s)), place(s, layer, ROWS, 0), s->name, err));
    MF__TRY(mf__pread_all(s->fd, ids, (size_t)(n * choice_bytes(s)), place(s, layer, IDS, 0), s->name, err));
    return mf__pread_all(s->fd, shares, (size_t)(n * choice_bytes(s)), place(s, layer, SHARES, 0), s->name, err);
}
