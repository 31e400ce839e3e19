/* Output parsing: every family's notation, cut into pieces at every place, must give the same events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reply/answer.h"

static const char *samples_path;

/* Events are written as one text: T[..] answer, R[..] reasoning, C[name args] call; neighbours of a kind are joined. */
typedef struct record {
    mf__strbuf text;
    int kind;
    bool open; /* a call has begun and not ended */
    int n_pieces;
} record;

static mf_status note(void *user, const mf_event *e) {
    record *r = user;
    bool call = e->kind == MF_EVENT_CALL;
    bool inside = e->kind == MF_EVENT_ARGUMENTS || e->kind == MF_EVENT_CALL_END;
    assert_int_equal(r->open, inside);
    r->open = call || e->kind == MF_EVENT_ARGUMENTS;
    r->n_pieces += e->kind == MF_EVENT_ARGUMENTS;
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

static void run(const mf__answer_setup *base, const char *output, size_t piece, bool sure, record *r) {
    mf__answer_setup opt = *base;
    mf_answer *p;
    mf_error err = {0};
    size_t n = strlen(output);
    r->kind = -1;
    opt.fn = note;
    opt.user = r;
    assert_int_equal(mf__answer_create(&opt, &p, &err), MF_OK);
    mf__answer_sure(p, sure);
    for (size_t i = 0; i < n; i += piece)
        if (mf_answer_push(p, output + i, n - i < piece ? n - i : piece, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf_answer_finish(p, &err) != MF_OK) fail_msg("%s", err.text);
    mf_answer_free(p);
    if (r->kind >= 0) mf__strbuf_append(&r->text, "]", 1, NULL);
}

/* Blocks that are what they should be come out the same where that is known beforehand. */
static void expect(mf__answer_setup opt, const char *output, const char *want) {
    for (size_t i = 2; i <= 2 * (strlen(output) + 1) + 1; i++) {
        record r = {0};
        run(&opt, output, i / 2, i % 2, &r);
        if (strcmp(r.text.data ? r.text.data : "", want) != 0)
            fail_msg("in pieces of %zu:\n%s\ngave     %s\nexpected %s", i / 2, output, r.text.data, want);
        assert_false(r.open);
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
    expect((mf__answer_setup){.notation = MF__NOTATION_TAGS, .in_reasoning = true}, "well\n</think>\n\nok",
           "R[well]T[ok]");
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
    expect(WITH(MF__NOTATION_TAGS), "x <tool_call>{\"name\": </tool_call> y",
           "T[x <tool_call>{\"name\": </tool_call> y]");
    expect(WITH(MF__NOTATION_TAGS), "x <tool_call>{\"nam\": 1}</tool_call>",
           "T[x <tool_call>{\"nam\": 1}</tool_call>]");
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
    expect((mf__answer_setup){.notation = MF__NOTATION_DEEPSEEK, .in_reasoning = true}, "a</think>b ｜ <｜",
           "R[a]T[b ｜ <｜]");
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
    expect(WITH(MF__NOTATION_HARMONY), "<|channel|>commentary to=functions.f<|message|>not json<|call|>",
           "T[not json]");
    expect(WITH(MF__NOTATION_HARMONY), "no header at all", "T[no header at all]");
}

static void test_thinking_begins_at_the_beginning(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_TAGS), "Use <think>tags</think> so", "T[Use <think>tags</think> so]");
    expect(WITH(MF__NOTATION_TAGS), "<think>a</think>b<think>c</think>", "R[a]T[b<think>c</think>]");
    expect((mf__answer_setup){.notation = MF__NOTATION_TAGS, .in_reasoning = true}, "a</think><think>b",
           "R[a]T[<think>b]");
}

/* A call inside reasoning is one where the reasoning is never closed. */
static void test_calls_inside_reasoning(void **state) {
    (void)state;
    mf__answer_setup in = {.notation = MF__NOTATION_TAGS, .in_reasoning = true};
    expect(in, "I look.\n<tool_call>{\"name\": \"f\"}</tool_call>", "R[I look.]C[0 f {}]");
    expect(in, "x <tool_call>{\"name\": \"f\"}</tool_call> <tool_call>{\"name\": \"g\"}</tool_call>\n",
           "R[x]C[0 f {}]C[1 g {}]");
    expect(in, "x <tool_call>{\"name\": \"f\"}</tool_call> hm</think>y<tool_call>{\"name\": \"g\"}</tool_call>",
           "R[x <tool_call>{\"name\": \"f\"}</tool_call> hm]T[y]C[0 g {}]");
    expect(in, "a <tool_call> is a tag</think>b", "R[a <tool_call> is a tag]T[b]");
    expect(in, "a <tool_call>{\"name\": \"f\"</think>b", "R[a <tool_call>{\"name\": \"f\"]T[b]");
    expect((mf__answer_setup){.notation = MF__NOTATION_KIMI},
           "<think>two<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
           "<|tool_call_end|><|tool_calls_section_end|>",
           "R[two]C[0 f {}]");
}

static void test_closing_tags_inside_values(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_TAGS),
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>!",
           "C[0 f {\"a\": \"</tool_call>\"}]T[!]");
    expect(WITH(MF__NOTATION_TAGS),
           "<tool_call><function=f><parameter=a>\na </parameter> b </tool_call> x\n</parameter></function></tool_call>",
           "C[0 f {\"a\": \"a </parameter> b </tool_call> x\"}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>?</arg_value></tool_call>",
           "C[0 f {\"a\": \"x</tool_call>?\"}]");
    expect(WITH(MF__NOTATION_KIMI),
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
           "{\"a\": \"<|tool_call_end|><|tool_calls_section_end|>\"}<|tool_call_end|><|tool_calls_section_end|>",
           "C[0 f {\"a\": \"<|tool_call_end|><|tool_calls_section_end|>\"}]");
    expect(WITH(MF__NOTATION_MINIMAX),
           "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\"></invoke></minimax:tool_call>"
           "</parameter></invoke></minimax:tool_call>",
           "C[0 f {\"a\": \"</invoke></minimax:tool_call>\"}]");
}

