/* The cuda backend: private structures, shared by the host (C) and the kernels' files (CUDA C++ behind C functions).
 *
 * Host: cuda.c (memory, lists, replay), emit.c (a list of runs becomes launches), fuse.c (patterns become fused ones),
 * reach.c (experts in the host's memory). Kernels, one file per family, each with the functions that launch them:
 * rows.cu, few.cu, mixture.cu and experts.cu (products of a few rows), tiles.cu (of many, grouped by sort.cu),
 * attention.cu, narrow.cu and flash.cu (few and many rows over f16), mla.cu, delta.cu, route.cu, fused.cu.
 *
 * Everything that changes between equal lists (positions, pages, states) is in a table in device memory that is
 * uploaded before the launches: they can be replayed as a CUDA graph.
 *
 * No sum is made by atomics, and how a row is summed up depends on its own segment only (mf__cu_range): a row has the
 * same bits alone and beside others.
 *
 * Products come in two forms, as in the cpu backend. f32: weights are decoded, activations are f32 (any type; always
 * with `exact`). int8: activations are rounded to 15 bits with a scale for every MF_CU_BLOCK columns and held as two
 * planes of bytes, q = 2^7 high + low, which meet the stored codes as integers. */
#ifndef MF_BACKEND_CUDA_CUDA_H
#define MF_BACKEND_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MF_CU_FEW 8      /* rows of a segment up to which they are multiplied one by one */
#define MF_CU_UNIT 8     /* columns of a unit: 16 bytes, high even, high odd, low even, low odd columns */
#define MF_CU_GRANULE 32 /* columns whose codes one thread multiplies; they are in one group */
#define MF_CU_BLOCK 256  /* columns that share a scale of activations */
#define MF_CU_MAX_JOBS 8 /* matrices of one launch */
#define MF_CU_MAX_TOPK 16
#define MF_CU_MAX_EXPERTS 1024

/* Types as kernels tell them apart. */
typedef enum mf__cu_type {
    MF_CU_F32,
    MF_CU_F16,
    MF_CU_BF16,
    MF_CU_AFFINE,
    MF_CU_MXFP4,
    MF_CU_F8,
    MF_CU_I8
} mf__cu_type;

/* A matrix of weights. */
typedef struct mf__cu_matrix {
    mf__cu_type type, scale_type;
    int32_t n_rows, n_cols;
    int32_t bits, group, block_rows; /* of types with scales */
    int32_t n_groups;                /* of a row */
    int64_t row_bytes;
    const char *data, *scales, *biases;
    bool wide; /* rows of codes lie at multiples of what a thread loads at once */
} mf__cu_matrix;

/* One segment of one run, in the table. */
typedef struct mf__cu_segment {
    int32_t row0, n_rows;
    int64_t pos;
    char *const *pool;
    const int32_t *pages;
    int64_t off, k_bytes, v_bytes;
    int32_t block_rows, k_cols, v_cols;
    mf__cu_type kv_type;
    const float *conv_in, *delta_in;
    float *conv_out, *delta_out;
} mf__cu_segment;

/* Where a run's segments are in the table. */
typedef struct mf__cu_segments {
    const mf__cu_segment *at; /* [n] */
    const int32_t *of_row;    /* [n_rows] */
    int32_t n;
    int32_t most_rows; /* of one segment */
} mf__cu_segments;

/* ---- activations on their way into a product -------------------------------------------------------------------- */

typedef enum mf__cu_before {
    MF_CU_AS_IS,
    MF_CU_NORM,       /* x * w / rms(x), over the row */
    MF_CU_GATED_NORM, /* per part: x * w / rms(x) * silu(x2) */
    MF_CU_SIGMOID,    /* x * sigmoid(x2) */
    MF_CU_GLU         /* glu(x, x2) */
} mf__cu_before;

typedef struct mf__cu_glu {
    int32_t clamped;
    float alpha, limit;
} mf__cu_glu;

typedef struct mf__cu_input {
    mf__cu_before before;
    const float *x, *x2, *w; /* [n][n_cols], [n][n_cols], [n_cols] or [part] */
    float *keep;             /* where the values go that are multiplied; NULL: nobody else wants them */
    int32_t n, n_cols, part;
    float eps;
    mf__cu_glu glu;
} mf__cu_input;

