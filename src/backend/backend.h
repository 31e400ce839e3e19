/* What a backend is: memory, and running graphs.
 *
 * The engine owns everything a backend works on; a run gets addresses in the backend's own address space, which nobody
 * but the backend may dereference. A backend never sees the expert store: experts arrive as a bank of addresses.
 *
 * Work is asynchronous. Runs are submitted in lists; submit() returns when it has taken note of a list, and whatever
 * the list points to on the host (bindings, segments, states, banks) may change then. The memory that runs use, experts
 * among it, must stay until the list's fence has been waited for. Uploads, copies, zeroing and lists happen in the
 * order of the calls; only download() and wait() wait. A run that fails on the way makes the next of those two fail.
 *
 * Calls are made by one thread at a time (the engine's lock), all but alloc(), release(), fill(), host_alloc(),
 * host_release() and reads_host(): the store makes room and brings experts from threads of its own. */
#ifndef MF_BACKEND_BACKEND_H
#define MF_BACKEND_BACKEND_H

#include "base/pool.h"
#include "graph/graph.h"
#include "quant/expert.h"
#include "quant/kv.h"

/* The KV rows of one layer of one sequence. Rows live in pages, which are numbers in a pool: page i of the sequence is
 * pool[pages[i]], and this layer's block of it lies `off` bytes into it: block_rows rows of K, then as many of V, in
 * one of the forms of quant/kv.h; where v_step positions share a V row, fewer of those. Pool and pages are tables in
 * the backend's memory. */
typedef struct mf__kv {
    char *const *pool;
    const int32_t *pages;
    int64_t off;
    int32_t block_rows;
    int32_t k_cols, v_cols;
    int32_t v_step;           /* positions that share a V row */
    int64_t k_bytes, v_bytes; /* of a row: mf__kv_row_bytes */
    mf__type type;
} mf__kv;

static inline mf__kv mf__kv_make(char *const *pool, const int32_t *pages, int64_t off, int32_t block_rows,
                                 mf__type type, int32_t k_cols, int32_t v_cols) {
    return (mf__kv){.pool = pool,
                    .pages = pages,
                    .off = off,
                    .block_rows = block_rows,
                    .k_cols = k_cols,
                    .v_cols = v_cols,
                    .v_step = 1,
                    .k_bytes = mf__kv_row_bytes(type, k_cols),
                    .v_bytes = mf__kv_row_bytes(type, v_cols),
                    .type = type};
}
/* Where the row of a position lies: for backends whose memory is the host's. */
static inline char *mf__kv_block(const mf__kv *kv, int64_t pos) {
    return kv->pool[kv->pages[pos / kv->block_rows]] + kv->off;
}
static inline void *mf__kv_k(const mf__kv *kv, int64_t pos) {
    return mf__kv_block(kv, pos) + pos % kv->block_rows * kv->k_bytes;
}
static inline void *mf__kv_v(const mf__kv *kv, int64_t pos) {
    return mf__kv_block(kv, pos) + kv->block_rows * kv->k_bytes + pos % kv->block_rows / kv->v_step * kv->v_bytes;
}

/* The state of one layer of one sequence. Recurrent state is read from _in and written to _out, which may be the same:
 * the engine keeps the old one until a whole call has succeeded. Layouts: conv [kernel - 1][channels], oldest row
 * first, inputs before the convolution; delta [v heads][v_dim][k_dim]. */
typedef struct mf__layer_state {
    mf__kv kv;
    const float *conv_in, *delta_in;
    float *conv_out, *delta_out;
} mf__layer_state;

/* Consecutive rows that belong to one sequence. */
typedef struct mf__segment {
    int32_t row0, n_rows;
    int64_t pos; /* of row0 in its sequence; rows before it are in the state */
    const mf__layer_state *state;
} mf__segment;

/* Experts that can be used in this run: blobs[e] is NULL for those that cannot. A bank is whole when it has every
 * expert of the layer: then nobody needs to know on the host which ones the rows want. */
