/* Replies, with a model made of paper. */
#include "test_reply.h"
#include "paper_model.h"

const char *reply_golden, *reply_stories;

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void test_text_and_reasoning(void **state) {
    (void)state;
    made m = make_text(THINKING);
    heard h = {0};
    run r = ask(&m, ASK);
    r.script = "<think>\nWell: ü.\n</think>\n\nHello, 🦊!";
    r.o.tokens = true;
    r.o.n_logprobs = 3;
    say(&r, &h);
    assert_string_equal(THOUGHT(h), "Well: ü.");
    assert_string_equal(SAID(h), "Hello, 🦊!");
    assert_int_equal(r.result.end, MF_END_STOP);
    assert_int_equal(r.result.n_made, h.n_tokens);
    assert_in_range(r.result.n_reasoning, 10, 20);
    assert_true(h.logprobs < 0);
    forget(&h);
    r = ask(&m, ASK);
    r.o.reasoning = MF_SWITCH_ON;
    r.script = "Hm\n</think>\n\nYes";
    say(&r, &h);
    assert_true(r.in_reasoning);
    assert_string_equal(THOUGHT(h), "Hm");
    assert_string_equal(SAID(h), "Yes");
    forget(&h);
    make_free(&m);
}

static void test_stops_never_leak(void **state) {
    (void)state;
    made m = make_text(CHATML);
    static const char *const stops[] = {"END", "\n\n", "ND."};
    heard h = {0};
    run r = ask(&m, ASK);
    r.o.stops = stops;
    r.o.n_stops = 3;
    r.script = "One. EN two. END three";
    say(&r, &h);
    assert_string_equal(SAID(h), "One. EN two. ");
    assert_int_equal(r.result.end, MF_END_STOP_TEXT);
    assert_int_equal(r.result.stop, 0);
    forget(&h);
    r.script = "One\n two\n\nthree";
    say(&r, &h);
    assert_string_equal(SAID(h), "One\n two");
    assert_int_equal(r.result.stop, 1);
    forget(&h);
    r.script = "It is the EN"; /* the beginning of one, and the end */
    say(&r, &h);
    assert_string_equal(SAID(h), "It is the EN");
    assert_int_equal(r.result.end, MF_END_STOP);
    forget(&h);
    make_free(&m);
}

static void test_ends(void **state) {
    (void)state;
    made m = make_text(CHATML);
    heard h = {0};
    run r = ask(&m, ASK);
    r.script = "abcdef";
    r.o.max_tokens = 3;
    say(&r, &h);
    assert_string_equal(SAID(h), "abc");
    assert_int_equal(r.result.end, MF_END_LENGTH);
    forget(&h);
    r.o.max_tokens = -1;
    r.o.n_ctx = (int64_t)r.n_prompt + 2;
    say(&r, &h);
    assert_string_equal(SAID(h), "abc");
    assert_int_equal(r.result.end, MF_END_CONTEXT);
    forget(&h);
    r.o.max_tokens = 0;
    say(&r, &h);
    assert_string_equal(SAID(h), "");
    assert_int_equal(r.result.end, MF_END_LENGTH);
    r.o.n_ctx = 3;
    mf_reply *none;
    mf_model_info info = make_info(&m);
    assert_int_equal(mf_reply_create(m.text, &info, &r.o, &none, &err), MF_E_CONTEXT_FULL);
    forget(&h);
    make_free(&m);
}

static void test_reasoning_is_ended(void **state) {
    (void)state;
    made m = make_text(THINKING);
    heard h = {0};
    run r = ask(&m, ASK);
    mf_form *form;
    r.o.reasoning = MF_SWITCH_ON;
    r.o.max_reasoning = 4;
    r.script = "a long thought that never ends";
    say(&r, &h);
    assert_string_equal(THOUGHT(h), "a lo");
    assert_true(h.text.size > 0); /* the script goes on, as text */
    forget(&h);
    /* a form holds behind the reasoning, and for a model that ends too early */
    assert_int_equal(mf_form_create(MF_FORM_REGEX, "yes|no", 6, &form, &err), MF_OK);
    r.o.max_reasoning = 0;
    r.o.form = form;
    r.script = "Hm";
    say(&r, &h);
    assert_string_equal(THOUGHT(h), "Hm");
    assert_true(!strcmp(SAID(h), "yes") || !strcmp(SAID(h), "no"));
    assert_int_equal(r.result.end, MF_END_COMPLETE);
    forget(&h);
    /* a model that opens its reasoning itself may do so */
    r.o.reasoning = MF_SWITCH_AUTO;
    r.script = "<think>Hm</think>no";
    say(&r, &h);
    assert_string_equal(THOUGHT(h), "Hm");
    assert_string_equal(SAID(h), "no");
    forget(&h);
    r.o.max_tokens = 1; /* cut off: completed in the shortest way */
    say(&r, &h);
    assert_string_equal(SAID(h), "no");
    assert_int_equal(r.result.end, MF_END_LENGTH);
    forget(&h);
    mf_form_free(form);
    make_free(&m);
}

