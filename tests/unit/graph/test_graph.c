/* Graphs: shape checks at build time, lifetimes and colouring. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"

static mf__graph *make(void) {
    mf__graph *g = NULL;
    mf_error err;
    assert_int_equal(mf__graph_create("test", &g, &err), MF_OK);
    return g;
}

/* HIDDEN -> norm -> n matmuls in a row -> add */
static mf__graph *chain(int n) {
    mf__graph *g = make();
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, 8);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "norm", 1, 8), 1e-6f);
    mf__act a = mf__g_project(g, x, mf__g_matrix(g, "first", 8, 8), MF_NO_WEIGHT, "first");
    for (int i = 0; i < n; i++) a = mf__g_matmul(g, a, mf__g_matrix(g, "next", 8, 8), MF_NO_WEIGHT, "next");
    mf__g_export(g, mf__g_add(g, h, a).id, MF_PORT_H_MID);
    return g;
}

static void a_chain_needs_two_colours(void **state) {
    (void)state;
    mf_error err;
    mf__graph *g = chain(10);
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    assert_int_equal(g->n_colours, 2);
    for (int i = 0; i + 1 < g->n_ops; i++) /* an op never writes what it reads */
        if (g->ops[i].out[0] >= 0 && g->bufs[g->ops[i].out[0]].port == MF_PORT_NONE &&
            g->bufs[g->ops[i].in[0]].port == MF_PORT_NONE)
            assert_int_not_equal(g->bufs[g->ops[i].out[0]].colour, g->bufs[g->ops[i].in[0]].colour);
    mf__graph_free(g);
}

static void overlapping_lives_never_share(void **state) {
    (void)state;
    mf_error err;
    mf__graph *g = make();
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, 8);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "norm", 1, 8), 1e-6f);
    mf__act a = mf__g_project(g, x, mf__g_matrix(g, "a", 16, 8), MF_NO_WEIGHT, "a");
    mf__act b = mf__g_project(g, x, mf__g_matrix(g, "b", 16, 8), MF_NO_WEIGHT, "b");
    mf__act c = mf__g_project(g, x, mf__g_matrix(g, "c", 16, 8), MF_NO_WEIGHT, "c");
    mf__act ab = mf__g_glu(g, a, b, (mf__glu){0});
    mf__act abc = mf__g_glu(g, ab, c, (mf__glu){0});
    mf__act d = mf__g_matmul(g, abc, mf__g_matrix(g, "d", 8, 16), MF_NO_WEIGHT, "d");
    mf__g_export(g, mf__g_add(g, h, d).id, MF_PORT_H_MID);
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    for (int p = 0; p < g->n_bufs; p++)
        for (int q = p + 1; q < g->n_bufs; q++) {
            const mf__buf_info *u = &g->bufs[p], *v = &g->bufs[q];
            if (u->port != MF_PORT_NONE || v->port != MF_PORT_NONE || u->colour != v->colour) continue;
            assert_true(u->last < v->first || v->last < u->first);
        }
    assert_true(g->n_colours < 7);
    /* placement: buffers alive together do not overlap in memory, and all lie inside the scratch */
    enum { ROWS = 3 };
    int64_t bytes = mf__graph_scratch_bytes(g, ROWS);
    char *scratch = malloc((size_t)bytes);
    void *addr[MF_MAX_BUFS];
    mf__graph_place(g, ROWS, scratch, addr);
    for (int p = 0; p < g->n_bufs; p++) {
        if (g->bufs[p].port != MF_PORT_NONE) continue;
        assert_true((char *)addr[p] >= scratch);
        assert_true((char *)addr[p] + g->bufs[p].cols * 4 * ROWS <= scratch + bytes);
    }
    free(scratch);
    mf__graph_free(g);
}

