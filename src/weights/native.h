/* The native model directory (docs/FORMAT.md):
 *
 *   model_weights.json   manifest: tensors (offset, size, shape, dtype, bits), config echo, expert layout
 *   model_weights.bin    the trunk: every tensor at a multiple of 64 bytes
 *   packed_experts/layer_NN.bin   expert e of layer NN at e * stride
 *   packed_experts_2bit/layer_NN.bin   the same experts in a smaller form; only on request
 *   config.json, tokenizer.json ...  copied from the checkpoint
 *
 * The manifest is what flash-moe writes, plus one object "moeflux" with what that leaves to compile time. */
#ifndef MF_WEIGHTS_NATIVE_H
#define MF_WEIGHTS_NATIVE_H

#include <jansson.h>

#include "quant/expert.h"
#include "weights/catalog.h"
#include "weights/shard.h"

#define MF_MANIFEST_VERSION 1

typedef struct mf__native {
    mf__catalog *catalog; /* the trunk */
    json_t *manifest;     /* whole model_weights.json */
    json_t *config;       /* config.json, or NULL when the directory has none */
    char *dir;            /* as given, without slashes at the end */
    /* experts */
    int n_layers;             /* one more than the highest N of the tensors "model.layers.N." */
    char **expert_files;      /* [n_layers] path, or NULL where the layer has no file */
    bool has_layout;          /* the manifest's own "moeflux" block had one */
    int n_experts;            /* from the manifest block; 0 when absent */
    mf__expert_layout layout; /* valid when has_layout; then every expert file is long enough for n_experts */
    mf__shard *shard;         /* the experts of one rank alone; NULL: all */
    bool only_2bit;           /* no layout and no packed_experts: expert_files are those of packed_experts_2bit */
} mf__native;

/* Opens a directory. Beside our own, the trees of the flash-moe tools are read: a parent with artifacts/ (manifest and
 * trunk), root/ (packed_experts) and mlx/ (config.json). A directory that is something else, or that a conversion did
 * not finish, is refused with a sentence that says what it is. After a failure *out is zeroed. */
mf_status mf__native_open(const char *dir, mf__native *out, mf_error *err);
void mf__native_close(mf__native *native); /* zeroed ones are fine; zeroes it */

/* The description of a set of experts in a manifest ("experts" or "experts_2bit" of the block "moeflux"). */
mf_status mf__native_experts_parse(const json_t *set, mf__expert_layout *layout, int *n_experts, mf_error *err);

/* The manifest alone, from memory: what the fuzzer calls. bin (bin_size bytes) stands for model_weights.bin and must
 * outlive *out. Leaves config, dir and expert_files NULL. */
mf_status mf__manifest_parse(const char *name, const char *json, size_t json_size, const uint8_t *bin, size_t bin_size,
                             mf__native *out, mf_error *err);

/* ---- writing: begin (or resume), tensors in any order, experts layer by layer, finish.
 *      The directory is made complete or not at all. ---- */

typedef struct mf__native_writer mf__native_writer;

/* Writes into DIR.partial; finish renames it to DIR. DIR must not exist (MF_E_EXISTS). A DIR.partial that a killed run
 * left is removed; one that is in use, or that has anything else in it, is MF_E_EXISTS. */
mf_status mf__native_writer_begin(const char *dir, mf__native_writer **out, mf_error *err);

/* What is being written: a DIR.partial is continued only by the same work. */
typedef struct mf__native_work {
    const char *source;  /* one line that identifies the input */
    const char *options; /* one line, for people too: "experts 4, trunk 8" */
    int encoder;         /* version of what makes the bytes */
    bool restart;        /* start over whatever DIR.partial holds */
} mf__native_work;

/* As begin, with a journal: parts that an earlier, interrupted run of the same work finished are kept, and the caller
 * skips them (see has_tensor and experts_done). Other work in DIR.partial is MF_E_EXISTS with the way out. */