/* One product of a launch: y[t][row] = W x[t] (+ bias) (+ add[t]). */
typedef struct mf__cu_job {
    mf__cu_matrix w;
    const float *bias, *add;
    float *y;
} mf__cu_job;

/* Rows of activations, rounded: q [n][n_cols / 8] units, scale [n][blocks], sum [n][n_cols / 32]. */
typedef struct mf__cu_planes {
    void *q;
    float *scale, *sum;
} mf__cu_planes;

static inline int32_t mf__cu_blocks(int32_t cols) {
    return (cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
}
int64_t mf__cu_planes_bytes(int64_t n, int32_t cols);
mf__cu_planes mf__cu_planes_at(void *mem, int64_t n, int32_t cols);

/* The experts of a layer: table[e] is the address of expert e, or NULL. */
typedef struct mf__cu_bank {
    const char *const *table;
    int32_t n_experts;
    mf__cu_matrix gate, up, down; /* data, scales and biases are offsets from a blob's start */
    int64_t b_gate, b_up, b_down; /* offsets of bias vectors; -1: none */
} mf__cu_bank;

typedef struct mf__cu_experts {
    mf__cu_bank bank;
    mf__cu_glu glu;
    int32_t n_rows, top_k, hidden, inner;
    const float *x;
    const int32_t *ids;
    float *pairs; /* [n_rows][top_k][hidden] */
    bool exact;
} mf__cu_experts;

/* What becomes of the pairs of a row, with the shared expert: combine. */
typedef struct mf__cu_combine {
    int32_t n_rows, top_k, hidden;
    const float *h, *pairs, *shares, *shared, *score;
    float *y;
} mf__cu_combine;

/* ---- launches ----------------------------------------------------------------------------------------------------
 * All are asynchronous on the stream; errors are asked for by the caller (cudaGetLastError). */

/* rows.cu */
void mf__cu_embed(cudaStream_t s, const mf__cu_matrix *table, const int32_t *tokens, int32_t n, float *y);
void mf__cu_rms_norm(cudaStream_t s, const float *x, const float *w, int64_t n_parts, int32_t part, float eps,
                     float *y);
void mf__cu_gated_norm(cudaStream_t s, const float *x, const float *z, const float *w, int64_t n_parts, int32_t part,
                       float eps, float *y);
void mf__cu_split(cudaStream_t s, const float *x, int32_t n, int32_t cols, int32_t n_first, float *a, float *b);
void mf__cu_split_q_gate(cudaStream_t s, const float *u, int64_t n_heads, int32_t dim, float *q, float *gate);
typedef struct mf__cu_rope {
    float *x;
    const float *inv_freq;
    int32_t n_rows, n_heads, head_dim, offset, n_rot;
    bool interleaved;
    float scale;
    mf__cu_segments segs;
} mf__cu_rope;
void mf__cu_rope_rows(cudaStream_t s, const mf__cu_rope *r);
void mf__cu_add(cudaStream_t s, const float *a, const float *b, int64_t n, float *y);
void mf__cu_glu_rows(cudaStream_t s, const mf__cu_glu *glu, const float *gate, const float *up, int64_t n, float *y);
void mf__cu_sigmoid_gate(cudaStream_t s, float *x, const float *gate, int64_t n);
void mf__cu_combine_rows(cudaStream_t s, const mf__cu_combine *c);
void mf__cu_quantize(cudaStream_t s, const mf__cu_input *in, const mf__cu_planes *out); /* AS_IS or GLU */

/* few.cu: all jobs of one input in one launch. Their int8 matrices have the same number of bits. */
void mf__cu_few(cudaStream_t s, const mf__cu_input *in, const mf__cu_job *jobs, int n_jobs, bool exact);
/* Whether a row of so many columns fits into a block's shared memory here; else it goes to the tiles. */
bool mf__cu_few_fits(int32_t n_cols, bool planes, bool floats);
/* Whether a matrix is multiplied as integers. */
bool mf__cu_is_int8(const mf__cu_matrix *w, bool exact);

/* experts.cu: pairs one by one. act: [n_rows * top_k][inner]. */
void mf__cu_experts_few(cudaStream_t s, const mf__cu_experts *e, float *act);

/* sort.cu: pairs (row * top_k + k) by expert, for those in the bank; tiles of MF_CU_TILE_ROWS of them at most. */
#define MF_CU_TILE_ROWS 64
typedef struct mf__cu_tile {
    int32_t expert, first, n;
} mf__cu_tile;
typedef struct mf__cu_sort {
    const int32_t *ids;
    const char *const *table;
    int32_t n_pairs, n_experts;
    int32_t *counts; /* [n_experts] */
    int32_t *order;  /* [n_pairs] */
    mf__cu_tile *tiles;
    int32_t *n_tiles;
} mf__cu_sort;
void mf__cu_sort_pairs(cudaStream_t s, const mf__cu_sort *p);

/* tiles.cu: products of many rows. Without tiles: n rows; with them the rows of each tile with its expert's matrix. */
typedef struct mf__cu_tiles {
    mf__cu_job jobs[MF_CU_MAX_JOBS]; /* of one input; int8: of one kind of codes, bits and group */
    int32_t n_jobs;
    mf__cu_planes x;
    int32_t n, n_cols;
    /* experts: w.data, scales, biases are offsets */
    const mf__cu_tile *tiles;
    const int32_t *n_tiles, *order;
    int32_t max_tiles;       /* that there can be */
    int32_t top_k;           /* of order's entry p the row of x is p / top_k; 0: p */
    bool x_sorted, y_sorted; /* rows lie in sorted order instead */
    const char *const *table;
    int64_t bias_off[MF_CU_MAX_JOBS];
} mf__cu_tiles;
void mf__cu_multiply_tiles(cudaStream_t s, const mf__cu_tiles *t);
void mf__cu_multiply_f32(cudaStream_t s, const mf__cu_tiles *t, const float *x); /* sort.cu; f32 activations */

/* attention.cu */
typedef struct mf__cu_append {
    const float *k, *v;
    int32_t n_rows, k_cols, v_cols;
    mf__cu_segments segs;
} mf__cu_append;
void mf__cu_kv_append(cudaStream_t s, const mf__cu_append *a);

#define MF_CU_SPLIT 64   /* keys whose share of a row's attention is computed by one block, */
#define MF_CU_SPLITS 128 /* or as many times twice as many as make no more shares than that (narrow.cu) */
typedef struct mf__cu_attention {
    const float *q;     /* [n_rows][n_heads][k_dim] */
    const float *sinks; /* [n_heads] or NULL */
    const float *gate;  /* NULL, or o is multiplied with sigmoid(gate): head h's at h * gate_step */
    int32_t gate_step;
    float *o;             /* [n_rows][n_heads][v_dim] */
    float *parts;         /* [n_rows][n_heads][n_splits][v_dim + 2]: values, maximum, sum */
    bool narrow;          /* shares are narrow.cu's */
    int32_t row0, n_rows; /* of the run: what q, o and parts have */
    int32_t n_heads, n_kv_heads, k_dim, v_dim;
    int32_t n_rope;   /* MLA: queries are [k_dim | n_rope], values are the keys' first v_dim columns; else 0 */
    int32_t q_stride; /* from head to head */
    int32_t n_splits; /* of the longest row */
    int32_t window;
    float scale;
    mf__cu_segments segs;
} mf__cu_attention;
void mf__cu_attend(cudaStream_t s, const mf__cu_attention *a);
/* narrow.cu: shares of a few rows' attention over KV rows of f16, as flash.cu wants them. */
bool mf__cu_narrow_fits(const mf__cu_attention *a);
void mf__cu_narrow(cudaStream_t s, const mf__cu_attention *a);
/* flash.cu: segments of many rows over KV rows of f16, whose places are multiples of 16 bytes. */
bool mf__cu_flash_fits(const mf__cu_attention *a);
void mf__cu_flash(cudaStream_t s, const mf__cu_attention *a);
int64_t mf__cu_attention_bytes(int32_t n_rows, int32_t n_heads, int32_t v_dim, int32_t n_splits);

/* mla.cu */
typedef struct mf__cu_mla {
    const float *q; /* [n_rows][n_heads][n_nope + n_rope] */
    float *o;       /* [n_rows][n_heads][v_dim] */
    mf__cu_matrix w_uk, w_uv;
    bool joint; /* w_uk has the rows of both */
    int32_t n_rows, n_heads, n_latent, n_nope, n_rope, v_dim;
    float scale;
} mf__cu_mla;
/* [n_rows][n_heads][n_latent + n_rope], scaled by nothing yet */
void mf__cu_mla_absorb(cudaStream_t s, const mf__cu_mla *m, float *q);
void mf__cu_mla_expand(cudaStream_t s, const mf__cu_mla *m, const float *z);

/* delta.cu */
typedef struct mf__cu_conv {
    const float *x, *w;
    float *y;
    int32_t n_rows, n_channels, n_kernel;
    mf__cu_segments segs;
} mf__cu_conv;
void mf__cu_conv1d(cudaStream_t s, const mf__cu_conv *c);
void mf__cu_qk_norm(cudaStream_t s, float *x, int32_t n_rows, int32_t cols, int32_t n_heads, int32_t dim);
void mf__cu_decay_beta(cudaStream_t s, const float *a, const float *b, const float *a_log, const float *dt_bias,
                       int32_t n_rows, int32_t heads, float *decay, float *beta);
typedef struct mf__cu_delta {
    const float *qkv, *decay, *beta;
    float *o;
    int32_t n_rows, n_cols, n_k_heads, k_dim, n_v_heads, v_dim;
    mf__cu_segments segs;
} mf__cu_delta;
void mf__cu_delta_net(cudaStream_t s, const mf__cu_delta *d);

/* route.cu */
typedef struct mf__cu_route {
    const float *logits, *bias;
    int32_t *ids;
    float *shares;
    int32_t n_rows, kind, n_experts, top_k, n_groups, top_groups;
    bool renorm;
    float scale;
} mf__cu_route;
void mf__cu_route_rows(cudaStream_t s, const mf__cu_route *r);

/* mixture.cu: experts of a few rows in strips; false: they do not come in strips. */
bool mf__cu_experts_strips(cudaStream_t s, const mf__cu_experts *e, float *act);
/* route, experts, shared expert's down and combine of a few rows, in two launches. */
typedef struct mf__cu_moe {
    mf__cu_experts e;
    mf__cu_route route;
    float *act;                           /* [n_rows][top_k][inner] */
    mf__cu_matrix shared;                 /* down of the shared expert; n_cols 0: there is none */
    const float *shared_gate, *shared_up; /* [n_rows][shared.n_cols] */
    const float *score, *h;               /* [n_rows] or NULL; [n_rows][hidden] */
    float *y;
} mf__cu_moe;
bool mf__cu_moe_fits(const mf__cu_moe *m);
void mf__cu_moe_rows(cudaStream_t s, const mf__cu_moe *m);

/* ---- fused.cu: decoding ------------------------------------------------------------------------------------------ */

/* conv1d, qk_norm, decay_beta and delta_net of segments of one row each. d.qkv, decay and beta are not used. Where old
 * and new state of the convolution may be the same memory, the old one is copied to `shadow` first. */
typedef struct mf__cu_delta_step {
    mf__cu_delta d;
    const float *x, *w_conv, *a, *b, *a_log, *dt_bias;
    int32_t n_kernel;
    float *shadow; /* NULL, or [segments][n_kernel - 1][n_cols] */
} mf__cu_delta_step;
void mf__cu_delta_one(cudaStream_t s, const mf__cu_delta_step *p);

/* Norms and rope of queries and keys, and kv_append (F16, F32); head_dim <= 256, rope from channel 0 on. */
typedef struct mf__cu_heads {
    const float *q, *k, *v, *q_norm, *k_norm, *inv_freq;
    float *q_out;
    int32_t n_rows, n_heads, n_kv_heads, head_dim, n_rot;
    int32_t q_step; /* from head to head: with gates between them twice the dim */
    bool interleaved;
    float eps, rope_scale;
    mf__cu_segments segs;
} mf__cu_heads;
void mf__cu_heads_rows(cudaStream_t s, const mf__cu_heads *p);

#ifdef __cplusplus
}
#endif
#endif
