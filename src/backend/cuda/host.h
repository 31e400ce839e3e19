/* The cuda backend's host side: what it holds. */
#ifndef MF_BACKEND_CUDA_HOST_H
#define MF_BACKEND_CUDA_HOST_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/cuda/cuda.h"

#define MF_CU_RING 4   /* tables on their way to the device */
#define MF_CU_PLANS 64 /* lists that can be replayed */
#define MF_CU_LANES 4  /* fills at a time */
#define MF_CU_LANE_BYTES (4 << 20)
#define MF_CU_PIECES 3 /* of a layer's experts on their way, at a time */

/* Memory on the device that grows; growing waits for whatever uses it. */
typedef struct mf__cu_memory {
    void *at;
    int64_t bytes;
} mf__cu_memory;

/* A list that was seen: launches as a CUDA graph once it has come a second time. */
typedef struct mf__cu_plan {
    uint64_t key;
    int64_t used; /* when, for whom to forget */
    cudaGraphExec_t exec;
} mf__cu_plan;

/* The addresses of a whole bank's experts on the device. */
typedef struct mf__cu_table {
    const void *host; /* the bank's blobs */
    uint64_t version;
    int32_t n_experts;
    void *at;
} mf__cu_table;

/* Pinned memory and a stream for one fill at a time. */
typedef struct mf__cu_lane {
    pthread_mutex_t lock;
    cudaStream_t stream;
    char *pinned; /* two halves */
    cudaEvent_t done[2];
} mf__cu_lane;

/* Host memory that host_alloc gave out. */
typedef struct mf__cu_slab {
    char *at;
    int64_t bytes;
    bool pinned; /* kernels can read it */
} mf__cu_slab;

/* Experts of a whole bank that are multiplied together: those that are on the device, or some of those that lie in host
 * memory and are copied first. */
typedef struct mf__cu_piece {
    int32_t first, end; /* experts between these */
    int buffer;         /* of MF_CU_PIECES; -1: they are on the device */
    char *to;
    const char *const *table;
} mf__cu_piece;

/* Which kernels a row gets depends on how many rows its own sequence has in the run, so that it has the same bits in
 * any company: */
typedef enum mf__cu_rows {
    MF_CU_ONE,     /* a single row */
    MF_CU_SEVERAL, /* up to MF_CU_FEW */
    MF_CU_MANY
} mf__cu_rows;

#define MF_CU_MOST_FEW 64 /* rows of a range of one or several */

/* Consecutive rows of a run that are of one kind: they are launched together. A range begins and ends with a segment.
 */
typedef struct mf__cu_range {
    int32_t first, n;
    mf__cu_rows kind;
    int32_t first_seg, n_segs; /* of the run's */
    mf__cu_segments segs;      /* in the table; rows are counted from the range's first */
    int32_t n_splits;          /* of the longest row's keys */
    bool in_place;             /* states of a convolution are written where they are read */
    bool done;                 /* with an earlier run of the list */
} mf__cu_range;

typedef struct mf__cu {
    mf__backend base;
    bool exact;
    bool plain; /* nothing is fused: for tests */
    int n_sms;
    cudaStream_t stream;
    mf__cu_memory scratch; /* reserve() */
    mf__cu_memory parts;   /* of attention */
    mf__cu_memory fused;   /* what fused ops have between them */
    mf__cu_memory table;   /* segments and banks of a list */
    char *pinned;          /* on the way back */
    char *staging[MF_CU_RING];
    int64_t staging_bytes;
    cudaEvent_t staged[MF_CU_RING];
    int next_staging;
    mf__cu_plan plans[MF_CU_PLANS];
    pthread_mutex_t recording; /* one of them: nobody waits for the stream */
    int64_t clock;
    mf__cu_table *banks;
    int n_banks, max_banks;
    void **adopted;
    int n_adopted, max_adopted;
    uint64_t fence;
    cudaEvent_t watch[2]; /* around an op, for those who measure */
    mf__cu_lane lanes[MF_CU_LANES];
    pthread_mutex_t slabs_lock;
    mf__cu_slab *slabs; /* by address */
    int n_slabs, max_slabs, n_plain;
    mf__cu_memory on_way; /* experts that are copied for runs of many rows: MF_CU_PIECES buffers */
    cudaStream_t copier;
    cudaEvent_t there[MF_CU_PIECES], unused[MF_CU_PIECES]; /* what a buffer holds; the buffer */
    int next_piece;
} mf__cu;

/* cuda.c */
mf_status mf__cu_check(cudaError_t e, const char *what, mf_error *err);
mf_status mf__cu_grow(mf__cu *cu, mf__cu_memory *mem, int64_t bytes, mf_error *err);

