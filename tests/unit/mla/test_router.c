/* Sigmoid routing with a correction bias and groups. */
#include "run.h"

#define MAX_EXPERTS 16

static void route(const float *logits, const float *bias, mf__op_params p, int32_t n_rows, int32_t *ids,
                  float *shares) {
    mf__graph *g;
    mf_error err;
    mf__ids out_ids;
    mf__shares out_shares;
    p.route.kind = MF_ROUTE_SIGMOID;
    assert_int_equal(mf__graph_create("route", &g, &err), MF_OK);
    mf__act in = mf__g_in_act(g, MF_PORT_SHARED, p.route.n_experts);
    mf__g_route(g, in, bias ? mf__g_vector(g, "bias", 1, p.route.n_experts) : MF_NO_WEIGHT, MF_NO_WEIGHT, p, &out_ids,
                &out_shares);
    mf__g_export(g, out_ids.id, MF_PORT_ROUTE_IDS);
    mf__g_export(g, out_shares.id, MF_PORT_ROUTE_SHARES);
    mf__tensor w = f32_matrix(bias, 1, p.route.n_experts);
    void *ports[MF_PORT_COUNT] = {
        [MF_PORT_SHARED] = (void *)logits, [MF_PORT_ROUTE_IDS] = ids, [MF_PORT_ROUTE_SHARES] = shares};
    run_graph(g, n_rows, ports, &w, NULL, 0, 1);
    mf__graph_free(g);
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static float share_of(const int32_t *ids, const float *shares, int32_t k, int32_t expert) {
    for (int32_t i = 0; i < k; i++)
        if (ids[i] == expert) return shares[i];
    fail_msg("expert %d was not chosen", expert);
    return 0;
}

static const float LOGITS[8] = {3, -2, 1, -1, -3, 2, 0, 4};
static const float BIAS[8] = {.1f, .2f, -.3f, 0, 0, .4f, -.1f, .05f};

static void known_case(void **state) {
    int32_t ids[2];
    float shares[2];
    (void)state;
    route(LOGITS, BIAS,
          (mf__op_params){
              .route = {.n_experts = 8, .top_k = 2, .n_groups = 2, .top_groups = 1, .renorm = true, .scale = 2.5f}},
          1, ids, shares);
    assert_float_equal(share_of(ids, shares, 2, 5), 1.18208f, 1e-5);
    assert_float_equal(share_of(ids, shares, 2, 7), 1.31792f, 1e-5);
}

/* The bias chooses; it has no part in the shares. */
static void bias_only_chooses(void **state) {
    const float bias[8] = {0, 0, 0, 0, 3, 0, 0, 0};
    int32_t ids[2];
    float shares[2];
    (void)state;
    mf__op_params p = {
        .route = {.n_experts = 8, .top_k = 2, .n_groups = 1, .top_groups = 1, .renorm = false, .scale = 1}};
    route(LOGITS, bias, p, 1, ids, shares);
    assert_float_equal(share_of(ids, shares, 2, 4), sigmoid(-3), 1e-6);
    assert_float_equal(share_of(ids, shares, 2, 7), sigmoid(4), 1e-6);
    p.route.renorm = true, p.route.scale = 2.827f;
    route(LOGITS, bias, p, 1, ids, shares);
    assert_float_equal(shares[0] + shares[1], 2.827f, 1e-5);
    assert_float_equal(share_of(ids, shares, 2, 4), 2.827f * sigmoid(-3) / (sigmoid(-3) + sigmoid(4)), 1e-5);
}

/* Experts of other groups are out even when all choices of the kept group are negative: excluded is not zero. */
static void other_groups_are_excluded(void **state) {
    const float logits[4] = {0, 0, -9, -9}, bias[4] = {-5, -2, -3.5f, -3.5f}; /* sums -6, -7: the first group is kept */
    int32_t ids[2];
    float shares[2];
    (void)state;
    route(logits, bias,
          (mf__op_params){
              .route = {.n_experts = 4, .top_k = 2, .n_groups = 2, .top_groups = 1, .renorm = true, .scale = 1}},
          1, ids, shares);
    assert_float_equal(share_of(ids, shares, 2, 0), 0.5f, 1e-6);
    assert_float_equal(share_of(ids, shares, 2, 1), 0.5f, 1e-6);
}

/* A group's score is the sum of its two best, not its best. */
static void groups_are_weighed_by_two(void **state) {
    const float logits[6] = {4, -9, -9, 1, 1, -9};
    int32_t ids[2];
    float shares[2];
    (void)state;
    route(logits, NULL,
          (mf__op_params){
              .route = {.n_experts = 6, .top_k = 2, .n_groups = 2, .top_groups = 1, .renorm = true, .scale = 1}},
          1, ids, shares);
    share_of(ids, shares, 2, 3);
    share_of(ids, shares, 2, 4);
}

/* Every row for itself. */
static void rows_are_apart(void **state) {
    float logits[16];
    int32_t ids[4];
    float shares[4];
    (void)state;
    memcpy(logits, LOGITS, sizeof LOGITS);
    for (int i = 0; i < 8; i++) logits[8 + i] = -LOGITS[i];
    route(logits, NULL,
          (mf__op_params){
              .route = {.n_experts = 8, .top_k = 2, .n_groups = 1, .top_groups = 1, .renorm = true, .scale = 1}},
          2, ids, shares);
    assert_int_equal(ids[0], 7);
    assert_int_equal(ids[1], 0);
    assert_int_equal(ids[2], 4);
    assert_int_equal(ids[3], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_case),
        cmocka_unit_test(bias_only_chooses),
        cmocka_unit_test(other_groups_are_excluded),
        cmocka_unit_test(groups_are_weighed_by_two),
        cmocka_unit_test(rows_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
