/* Small cases worked out by hand: the places where a plausible program is wrong. Numbers are chosen so that each usual
 * mistake gives another result. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/backend.h"

static mf__graph *begin(void) {
    mf__graph *g;
    assert_int_equal(mf__graph_create("hand", &g, NULL), MF_OK);
    return g;
}

/* Runs the one op of g on the ref backend: x are its inputs in order, y its outputs, w its weights. */
static void run(mf__graph *g, int32_t n_rows, float *const *x, float *const *y, const float *const *w,
                const mf__layer_state *state, int64_t pos) {
    void *bufs[MF_MAX_BUFS] = {NULL};
    mf__tensor weights[MF_MAX_WEIGHTS];
    mf__backend *be;
    mf__fence fence;
    mf__segment seg = {.n_rows = n_rows, .pos = pos, .state = state};
    assert_int_equal(mf__graph_finish(g, NULL), MF_OK);
    const mf__op *op = &g->ops[0];
    for (int k = 0; k < MF_OP_OUT; k++)
        if (op->out[k] >= 0) bufs[op->out[k]] = y[k];
    for (int k = 0; k < MF_OP_IN; k++)
        if (op->in[k] >= 0) bufs[op->in[k]] = x[k]; /* in place: the input is the output */
    for (int i = 0; i < g->n_weights; i++)
        weights[i] = (mf__tensor){.type = MF_TYPE_F32,
                                  .n_planes = 1,
                                  .n_rows = g->weights[i].n_rows,
                                  .n_cols = g->weights[i].n_cols,
                                  .data = g->weights[i].data ? g->weights[i].data : w[i]};
    assert_int_equal(mf__backend_ref_create(NULL, &be, NULL), MF_OK);
    assert_int_equal(be->reserve(be, be->scratch(be, g, n_rows), NULL), MF_OK);
    mf__binding b = {.n_rows = n_rows, .bufs = bufs, .weights = weights, .segs = &seg, .n_segs = 1};
    assert_int_equal(be->submit(be, &(mf__run){g, b}, 1, &fence, NULL), MF_OK);
    assert_int_equal(be->wait(be, fence, NULL), MF_OK);
    be->free(be);
    mf__graph_free(g);
}

#define assert_near(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-5 * (1 + fabs((double)(b))))

/* The rows of q_proj alternate head by head: query block, gate block, query block, gate block. */
static void test_query_and_gate_alternate(void **state) {
    float u[] = {1, 2, -1, -2, 3, 4, -3, -4}, q[4], gate[4];
    mf__graph *g = begin();
    mf__act a, b;
    (void)state;
    mf__g_split_q_gate(g, mf__g_in_act(g, MF_PORT_SHARED, 8), 2, 2, &a, &b);
    run(g, 1, (float *[]){u}, (float *[]){q, gate}, NULL, NULL, 0);
    for (int i = 0; i < 4; i++) {
        assert_true(q[i] == (float)(i + 1));
        assert_true(gate[i] == (float)-(i + 1));
    }
}

/* One channel: S = 2, decay 1/2, k = q = 1, v = 3, beta = 1/2. Decay first: S = 1, predicted 1, d = (3 - 1) / 2 = 1,
 * S = 2, read after the update: 2. Predicting before the decay would give 1.5, reading before the update 1. */