mf_status mf__native_writer_resume(const char *dir, const mf__native_work *work, mf__native_writer **out,
                                   mf_error *err);
bool mf__native_writer_has_tensor(const mf__native_writer *w, const char *name);
int mf__native_writer_experts_done(const mf__native_writer *w, int layer);

/* Appends one stored tensor to model_weights.bin: name, type, dims, data and size of the entry are used. bits: for U32
 * words of an affine tensor, else 0. After a failure of this or the functions below only abort or suspend make sense.
 */
mf_status mf__native_writer_tensor(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err);
/* The same in pieces: begin (the entry's data is not used), data until its size is reached, end. */
mf_status mf__native_writer_tensor_begin(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err);
mf_status mf__native_writer_tensor_data(mf__native_writer *w, const void *data, int64_t size, mf_error *err);
mf_status mf__native_writer_tensor_end(mf__native_writer *w, mf_error *err);

/* The path of a file inside the unfinished directory, to write config.json, tokenizer.json ... with base/file.h.
 * malloc'd; NULL when there is no memory or name is not a plain file name. */
char *mf__native_writer_path(mf__native_writer *w, const char *name);

/* A second set of experts in packed_experts_2bit/; said before the first layer. */
mf_status mf__native_writer_second_set(mf__native_writer *w, const mf__expert_layout *layout, mf_error *err);
/* Experts of one layer, in order of expert id, each layout->bytes long; the writer pads to the stride. All layers have
 * the same layout and number of experts; a layer comes once. After resume the first expert is experts_done. second: the
 * same expert in the second set, NULL without one. */
mf_status mf__native_writer_experts_begin(mf__native_writer *w, int layer, const mf__expert_layout *layout,
                                          int n_experts, mf_error *err);
mf_status mf__native_writer_expert(mf__native_writer *w, const void *blob, mf_error *err);
mf_status mf__native_writer_expert_pair(mf__native_writer *w, const void *blob, const void *second, mf_error *err);
/* Several at once, and fast: blobs a stride apart, the space between them zeroed, with their XXH64 (which the caller
 * had time for). */
typedef struct mf__expert_run {
    int n;
    const uint8_t *blobs, *seconds;         /* seconds: of the second set, or NULL */
    const uint64_t *hashes, *second_hashes; /* [n] */
} mf__expert_run;
mf_status mf__native_writer_expert_run(mf__native_writer *w, const mf__expert_run *run, mf_error *err);
mf_status mf__native_writer_experts_end(mf__native_writer *w, mf_error *err); /* MF_E_INTERNAL unless all came */

/* Everything since the last call is a finished part: the journal gets it, now or soon, and a later resume keeps it.
 * note (may be NULL; taken over) is kept with it: notes gives all of them, also those of earlier runs, in order. */
mf_status mf__native_writer_part(mf__native_writer *w, json_t *note, mf_error *err);
/* The journal has every finished part, and the disk what it stands for. */
mf_status mf__native_writer_commit(mf__native_writer *w, mf_error *err);
const json_t *mf__native_writer_notes(const mf__native_writer *w); /* an array */

/* Writes the manifest (source: where the model came from, a short name, no machine path; config: echoed, may be NULL),
 * with checksums of everything, syncs, renames. about (may be NULL) goes into the manifest as moeflux.conversion. Frees
 * the writer whatever happens; on failure the partial directory is removed, or kept if it can be resumed. */
mf_status mf__native_writer_finish(mf__native_writer *w, const char *source, const json_t *config, mf_error *err);
mf_status mf__native_writer_finish_about(mf__native_writer *w, const char *source, const json_t *config,
                                         const json_t *about, mf_error *err);
void mf__native_writer_abort(mf__native_writer *w); /* removes DIR.partial; NULL is fine */
/* Stops, keeping finished parts for a resume. False (and nothing left) when there are none. */
bool mf__native_writer_suspend(mf__native_writer *w);

#endif