static void test_a_message_is_continued(void **state) {
    (void)state;
    made m = make_text(THINKING);
    heard h = {0};
    mf_form *form;
    run r = ask(&m, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
                    "\"It is <|im_end|>\"}]}");
    r.o.continue_last = true;
    r.script = " blue";
    say(&r, &h);
    assert_string_equal(SAID(h), " blue");
    run without = ask(&m, ASK);
    without.script = "";
    heard nothing = {0};
    say(&without, &nothing);
    assert_int_equal(r.n_prompt - without.n_prompt, strlen("It is <|im_end|>")); /* of bytes: no marker */
    forget(&h);
    assert_int_equal(mf_form_create(MF_FORM_REGEX, "It is <.im_end.>[0-9]", 21, &form, &err), MF_OK);
    r.o.form = form;
    r.script = "x7";
    say(&r, &h);
    assert_int_equal(h.text.size, 1);
    assert_in_range(SAID(h)[0], '0', '9');
    forget(&h);
    mf_form_free(form);
    r.o.form = NULL;
    r.o.reasoning = MF_SWITCH_ON; /* the prompt opens reasoning: it is closed before the text */
    r.script = "!";
    say(&r, &h);
    assert_string_equal(THOUGHT(h), "");
    assert_string_equal(SAID(h), "!");
    forget(&h);
    make_free(&m);
}

static void test_marks(void **state) {
    (void)state;
    made m = make_text(CHATML);
    heard h = {0};
    static const mf_reply_mark marks[] = {{0, 0}, {0, 1}, {1, MF_MARK_AFTER}, {9, MF_MARK_AFTER}};
    run r = ask(&m, "{\"messages\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"abc\"}, "
                    "{\"type\": \"text\", \"text\": \"def \"}]}, {\"role\": \"user\", \"content\": \"Hi\"}]}");
    r.o.marks = marks;
    r.o.n_marks = 4;
    r.script = "";
    say(&r, &h);
    /* <|im_start|> system \n a b c \n d e f <space> <|im_end|> \n */
    assert_int_equal(r.asked[0], 1 + 7 + 3);
    assert_int_equal(r.asked[1], 1 + 7 + 3 + 1 + 3);
    assert_int_equal(r.asked[2], 1 + 7 + 3 + 1 + 4 + 2 + 1 + 5 + 2);
    assert_int_equal(r.asked[3], 0);
    size_t with = r.n_prompt;
    r.o.n_marks = 0;
    say(&r, &h);
    assert_int_equal(r.n_prompt, with); /* marks change nothing */
    static const mf_reply_mark before[] = {{1, MF_MARK_BEFORE}, {0, MF_MARK_BEFORE}, {2, MF_MARK_AFTER}};
    r = ask(&m, "{\"messages\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \" a\"}, "
                "{\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"user\", \"content\": \"Hi\"}, "
                "{\"role\": \"assistant\", \"content\": \"So\"}]}");
    r.o.continue_last = true;
    r.script = "";
    say(&r, &h);
    with = r.n_prompt;
    r.o.marks = before;
    r.o.n_marks = 3;
    say(&r, &h);
    assert_int_equal(r.asked[0], 1 + 7 + 4 + 2 + 1 + 5);
    assert_int_equal(r.asked[1], 1 + 7 + 1);
    assert_int_equal(r.asked[2], 0); /* the prompt's end, which is kept anyway */
    assert_int_equal(r.n_prompt, with);
    forget(&h);
    make_free(&m);
}

static mf_reply *create(const made *m, mf_reply_options *o) {
    mf_model_info info = make_info(m);
    mf_reply *reply;
    if (mf_reply_create(m->text, &info, o, &reply, &err) != MF_OK) fail_msg("%s", err.text);
    return reply;
}

