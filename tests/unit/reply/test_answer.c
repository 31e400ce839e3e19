/* Output parsing: every family's notation, cut into pieces at every place, must give the same events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reply/answer.h"

/* Events are written as one text: T[..] answer, R[..] reasoning, C[name args] call; neighbours of a kind are joined. */
typedef struct record {
    mf__strbuf text;
    int kind;
} record;

static mf_status note(void *user, const mf_event *e) {
    record *r = user;
    bool call = e->kind == MF_EVENT_CALL;
    if (e->kind == MF_EVENT_CALL_END) return MF_OK;
    if (call || (e->kind != (mf_event_kind)r->kind && e->kind != MF_EVENT_ARGUMENTS)) {
        if (r->kind >= 0) mf__strbuf_append(&r->text, "]", 1, NULL);
        mf__strbuf_append(&r->text, call ? "C[" : e->kind == MF_EVENT_TEXT ? "T[" : "R[", 2, NULL);
    }
    if (call) mf__strbuf_printf(&r->text, NULL, "%d %s ", e->call, e->name);
    mf__strbuf_append(&r->text, e->text, e->n_text, NULL);
    r->kind = (int)e->kind;
    return MF_OK;
}

static void run(const mf__answer_setup *base, const char *output, size_t piece, record *r) {
    mf__answer_setup opt = *base;
    mf_answer *p;
    mf_error err = {0};
    size_t n = strlen(output);
    r->kind = -1;
    opt.fn = note;
    opt.user = r;
    assert_int_equal(mf__answer_create(&opt, &p, &err), MF_OK);
    for (size_t i = 0; i < n; i += piece)
        if (mf_answer_push(p, output + i, n - i < piece ? n - i : piece, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf_answer_finish(p, &err) != MF_OK) fail_msg("%s", err.text);
    mf_answer_free(p);
    if (r->kind >= 0) mf__strbuf_append(&r->text, "]", 1, NULL);
}

static void expect(mf__answer_setup opt, const char *output, const char *want) {
    for (size_t piece = 1; piece <= strlen(output) + 1; piece++) {
        record r = {0};
        run(&opt, output, piece, &r);
        if (strcmp(r.text.data ? r.text.data : "", want) != 0)
            fail_msg("in pieces of %zu:\n%s\ngave     %s\nexpected %s", piece, output, r.text.data, want);
        mf__strbuf_free(&r.text);
    }
}

#define WITH(f) ((mf__answer_setup){.notation = f})

static void test_think(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_PLAIN), "Just text.", "T[Just text.]");
    expect(WITH(MF__NOTATION_PLAIN), "<think>\nHm, a < b.\n</think>\n\nYes: <b>, </thin k> ok \n",
           "R[Hm, a < b.]T[Yes: <b>, </thin k> ok \n]");
    expect(WITH(MF__NOTATION_PLAIN), "<think>\n\n</think>\n\nHi", "T[Hi]");
    expect(WITH(MF__NOTATION_PLAIN), "<think>never ends\n", "R[never ends\n]");
    expect(WITH(MF__NOTATION_PLAIN), "a <think", "T[a <think]");
    expect(WITH(MF__NOTATION_PLAIN), "", "");
    expect((mf__answer_setup){.notation = MF__NOTATION_TAGS, .in_reasoning = true}, "well\n</think>\n\nok", "R[well]T[ok]");
}

static void test_qwen3(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_TAGS),
           "<think>\nLook it up.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
           "{\"city\": "
           "\"Oslo </tool\", \"n\": 1.50, \"deep\": {\"arguments\": [1, "
           "{}]}}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, "
           "\"name\": \"ping\"}\n</tool_call>",
           "R[Look it up.]T[One moment.]C[0 get_weather {\"city\": \"Oslo </tool\", \"n\": 1.50, \"deep\": "
           "{\"arguments\": "
           "[1, {}]}}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call> done",
           "C[0 f {\"a\": 1}]T[done]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\"}</tool_call>", "C[0 f {}]");
    /* What cannot be read stays text. */
    expect(WITH(MF__NOTATION_TAGS), "x <tool_call>{\"name\": </tool_call> y", "T[x <tool_call>{\"name\": </tool_call> y]");
    expect(WITH(MF__NOTATION_TAGS), "x <tool_call>{\"nam\": 1}</tool_call>", "T[x <tool_call>{\"nam\": 1}</tool_call>]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>",
           "T[<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>]");
    /* Cut off at the end: read if it is whole, shown if not. */
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n", "C[0 f {}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>\n{\"name\": \"f", "T[<tool_call>\n{\"name\": \"f]");
}

