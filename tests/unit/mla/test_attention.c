/* Latent attention: both forms against the formula and against each other, both spellings of the weights. */
#include "run.h"

#define BLOCK 32

typedef struct shape {
    int32_t heads, latent, nope, rope, v_dim;
} shape;

/* One sequence: cached rows, queries, weights; all noise. */
typedef struct scene {
    shape s;
    int64_t n_cached; /* rows in the state, the queries' own among them */
    int32_t n_rows;
    float *kv_b, *q, *latents, *k_pe;
    char **blocks;
    int32_t *pages;
    mf__layer_state state;
} scene;

static const float SCALE = 0.135234f;

static scene make_scene(shape s, int64_t n_cached, int32_t n_rows) {
    scene sc = {.s = s, .n_cached = n_cached, .n_rows = n_rows};
    int64_t n_blocks = (n_cached + BLOCK - 1) / BLOCK, block = (int64_t)BLOCK * (s.latent + s.rope);
    sc.kv_b = noise_array(1, (int64_t)s.heads * (s.nope + s.v_dim) * s.latent, 0.1f);
    sc.q = noise_array(2, (int64_t)n_rows * s.heads * (s.nope + s.rope), 2.0f);
    sc.latents = noise_array(3, n_cached * s.latent, 1.5f);
    sc.k_pe = noise_array(4, n_cached * s.rope, 1.5f);
    sc.blocks = calloc((size_t)n_blocks, sizeof *sc.blocks);
    sc.pages = calloc((size_t)n_blocks, sizeof *sc.pages);
    assert_true(sc.blocks && sc.pages);
    for (int64_t b = 0; b < n_blocks; b++) sc.pages[b] = (int32_t)b;
    for (int64_t b = 0; b < n_blocks; b++) assert_non_null(sc.blocks[b] = calloc((size_t)block, sizeof(float)));
    for (int64_t j = 0; j < n_cached; j++) {
        float *base = (float *)sc.blocks[j / BLOCK];
        memcpy(base + j % BLOCK * s.latent, sc.latents + j * s.latent, (size_t)s.latent * sizeof(float));
        memcpy(base + (int64_t)BLOCK * s.latent + j % BLOCK * s.rope, sc.k_pe + j * s.rope,
               (size_t)s.rope * sizeof(float));
    }
    sc.state.kv = mf__kv_make(sc.blocks, sc.pages, 0, BLOCK, MF_TYPE_F32, s.latent, s.rope);
    return sc;
}

static void free_scene(scene *sc) {
    for (int64_t b = 0; b < (sc->n_cached + BLOCK - 1) / BLOCK; b++) free(sc->blocks[b]);
    free(sc->blocks);
    free(sc->pages);
    free(sc->kv_b);
    free(sc->q);
    free(sc->latents);
    free(sc->k_pe);
}

/* embed_q [heads][latent][nope] and unembed_out [heads][v][latent] from kv_b. */
static void split_weights(const scene *sc, float *uk, float *uv) {
    shape s = sc->s;
    for (int64_t h = 0; h < s.heads; h++) {
        const float *rows = sc->kv_b + h * (s.nope + s.v_dim) * s.latent;
        for (int64_t i = 0; i < s.nope; i++)
            for (int64_t c = 0; c < s.latent; c++) uk[(h * s.latent + c) * s.nope + i] = rows[i * s.latent + c];
        memcpy(uv + h * s.v_dim * s.latent, rows + (int64_t)s.nope * s.latent,
               (size_t)s.v_dim * (size_t)s.latent * sizeof(float));
    }
}