static void test_decay_before_prediction(void **state) {
    float qkv[] = {1, 1, 3}, decay[] = {0.5f}, beta[] = {0.5f}, o[1], before[] = {2}, after[1];
    mf__layer_state st = {.delta_in = before, .delta_out = after};
    mf__op_params p = {.delta = {.n_k_heads = 1, .k_dim = 1, .n_v_heads = 1, .v_dim = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, 3), d = mf__g_in_act(g, MF_PORT_PAIRS, 1);
    mf__g_delta_net(g, x, d, mf__g_in_act(g, MF_PORT_H_POST, 1), p);
    run(g, 1, (float *[]){qkv, decay, beta}, (float *[]){o}, NULL, &st, 0);
    assert_near(o[0], 2);
    assert_near(after[0], 2);
    assert_near(before[0], 2); /* the old state is still there */
}

/* Value heads 0 and 1 use key head 0, value heads 2 and 3 key head 1: 0 0 1 1, not 0 1 0 1. From an empty state with
 * beta 1, o = v (k . q): key head 0 reads 10, key head 1 reads 1000. */
static void test_neighbours_share_a_key_head(void **state) {
    float qkv[] = {10, 1000, 1, 1, /* q q k k */ 1, 2, 3, 4 /* v */}, decay[] = {1, 1, 1, 1}, beta[] = {1, 1, 1, 1};
    float o[4], s[4] = {0};
    mf__layer_state st = {.delta_in = s, .delta_out = s};
    mf__op_params p = {.delta = {.n_k_heads = 2, .k_dim = 1, .n_v_heads = 4, .v_dim = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, 8), d = mf__g_in_act(g, MF_PORT_PAIRS, 4);
    mf__g_delta_net(g, x, d, mf__g_in_act(g, MF_PORT_H_POST, 4), p);
    run(g, 1, (float *[]){qkv, decay, beta}, (float *[]){o}, NULL, &st, 0);
    assert_near(o[0], 10);
    assert_near(o[1], 20);
    assert_near(o[2], 3000);
    assert_near(o[3], 4000);
}

/* A decay of 0 forgets everything, also infinities-to-be: S = 0 . 7 + v k. */
static void test_full_decay_forgets(void **state) {
    float qkv[] = {1, 1, 5}, decay[] = {0}, beta[] = {1}, o[1], s[] = {7};
    mf__layer_state st = {.delta_in = s, .delta_out = s};
    mf__op_params p = {.delta = {.n_k_heads = 1, .k_dim = 1, .n_v_heads = 1, .v_dim = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, 3), d = mf__g_in_act(g, MF_PORT_PAIRS, 1);
    mf__g_delta_net(g, x, d, mf__g_in_act(g, MF_PORT_H_POST, 1), p);
    run(g, 1, (float *[]){qkv, decay, beta}, (float *[]){o}, NULL, &st, 0);
    assert_near(o[0], 5);
    assert_near(s[0], 5);
}

/* x = (3, 4): rms is sqrt(12.5); the gate silu(2) = 1.761594 multiplies the normed value. Gating first would cancel in
 * the norm; a sigmoid gate would give half. */
static void test_norm_before_gate(void **state) {
    float x[] = {3, 4}, z[] = {2, 2}, y[2], w[] = {1, 10};
    mf__graph *g = begin();
    (void)state;
    mf__act a = mf__g_in_act(g, MF_PORT_SHARED, 2), b = mf__g_in_act(g, MF_PORT_PAIRS, 2);
    mf__g_gated_norm(g, a, b, mf__g_vector(g, "w", 1, 2), (mf__op_params){.norm = {.part = 2}});
    run(g, 1, (float *[]){x, z}, (float *[]){y}, (const float *[]){w}, NULL, 0);
    assert_near(y[0], 3 / sqrt(12.5) * 1.7615942);
    assert_near(y[1], 4 / sqrt(12.5) * 17.615942);
}

/* Weights 1, 10, 100, 1000 over three remembered inputs, oldest first, and the present one: 4321. What is remembered
 * afterwards are inputs, not outputs. */
static void test_convolution_window(void **state) {
    float x[] = {4}, y[1], w[] = {1, 10, 100, 1000}, old[] = {1, 2, 3}, new[3];
    mf__layer_state st = {.conv_in = old, .conv_out = new};
    mf__graph *g = begin();
    (void)state;
    mf__g_conv1d(g, mf__g_in_act(g, MF_PORT_SHARED, 1), mf__g_vector(g, "w", 1, 4), MF_NO_WEIGHT,
                 (mf__op_params){.conv = {.n_kernel = 4}});
    run(g, 1, (float *[]){x}, (float *[]){y}, (const float *[]){w}, &st, 0);
    assert_near(y[0], 4321); /* silu(4321) */
    for (int i = 0; i < 3; i++) assert_true(new[i] == (float)(i + 2));
}

/* Four query heads over two key/value heads: 0 0 1 1. One cached row: the output is its value. */
static void test_query_heads_share_kv_heads(void **state) {
    float q[] = {1, 1, 1, 1}, o[4], block[4] = {5, 6, /* k */ 50, 60 /* v */};
    char *pool[] = {(char *)block};
    mf__layer_state st = {.kv = mf__kv_make(pool, (int32_t[]){0}, 0, 1, MF_TYPE_F32, 2, 2)};
    mf__op_params p = {.attn = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 1, .scale = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__g_attention(g, mf__g_in_act(g, MF_PORT_SHARED, 4), MF_NO_WEIGHT, p);
    run(g, 1, (float *[]){q}, (float *[]){o}, NULL, &st, 0);
    assert_near(o[0], 50);
    assert_near(o[1], 50);
    assert_near(o[2], 60);
    assert_near(o[3], 60);
}

/* Keys all zero: every visible row counts the same, so a row's output is the mean of the values up to its position.
 * Three rows from position 3 on, blocks of 4: the second row is the first of the second block. */
static void test_rows_see_their_past_across_blocks(void **state) {
    float q[] = {1, 1, 1}, o[3], first[8] = {0, 0, 0, 0, 1, 2, 3, 4}, second[8] = {0, 0, 0, 0, 5, 6, 100, 100};
    char *pool[] = {(char *)second, (char *)first};
    mf__layer_state st = {.kv = mf__kv_make(pool, (int32_t[]){1, 0}, 0, 4, MF_TYPE_F32, 1, 1)};
    mf__op_params p = {.attn = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 1, .scale = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__g_attention(g, mf__g_in_act(g, MF_PORT_SHARED, 1), MF_NO_WEIGHT, p);
    run(g, 3, (float *[]){q}, (float *[]){o}, NULL, &st, 3);
    assert_near(o[0], 2.5);
    assert_near(o[1], 3);
    assert_near(o[2], 3.5);
}

/* Equal logits: the lower numbers, in order, with equal shares. Then one larger at the end, which comes first. */
static void test_ties_go_to_the_lower_expert(void **state) {
    float logits[] = {1, 1, 1, 1, 1, 0, 2, 1, 2, 1}, shares[6];
    int32_t ids[6];
    mf__op_params p = {.route = {.kind = MF_ROUTE_SOFTMAX,
                                 .n_experts = 5,
                                 .top_k = 3,
                                 .n_groups = 1,
                                 .top_groups = 1,
                                 .renorm = true,
                                 .scale = 1}};
    mf__graph *g = begin();
    mf__ids i;
    mf__shares s;
    (void)state;
    mf__g_route(g, mf__g_in_act(g, MF_PORT_SHARED, 5), MF_NO_WEIGHT, MF_NO_WEIGHT, p, &i, &s);
    run(g, 2, (float *[]){logits}, (float *[]){(float *)(void *)ids, shares}, NULL, NULL, 0);
    const int32_t want[] = {0, 1, 2, 1, 3, 2};
    for (int k = 0; k < 6; k++) assert_int_equal(ids[k], want[k]);
    for (int k = 0; k < 3; k++) assert_near(shares[k], 1.0 / 3);
    double e = exp(1);
    assert_near(shares[3], e / (2 * e + 1));
    assert_near(shares[5], 1 / (2 * e + 1));
}

/* A quarter turn: (1, 0) becomes (0, 1). Pairs are (0, 2) and (1, 3) in halves; channel 4 and 5 stay. */
static void test_rotation(void **state) {
    float x[] = {1, 1, 0, 0, 7, 8}, freq[] = {1.5707964f, 3.1415927f};
    mf__op_params p = {.rope = {.n_heads = 1, .head_dim = 6, .n_rot = 4, .scale = 1}};
    mf__graph *g = begin();
    (void)state;
    mf__g_rope(g, mf__g_in_act(g, MF_PORT_SHARED, 6), mf__g_const(g, "freq", freq, 2), p, "rope");
    run(g, 1, (float *[]){x}, (float *[]){x}, NULL, NULL, 1);
    const float want[] = {0, -1, 1, 0, 7, 8};
    for (int i = 0; i < 6; i++) assert_near(x[i], want[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query_and_gate_alternate),
        cmocka_unit_test(test_decay_before_prediction),
        cmocka_unit_test(test_neighbours_share_a_key_head),
        cmocka_unit_test(test_full_decay_forgets),
        cmocka_unit_test(test_norm_before_gate),
        cmocka_unit_test(test_convolution_window),
        cmocka_unit_test(test_query_heads_share_kv_heads),
        cmocka_unit_test(test_rows_see_their_past_across_blocks),
        cmocka_unit_test(test_ties_go_to_the_lower_expert),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