static void test_calls_as_models_write_them(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "C[0 f {}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\"}\n{\"name\": \"g\"}</tool_call>",
           "C[0 f {}]C[1 g {}]");
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>[{\"name\": \"f\"}, {\"name\": \"g\"}]</tool_call>",
           "C[0 f {}]C[1 g {}]");
    expect(WITH(MF__NOTATION_TAGS),
           "<tool_call>{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>", "C[0 f {\"a\": 1}]");
    /* integers of any length */
    expect(WITH(MF__NOTATION_TAGS),
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 123456789012345678901234567890}}</tool_call>",
           "C[0 f {\"n\": 123456789012345678901234567890}]");
    expect(WITH(MF__NOTATION_TAGS),
           "<tool_call>f<arg_key>n</arg_key><arg_value>-98765432109876543210</arg_value></tool_call>",
           "C[0 f {\"n\": -98765432109876543210}]");
    /* one that cannot be read does not take the next one with it */
    expect(WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\" 1}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
           "T[<tool_call>{\"name\" 1}</tool_call>]C[0 g {}]");
    expect(WITH(MF__NOTATION_TAGS), "The <tool_call> tag. <tool_call>{\"name\": \"g\"}</tool_call>",
           "T[The <tool_call> tag.]C[0 g {}]");
}

static void test_missing_outer_tags(void **state) {
    (void)state;
    json_t *tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
    mf__answer_setup with = {.notation = MF__NOTATION_TAGS, .tools = tools};
    expect(with, "ok\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
           "T[ok]C[0 f {\"a\": 1}]");
    expect(with, "<function=f></function>\n</tool_call>\n<tool_call>\n<function=f></function></tool_call>",
           "C[0 f {}]C[1 f {}]");
    expect(with, "<function=other></function> is code", "T[<function=other></function> is code]");
    expect(WITH(MF__NOTATION_TAGS), "<function=f></function>", "T[<function=f></function>]");
    expect(WITH(MF__NOTATION_KIMI),
           "a<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_begin|>functions.g:1"
           "<|tool_call_argument_begin|>{}",
           "T[a]C[0 f {\"a\": 1}]C[1 g {}]");
    json_decref(tools);
}