static float *run(const scene *sc, mf__mla_form form, bool split, int threads) {
    shape s = sc->s;
    mf__graph *g;
    mf_error err;
    mf__op_params p = {.mla = {.n_heads = s.heads,
                               .n_latent = s.latent,
                               .n_nope = s.nope,
                               .n_rope = s.rope,
                               .v_dim = s.v_dim,
                               .scale = SCALE,
                               .form = form}};
    float *uk = malloc((size_t)s.heads * (size_t)s.latent * (size_t)s.nope * sizeof *uk);
    float *uv = malloc((size_t)s.heads * (size_t)s.latent * (size_t)s.v_dim * sizeof *uv);
    float *o = malloc((size_t)sc->n_rows * (size_t)s.heads * (size_t)s.v_dim * sizeof *o);
    assert_non_null(uk && uv && o ? o : NULL);
    split_weights(sc, uk, uv);
    assert_int_equal(mf__graph_create("mla", &g, &err), MF_OK);
    mf__act q = mf__g_in_act(g, MF_PORT_SHARED, s.heads * (s.nope + s.rope));
    mf__w w0 = split ? mf__g_matrix(g, "uk", (int64_t)s.heads * s.latent, s.nope)
                     : mf__g_matrix(g, "kv_b", (int64_t)s.heads * (s.nope + s.v_dim), s.latent);
    mf__w w1 = split ? mf__g_matrix(g, "uv", (int64_t)s.heads * s.v_dim, s.latent) : MF_NO_WEIGHT;
    mf__g_export(g, mf__g_mla_attention(g, q, w0, w1, p).id, MF_PORT_LOGITS);
    mf__tensor weights[2] = {split ? f32_matrix(uk, (int64_t)s.heads * s.latent, s.nope)
                                   : f32_matrix(sc->kv_b, (int64_t)s.heads * (s.nope + s.v_dim), s.latent),
                             f32_matrix(uv, (int64_t)s.heads * s.v_dim, s.latent)};
    mf__segment seg = {.n_rows = sc->n_rows, .pos = sc->n_cached - sc->n_rows, .state = &sc->state};
    void *ports[MF_PORT_COUNT] = {[MF_PORT_SHARED] = sc->q, [MF_PORT_LOGITS] = o};
    run_graph(g, sc->n_rows, ports, weights, &seg, 1, threads);
    mf__graph_free(g);
    free(uk);
    free(uv);
    return o;
}

/* s = (q_nope . W_UK c + q_pe . k_pe) scale; o = sum softmax(s) W_UV c; in double, everything materialised. */
static float *by_formula(const scene *sc) {
    shape s = sc->s;
    int64_t rows = s.nope + s.v_dim;
    float *o = malloc((size_t)sc->n_rows * (size_t)s.heads * (size_t)s.v_dim * sizeof *o);
    double *kv = malloc((size_t)(sc->n_cached * rows) * sizeof *kv), *p = malloc((size_t)sc->n_cached * sizeof *p);
    assert_non_null(o && kv && p ? o : NULL);
    for (int64_t h = 0; h < s.heads; h++) {
        for (int64_t j = 0; j < sc->n_cached; j++)
            for (int64_t i = 0; i < rows; i++) {
                double sum = 0;
                for (int64_t c = 0; c < s.latent; c++)
                    sum += (double)sc->kv_b[(h * rows + i) * s.latent + c] * sc->latents[j * s.latent + c];
                kv[j * rows + i] = sum;
            }
        for (int64_t t = 0; t < sc->n_rows; t++) {
            const float *q = sc->q + (t * s.heads + h) * (s.nope + s.rope);
            int64_t seen = sc->n_cached - sc->n_rows + t + 1;
            double top = -1e300, total = 0;
            for (int64_t j = 0; j < seen; j++) {
                double sum = 0;
                for (int64_t i = 0; i < s.nope; i++) sum += q[i] * kv[j * rows + i];
                for (int64_t i = 0; i < s.rope; i++) sum += (double)q[s.nope + i] * sc->k_pe[j * s.rope + i];
                p[j] = sum * (double)SCALE;
                top = p[j] > top ? p[j] : top;
            }
            for (int64_t j = 0; j < seen; j++) total += p[j] = exp(p[j] - top);
            for (int64_t i = 0; i < s.v_dim; i++) {
                double sum = 0;
                for (int64_t j = 0; j < seen; j++) sum += p[j] * kv[j * rows + s.nope + i];
                o[(t * s.heads + h) * s.v_dim + i] = (float)(sum / total);
            }
        }
    }
    free(kv);
    free(p);
    return o;
}

