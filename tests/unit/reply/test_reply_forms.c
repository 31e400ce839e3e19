/* Replies that must be of a form: its order, its end within few tokens, arguments in pieces. */
#include "paper_model.h"
#include "test_reply.h"

static mf_form *schema_form(const char *schema) {
    mf_form *form;
    if (mf_form_create(MF_FORM_SCHEMA, schema, strlen(schema), &form, &err) != MF_OK) fail_msg("%s", err.text);
    return form;
}

/* The shipped model's text: what comes does not depend on how the die falls, but it ends, and fits. */
void test_forms_whatever_the_model_wants(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"maximum\": 99, "
        "\"minimum\": 0}}, \"required\": [\"a\"], \"additionalProperties\": false}";
    made m = {0};
    mf_form *form;
    assert_int_equal(mf_text_open(reply_stories, &m.text, &err), MF_OK);
    mf_text_info about;
    mf_text_info_get(m.text, &about);
    m.n = about.n_tokens - 256; /* for the size of the vocabulary; it has no names */
    assert_int_equal(mf_form_create(MF_FORM_SCHEMA, schema, sizeof schema - 1, &form, &err), MF_OK);
    mf_model_info info = {.n_vocab = about.n_tokens, .n_eos = 0};
    float *logits = malloc((size_t)about.n_tokens * sizeof *logits);
    for (int i = 0; i < 6; i++) {
        heard h = {0};
        mf_reply_options o;
        mf_reply *r;
        const int32_t *ids;
        size_t n = 1;
        mf_reply_options_init(&o);
        o.request = ASK;
        o.request_size = strlen(ASK);
        o.form = form;
        o.fn = hear;
        o.user = &h;
        o.max_tokens = i ? 200 : 2;
        o.sampling.seed = (uint64_t)i;
        assert_int_equal(mf_reply_create(m.text, &info, &o, &r, &err), MF_OK);
        while (n) {
            for (int32_t k = 0; k < about.n_tokens; k++) logits[k] = 8 * throw();
            assert_int_equal(mf_reply_step(r, logits, &ids, &n, &err), MF_OK);
        }
        json_t *value = json_loadb(SAID(h), h.text.size, 0, NULL);
        if (!json_is_integer(json_object_get(value, "a"))) fail_msg("%s", SAID(h));
        json_decref(value);
        mf_reply_free(r);
        forget(&h);
    }
    free(logits);
    mf_form_free(form);
    mf_text_close(m.text);
}

/* The first letters of the keys that the model gives to a form, which it may want otherwise. */
static void expect_keys(const made *m, const mf_form *form, const char *script, const char *want) {
    heard h = {0};
    run r = ask(m, ASK);
    char keys[16] = "";
    const char *key;
    json_t *value;
    r.o.form = form;
    r.script = script;
    say(&r, &h);
    json_t *answer = json_loadb(SAID(h), h.text.size, 0, NULL);
    if (!json_is_object(answer)) fail_msg("%s", SAID(h));
    json_object_foreach(answer, key, value) if (strlen(keys) < sizeof keys - 1) strncat(keys, key, 1);
    if (strncmp(keys, want, strlen(want)) != 0) fail_msg("%s: %s, expected %s", script, SAID(h), want);
    json_decref(answer);
    forget(&h);
}

/* What is not required may still come later. */
void test_members_in_the_schemas_order(void **state) {
    (void)state;
    made m = make_text(CHATML);
    mf_form *form = schema_form("{\"type\": \"object\", \"properties\": {\"b\": {\"const\": 1}, \"o\": {\"const\": 2}, "
                                "\"a\": {\"const\": 3}}, \"required\": [\"a\", \"b\"]}");
    expect_keys(&m, form, "{\"a\":3,\"b\":1}", "ba");
    expect_keys(&m, form, "{\"o\":2}", "b");
    expect_keys(&m, form, "{\"z\":2}", "b");
    expect_keys(&m, form, "{\"b\":1,\"o\":2,\"a\":3}", "boa");
    expect_keys(&m, form, "{\"b\":1,\"a\":3,\"o\":2,\"z\":4}", "baoz");
    expect_keys(&m, form, "{\"b\":1,\"z\":4,\"a\":3}", "ba");
    mf_form_free(form);
    form =
        schema_form("{\"allOf\": [{\"properties\": {\"x\": {\"const\": 1}}, \"required\": [\"x\"]}, {\"properties\": "
                    "{\"y\": {\"const\": 1}}, \"required\": [\"y\"]}], \"type\": \"object\", \"properties\": {\"w\": "
                    "{\"const\": 1}}, \"required\": [\"y\", \"x\", \"w\"]}");
    expect_keys(&m, form, "{\"y\":1,\"x\":1}", "wxy");
    mf_form_free(form);
    /* a message that is continued may have begun in another order */
    form = schema_form("{\"type\": \"object\", \"properties\": {\"b\": {\"const\": 1}, \"a\": {\"const\": 3}}, "
                       "\"required\": [\"a\", \"b\"]}");
    run r = ask(&m, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
                    "\"{\\\"a\\\":3,\"}]}");
    heard h = {0};
    r.o.form = form;
    r.o.continue_last = true;
    r.script = "\"b\":1}";
    say(&r, &h);
    assert_string_equal(SAID(h), "\"b\":1}");
    forget(&h);
    mf_form_free(form);
    make_free(&m);
}