static void test_types_of_the_schema(void **state) {
    (void)state;
    json_t *tools = json_loads(
        "[{\"name\":\"f\",\"parameters\":{\"$defs\":{\"S\":{\"type\":\"string\"}},\"properties\":{"
        "\"a\":{\"type\":[\"string\",\"null\"]},\"b\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
        "\"c\":{\"enum\":[\"1\",\"2\"]},\"d\":{\"$ref\":\"#/$defs/S\"},\"e\":{\"type\":[\"string\",\"integer\"]},"
        "\"g\":{\"type\":\"integer\"},\"h\":{\"type\":\"object\"},\"i\":{\"type\":\"boolean\"}}}}]",
        0, NULL);
    mf__answer_setup with = {.notation = MF__NOTATION_MINIMAX, .tools = tools};
#define CALL(key, value)                                                                                               \
    "<minimax:tool_call><invoke name=\"f\"><parameter name=\"" key "\">" value                                         \
    "</parameter></invoke></minimax:tool_call>"
    expect(with, CALL("a", "12"), "C[0 f {\"a\": \"12\"}]");
    expect(with, CALL("a", "null"), "C[0 f {\"a\": null}]");
    expect(with, CALL("a", "true"), "C[0 f {\"a\": \"true\"}]");
    expect(with, CALL("a", "{\"x\": 1}"), "C[0 f {\"a\": \"{\\\"x\\\": 1}\"}]");
    expect(with, CALL("b", "12"), "C[0 f {\"b\": \"12\"}]");
    expect(with, CALL("c", "1"), "C[0 f {\"c\": \"1\"}]");
    expect(with, CALL("d", "1.5"), "C[0 f {\"d\": \"1.5\"}]");
    expect(with, CALL("e", "12"), "C[0 f {\"e\": 12}]");
    expect(with, CALL("e", "x"), "C[0 f {\"e\": \"x\"}]");
    expect(with, CALL("g", "many"), "C[0 f {\"g\": \"many\"}]");
    expect(with, CALL("h", " {\"x\": [1]}\n"), "C[0 f {\"h\": {\"x\": [1]}}]");
    expect(with, CALL("i", "True"), "C[0 f {\"i\": true}]");
    expect(with, CALL("other", "12"), "C[0 f {\"other\": 12}]");
#undef CALL
    json_decref(tools);
}

static void test_dsml(void **state) {
    (void)state;
    mf__answer_setup in = {.notation = MF__NOTATION_DSML, .in_reasoning = true};
    expect(in,
           "hm</think>\n\nOk.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
           "string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" "
           "string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
           "name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
           "R[hm]T[Ok.]C[0 f {\"a\": \"12\", \"b\": [1]}]C[1 g {}]");
    expect(WITH(MF__NOTATION_DSML),
           "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "C[0 f {}]");
}

static void test_harmony_recipients(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_HARMONY),
           "<|channel|>commentary to=assistant<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final"
           "<|message|>Yes",
           "R[hm]T[Yes]");
    expect(WITH(MF__NOTATION_HARMONY), "<|channel|>analysis to=browser.search<|message|>{\"query\":\"x\"}<|call|>",
           "C[0 browser.search {\"query\":\"x\"}]");
    expect(WITH(MF__NOTATION_HARMONY), "<|channel|>analysis to=python code<|message|>print(1)<|call|>", "");
    expect(WITH(MF__NOTATION_HARMONY), "<|channel|>commentary<|message|>Talk of to=functions.f and analysis<|end|>",
           "T[Talk of to=functions.f and analysis]");
}