static void assert_close(const float *a, const float *b, int64_t n, double tolerance) {
    double most = 0, diff = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)b[i]));
        diff = fmax(diff, fabs((double)a[i] - b[i]));
    }
    if (!(diff <= tolerance * most)) fail_msg("differs by %g of %g", diff, most);
}

/* Several lengths around the tile's, one row and many, from the first position and from later ones. */
static void both_forms_follow_the_formula(void **state) {
    static const struct {
        int64_t cached;
        int32_t rows;
    } cases[] = {{1, 1}, {2, 2}, {63, 1}, {64, 64}, {65, 3}, {200, 130}, {129, 1}};
    const shape s = {.heads = 3, .latent = 24, .nope = 10, .rope = 6, .v_dim = 14};
    (void)state;
    for (size_t k = 0; k < MF__COUNT(cases); k++) {
        scene sc = make_scene(s, cases[k].cached, cases[k].rows);
        int64_t n = (int64_t)sc.n_rows * s.heads * s.v_dim;
        float *expected = by_formula(&sc);
        for (int split = 0; split < 2; split++)
            for (int form = MF_MLA_BY_COST; form <= MF_MLA_UNABSORBED; form++) {
                float *found = run(&sc, (mf__mla_form)form, split, 1), *twin = run(&sc, (mf__mla_form)form, split, 3);
                assert_close(found, expected, n, 1e-5);
                assert_memory_equal(found, twin, (size_t)n * sizeof *found); /* threads change no bit */
                free(found);
                free(twin);
            }
        free(expected);
        free_scene(&sc);
    }
}

/* The published sizes of a head, far into a context. */
static void forms_agree_at_16384_positions(void **state) {
    const shape s = {.heads = 2, .latent = 512, .nope = 128, .rope = 64, .v_dim = 128};
    scene sc = make_scene(s, 16384, 2);
    int64_t n = (int64_t)sc.n_rows * s.heads * s.v_dim;
    float *a = run(&sc, MF_MLA_ABSORBED, false, 2), *b = run(&sc, MF_MLA_UNABSORBED, false, 2);
    (void)state;
    for (int64_t i = 0; i < sc.n_rows * s.heads; i++) {
        double cos = cosine(a + i * s.v_dim, b + i * s.v_dim, s.v_dim);
        if (!(cos >= 0.99999)) fail_msg("cosine %.8f", cos);
    }
    assert_close(a, b, n, 1e-4);
    free(a);
    free(b);
    free_scene(&sc);
}

/* Logits far apart must neither overflow nor lose the row that wins. */
static void large_scores_are_stable(void **state) {
    const shape s = {.heads = 1, .latent = 8, .nope = 4, .rope = 2, .v_dim = 4};
    scene sc = make_scene(s, 150, 1);
    (void)state;
    for (int i = 0; i < 6; i++) sc.q[i] *= 1e4f;
    float *expected = by_formula(&sc);
    for (int form = MF_MLA_ABSORBED; form <= MF_MLA_UNABSORBED; form++) {
        float *found = run(&sc, (mf__mla_form)form, false, 1);
        assert_close(found, expected, 4, 1e-3);
        free(found);
    }
    free(expected);
    free_scene(&sc);
}

static void form_is_chosen_by_cost(void **state) {
    mf__op_params p = {.mla = {.n_heads = 128, .n_latent = 512, .n_nope = 128, .n_rope = 64, .v_dim = 128}};
    (void)state;
    assert_int_equal(mf__mla_choose(&p, 1, 1), MF_MLA_ABSORBED);
    assert_int_equal(mf__mla_choose(&p, 16384, 1), MF_MLA_ABSORBED);
    assert_int_equal(mf__mla_choose(&p, 16384, 8), MF_MLA_ABSORBED);
    assert_int_equal(mf__mla_choose(&p, 0, 512), MF_MLA_UNABSORBED);
    assert_int_equal(mf__mla_choose(&p, 16384, 512), MF_MLA_UNABSORBED);
    assert_int_equal(mf__mla_choose(&p, 100000, 512), MF_MLA_UNABSORBED);
    p.mla.form = MF_MLA_UNABSORBED;
    assert_int_equal(mf__mla_choose(&p, 16384, 1), MF_MLA_UNABSORBED);
}

