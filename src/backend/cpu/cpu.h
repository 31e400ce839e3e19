/* The fast CPU backend: private structures.
 *
 * Drivers (cpu.c, matmul.c, experts.c, attention.c, attend.c, mla.c, index.c, delta.c, rows.c) are compiled once: they
 * share work out over the pool and never touch an instruction set. Kernels are compiled once per instruction set from
 * four templates (product_int8.inc.h, product_f32.inc.h, rowwise.inc.h, kv.inc.h) over a small vector vocabulary
 * (vec_*.h) and reached through the table below, which is chosen when the backend is made.
 *
 * A row's bits depend on the row and its sequence alone: not on the threads, which share out results and never a sum;
 * not on the rows beside it, nor on how its sequence is cut into submissions, since there is one order of additions for
 * every sum, whichever kernel takes it. (Latent attention has two forms, chosen by the shape of the segment: its bits
 * depend on the cut, too.)
 *
 * Products come in two forms. f32: weights are decoded to f32 (any type). int8: activations are rounded to 15 bits,
 * held as two planes of bytes, and multiplied as integers with the stored codes, group by group of the weights, sum (q
 * s + b) x = s sum q x + b sum x.
 *
 * W is worked through in tiles, as many rows as a vector has lanes. With a few tokens int8 sums run along the rows of W
 * as they are stored; with more, a tile's rows are brought into the lanes and meet every token of a batch. */
#ifndef MF_BACKEND_CPU_CPU_H
#define MF_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/picks.h"

#define MF_CPU_FEW 4        /* tokens up to which a tile is not decoded */
#define MF_CPU_BATCH 128    /* tokens whose products with a tile are kept together */
#define MF_CPU_MAX_LANES 16 /* of any instruction set */
#define MF_CPU_LINE 64      /* bytes that are fetched at once */
#define MF_CPU_PAD 128      /* quantized rows are padded with zeros to a multiple of this: two vectors */

/* How a product takes its activations: as f32, or rounded and in planes of bytes. */
#define MF_CPU_PLANES 2
typedef struct mf__cpu_form {
    int group;  /* 0: f32 */
    bool pairs; /* of each two vectors of columns the even ones come first, as nibbles have them */
} mf__cpu_form;
static inline bool mf__cpu_pairs(const mf__tensor *w, int lanes) {
    return w->type == MF_TYPE_AFFINE && w->bits == 4 && w->group >= 4 * lanes;
}

/* One token's activations: x, or q with scale and sum [cols / group]: x ~ scale * (2^7 q[0] + q[1]), and sum the sum of
 * those without the scale. */
typedef struct mf__cpu_vec {
    int8_t *q[MF_CPU_PLANES];
    float *scale, *sum; /* zeros behind to a whole vector */
    const float *x;
} mf__cpu_vec;

/* `lanes` rows of W. int8: codes [cols / 4][lanes][4], or nibbles [cols / 8][lanes][4 * 2], scales and biases
 * [groups][lanes]. f32: w [lanes][stride], decoded. */
typedef struct mf__cpu_tile {
    int64_t cols;
    int group;
    enum { MF_CPU_NIBBLES, MF_CPU_SMALL_BYTES, MF_CPU_BYTES } kind; /* of codes; small ones have at most seven bits */
    uint8_t *codes;
    float *scales, *biases;
    const uint8_t *next; /* what will be decoded after it: fetched while this one is used */
    int64_t next_bytes;
    float *w;
    int64_t stride;
} mf__cpu_tile;

/* Tokens as int8 tiles meet them: of each, its planes, and a scale and a sum of every group. */
#define MF_CPU_PACKED_BYTES(cols, groups) (MF_CPU_PLANES * (int64_t)(cols) + 8 * (int64_t)(groups))

/* Queries that share a kv head, one per lane, and their running softmax; attend_few has q and o by rows, with zeros
 * behind the last query. */
typedef struct mf__cpu_queries {
    float *q;                                                /* [k_dim][lanes], scaled */
    float *o;                                                /* [v_dim][lanes] */
    float *max, *total;                                      /* [lanes] */
    int64_t first[MF_CPU_MAX_LANES], last[MF_CPU_MAX_LANES]; /* keys each lane may see; last < first: unused */
} mf__cpu_queries;