static void same_prompt(const mf_reply *a, const mf_reply *b) {
    mf_reply_prompt p, q;
    mf_reply_prompt_get(a, &p);
    mf_reply_prompt_get(b, &q);
    assert_int_equal(p.n_ids, q.n_ids);
    assert_memory_equal(p.ids, q.ids, p.n_ids * sizeof *p.ids);
    assert_int_equal(p.n_marks, q.n_marks);
    assert_memory_equal(p.marks, q.marks, p.n_marks * sizeof *p.marks);
    assert_int_equal(p.asked[0], q.asked[0]);
    assert_int_equal(p.in_reasoning, q.in_reasoning);
}

/* Several answers to one request: its prompt is made once, and every one is as it would be by itself. */
static void test_like_another(void **state) {
    static const char *const requests[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"So\"}]}",
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
         "{\"role\": \"assistant\", \"reasoning_content\": \"Hm\", \"content\": \"\"}]}"),
    };
    static const mf_reply_mark mark = {0, MF_MARK_AFTER};
    (void)state;
    made m = make_text(THINKING);
    for (size_t i = 0; i < MF__COUNT(requests); i++) {
        run r = ask(&m, requests[i]);
        r.o.continue_last = i > 0;
        r.o.reasoning = MF_SWITCH_ON;
        r.o.marks = &mark;
        r.o.n_marks = 1;
        mf_reply *first = create(&m, &r.o), *alone = create(&m, &r.o);
        r.o.like = first;
        mf_reply *second = create(&m, &r.o);
        same_prompt(first, alone);
        same_prompt(first, second);
        heard h = {0};
        r.script = i == 1 ? " it is" : "Well\n</think>\n\nYes";
        say(&r, &h);
        assert_string_equal(SAID(h), i == 1 ? " it is" : "Yes");
        forget(&h);
        mf_reply_free(second);
        mf_reply_free(alone);
        mf_reply_free(first);
    }
    run r = ask(&m, ASK), other = ask(&m, "{\"messages\": [{\"role\": \"user\", \"content\": \"Something else\"}]}");
    mf_reply *first = create(&m, &r.o), *text;
    other.o.like = first;
    mf_reply *second = create(&m, &other.o); /* nothing is encoded: its own request is not looked at for the prompt */
    same_prompt(first, second);
    mf_reply_free(second);
    r = ask(&m, NULL);
    r.o.text = "Once";
    r.o.text_size = 4;
    text = create(&m, &r.o);
    r.o.text = "Twice";
    r.o.like = text;
    second = create(&m, &r.o);
    same_prompt(text, second);
    mf_reply_free(second);
    mf_model_info info = make_info(&m);
    r.o.like = first;
    assert_int_equal(mf_reply_create(m.text, &info, &r.o, &second, &err), MF_E_INVALID);
    mf_reply_free(text);
    mf_reply_free(first);
    make_free(&m);
}

/* ---- tools ------------------------------------------------------------------------------------------------------ */

static bool is_right_call(const json_t *call) {
    const char *name = json_string_value(json_array_get(call, 0));
    const json_t *text = json_array_get(call, 1);
    json_t *args = json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
    bool right;
    if (!strcmp(name, "get_weather"))
        right = json_object_size(args) == 2 && json_is_string(json_object_get(args, "city")) &&
                json_integer_value(json_object_get(args, "days")) >= 1 &&
                json_integer_value(json_object_get(args, "days")) <= 9;
    else
        right = !strcmp(name, "ping") && json_object_size(args) <= 1 &&
                (!json_object_size(args) || json_is_boolean(json_object_get(args, "on")));
    json_decref(args);
    return right;
}

static void check_calls(const run *r, const heard *h, const char *what, size_t most) {
    size_t n = json_array_size(h->calls);
    if (n < 1 || n > most || h->text.size || (size_t)r->result.n_calls != n)
        fail_msg("%s: %zu calls (%d), text \"%s\"", what, n, r->result.n_calls, SAID(*h));
    for (size_t i = 0; i < n; i++)
        if (!is_right_call(json_array_get(h->calls, i))) {
            char *text = json_dumps(json_array_get(h->calls, i), JSON_ENCODE_ANY);
            fail_msg("%s: %s", what, text);
        }
}

static char *read_template(const char *name) {
    char path[512], *source;
    size_t size;
    snprintf(path, sizeof path, "%s/%s.jinja", reply_golden, name);
    if (mf__file_read(path, 1 << 22, &source, &size, &err) != MF_OK) fail_msg("%s", err.text);
    return source;
}