static void test_qwen3_coder(void **state) {
    (void)state;
    json_t *tools =
        json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"edit\",\"parameters\":{\"properties\":{"
                   "\"path\":{\"type\":\"string\"},\"line\":{\"type\":\"integer\"},\"ok\":{\"type\":\"boolean\"},"
                   "\"opt\":{\"type\":[\"string\",\"null\"]}}}}}]",
                   0, NULL);
    const char *output =
        "<tool_call>\n<function=edit>\n<parameter=path>\n12\n</parameter>\n<parameter=line>\n12\n</parameter>\n"
        "<parameter=ok>\nTrue\n</parameter>\n<parameter=opt>\nnull\n</parameter>\n<parameter=text>\n a\n\"b\"\n"
        "\n</parameter>\n</function>\n</tool_call>";
    expect((mf__answer_setup){.notation = MF__NOTATION_TAGS, .tools = tools}, output,
           "C[0 edit {\"path\": \"12\", \"line\": 12, \"ok\": true, \"opt\": null, \"text\": \" a\\n\\\"b\\\"\\n\"}]");
    expect(WITH(MF__NOTATION_TAGS), output,
           "C[0 edit {\"path\": 12, \"line\": 12, \"ok\": true, \"opt\": null, \"text\": \" a\\n\\\"b\\\"\\n\"}]");
    expect(WITH(MF__NOTATION_TAGS),
           "ok\n\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\n<tool_call>\n<function=set>\n"
           "<parameter=v>\n{\"a\": [1, 2]}\n</parameter>\n</function>\n</tool_call>",
           "T[ok]C[0 ping {}]C[1 set {\"v\": {\"a\": [1, 2]}}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call><function=a></function><function=></function></tool_call>",
           "T[<tool_call><function=a></function><function=></function></tool_call>]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call><function=a><parameter=k>v</function></tool_call>",
           "T[<tool_call><function=a><parameter=k>v</function></tool_call>]");
    json_decref(tools);
}

static void test_glm(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_TAGS),
           "\n<think>Need "
           "it.</think>\nSure\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
           "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
           "R[Need it.]T[Sure]C[0 get_weather {\"city\": \"Oslo\", \"days\": 3}]C[1 ping {}]");
}

static void test_deepseek(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_DEEPSEEK),
           "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
           "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           "T[Ok.]C[0 get {\"a\": 1}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_DEEPSEEK),
           "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"a\": "
           "1}\n```<｜tool▁call▁end｜>"
           "<｜tool▁calls▁end｜>",
           "C[0 get {\"a\": 1}]");
    expect((mf__answer_setup){.notation = MF__NOTATION_DEEPSEEK, .in_reasoning = true}, "a</think>b ｜ <｜", "R[a]T[b ｜ <｜]");
}

static void test_kimi(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_KIMI),
           "Hi <|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"a\": 1}"
           "<|tool_call_end|><|tool_call_begin|>functions.x:y:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
           "<|tool_calls_section_end|>",
           "T[Hi]C[0 get {\"a\": 1}]C[1 x:y {}]");
}

static void test_minimax(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_MINIMAX),
           "<think>\nhm\n</think>\n\nOk\n<minimax:tool_call>\n<invoke name=\"f\"><parameter name=\"k\">v w</parameter>"
           "<parameter name=\"n\">[1]</parameter></invoke>\n<invoke name=\"g\"></invoke>\n</minimax:tool_call>",
           "R[hm]T[Ok]C[0 f {\"k\": \"v w\", \"n\": [1]}]C[1 g {}]");
}

static void test_harmony(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_HARMONY),
           "<|channel|>analysis<|message|>Think < "
           "hard.<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>",
           "R[Think < hard.]T[Done.]");
    expect(
        WITH(MF__NOTATION_HARMONY),
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        "<|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>",
        "R[Need it.]C[0 get_weather {\"city\":\"Oslo\"}]");
    expect(WITH(MF__NOTATION_HARMONY), " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "C[0 f {}]");
    expect(WITH(MF__NOTATION_HARMONY),
           "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>final"
           "<|message|>cut off",
           "T[I will look.cut off]");
    expect(WITH(MF__NOTATION_HARMONY), "<|channel|>commentary to=functions.f<|message|>not json<|call|>", "T[not json]");
    expect(WITH(MF__NOTATION_HARMONY), "no header at all", "T[no header at all]");
}

static mf_status refuse(void *user, const mf_event *e) {
    (void)user, (void)e;
    return MF_E_CANCELLED;
}

static void test_callback_stops(void **state) {
    (void)state;
    mf_answer *p;
    mf_error err;
    assert_int_equal(mf__answer_create(&(mf__answer_setup){.fn = refuse}, &p, &err), MF_OK);
    assert_int_equal(mf_answer_push(p, "text", 4, &err), MF_E_CANCELLED);
    mf_answer_free(p);
}

static void test_detect(void **state) {
    (void)state;
    assert_int_equal(mf__notation_detect("{{ '<tool_call>' }}"), MF__NOTATION_TAGS);
    assert_int_equal(mf__notation_detect("<|start|>assistant<|channel|>final"), MF__NOTATION_HARMONY);
    assert_int_equal(mf__notation_detect("<｜tool▁calls▁begin｜>"), MF__NOTATION_DEEPSEEK);
    assert_int_equal(mf__notation_detect("<|tool_calls_section_begin|>"), MF__NOTATION_KIMI);
    assert_int_equal(mf__notation_detect("'<minimax:tool_call>'"), MF__NOTATION_MINIMAX);
    assert_int_equal(mf__notation_detect("plain"), MF__NOTATION_PLAIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_think),   cmocka_unit_test(test_qwen3),    cmocka_unit_test(test_qwen3_coder),
        cmocka_unit_test(test_glm),     cmocka_unit_test(test_deepseek), cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_minimax), cmocka_unit_test(test_harmony),  cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_detect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
