/* Which families run on the cuda backend, and what a model that does not run on it gets: docs/models.md names the ops
 * that are missing, a backend asked for by name is refused with the op, and auto takes another and says why.
 *
 *   test_cuda_open DOCS MODEL_WITH_ALL_OPS MODEL_WITH_AN_INDEX */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/file.h"
#include "convert/synth.h"
#include "model/family.h"
#include "moeflux.h"
#include "tiny.h"

static const char *docs_path;

/* ---- the column of the documentation ------------------------------------------------------------------------------ */

/* "no: op, op" for the ops of a blueprint that the backend cannot do, or "yes". */
static void missing_ops(const mf__backend *be, const mf__blueprint *bp, char *text, size_t size) {
    const mf__graph *graphs[2 + MF_MAX_KINDS * MF_LAYER_GRAPHS] = {bp->embed, bp->tail};
    bool missing[MF_OP_COUNT] = {false};
    const char *sep = "no: ";
    size_t n = 0;
    for (int k = 0; k < bp->n_kinds; k++) mf__layer_graphs(&bp->kinds[k], graphs + 2 + k * MF_LAYER_GRAPHS);
    for (size_t i = 0; i < MF__COUNT(graphs); i++)
        for (int j = 0; graphs[i] && j < graphs[i]->n_ops; j++)
            if (!be->supports(be, &graphs[i]->ops[j])) missing[graphs[i]->ops[j].kind] = true;
    snprintf(text, size, "yes");
    for (int k = 0; k < MF_OP_COUNT; k++) {
        if (!missing[k]) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s", sep, mf__op_name((mf__op_kind)k));
        sep = ", ";
    }
}

/* The last cell of the family's line in the second table, or NULL. */
static const char *documented_cell(const char *docs, const char *family, char *cell, size_t size) {
    char start[64];
    const char *table = strstr(docs, "| GPU |");
    snprintf(start, sizeof start, "\n| %s |", family);
    const char *line = table ? strstr(table, start) : NULL, *end = line ? strchr(line + 1, '\n') : NULL;
    if (!end) return NULL;
    const char *last = end - 2; /* before " |" */
    while (strncmp(last, "| ", 2)) last--;
    snprintf(cell, size, "%.*s", (int)(end - 2 - last - 2), last + 2);
    return cell;
}

static void ops_that_are_missing_are_documented(void **state) {
    char *docs, text[256], cell[256];
    size_t size;
    mf_error err = {0};
    mf__backend *be;
    int wrong = 0;
    (void)state;
    if (mf__file_read(docs_path, 1 << 20, &docs, &size, &err)) fail_msg("%s", err.text);
    if (mf__backend_find("cuda")->create(&(mf__backend_config){0}, &be, &err)) fail_msg("%s", err.text);
    for (int i = 0; mf__synth_shapes[i]; i++) {
        mf__config config;
        mf__blueprint bp;
        json_t *json = mf__synth_config(mf__synth_shapes[i], 0, &err);
        if (!json || mf__config_parse(json, "config", &config, &err) || mf__blueprint_build(&config, &bp, &err))
            fail_msg("%s: %s", mf__synth_shapes[i], err.text);
        missing_ops(be, &bp, text, sizeof text);
        const char *said = documented_cell(docs, config.family->name, cell, sizeof cell);
        if (!said || strncmp(said, text, strlen(text))) { /* a word may follow */
            print_error("docs/models.md says of %s on a GPU \"%s\"; it is: %s\n", config.family->name,
                        said ? said : "nothing", text);
            wrong++;
        }
        mf__blueprint_free(&bp);
        json_decref(json);
    }
    be->free(be);
    free(docs);
    assert_int_equal(wrong, 0);
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

typedef struct heard {
    char warning[512];
} heard;

static void hear(void *user, mf_log_level level, const char *text) {
    heard *h = user;
    if (level == MF_LOG_WARN) snprintf(h->warning, sizeof h->warning, "%s", text);
}

static mf_status open_with(const char *dir, const char *backend, heard *h, mf_model **m, mf_error *err) {
    mf_model_options opt;
    mf_model_options_init(&opt);
    opt.backend = backend;
    opt.n_threads = 1;
    opt.log = (mf_log_sink){hear, h};
    *h = (heard){""};
    return mf_model_open(dir, &opt, m, err);
}

static void another_is_taken_and_said(void **state) {
    heard h;
    mf_model *m = NULL;
    mf_error err = {0};
    assert_int_equal(open_with(*state, "auto", &h, &m, &err), MF_OK);
    assert_string_equal(mf_model_info_get(m)->backend, "cpu");
    if (!strstr(h.warning, "backend cuda cannot do ") || !strstr(h.warning, "another is used"))
        fail_msg("the warning is: %s", h.warning);
    mf_model_close(m);
}

static void what_was_asked_for_is_refused(void **state) {
    heard h;
    mf_model *m = NULL;
    mf_error err = {0};
    assert_int_equal(open_with(*state, "cuda", &h, &m, &err), MF_E_UNSUPPORTED);
    assert_true(!m);
    if (!strstr(err.text, "backend cuda cannot do ")) fail_msg("the error is: %s", err.text);
}

static void a_model_with_all_ops_runs_there(void **state) {
    heard h;
    mf_model *m = NULL;
    mf_error err = {0};
    assert_int_equal(open_with(*state, "auto", &h, &m, &err), MF_OK);
    assert_string_equal(mf_model_info_get(m)->backend, "cuda");
    assert_string_equal(h.warning, "");
    mf_model_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest documented[] = {cmocka_unit_test(ops_that_are_missing_are_documented)};
    const struct CMUnitTest missing[] = {cmocka_unit_test(another_is_taken_and_said),
                                         cmocka_unit_test(what_was_asked_for_is_refused)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(a_model_with_all_ops_runs_there)};
    if (argc != 4) return 2;
    docs_path = argv[1];
    int failed = cmocka_run_group_tests(documented, NULL, NULL);
    tiny_checkpoint = argv[2];
    failed += cmocka_run_group_tests(whole, tiny_setup, tiny_teardown);
    tiny_checkpoint = argv[3];
    failed += cmocka_run_group_tests(missing, tiny_setup, tiny_teardown);
    return failed;
}
