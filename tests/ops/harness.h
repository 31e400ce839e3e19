/* One op at a time, on any backend.
 *
 * A case (cases.c) builds a graph of one op and names the shapes; a rig is a case with random data in all its inputs,
 * weights, states and experts; running a rig on a backend gives a result, which is compared with the expectation: the
 * same op written again in double precision (expect.c). A new backend adds a row to BACKENDS in test_ops.c and is held
 * to every case, each with the tolerance beside it. */
#ifndef TESTS_OPS_HARNESS_H
#define TESTS_OPS_HARNESS_H

#include "backend/backend.h"
#include "base/arena.h"

#define OP_MAX_SEQS 6
#ifndef OP_BLOCK_ROWS
#define OP_BLOCK_ROWS 4 /* KV rows per block: few, so that positions cross blocks */
#endif

typedef struct op_case op_case;
typedef struct op_rig op_rig;
typedef struct op_result op_result;

/* A sequence that takes part: n_rows rows that follow pos earlier ones. */
typedef struct op_seq {
    int32_t n_rows;
    int64_t pos;
} op_seq;

struct op_case {
    const char *name;
    double tolerance; /* largest |difference| over the largest |expected| value of the buffer; 0: equal */
    void (*build)(mf__graph *g, const op_case *c);
    void (*expect)(const op_rig *rig, op_result *want); /* fills every output and state that the op changes */
    void (*fill)(op_rig *rig);                          /* changes the random data; may be NULL */
    op_seq seqs[OP_MAX_SEQS];                           /* n_rows 0 ends */
    int32_t cols, rows;                                 /* free sizes that build may use */
    bool option;                                        /* ... and a choice */
    mf__op_params p;
    mf__type w_type; /* of matrices and experts; bits and group of those with scales */
    int bits, group, block_rows;
    enum { OP_SCALES_BF16, OP_SCALES_F16, OP_SCALES_F32 } scales;
    bool centred;           /* AFFINE without biases */
    int32_t k_cols, v_cols; /* KV rows; 0: none */
    int32_t v_step;         /* positions that share a V row, a divisor of OP_BLOCK_ROWS; 0: 1 */
    mf__type kv_type;       /* ... as they are kept */
    int32_t n_experts;      /* of the bank; 0: none */
    bool every_other;       /* the bank has only the experts with even numbers */
    bool cut_matters;       /* how a sequence is cut into submissions may change the last bits; its company never */
};

/* What a sequence remembers, on the host. */
typedef struct op_state {
    int32_t n_blocks;
    float *kv;         /* [n_blocks][OP_BLOCK_ROWS * (k_cols + v_cols)]: the values */
    uint8_t *kv_bytes; /* [n_blocks][op_block_bytes]: as they are kept */
    float *conv, *delta;
} op_state;

struct op_rig {
    const op_case *c;
    mf__graph *g;
    const mf__op *op;
    int n_seqs;
    int32_t n_rows;                     /* of all sequences */
    void *in[MF_MAX_BUFS];              /* by buffer: [n_rows][cols] floats or ids; NULL for what the op makes */
    mf__tensor weights[MF_MAX_WEIGHTS]; /* on the host */
    double *w[MF_MAX_WEIGHTS];          /* their values, [rows][cols] */
    op_state state[OP_MAX_SEQS];
    int64_t conv_floats, delta_floats;
    mf__expert_layout layout;
    uint8_t *blobs; /* [n_experts][layout.bytes] */
    mf__arena arena;
    uint64_t random;
};

/* Numbers after a run; a double holds every float and id exactly. NaN: not written. */
struct op_result {
    double *out[MF_MAX_BUFS]; /* by buffer */
    double *kv[OP_MAX_SEQS], *conv[OP_MAX_SEQS], *delta[OP_MAX_SEQS];
    mf__arena arena;
};

void op_rig_init(op_rig *rig, const op_case *c);
void op_rig_free(op_rig *rig);
double op_random(op_rig *rig); /* in [-1, 1) */

void op_result_init(op_result *r, const op_rig *rig); /* states as they are before the run, outputs NaN */
void op_result_free(op_result *r);

/* How the rows are handed to the backend. Sequences one by one: whole, in halves, row by row; all together; or several
 * at random in each submission, whole (COMPANY) or cut at random (MIXED). */
typedef enum op_cut { OP_ALONE, OP_HALVES, OP_ROW_BY_ROW, OP_TOGETHER, OP_COMPANY, OP_MIXED } op_cut;

typedef struct op_mode {
    const char *name;
    op_cut cut;
    bool in_place; /* recurrent state is read and written in the same memory */
    int rounds;    /* experts come in this many banks */
    uint64_t seed; /* of what is random */
} op_mode;

void op_run(const op_rig *rig, mf__backend *be, const op_mode *mode, op_result *got);

/* Fails the test (with the place) when a number is further off than tolerance; 0 asks for equality. */
void op_compare(const op_rig *rig, const char *what, const op_result *got, const op_result *want, double tolerance);

/* For expectations: values of the k-th input or weight, in double. */
static inline double op_in(const op_rig *rig, int k, int64_t i) {
    return ((const float *)rig->in[rig->op->in[k]])[i];
}
static inline int32_t op_in_id(const op_rig *rig, int k, int64_t i) {
    return ((const int32_t *)rig->in[rig->op->in[k]])[i];
}
static inline int32_t op_in_cols(const op_rig *rig, int k) {
    return rig->g->bufs[rig->op->in[k]].cols;
}
static inline double op_w(const op_rig *rig, int k, int64_t i) {
    return rig->w[rig->op->w[k]][i];
}
static inline double *op_out(const op_rig *rig, op_result *want, int k) {
    return want->out[rig->op->out[k]];
}
static inline int64_t op_v_rows(const op_case *c) {
    return OP_BLOCK_ROWS / (c->v_step ? c->v_step : 1); /* of a block */
}
static inline int64_t op_block_floats(const op_case *c) {
    return (int64_t)OP_BLOCK_ROWS * c->k_cols + op_v_rows(c) * c->v_cols;
}
mf__kv op_kv(const op_case *c, char *const *pool, const int32_t *pages);
int64_t op_block_bytes(const op_case *c);
/* The values of a block as it is kept. */
void op_decode_block(const op_case *c, const uint8_t *block, float *values);

/* Where K or V of a position lies in an op_state's kv. */
static inline int64_t op_k_at(const op_rig *rig, int64_t pos) {
    return pos / OP_BLOCK_ROWS * op_block_floats(rig->c) + pos % OP_BLOCK_ROWS * rig->c->k_cols;
}
static inline int64_t op_v_at(const op_rig *rig, int64_t pos) {
    int64_t row = pos % OP_BLOCK_ROWS / (rig->c->v_step ? rig->c->v_step : 1);
    return pos / OP_BLOCK_ROWS * op_block_floats(rig->c) + (int64_t)OP_BLOCK_ROWS * rig->c->k_cols +
           row * rig->c->v_cols;
}

extern const op_case OP_CASES[];
extern const int OP_N_CASES;

#endif