/* Consecutive keys and values of one kv head: row i at k + i * k_stride values. */
typedef struct mf__cpu_keys {
    int64_t first;
    int32_t n; /* <= MF_CPU_KEYS */
    int32_t k_dim, v_dim;
    bool few; /* for attend_few */

    const void *k, *v; /* f32, or F16 for a few */
    bool f16;
    int64_t k_stride, v_stride;
    bool in_place;  /* they are the cache's own rows: whoever reads them fetches them ahead */
    int32_t n_next; /* rows of keys that follow there, of the next tile */
} mf__cpu_keys;
#define MF_CPU_KEYS 32

/* y[j * y_stride + i] = w row i . x row j; mix_rows: y row j += sum_i x[j * x_stride + i] w row i, in order */
typedef struct mf__cpu_cross {
    const float *w; /* [n_rows] rows of cols values */
    int64_t w_stride;
    int32_t n_rows;
    const float *x; /* [n] */
    int64_t x_stride;
    int32_t n;
    int64_t cols;
    float *y;
    int64_t y_stride;
} mf__cpu_cross;

/* A query of an index and a tile of keys: sum_h a_h relu(q_h . k) for each key; without a, q_h . k for each head. */
typedef struct mf__cpu_index_tile {
    const float *keys; /* [dim][MF_CPU_KEYS] */
    const float *q;    /* [n_heads][dim] */
    const float *a;    /* [n_heads], or NULL */
    int32_t n_heads, dim;
    float *out; /* [MF_CPU_KEYS]; without a [n_heads] of them, `stride` apart */
    int64_t stride;
} mf__cpu_index_tile;

/* Some channels of all rows of a segment, `stride` from row to row; before: the kernel - 1 rows before the first. */
typedef struct mf__cpu_conv {
    const float *x, *before, *w; /* w [n_channels][kernel] */
    const float *bias;           /* or NULL */
    float *y;
    int64_t stride, n_channels;
    int32_t n_rows, kernel;
    bool plain; /* no silu */
} mf__cpu_conv;

/* Some rows of the state of one head, through all steps of a segment. */
typedef struct mf__cpu_delta {
    const float *S_in;
    float *S_out;       /* [n_rows][k_dim]; may be S_in */
    const float *q, *k; /* of the first step; next one at + qk_stride */
    const float *v;     /* the rows' first value, of the first step */
    const float *decay, *beta;
    float *o;
    int64_t qkv_stride, decay_stride, gate_stride, o_stride;
    int32_t n_rows, n_steps, k_dim;
    bool by_channel; /* decay [k_dim] of each step, not one */
    bool past;       /* S_out goes past the caches */
} mf__cpu_delta;

/* One head of a state space, through all steps of a segment. */
typedef struct mf__cpu_ssm {
    const float *S_in;
    float *S_out; /* [dim][n_state]; may be S_in */
    const float *u, *B, *dt;
    float *y;
    int64_t to_C; /* from B */
    int64_t stride, dt_stride, y_stride;
    float rate, bias, direct;
    int32_t n_steps, dim, n_state;
} mf__cpu_ssm;

/* from [n][ld], n_cols of each -> row rows[j] (NULL: j) of to, `stride` from row to row. */
typedef struct mf__cpu_put {
    const float *from;
    float *to;
    const int32_t *rows;
    int64_t ld, stride;
    int n, n_cols;
    bool past; /* the caches: results of long passes are much and needed late */
} mf__cpu_put;