/* Whatever the model wants to say: a required call comes out right, in every family's notation. */
static void check_required(const char *name, const char *source) {
    made m = make_text(source);
    assert_non_null(m.text);
    for (int i = 0; i < 12; i++) {
        heard h = {0};
        run r = ask(&m, ASK_TOOLS);
        r.o.tool_choice = i % 3 == 2 ? MF_TOOLS_NAMED : MF_TOOLS_REQUIRED;
        r.o.tool_name = i % 3 == 2 ? "ping" : NULL;
        r.o.one_call = i % 3 == 1;
        r.o.max_tokens = i % 2 ? 3000 : 40;
        r.o.reasoning = i % 4 == 3 ? MF_SWITCH_OFF : MF_SWITCH_AUTO;
        r.o.max_reasoning = 10;
        say(&r, &h);
        check_calls(&r, &h, name, i % 3 ? 1 : 32);
        if (i % 3 == 2) assert_string_equal(h.name, "ping");
        forget(&h);
    }
    make_free(&m);
}

static const char *const TEMPLATES[] = {
    "GLM-4.6",    "Kimi-K2-Instruct",          "MiniMax-M2",         "Qwen-Qwen3-0.6B", "Qwen3-Coder",
    "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "openai-gpt-oss-120b"};

static void test_required_calls(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(TEMPLATES); i++) {
        char *source = read_template(TEMPLATES[i]);
        check_required(TEMPLATES[i], source);
        free(source);
    }
    check_required("no tools in the template", CHATML);
    check_required("DSML", CHATML "{# tools ｜DSML｜ function_calls #}");
    check_required("DSML 4", CHATML "{# tools ｜DSML｜ #}");
    check_required("GLM dense", CHATML "{# tools <tool_call> </arg_key><arg_value> <arg_key> #}");
    check_required("DeepSeek-V3", CHATML "{# tools <｜tool▁calls▁begin｜> ```json #}");
    check_required("Hy3", CHATML "{# tools <tool_calls:opensource> <arg_key:opensource> #}");
    check_required("MiniMax-M3", CHATML "{# tools ]<]minimax[>[ #}");
    check_required("Mistral", CHATML "{# tools [TOOL_CALLS] [ARGS] #}");
    check_required("Gemma 4", CHATML "{# tools <|tool_call>call: <tool_call|> #}");
}

/* A model that opens a call by itself is held to the tool's schema. */
static void test_calls_of_its_own(void **state) {
    (void)state;
    made m = make_text(CHATML "{# tools <tool_call> #}");
    for (int i = 0; i < 8; i++) {
        heard h = {0};
        run r = ask(&m, ASK_TOOLS);
        r.script = "Look:\n<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"town\": 5}}</tool_call>";
        r.o.one_call = true;
        say(&r, &h);
        assert_string_equal(SAID(h), "Look:");
        assert_int_equal(json_array_size(h.calls), 1);
        assert_true(is_right_call(json_array_get(h.calls, 0)));
        assert_int_equal(r.result.end, MF_END_TOOL_CALLS);
        forget(&h);
    }
    heard h = {0};
    run r = ask(&m, ASK_TOOLS);
    r.o.tool_choice = MF_TOOLS_NONE;
    r.script = "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>";
    r.o.max_tokens = 50;
    say(&r, &h);
    assert_null(h.calls);
    assert_null(strstr(SAID(h), "<tool_call>")); /* cannot be said as a marker */
    forget(&h);
    make_free(&m);
}

/* The prompt as text. */
static void prompt_text(made *m, const char *request, char *out, size_t size) {
    mf_model_info info = make_info(m);
    run r = ask(m, request);
    mf_reply *reply;
    mf_reply_prompt p;
    size_t n;
    if (mf_reply_create(m->text, &info, &r.o, &reply, &err)) fail_msg("%s", err.text);
    mf_reply_prompt_get(reply, &p);
    assert_int_equal(mf_text_decode(m->text, NULL, p.ids, p.n_ids, out, size - 1, &n, &err), MF_OK);
    out[n] = '\0';
    mf_reply_free(reply);
}