static void colouring_is_deterministic(void **state) {
    (void)state;
    mf_error err;
    mf__graph *a = chain(5), *b = chain(5);
    assert_int_equal(mf__graph_finish(a, &err), MF_OK);
    assert_int_equal(mf__graph_finish(b, &err), MF_OK);
    for (int i = 0; i < a->n_bufs; i++) assert_int_equal(a->bufs[i].colour, b->bufs[i].colour);
    mf__graph_free(a);
    mf__graph_free(b);
}

static void inputs_are_never_aliased(void **state) {
    (void)state;
    mf_error err;
    mf__graph *g = chain(3);
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    assert_int_equal(g->bufs[0].port, MF_PORT_HIDDEN);
    assert_int_equal(g->bufs[0].colour, -1);
    assert_int_equal(g->bufs[0].first, -1);
    mf__graph_free(g);
}

/* Of attention the state wants the input's norm, keys and values; not what only queries need. */
static void the_state_needs_a_part_of_a_graph(void **state) {
    (void)state;
    mf_error err;
    mf__graph *g = make(), *part = NULL;
    mf__op_params rope = {.rope = {.n_heads = 2, .head_dim = 4, .n_rot = 4, .scale = 1}};
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, 8);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "norm", 1, 8), 1e-6f);
    mf__act q = mf__g_project(g, x, mf__g_matrix(g, "q", 8, 8), MF_NO_WEIGHT, "q");
    mf__act k = mf__g_project(g, x, mf__g_matrix(g, "k", 8, 8), MF_NO_WEIGHT, "k");
    mf__act v = mf__g_project(g, x, mf__g_matrix(g, "v", 8, 8), MF_NO_WEIGHT, "v");
    mf__w freq = mf__g_vector(g, "freq", 1, 2);
    mf__g_rope(g, q, freq, rope, "q_rope");
    mf__g_rope(g, k, freq, rope, "k_rope"); /* in place, and needed for what it does */
    mf__g_kv_append(g, k, v);
    mf__act o = mf__g_attention(g, q, MF_NO_WEIGHT,
                                (mf__op_params){.attn = {.n_heads = 2, .n_kv_heads = 2, .head_dim = 4, .scale = 1}});
    mf__g_export(g, mf__g_add(g, h, o).id, MF_PORT_H_MID);
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    assert_int_equal(mf__graph_state_part(g, &part, &err), MF_OK);
    static const char *const LABELS[] = {"k", "v", "k_rope"};
    static const mf__op_kind KINDS[] = {MF_OP_RMS_NORM, MF_OP_MATMUL, MF_OP_MATMUL, MF_OP_ROPE, MF_OP_KV_APPEND};
    assert_int_equal(part->n_ops, 5);
    for (int i = 0; i < 5; i++) assert_int_equal(part->ops[i].kind, KINDS[i]);
    for (int i = 0; i < 3; i++) assert_string_equal(part->ops[i + 1].label, LABELS[i]);
    assert_int_equal(part->n_weights, g->n_weights);
    void *addr[MF_MAX_BUFS];
    int64_t bytes = mf__graph_scratch_bytes(part, 3);
    char *scratch = malloc((size_t)bytes);
    mf__graph_place(part, 3, scratch, addr);
    for (int b = 0; b < part->n_bufs; b++)
        if (part->bufs[b].port == MF_PORT_NONE && part->bufs[b].last >= 0)
            assert_in_range((uintptr_t)addr[b], (uintptr_t)scratch, (uintptr_t)(scratch + bytes - 3 * 8 * 4));
    free(scratch);
    mf__graph_free(part);
    mf__graph_free(g);
}

static void expect_error(mf__graph *g, const char *part) {
    mf_error err = {0};
    assert_int_equal(mf__graph_finish(g, &err), MF_E_INTERNAL);
    if (!strstr(err.text, part)) fail_msg("\"%s\" does not mention \"%s\"", err.text, part);
    mf__graph_free(g);
}