typedef struct mf__cpu_kernels {
    const char *sets[MF_CPU_FAMILIES]; /* that each family was compiled for */
    int lanes;

    /* product_int8.inc.h; y[j * ld + i] = W[i] . x[j] */
    void (*quant_row)(const mf__cpu_form *form, int64_t cols, const mf__cpu_vec *v); /* x -> q, scale, sum */
    void (*rows_int8)(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, float *y,
                      int64_t ld);
    void (*tile_int8)(const mf__tensor *w, int64_t row, int n, mf__cpu_tile *out);
    void (*pack_int8)(const mf__tensor *w, const mf__cpu_vec *x, int n, int8_t *out); /* for tiles of w */
    void (*many_int8)(const mf__cpu_tile *w, const int8_t *packed, int n, float *y);  /* all its rows; ld = lanes */

    /* product_f32.inc.h */
    void (*decode_row)(const mf__tensor *w, int64_t row, float *out);
    /* as they are stored; false: not those of this type. ld = lanes */
    bool (*rows_f32)(const mf__tensor *w, int64_t row, int n_rows, const mf__cpu_vec *x, int n, float *y);
    void (*many_f32)(const mf__cpu_tile *w, int n_rows, const mf__cpu_vec *x, int n, float *y); /* ld = lanes */

    /* rowwise.inc.h */
    void (*put)(const mf__cpu_put *p);
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    void (*scale_to_unit)(float *x, int64_t n, float scale); /* x * scale / sqrt(sum x^2 + 1e-6) */
    void (*add)(const float *a, const float *b, int64_t n, float *y);
    void (*glu)(const mf__glu *glu, const float *gate, const float *up, int64_t n, float *y);
    void (*map)(const mf__op_params *p, float w, int64_t n, float *x); /* not by position */
    void (*mul_sigmoid)(float *x, const float *gate, int64_t n);
    void (*mul_silu)(float *x, const float *z, int64_t n);
    void (*axpy)(float a, const float *x, int64_t n, float *y); /* y += a x */
    void (*conv)(const mf__cpu_conv *v);
    void (*attend)(mf__cpu_queries *q, const mf__cpu_keys *keys);
    void (*attend_few)(mf__cpu_queries *q, int n, const mf__cpu_keys *keys); /* q [n][k_dim], o [n][v_dim] */
    void (*merge)(mf__cpu_queries *q, const mf__cpu_queries *other, int few, int32_t v_dim);
    void (*cross)(const mf__cpu_cross *c);
    void (*mix_rows)(const mf__cpu_cross *c);
    void (*delta)(const mf__cpu_delta *d);
    void (*ssm)(const mf__cpu_ssm *m);
    void (*decay)(float rate, const float *a, const float *bias, int64_t n,
                  float *y);                                                      /* exp(-rate softplus(a + bias)) */
    void (*keys_to_lanes)(const float *rows, int32_t n, int32_t dim, float *out); /* out [dim][MF_CPU_KEYS] */
    void (*index_scores)(const mf__cpu_index_tile *t);

    /* kv.inc.h: mf__kv_encode_row and mf__kv_decode_row */
    void (*kv_encode)(mf__type type, const float *x, int32_t cols, void *row);
    void (*kv_decode)(mf__type type, const void *row, int32_t cols, int32_t first, int32_t n, float *out);
} mf__cpu_kernels;

/* What each template gives to the table, one of each per instruction set: <family>_<set>.c. */
#define MF_CPU_FILL(set)                                                                                               \
    void mf__cpu_int8_##set(mf__cpu_kernels *k);                                                                       \
    void mf__cpu_f32_##set(mf__cpu_kernels *k);                                                                        \
    void mf__cpu_rowwise_##set(mf__cpu_kernels *k);                                                                    \
    void mf__cpu_kv_##set(mf__cpu_kernels *k);
MF_CPU_FILL(scalar)
MF_CPU_FILL(avx2)
MF_CPU_FILL(avx512)
MF_CPU_FILL(neon)
void mf__cpu_int8_dotprod(mf__cpu_kernels *k);
void mf__cpu_int8_i8mm(mf__cpu_kernels *k);
#undef MF_CPU_FILL

/* dispatch.c: the table of a level that mf__cpu_level_available. */
void mf__cpu_kernels_fill(mf__cpu_level level, mf__cpu_kernels *out);

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* Memory that lasts for one op (or, for prepared activations, for one graph): taken from the front, never given back.
 */
typedef struct mf__cpu_bump {
    char *at;
    int64_t left;
} mf__cpu_bump;