static void test_tools_without_the_template(void **state) {
    (void)state;
    static const char *const request =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"ping\", \"arguments\": "
        "\"{\\\"on\\\": true}\"}}]}, {\"role\": \"tool\", \"content\": \"pong\"}, {\"role\": \"tool\", \"content\": "
        "\"pong 2\"}], \"tools\": [" PING "]}";
    made m = make_text(CHATML);
    run r = ask(&m, request);
    char text[8192];
    prompt_text(&m, request, text, sizeof text);
    assert_non_null(strstr(text, "<|im_start|>system\nYou can use tools."));
    assert_non_null(strstr(text, "\"ping\""));
    assert_non_null(
        strstr(text, "<|im_start|>assistant\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"on\": true}}"));
    assert_non_null(strstr(text, "<|im_start|>user\n<tool_response>\npong\n</tool_response>\n<tool_response>\npong 2"));
    heard h = {0};
    r.script = "Ok.\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
    say(&r, &h);
    assert_string_equal(SAID(h), "Ok.");
    assert_int_equal(json_array_size(h.calls), 1);
    assert_int_equal(r.result.end, MF_END_TOOL_CALLS);
    forget(&h);
    make_free(&m);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Agents put instructions into several messages and between those of others: no template refuses or drops them. */
static void test_systems_anywhere(void **state) {
    (void)state;
    static const char *const request =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"word1\"}, {\"role\": \"developer\", \"content\": "
        "\"word2\"}, {\"role\": \"user\", \"content\": \"word3\"}, {\"role\": \"system\", \"content\": [{\"type\": "
        "\"text\", \"text\": \"word4\"}, {\"type\": \"text\", \"text\": \"word5\"}]}, {\"role\": \"assistant\", "
        "\"content\": \"word6\"}, {\"role\": \"system\", \"content\": \"word7\"}, {\"role\": \"user\", \"content\": "
        "\"word8\"}]}";
    static const char *const late = "{\"messages\": [{\"role\": \"user\", \"content\": \"word1\"}, {\"role\": "
                                    "\"system\", \"content\": \"word2\"}]}";
    char text[16384], word[8];
    for (size_t i = 0; i < MF__COUNT(TEMPLATES); i++) {
        char *source = read_template(TEMPLATES[i]);
        made m = make_text(source);
        for (int k = 0; k < 2; k++) {
            prompt_text(&m, k ? late : request, text, sizeof text);
            for (int w = 1; w <= (k ? 2 : 8); w++) {
                snprintf(word, sizeof word, "word%d", w);
                if (!strstr(text, word)) fail_msg("%s drops %s:\n%s", TEMPLATES[i], word, text);
            }
        }
        make_free(&m);
        free(source);
    }
}

static void test_bad_requests(void **state) {
    (void)state;
    made m = make_text(CHATML);
    mf_model_info info = make_info(&m);
    static const struct {
        const char *request;
        mf_status status;
        const char *words;
    } bad[] = {
        {"{", MF_E_FORMAT, "not JSON"},
        {"[]", MF_E_FORMAT, "JSON object"},
        {"{}", MF_E_FORMAT, "\"messages\" is nothing"},
        {"{\"messages\": [5]}", MF_E_FORMAT, "messages[0] is an integer"},
        {"{\"messages\": [{}]}", MF_E_FORMAT, "messages[0].role is nothing"},
        {"{\"messages\": [], \"tools\": 5}", MF_E_FORMAT, "\"tools\" is an integer"},
        {"{\"messages\": [], \"extra\": 5}", MF_E_FORMAT, "\"extra\" is an integer"},
    };
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        run r = ask(&m, bad[i].request);
        mf_reply *none;
        assert_int_equal(mf_reply_create(m.text, &info, &r.o, &none, &err), bad[i].status);
        if (!strstr(err.text, bad[i].words)) fail_msg("%s: %s", bad[i].request, err.text);
    }
    mf_reply *none;
    run r = ask(&m, ASK_TOOLS);
    r.o.tool_choice = MF_TOOLS_NAMED;
    r.o.tool_name = "other";
    assert_int_equal(mf_reply_create(m.text, &info, &r.o, &none, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "\"other\""));
    r = ask(&m, ASK);
    r.o.tool_choice = MF_TOOLS_REQUIRED;
    assert_int_equal(mf_reply_create(m.text, &info, &r.o, &none, &err), MF_E_INVALID);
    r = ask(&m, ASK);
    r.o.continue_last = true;
    assert_int_equal(mf_reply_create(m.text, &info, &r.o, &none, &err), MF_E_INVALID);
    make_free(&m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_and_reasoning),
        cmocka_unit_test(test_stops_never_leak),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_reasoning_is_ended),
        cmocka_unit_test(test_a_message_is_continued),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_like_another),
        cmocka_unit_test(test_required_calls),
        cmocka_unit_test(test_calls_of_its_own),
        cmocka_unit_test(test_tools_without_the_template),
        cmocka_unit_test(test_systems_anywhere),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_forms_whatever_the_model_wants),
        cmocka_unit_test(test_members_in_the_schemas_order),
        cmocka_unit_test(test_few_tokens),
        cmocka_unit_test(test_arguments_come_in_pieces),
        cmocka_unit_test(test_harmony_arguments),
    };
    if (argc < 3) return 2;
    reply_golden = argv[1];
    reply_stories = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