/* reach.c: experts in host memory. */
mf_status mf__cu_host_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err);
void mf__cu_host_release(mf__backend *be, void *mem);
bool mf__cu_reads_host(mf__backend *be);
bool mf__cu_is_pinned(mf__cu *cu, const void *p); /* host memory that kernels can read */
int64_t mf__cu_staging_bytes(const mf__backend *be, int64_t expert_bytes, int32_t n_experts);
mf_status mf__cu_stage(mf__backend *be, int64_t bytes, mf_error *err);
mf_status mf__cu_reach_init(mf__cu *cu, mf_error *err);
void mf__cu_reach_deinit(mf__cu *cu);

/* emit.c: what a list needs in the table, and its launches. */
typedef struct mf__cu_list {
    mf__cu *cu;
    const mf__run *runs;
    int n_runs;
    const char *const **tables; /* [n_runs]: of banks, on the device */
    mf__cu_range *ranges;
    int *first_range; /* [n_runs + 1] */
    mf__cu_piece *pieces;
    int *first_piece; /* [n_runs + 1] */
} mf__cu_list;

/* One op of a list on its way to launches, for a range of rows. */
typedef struct mf__cu_step {
    mf__cu *cu;
    const mf__graph *g;
    const mf__binding *b;
    const mf__op *op;
    const mf__cu_range *rows;
    const char *const *table;
    char *scratch;
    const mf__cu_piece *pieces;
    int n_pieces;
} mf__cu_step;

mf__cu_step mf__cu_step_of(const mf__cu_list *list, int run, const mf__cu_range *rows);

/* A buffer from the range's first row on. */
static inline float *mf__cu_buf(const mf__cu_step *s, int16_t id) {
    return id < 0 ? NULL : (float *)s->b->bufs[id] + (int64_t)s->rows->first * s->g->bufs[id].cols;
}
static inline float *mf__cu_in(const mf__cu_step *s, int k) {
    return mf__cu_buf(s, s->op->in[k]);
}
static inline float *mf__cu_out(const mf__cu_step *s, int k) {
    return mf__cu_buf(s, s->op->out[k]);
}
static inline int32_t mf__cu_in_cols(const mf__cu_step *s, int k) {
    return s->g->bufs[s->op->in[k]].cols;
}
static inline const float *mf__cu_vec(const mf__cu_step *s, int k) {
    return s->op->w[k] < 0 ? NULL : (const float *)s->b->weights[s->op->w[k]].data;
}
mf__cu_glu mf__cu_glu_of(const mf__glu *g);
mf__cu_job mf__cu_job_of(const mf__cu_step *s, const mf__op *op);
mf__cu_experts mf__cu_experts_of(const mf__cu_step *s);
mf__cu_attention mf__cu_attention_of(const mf__cu_step *s);
mf__cu_delta mf__cu_delta_of(const mf__cu_step *s);
mf__cu_route mf__cu_route_of(const mf__cu_step *s);
void mf__cu_attend_rows(const mf__cu_step *s, mf__cu_attention a);
/* Products of the same input that follow one another, as many as one launch takes. */
int mf__cu_count_products(const mf__cu_step *s, const mf__op *end, bool exact);

/* fuse.c: ops of decoding that follow one another and are one launch (or two). Returns how many ops of this run it
 * took, 0: none. Ranges of later runs that are done with it are marked. */
int mf__cu_fuse(const mf__cu_list *list, int run, const mf__cu_step *s, const mf__op *end);

/* reach.c: the pieces of a run (at most so many as the first function says), their tables behind each other from `host`
 * on, which becomes `device`; returns how many there are. */
int mf__cu_most_pieces(mf__cu *cu, const mf__run *run);
int mf__cu_find_pieces(mf__cu *cu, const mf__run *run, char *host, char *device, mf__cu_piece *out);
/* Whether a range of rows wants so many experts that all of them are copied. */
bool mf__cu_wants_all(int64_t n_rows, int32_t top_k, int32_t n_experts);
/* The piece towards the device, before what is launched next; and when that has been launched. */
void mf__cu_piece_begin(mf__cu *cu, const mf__bank *bank, const mf__cu_piece *piece);
void mf__cu_piece_end(mf__cu *cu, const mf__cu_piece *piece);

mf_status mf__cu_emit(const mf__cu_list *list, mf_error *err);
bool mf__cu_supports(const mf__backend *be, const mf__op *op);
int64_t mf__cu_scratch(const mf__backend *be, const mf__graph *g, int32_t n_rows);
mf__cu_matrix mf__cu_view(const mf__tensor *t);

#endif
