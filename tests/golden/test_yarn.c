/* A context that is stretched when the model is opened is the context of a config that says so itself, and its states
 * are of another model. argv: a checkpoint whose rope is plain, and one that has YaRN already. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "convert/convert.h"
#include "moeflux.h"

#define FACTOR 4
#define N 40 /* tokens */

static const char *checkpoints[2];
static int n_warned;

static void note_warning(void *user, mf_log_level level, const char *text) {
    (void)user;
    n_warned += level == MF_LOG_WARN && strstr(text, "YaRN") && strstr(text, "not measured");
}

static mf_model *open_model(const char *dir, double yarn) {
    mf_model_options opt;
    mf_model *m;
    mf_error err = {0};
    mf_model_options_init(&opt);
    opt.backend = "ref";
    opt.n_threads = 1;
    opt.yarn = yarn;
    opt.log.write = note_warning;
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

/* The last row of logits after N tokens; malloc'd. */
static float *logits_of(mf_model *m) {
    size_t vocab = (size_t)mf_model_info_get(m)->n_vocab;
    float *row = malloc(vocab * sizeof *row);
    int32_t ids[N];
    mf_session *s;
    mf_error err = {0};
    assert_non_null(row);
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 5) % 200;
    if (mf_session_create(m, NULL, &s, &err) || mf_eval_prompt(s, ids, N, 0, row, vocab, &err))
        fail_msg("%s", err.text);
    mf_session_free(s);
    return row;
}

/* The hyper-parameters as a config for the longer context has them. */
static void stretch_config(json_t *root) {
    json_t *text = json_object_get(root, "text_config");
    if (!text) text = root;
    json_int_t ctx = json_integer_value(json_object_get(text, "max_position_embeddings"));
    json_t *scaling = json_object_get(text, "rope_parameters");
    if (!json_is_object(scaling)) scaling = json_object_get(text, "rope_scaling");
    double factor = json_number_value(json_object_get(scaling, "factor"));
    json_object_set_new(text, "max_position_embeddings", json_integer(FACTOR * ctx));
    if (factor > 0) {
        json_object_set_new(scaling, "factor", json_real(FACTOR * factor));
        return;
    }
    json_t *made = json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", (double)FACTOR,
                             "original_max_position_embeddings", ctx);
    if (json_is_object(scaling)) json_object_update(made, scaling);
    json_object_set_new(made, "rope_type", json_string("yarn"));
    json_object_set_new(text, json_object_get(text, "rope_parameters") ? "rope_parameters" : "rope_scaling", made);
}

static void edit_config(const char *dir) {
    char *path = mf__path_join(dir, "config.json");
    json_t *root;
    assert_int_equal(mf__json_read(path, 1 << 24, &root, NULL), MF_OK);
    stretch_config(root);
    char *text = json_dumps(root, 0);
    assert_int_equal(mf__file_replace(path, text, strlen(text), NULL), MF_OK);
    free(text);
    free(path);
    json_decref(root);
}

static void refuses_states_of(mf_model *from, mf_model *to) {
    mf_session *a, *b;
    size_t size;
    mf_error err = {0};
    assert_int_equal(mf_session_create(from, NULL, &a, NULL), MF_OK);
    assert_int_equal(mf_session_create(to, NULL, &b, NULL), MF_OK);
    assert_int_equal(mf_state_size(a, &size, NULL), MF_OK);
    void *buf = malloc(size);
    assert_int_equal(mf_state_save(a, buf, size, NULL, NULL), MF_OK);
    assert_int_equal(mf_state_load(b, buf, size, &err), MF_E_MISMATCH);
    free(buf);
    mf_session_free(a);
    mf_session_free(b);
}

static void one_checkpoint(const char *checkpoint) {
    char plain[64], edited[64];
    mf__convert_options opt;
    mf_error err = {0};
    snprintf(plain, sizeof plain, "yarn_plain_%ld", (long)getpid());
    snprintf(edited, sizeof edited, "yarn_edited_%ld", (long)getpid());
    mf__convert_options_init(&opt);
    if (mf__convert(checkpoint, plain, &opt, &err) || mf__convert(checkpoint, edited, &opt, &err))
        fail_msg("%s", err.text);
    edit_config(edited);
    n_warned = 0;
    mf_model *before = open_model(plain, 0), *said = open_model(edited, 0);
    assert_int_equal(n_warned, 0);
    mf_model *asked = open_model(plain, FACTOR);
    assert_int_equal(n_warned, 1);
    const mf_model_info *info = mf_model_info_get(asked);
    assert_int_equal(info->n_ctx, FACTOR * mf_model_info_get(before)->n_ctx);
    assert_int_equal(info->n_ctx_trained, mf_model_info_get(before)->n_ctx);
    assert_int_equal(mf_model_info_get(before)->n_ctx_trained, mf_model_info_get(before)->n_ctx);
    float *a = logits_of(asked), *b = logits_of(said), *c = logits_of(before);
    assert_memory_equal(a, b, (size_t)info->n_vocab * sizeof *a);
    assert_memory_not_equal(a, c, (size_t)info->n_vocab * sizeof *a);
    refuses_states_of(before, asked);
    refuses_states_of(asked, before);
    free(a);
    free(b);
    free(c);
    mf_model_close(before);
    mf_model_close(said);
    mf_model_close(asked);
    mf__dir_remove(plain, NULL);
    mf__dir_remove(edited, NULL);
}

static void test_plain_rope(void **state) {
    (void)state;
    one_checkpoint(checkpoints[0]);
}

static void test_rope_with_yarn(void **state) {
    (void)state;
    one_checkpoint(checkpoints[1]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain_rope), cmocka_unit_test(test_rope_with_yarn)};
    if (argc < 3) return 2;
    checkpoints[0] = argv[1];
    checkpoints[1] = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