/* Two sequences in one run, of different lengths: rows of one never see the other. */
static void segments_are_apart(void **state) {
    const shape s = {.heads = 2, .latent = 16, .nope = 8, .rope = 4, .v_dim = 8};
    scene a = make_scene(s, 70, 2), b = make_scene(s, 5, 1);
    float *oa = run(&a, MF_MLA_BY_COST, false, 1), *ob = run(&b, MF_MLA_BY_COST, false, 1);
    float q[3 * 2 * 12], o[3 * 2 * 8];
    mf__graph *g;
    mf_error err;
    mf__op_params p = {.mla = {.n_heads = 2, .n_latent = 16, .n_nope = 8, .n_rope = 4, .v_dim = 8, .scale = SCALE}};
    (void)state;
    memcpy(q, a.q, 2 * 24 * sizeof *q);
    memcpy(q + 2 * 24, b.q, 24 * sizeof *q);
    assert_int_equal(mf__graph_create("mla", &g, &err), MF_OK);
    mf__act in = mf__g_in_act(g, MF_PORT_SHARED, 24);
    mf__g_export(g, mf__g_mla_attention(g, in, mf__g_matrix(g, "kv_b", 32, 16), MF_NO_WEIGHT, p).id, MF_PORT_LOGITS);
    mf__tensor w = f32_matrix(a.kv_b, 32, 16);
    mf__segment segs[2] = {{.n_rows = 2, .pos = 68, .state = &a.state},
                           {.row0 = 2, .n_rows = 1, .pos = 4, .state = &b.state}};
    void *ports[MF_PORT_COUNT] = {[MF_PORT_SHARED] = q, [MF_PORT_LOGITS] = o};
    run_graph(g, 3, ports, &w, segs, 2, 1);
    assert_memory_equal(o, oa, 2 * 16 * sizeof *o);
    assert_memory_equal(o + 2 * 16, ob, 16 * sizeof *o);
    mf__graph_free(g);
    free(oa);
    free(ob);
    free_scene(&a);
    free_scene(&b);
}

static void wrong_shapes_are_refused(void **state) {
    mf__op_params p = {.mla = {.n_heads = 2, .n_latent = 16, .n_nope = 8, .n_rope = 4, .v_dim = 8}};
    (void)state;
    for (int k = 0; k < 4; k++) {
        mf__graph *g;
        mf_error err;
        mf__act a, b;
        assert_int_equal(mf__graph_create("mla", &g, &err), MF_OK);
        mf__act q = mf__g_in_act(g, MF_PORT_SHARED, k == 0 ? 25 : 24);
        if (k == 1)
            mf__g_mla_attention(g, q, mf__g_matrix(g, "kv_b", 31, 16), MF_NO_WEIGHT, p);
        else if (k == 2)
            mf__g_mla_attention(g, q, mf__g_matrix(g, "uk", 16, 16), mf__g_matrix(g, "uv", 16, 16), p);
        else if (k == 3)
            mf__g_split(g, q, 24, &a, &b, "split");
        else
            mf__g_mla_attention(g, q, mf__g_matrix(g, "kv_b", 32, 16), MF_NO_WEIGHT, p);
        assert_int_not_equal(mf__graph_finish(g, &err), MF_OK);
        mf__graph_free(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_follow_the_formula),
        cmocka_unit_test(forms_agree_at_16384_positions),
        cmocka_unit_test(large_scores_are_stable),
        cmocka_unit_test(form_is_chosen_by_cost),
        cmocka_unit_test(segments_are_apart),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