typedef struct mf__bank {
    const mf__expert_layout *layout;
    int32_t n_experts;
    const void *const *blobs; /* [n_experts] addresses in the backend's memory; the table is the host's */
    bool whole;
    uint64_t version; /* whole: equal numbers, equal tables (of this layer), so that a backend may keep a copy */
} mf__bank;

/* Everything a graph needs for one run. */
typedef struct mf__binding {
    int32_t n_rows;
    void *const *bufs;         /* [graph.n_bufs] */
    const mf__tensor *weights; /* [graph.n_weights] */
    const mf__segment *segs;   /* cover the rows in order; graphs without state have segments without one, or none */
    int32_t n_segs;
    const mf__bank *bank; /* for graphs with an EXPERTS op, which writes only the pairs of experts in the bank */
} mf__binding;

/* One graph, run once. */
typedef struct mf__run {
    const mf__graph *g;
    mf__binding b;
} mf__run;

typedef uint64_t mf__fence;

typedef struct mf__backend mf__backend;

/* For those who measure: an op that is done, or several that the backend did as one. */
typedef struct mf__op_done {
    const mf__graph *g;
    const mf__binding *b;
    const mf__op *op; /* [n_ops] */
    int n_ops;
    int64_t n_experts, n_pairs; /* EXPERTS: experts that were used, rows that went to them */
} mf__op_done;

typedef struct mf__op_watch {
    void (*fn)(void *user, const mf__op_done *done, int64_t ns); /* NULL: nobody watches, and nothing is measured */
    void *user;
} mf__op_watch;

struct mf__backend {
    const char *name;
    const char *numerics; /* names the arithmetic, where one backend has several; states are bound to both */
    mf__op_watch watch;   /* set by whoever watches, between runs */

    /* Graphs read weights and experts where the host has them. Otherwise the backend has memory of its own: weights are
     * adopted, experts are filled into slots of its memory, and it has a budget apart from the host's. */
    bool host_memory;
    int64_t memory_bytes; /* memory of its own that was free when it was made; 0 with host_memory */

    void (*free)(mf__backend *be);

    /* Memory the graphs can use; 64-byte aligned, contents undefined. release() waits for what still uses it. */
    mf_status (*alloc)(mf__backend *be, int64_t bytes, void **out, mf_error *err);
    void (*release)(mf__backend *be, void *mem);
    /* from_host has been read when upload returns. */
    mf_status (*upload)(mf__backend *be, void *to, const void *from_host, int64_t bytes, mf_error *err);
    mf_status (*download)(mf__backend *be, void *to_host, const void *from, int64_t bytes, mf_error *err);
    mf_status (*zero)(mf__backend *be, void *mem, int64_t bytes, mf_error *err);
    /* Between two places of its memory that do not overlap. */
    mf_status (*copy)(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err);
    /* For experts, with memory of its own: copies from host memory beside whatever runs, from any thread, and returns
     * when the bytes are there. Nothing that runs meanwhile uses them. NULL with host_memory. */
    mf_status (*fill)(mf__backend *be, void *to, const void *from_host, int64_t bytes, mf_error *err);

    /* With memory of its own, optional: memory of the host, for experts, that banks may have addresses of as well:
     * graphs read it where it is, if slower. Where such memory cannot be had it is plain, and from then on reads_host()
     * says no: then banks have no such addresses. */
    mf_status (*host_alloc)(mf__backend *be, int64_t bytes, void **out, mf_error *err);
    void (*host_release)(mf__backend *be, void *mem); /* nothing uses it any more */
    bool (*reads_host)(mf__backend *be);
    /* Optional, with these: so much of its memory (0: none) may be taken for experts in host memory on their way to
     * runs of many rows. Waits for what uses it. staging_bytes(): how much helps with experts of so many bytes. */
    int64_t (*staging_bytes)(const mf__backend *be, int64_t expert_bytes, int32_t n_experts);
    mf_status (*stage)(mf__backend *be, int64_t bytes, mf_error *err);

