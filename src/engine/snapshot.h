/* States as bytes: what mf_state_save writes and what the prompt cache keeps on disk.
 *
 * Little-endian. A header (below), then for the positions [base, length):
 *   tokens  i32 each, padded to 8 bytes
 *   per layer that keeps KV: its K rows, then its V rows, in the form of quant/kv.h that the header names; where several
 *   positions share a V row, those of rows that became complete
 *   per layer with recurrent state: convolution history, then recurrence (at `length`; independent of base)
 *   u64     XXH64 of everything before
 * base > 0 makes an increment, readable only together with the state it goes on from. */
#ifndef MF_ENGINE_SNAPSHOT_H
#define MF_ENGINE_SNAPSHOT_H

#include "base/file.h"
#include "engine/internal.h"

#define MF_SNAPSHOT_MAGIC 0x4D464C58u /* "XLFM": the magic of moeflux's snapshots, whose versions 1 and 2 we read */
#define MF_SNAPSHOT_VERSION 3u

typedef struct mf__snapshot_header {
    uint32_t magic, version;
    uint64_t bytes;       /* of the whole, checksum included */
    uint64_t fingerprint; /* of the model and how it computes */
    uint64_t parent;      /* names the state an increment goes on from; 0 for a whole one */
    int64_t base, length;
    uint32_t n_layers;
    uint32_t kv_type; /* mf__type of the rows */
} mf__snapshot_header;
_Static_assert(sizeof(mf__snapshot_header) == 56, "the header is written as it lies in memory");

/* What a snapshot must fit: taken from the model, or made up by the fuzzer. */
typedef struct mf__snapshot_shape {
    uint64_t fingerprint;
    int32_t n_layers, n_vocab;
    int64_t max_length;
    mf__type kv_type;
    bool latent;                               /* KV rows are latents and rope keys */
    const int32_t *k_cols, *v_cols;            /* [n_layers]; 0: no KV */
    const int32_t *v_step;                     /* [n_layers] positions that share a V row; NULL: 1 */
    const int64_t *conv_floats, *delta_floats; /* [n_layers]; 0: none */
} mf__snapshot_shape;

/* A checked snapshot: offsets into the bytes. */
typedef struct mf__snapshot_view {
    mf__snapshot_header h;
    int64_t tokens_off;            /* -1: the snapshot does not say (versions 1 and 2) */
    int64_t *k_off, *v_off;        /* [n_layers] of row `base` */
    int64_t *conv_off, *delta_off; /* [n_layers] */
} mf__snapshot_view;

/* The bytes of a snapshot. mapped: they are a file's, and what was read of them is let go again, so that a state is not
 * in memory twice. */
typedef struct mf__snapshot_source {
    mf__map map;
    bool mapped;
} mf__snapshot_source;

/* Checks everything (sizes, checksum, fingerprint, ranges) without changing anything. Free the view afterwards. */
mf_status mf__snapshot_parse(const mf__snapshot_shape *shape, const mf__snapshot_source *src, mf__snapshot_view *out,
                             mf_error *err);
void mf__snapshot_view_free(mf__snapshot_view *view);

int64_t mf__snapshot_bytes(const mf__snapshot_shape *shape, int64_t base, int64_t length);

/* With a model, whose lock they take for moments: never while a file is read or written. write gets the bytes in
 * pieces. */
mf_status mf__snapshot_write(mf_model *m, const mf__frozen *f, int64_t base, uint64_t parent, mf__write_fn *write,
                             void *sink, mf_error *err);
/* parent: the state that an increment goes on from (its length is the increment's base); NULL for a whole one.
 * recurrent: false leaves that state out, for a link in the middle of a chain. */
mf_status mf__snapshot_read(mf_model *m, const mf__snapshot_source *src, const mf__frozen *parent, bool recurrent,
                            mf__frozen **out, mf_error *err);

/* Of config, manifest, a sample of every tensor's and every expert file's bytes, backend, its arithmetic, KV type,
 * experts per token and stretched contexts. Fills m->shape; does nothing the second time. No lock held. */
mf_status mf__model_fingerprint(mf_model *m, mf_error *err);

#endif