static void shapes_are_checked(void **state) {
    (void)state;
    mf__graph *g = make();
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, 8);
    mf__g_norm(g, h, mf__g_vector(g, "norm", 1, 7), 1e-6f);
    expect_error(g, "norm is 1 x 7, wanted 1 x 8");

    g = make();
    mf__act a = mf__g_in_act(g, MF_PORT_SHARED, 8);
    mf__g_matmul(g, a, mf__g_matrix(g, "w", 4, 9), MF_NO_WEIGHT, "w_proj");
    expect_error(g, "w_proj");

    g = make();
    a = mf__g_in_act(g, MF_PORT_SHARED, 8);
    mf__g_matmul(g, a, mf__g_matrix(g, "w", 4, 8), mf__g_vector(g, "bias", 1, 5), "w_proj");
    expect_error(g, "bias");

    g = make();
    a = mf__g_in_act(g, MF_PORT_SHARED, 30);
    mf__act q, gate;
    mf__g_split_q_gate(g, a, 2, 8, &q, &gate);
    expect_error(g, "30 columns, wanted 32");

    g = make();
    a = mf__g_in_act(g, MF_PORT_SHARED, 16);
    mf__g_attention(g, a, MF_NO_WEIGHT, (mf__op_params){.attn = {.n_heads = 4, .n_kv_heads = 3, .head_dim = 4}});
    expect_error(g, "4 heads cannot share 3");

    g = make();
    a = mf__g_in_act(g, MF_PORT_SHARED, 4);
    mf__ids ids;
    mf__shares shares;
    mf__g_route(g, a, MF_NO_WEIGHT, MF_NO_WEIGHT, (mf__op_params){.route = {.n_experts = 4, .top_k = 5}}, &ids,
                &shares);
    expect_error(g, "top 5 of 4");

    g = make();
    a = mf__g_in_act(g, MF_PORT_SHARED, 16);
    float freq[4] = {1, 1, 1, 1};
    mf__g_rope(g, a, mf__g_const(g, "freq", freq, 4),
               (mf__op_params){.rope = {.n_heads = 2, .head_dim = 8, .offset = 2, .n_rot = 8}}, "rope");
    expect_error(g, "do not lie in a head of 8");
}

static void misuse_is_caught(void **state) {
    (void)state;
    mf__graph *g = make();
    mf__g_sigmoid_gate(g, (mf__act){mf__g_in_act(g, MF_PORT_SHARED, 8).id},
                       (mf__act){mf__g_in_act(g, MF_PORT_SHARED, 8).id});
    expect_error(g, "port shared is used twice");

    g = make();
    mf__g_matmul(g, (mf__act){-1}, mf__g_matrix(g, "w", 4, 8), MF_NO_WEIGHT, "w_proj");
    expect_error(g, "w_proj");

    g = chain(1);
    mf_error err;
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    mf__g_in_act(g, MF_PORT_SHARED, 8);
    mf__g_matmul(g, (mf__act){0}, (mf__w){1}, MF_NO_WEIGHT, "late");
    assert_int_not_equal(g->error.status, MF_OK);
    mf__graph_free(g);
}

static void the_dump_names_ops_and_ports(void **state) {
    (void)state;
    mf_error err;
    mf__graph *g = chain(1);
    assert_int_equal(mf__graph_finish(g, &err), MF_OK);
    char *text = mf__graph_dump(g);
    assert_non_null(text);
    assert_non_null(strstr(text, "rms_norm"));
    assert_non_null(strstr(text, "hidden"));
    assert_non_null(strstr(text, "-> h_mid"));
    free(text);
    mf__graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_needs_two_colours),
        cmocka_unit_test(overlapping_lives_never_share),
        cmocka_unit_test(colouring_is_deterministic),
        cmocka_unit_test(inputs_are_never_aliased),
        cmocka_unit_test(the_state_needs_a_part_of_a_graph),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(misuse_is_caught),
        cmocka_unit_test(the_dump_names_ops_and_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