/* With any number of tokens the answer is valid, and says so where it was shortened. Every byte is a token here, so the
 * shortest answer, {"a":"","b":[]}, has 15. */
void test_few_tokens(void **state) {
    (void)state;
    made m = make_text(CHATML);
    mf_form *form =
        schema_form("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"type\": "
                    "\"array\", \"items\": {\"enum\": [10, \"a long value\"]}}}, \"required\": [\"a\", "
                    "\"b\"], \"additionalProperties\": false}");
    static const char script[] = "{\"a\": \"a text that goes on and on\", \"b\": [10, \"a long value\", 10]}";
    for (int64_t max = 1; max < 90; max++)
        for (int random = 0; random < 3; random++) {
            heard h = {0};
            run r = ask(&m, ASK);
            r.o.form = form;
            r.script = random ? NULL : script;
            r.o.max_tokens = max;
            if (random == 2) r.o.max_tokens = -1, r.o.n_ctx = 0;
            if (random == 2) {
                mf_reply *reply;
                mf_reply_prompt p;
                mf_model_info info = make_info(&m);
                assert_int_equal(mf_reply_create(m.text, &info, &r.o, &reply, &err), MF_OK);
                mf_reply_prompt_get(reply, &p);
                r.o.n_ctx = (int64_t)p.n_ids + max - 1;
                mf_reply_free(reply);
            }
            say(&r, &h);
            json_t *value = json_loadb(SAID(h), h.text.size, 0, NULL);
            if (!json_is_string(json_object_get(value, "a")) || !json_is_array(json_object_get(value, "b")) ||
                json_object_size(value) != 2)
                fail_msg("%d tokens: %s", (int)max, SAID(h));
            bool whole = !random && !strcmp(SAID(h), script);
            if (max >= 15) assert_int_equal(r.result.n_made, h.text.size); /* nothing was added behind the tokens */
            if (!random) assert_int_equal(r.result.end, whole ? MF_END_COMPLETE : MF_END_LENGTH);
            if (!random && max >= (int64_t)strlen(script)) assert_true(whole);
            json_decref(value);
            forget(&h);
        }
    mf_form_free(form);
    make_free(&m);
}

void test_arguments_come_in_pieces(void **state) {
    (void)state;
    made m = make_text(CHATML "{# tools <tool_call> #}");
    heard h = {0};
    run r = ask(&m, ASK_TOOLS);
    r.script = "Look:\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n"
               "</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
    say(&r, &h);
    assert_int_equal(json_array_size(h.calls), 2);
    assert_string_equal(json_string_value(json_array_get(json_array_get(h.calls, 0), 1)),
                        "{\"city\": \"Oslo\", \"days\": 3}");
    assert_string_equal(json_string_value(json_array_get(json_array_get(h.calls, 1), 1)), "{}");
    assert_int_equal(h.n_pieces, strlen("{\"city\": \"Oslo\", \"days\": 3}") + 2); /* a byte each */
    assert_int_equal(r.result.n_calls, 2);
    assert_int_equal(r.result.end, MF_END_TOOL_CALLS);
    forget(&h);
    make_free(&m);
}

/* gpt-oss names the tool in a header: from there on its schema holds, and the arguments come in pieces. */
void test_harmony_arguments(void **state) {
    (void)state;
    char *source;
    size_t size;
    char path[512];
    snprintf(path, sizeof path, "%s/openai-gpt-oss-120b.jinja", reply_golden);
    if (mf__file_read(path, 1 << 22, &source, &size, &err) != MF_OK) fail_msg("%s", err.text);
    made m = make_text(source);
    heard h = {0};
    run r = ask(&m, ASK_TOOLS);
    r.script =
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"days\": 3, \"city\": 5}<|call|>";
    say(&r, &h);
    assert_int_equal(json_array_size(h.calls), 1);
    const char *arguments = json_string_value(json_array_get(json_array_get(h.calls, 0), 1));
    json_t *value = json_loads(arguments, 0, NULL);
    if (!json_is_string(json_object_get(value, "city")) || !json_is_integer(json_object_get(value, "days")))
        fail_msg("%s", arguments);
    assert_int_equal(h.n_pieces, strlen(arguments));
    json_decref(value);
    forget(&h);
    r.script =
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{\"x\": 3}<|call|>"; /* no such tool */
    say(&r, &h);
    assert_int_equal(json_array_size(h.calls), 1);
    assert_string_equal(json_string_value(json_array_get(json_array_get(h.calls, 0), 1)), "{\"x\": 3}");
    forget(&h);
    make_free(&m);
    free(source);
}