    /* NULL with host_memory. Turns a host tensor into one that graphs can read; owned by the backend until it is
     * freed. */
    mf_status (*adopt)(mf__backend *be, const mf__tensor *host, mf__tensor *out, mf_error *err);

    bool (*supports)(const mf__backend *be, const mf__op *op);

    /* Most bytes of private scratch that one run of this graph may need (0 for none); the engine passes the largest
     * to reserve() before the first run, so that submit allocates nothing. */
    int64_t (*scratch)(const mf__backend *be, const mf__graph *g, int32_t n_rows);
    mf_status (*reserve)(mf__backend *be, int64_t bytes, mf_error *err);

    /* A list equal to an earlier one in all but segments and states may be replayed. */
    mf_status (*submit)(mf__backend *be, const mf__run *runs, int n_runs, mf__fence *out, mf_error *err);
    mf_status (*wait)(mf__backend *be, mf__fence fence, mf_error *err);
};

/* watch.c, for backends whose memory is the host's: around each op. */
int64_t mf__watch_begin(const mf__backend *be);
void mf__watch_end(const mf__backend *be, int64_t began, const mf__op_done *done);

/* ---- which backends there are (registry.c) ---- */

typedef struct mf__backend_config {
    mf__pool *pool; /* borrowed */
    bool exact;     /* f32 activations in every product; otherwise rounded ones with weights in groups */
    mf_log_sink log;
} mf__backend_config;

/* A kind of backend. Each has one, in its own folder; registry.c lists them, the best first. */
typedef struct mf__backend_kind {
    const char *name;
    const char *summary; /* for people */
    bool automatic;      /* may be chosen where nobody named one */
    bool reference;      /* its results define what is right: keys and values stay f32 unless asked otherwise */
    bool (*available)(char *why, size_t size); /* here and now; why not, or what was found, as a sentence */
    mf_status (*create)(const mf__backend_config *config, mf__backend **out, mf_error *err);
} mf__backend_kind;

int mf__backend_count(void);
const mf__backend_kind *mf__backend_at(int i);
const mf__backend_kind *mf__backend_find(const char *name); /* NULL: there is none */
/* "auto, cpu and ref" */
#define MF_BACKEND_NAMES 96
void mf__backend_names(char text[MF_BACKEND_NAMES]);

/* Makers, for those who know which one they want. */
mf_status mf__backend_ref_create(mf__pool *pool, mf__backend **out, mf_error *err);

/* Instruction sets of the cpu backend, of each kind of processor the better ones later. avx2: with FMA and F16C;
 * avx512: F, BW, DQ, VL, VBMI and VNNI; dotprod: NEON with dot products; i8mm: and with those of mixed signs. */
typedef enum mf__cpu_level {
    MF_CPU_BEST,
    MF_CPU_SCALAR,
    MF_CPU_AVX2,
    MF_CPU_AVX512,
    MF_CPU_NEON,
    MF_CPU_DOTPROD,
    MF_CPU_I8MM,
    MF_CPU_LEVELS
} mf__cpu_level;

const char *mf__cpu_level_name(mf__cpu_level level);
bool mf__cpu_level_available(mf__cpu_level level); /* in this build and on this machine */
mf__cpu_level mf__cpu_level_best(void);

/* Kernels come in families, and a level may have the kernels of an earlier one for some of them: the name of the
 * instruction set that each family is compiled for. */
typedef enum mf__cpu_family { MF_CPU_INT8, MF_CPU_F32, MF_CPU_ROWWISE, MF_CPU_KV, MF_CPU_FAMILIES } mf__cpu_family;
void mf__cpu_level_families(mf__cpu_level level, const char *sets[MF_CPU_FAMILIES]);

typedef struct mf__cpu_options {
    mf__cpu_level level; /* BEST: mf__cpu_level_best */
    bool exact;          /* f32 activations in every product; otherwise rounded ones with weights in groups */
} mf__cpu_options;

mf_status mf__backend_cpu_create(mf__pool *pool, const mf__cpu_options *opt, mf__backend **out, mf_error *err);

#endif