/* Known to be calls: their arguments come out as they come in. */
static void test_pieces(void **state) {
    (void)state;
    static const struct {
        mf__notation notation;
        const char *output;
        int n_pieces; /* of one byte at most */
    } all[] = {
        {MF__NOTATION_TAGS, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}\n</tool_call>", 12},
        {MF__NOTATION_TAGS, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", 2},
        {MF__NOTATION_DEEPSEEK,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g"
         "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         10},
        {MF__NOTATION_DEEPSEEK,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
         "[1]}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         10},
        {MF__NOTATION_KIMI,
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}"
         "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
         "<|tool_calls_section_end|>",
         10},
        {MF__NOTATION_HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
         8},
    };
    for (size_t i = 0; i < MF__COUNT(all); i++) {
        record whole = {0};
        run(&(mf__answer_setup){.notation = all[i].notation}, all[i].output, strlen(all[i].output), false, &whole);
        assert_string_not_equal(whole.text.data, "");
        expect((mf__answer_setup){.notation = all[i].notation}, all[i].output, whole.text.data);
        mf__strbuf_free(&whole.text);
        record pieces = {0};
        run(&(mf__answer_setup){.notation = all[i].notation}, all[i].output, 1, true, &pieces);
        assert_int_equal(pieces.n_pieces, all[i].n_pieces);
        mf__strbuf_free(&pieces.text);
    }
    /* A name that none can have is left to the whole block, which is no call. */
    static const char unnamed[] = "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>";
    record none = {0};
    run(&WITH(MF__NOTATION_TAGS), unnamed, 1, true, &none);
    assert_string_equal(none.text.data, "T[<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>]");
    mf__strbuf_free(&none.text);
    static const char quote[] = "<|tool_calls_section_begin|><|tool_call_begin|>functions.\":0"
                                "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    record mark = {0};
    run(&WITH(MF__NOTATION_KIMI), quote, 1, true, &mark);
    assert_int_equal(mark.text.data[0], 'T');
    mf__strbuf_free(&mark.text);
    /* One that is left in the middle has no end, and is not said again as text. */
    record cut = {0};
    run(&WITH(MF__NOTATION_TAGS), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", 1, true, &cut);
    assert_string_equal(cut.text.data, "C[0 f {\"a\": ]");
    assert_true(cut.open);
    mf__strbuf_free(&cut.text);
}

/* Some answers of another project's tests: {"notation", "in_reasoning", "tools", "text"} and what they are made of. */
static void check_sample(const json_t *line) {
    static const char *const names[] = {"plain",   "tags", "deepseek", "kimi",    "minimax", "dsml",
                                        "harmony", "hy3",  "minimax3", "mistral", "gemma"};
    const char *notation = json_string_value(json_object_get(line, "notation"));
    const char *content = json_string_value(json_object_get(line, "content"));
    const char *reasoning = json_string_value(json_object_get(line, "reasoning"));
    const json_t *calls = json_object_get(line, "calls");
    mf__answer_setup opt = {.in_reasoning = json_is_true(json_object_get(line, "in_reasoning")),
                            .tools = json_object_get(line, "tools")};
    while (strcmp(names[opt.notation], notation) != 0) opt.notation++;
    mf__strbuf want = {0};
    mf__strbuf_append(&want, "", 0, NULL);
    if (*reasoning) mf__strbuf_printf(&want, NULL, "R[%s]", reasoning);
    if (*content) mf__strbuf_printf(&want, NULL, "T[%s]", content);
    for (size_t i = 0; i < json_array_size(calls); i++)
        mf__strbuf_printf(&want, NULL, "C[%zu %s %s]", i,
                          json_string_value(json_array_get(json_array_get(calls, i), 0)),
                          json_string_value(json_array_get(json_array_get(calls, i), 1)));
    expect(opt, json_string_value(json_object_get(line, "text")), want.data ? want.data : "");
    mf__strbuf_free(&want);
}

static void test_samples(void **state) {
    (void)state;
    char line[1 << 16];
    size_t n = 0;
    FILE *f = fopen(samples_path, "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n++) {
        json_t *sample = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(sample);
        check_sample(sample);
        json_decref(sample);
    }
    assert_true(n > 10);
    fclose(f);
}

/* ---- models that came later ---- */

static void test_hy3(void **state) {
    (void)state;
    expect(
        (mf__answer_setup){.notation = MF__NOTATION_HY3, .in_reasoning = true},
        "Look.</think:opensource>One moment.<tool_calls:opensource>\n<tool_call:opensource>get<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo "
        "</arg_value></arg_value:opensource>\n"
        "<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>ping<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "R[Look.]T[One moment.]C[0 get {\"city\": \"Oslo </arg_value>\", \"n\": 3}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_HY3), "<think:opensource></think:opensource>Hi", "T[Hi]");
    expect(WITH(MF__NOTATION_HY3), "<tool_calls:opensource>no</tool_calls:opensource>",
           "T[<tool_calls:opensource>no</tool_calls:opensource>]");
}

#define NS "]<]minimax[>["

static void test_minimax3(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_MINIMAX3),
           "<mm:think>Hm</mm:think>Ok" NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<a>1 < 2" NS "</a>" NS "<b>" NS
           "<item>1" NS "</item>" NS "<item>" NS "<x>y" NS "</x>" NS "</item>" NS "</b>" NS "<c>" NS "<a>true" NS
           "</a>" NS "</c>" NS "</invoke>\n" NS "<invoke name=\"ping\">" NS "</invoke>\n" NS "</tool_call>",
           "R[Hm]T[Ok]C[0 f {\"a\": \"1 < 2\", \"b\": [1, {\"x\": \"y\"}], \"c\": {\"a\": true}}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_MINIMAX3), "</mm:think>Hi </mm:think>", "T[Hi </mm:think>]");
    expect(WITH(MF__NOTATION_MINIMAX3), NS "<tool_call>" NS "<invoke name=\"f\">" NS "<a>1" NS "</b>" NS "</tool_call>",
           "T[" NS "<tool_call>" NS "<invoke name=\"f\">" NS "<a>1" NS "</b>" NS "</tool_call>]");
}

static void test_mistral(void **state) {
    (void)state;
    expect(WITH(MF__NOTATION_MISTRAL),
           "[THINK]Hm[/THINK]Ok[TOOL_CALLS]get[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]ping[CALL_ID]abc[ARGS]{}",
           "R[Hm]T[Ok]C[0 get {\"a\": \"[TOOL_CALLS]\"}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_MISTRAL), "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"b\": [1]}}]",
           "C[0 f {\"b\": [1]}]");
    expect(WITH(MF__NOTATION_MISTRAL), "See [TOOL_CALLS] there", "T[See [TOOL_CALLS] there]");
}

static void test_gemma(void **state) {
    (void)state;
    expect(
        WITH(MF__NOTATION_GEMMA),
        "<|channel>thought\nHm\n<channel|>Ok<|tool_call>call:f{a:<|\"|>x, {y}<|\"|>,n:12,ok:true,l:[1,<|\"|>b<|\"|>],"
        "o:{<|\"|>k k<|\"|>:null}}<tool_call|><|tool_call>call:ping{}<tool_call|>",
        "R[Hm]T[Ok]C[0 f {\"a\": \"x, {y}\", \"n\": 12, \"ok\": true, \"l\": [1, \"b\"], \"o\": {\"k k\": "
        "null}}]C[1 ping {}]");
    expect(WITH(MF__NOTATION_GEMMA), "<|tool_call>call:f{\"a\": {\"b\": \"<tool_call|>\"}}<tool_call|>",
           "C[0 f {\"a\": {\"b\": \"<tool_call|>\"}}]");
    expect(WITH(MF__NOTATION_GEMMA), "<|tool_call>call:f{a:}<tool_call|>", "T[<|tool_call>call:f{a:}<tool_call|>]");
    expect(WITH(MF__NOTATION_GEMMA), "<|channel>thought\n<channel|>Hi", "T[Hi]");
    expect(WITH(MF__NOTATION_GEMMA), "<|channel>thought\n<channel|>Hi<|channel>thought\n<channel|><channel|>", "T[Hi]");
}

/* Tags around the answer itself are not shown. */
static void test_wrapped(void **state) {
    (void)state;
    static const char *const tags[] = {"<answer>", "</answer>"};
    mf__answer_setup with = {.notation = MF__NOTATION_TAGS, .wrap = tags};
    expect(with, "<think>\nHm\n</think>\n<answer>\nYes <answer> no\n</answer>", "R[Hm]T[Yes <answer> no]");
    expect(with, "Plain </answer>", "T[Plain </answer>]");
    expect(WITH(MF__NOTATION_TAGS), "<answer>a</answer>", "T[<answer>a</answer>]");
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
    assert_int_equal(mf__notation_detect("set dsml_token = '｜DSML｜'"), MF__NOTATION_DSML);
    assert_int_equal(mf__notation_detect("plain"), MF__NOTATION_PLAIN);
    assert_int_equal(mf__notation_detect("'<tool_calls{}>'.format(HYTK)"), MF__NOTATION_HY3);
    assert_int_equal(mf__notation_detect("set ns_token = ']<]minimax[>['"), MF__NOTATION_MINIMAX3);
    assert_int_equal(mf__notation_detect("{{- '[TOOL_CALLS]' }}"), MF__NOTATION_MISTRAL);
    assert_int_equal(mf__notation_detect("'<|tool_call>call:' + name"), MF__NOTATION_GEMMA);
    assert_string_equal(mf__wrap_detect("<think> </think> <answer> </answer>")[0], "<answer>");
    assert_null(mf__wrap_detect("<minimax:tool_call> <response></response>"));
    assert_true(mf__text_opens_reasoning("x<think:opensource>", 19) && mf__text_opens_reasoning("<mm:think>\n", 11));
    assert_true(mf__text_closes_reasoning("[THINK][/THINK]", 15) && !mf__text_closes_reasoning("[THINK]", 7));
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: test_answer SAMPLES.jsonl\n"), 2;
    samples_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_think),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_qwen3_coder),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_hy3),
        cmocka_unit_test(test_minimax3),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_wrapped),
        cmocka_unit_test(test_minimax),
        cmocka_unit_test(test_harmony),
        cmocka_unit_test(test_callback_stops),
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_thinking_begins_at_the_beginning),
        cmocka_unit_test(test_calls_inside_reasoning),
        cmocka_unit_test(test_closing_tags_inside_values),
        cmocka_unit_test(test_calls_as_models_write_them),
        cmocka_unit_test(test_missing_outer_tags),
        cmocka_unit_test(test_types_of_the_schema),
        cmocka_unit_test(test_dsml),
        cmocka_unit_test(test_harmony_recipients),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