/* 64-byte aligned; sizes are computed with the same rounding (mf__cpu_round). NULL: not enough was reserved. */
void *mf__cpu_take(mf__cpu_bump *bump, int64_t bytes);
static inline int64_t mf__cpu_round(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* The rows of a buffer in the form products want. */
typedef struct mf__cpu_rows {
    int32_t n;
    int64_t cols;
    mf__cpu_form form;
    mf__cpu_vec *vecs; /* [n] */
} mf__cpu_rows;

typedef struct mf__cpu_run {
    const mf__cpu_kernels *k;
    mf__pool *pool;
    bool exact;
    const mf__graph *g;
    const mf__binding *b;
    const mf__op *op;
    int n_ops; /* this one and those after it that it takes along (products of the same input) */
    mf__cpu_bump scratch;
} mf__cpu_run;

static inline float *mf__cpu_in(const mf__cpu_run *r, int k) {
    return r->op->in[k] < 0 ? 0 : (float *)r->b->bufs[r->op->in[k]];
}
static inline float *mf__cpu_out(const mf__cpu_run *r, int k) {
    return (float *)r->b->bufs[r->op->out[k]];
}
static inline int32_t mf__cpu_in_cols(const mf__cpu_run *r, int k) {
    return r->g->bufs[r->op->in[k]].cols;
}
static inline const float *mf__cpu_weights(const mf__cpu_run *r, int k) {
    return r->op->w[k] < 0 ? 0 : (const float *)r->b->weights[r->op->w[k]].data;
}

/* One function per op. */
mf_status mf__cpu_embed(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_rms_norm(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_layer_norm(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_matmul(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_split_q_gate(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_split(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_join(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_rope(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_kv_append(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_index(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_attention(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_mla_attention(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_sigmoid_gate(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_conv1d(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_qk_norm(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_decay_beta(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_delta_net(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_ssm_run(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_gated_norm(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_compress(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_far_attention(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_streams_read(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_streams_write(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_add(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_map(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_route(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_weigh(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_identity(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_glu(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_experts(mf__cpu_run *r, mf_error *err);
mf_status mf__cpu_combine(mf__cpu_run *r, mf_error *err);

/* Most scratch an op needs. */
int64_t mf__cpu_matmul_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op, int32_t n);
int64_t mf__cpu_experts_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op, int32_t n);
int64_t mf__cpu_index_scratch(int threads, const mf__op *op);
int64_t mf__cpu_compress_scratch(int threads, const mf__op *op);
int64_t mf__cpu_far_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op);
int64_t mf__cpu_attention_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op, int32_t n_rows);
int64_t mf__cpu_mla_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op, int32_t n_rows);

/* ---- attention over cached rows (attend.c) ----------------------------------------------------------------------- */

/* The rows of one sequence. */
typedef struct mf__cpu_seq {
    const mf__kv *kv;
    int64_t pos;
    int32_t n_rows;
    const float *q; /* [n_rows][n_heads][k_dim] */
    float *o;       /* [n_rows][n_heads][v_dim] */
    /* A single row that sees picked rows only: keys are counted in their order, and pos is that of the last. */
    mf__picks picks;
    int32_t kv_head; /* the first that its heads share */
} mf__cpu_seq;

/* Makes a tile: fills in keys->k and v and what is said of them for the rows keys->first .. + keys->n, which lie in one
 * KV block, of a kv head. mem: tile_floats floats of the thread's own. */
typedef struct mf__cpu_attend mf__cpu_attend;
typedef void mf__cpu_tile_fn(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t kv_head, int thread, float *mem,
                             mf__cpu_keys *keys);

struct mf__cpu_attend {
    int32_t n_heads, n_kv_heads, k_dim, v_dim;
    float scale;
    int32_t window;     /* 0: none */
    bool chunked;       /* it begins where the query's chunk of so many rows does */
    const float *sinks; /* [n_heads], or NULL */
    int item_vectors;   /* vectors of queries that share a walk over the keys, <= MF_CPU_MAX_VECTORS */
    mf__cpu_tile_fn *tile;
    int64_t tile_floats;
    const mf__cpu_run *r;
    void *ctx; /* of tile */
    const mf__cpu_seq *seqs;
    int32_t n_seqs;
};
#define MF_CPU_MAX_VECTORS 64

/* n_rows: of all sequences, at most */
int64_t mf__cpu_attend_bytes(const mf__cpu_kernels *k, int threads, const mf__cpu_attend *a, int32_t n_rows);
mf_status mf__cpu_attend_rows(const mf__cpu_attend *a, mf__cpu_bump scratch, mf_error *err);

/* ---- products (product.c) ---------------------------------------------------------------------------------------- */

mf__cpu_form mf__cpu_form_for(const mf__cpu_run *r, const mf__tensor *w);
static inline bool mf__cpu_same_form(mf__cpu_form a, mf__cpu_form b) {
    return a.group == b.group && a.pairs == b.pairs;
}

/* x [n][cols] -> rows; quantizes on all threads. */
mf_status mf__cpu_prepare_rows(mf__cpu_run *r, const float *x, int32_t n, int64_t cols, mf__cpu_form form,
                               mf__cpu_rows *out, mf_error *err);
int64_t mf__cpu_rows_bytes(int64_t n, int64_t cols);
/* The same in two steps: vecs with x left out, and quantizing what x was set to. */
mf_status mf__cpu_take_rows(mf__cpu_run *r, int32_t n, int64_t cols, mf__cpu_form form, mf__cpu_rows *out,
                            mf_error *err);
void mf__cpu_quant_rows(const mf__cpu_run *r, const mf__cpu_rows *rows);

/* A thread's memory: a tile, a batch of tokens, and their products, of which two may be kept. */
typedef struct mf__cpu_workspace {
    mf__cpu_tile tile;
    int8_t *packed;
    float *out[2]; /* [MF_CPU_BATCH][lanes] */
} mf__cpu_workspace;
mf_status mf__cpu_take_workspaces(mf__cpu_run *r, int64_t cols, mf__cpu_workspace **out, mf_error *err);
int64_t mf__cpu_workspaces_bytes(const mf__cpu_kernels *k, int threads, int64_t cols);

/* n <= MF_CPU_BATCH of the `all` tokens that meet W, from x on. A batch meets all rows before the next one begins: it
 * stays in the cache, and tiles, which are read once in order, pass by. */
typedef struct mf__cpu_batch {
    const mf__cpu_vec *x;
    int n;
    int64_t all;
    mf__cpu_form form;
} mf__cpu_batch;
mf__cpu_batch mf__cpu_batch_at(const mf__cpu_run *r, const mf__tensor *w, mf__cpu_form form, const mf__cpu_vec *x,
                               int64_t at, int64_t all, mf__cpu_workspace *ws);

/* n_rows rows of W, from `row` on: n_blocks times `lanes` of them, or what W has left. */
typedef struct mf__cpu_block {
    const mf__tensor *w;
    int64_t row;
    int n_rows, n_blocks;
    int ld; /* from one token's products to the next one's */
} mf__cpu_block;

/* What is worked through next of blocks [begin, end): one, or several where they are not decoded, so that memory is
 * read in long runs. */
void mf__cpu_block_at(const mf__cpu_run *r, const mf__tensor *w, int64_t begin, int64_t end, const mf__cpu_batch *x,
                      mf__cpu_block *out);
static inline int64_t mf__cpu_blocks(const mf__cpu_run *r, int64_t n_rows) {
    return (n_rows + r->k->lanes - 1) / r->k->lanes;
}

/* ws->out[k] = the block times the batch, which is the last one made in ws. */
void mf__cpu_multiply(const mf__cpu_run *r, const mf__cpu_block *b, const mf__cpu_batch *x, mf__cpu_workspace *ws,
                      int k);

/* Sharing out: jobs of n_blocks blocks of equal cost each. A thread gets the blocks that begin in its part of the total
 * cost. */
typedef struct mf__cpu_job {
    int64_t n_blocks, cost;
} mf__cpu_job;
typedef void mf__cpu_job_fn(void *ctx, int job, int64_t begin, int64_t end, int thread);
void mf__cpu_share(mf__pool *pool, const mf__cpu_job *jobs, int n_jobs, mf__cpu_job_fn *fn, void *ctx);

#endif
