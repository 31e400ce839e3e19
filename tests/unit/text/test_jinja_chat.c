/* Requests in JSON: what becomes a variable, and what is refused by a sentence that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "text/chat.h"

static mf__chat chat;

static int open_template(void **state) {
    (void)state;
    mf_error err;
    FILE *f = fopen("test_jinja_chat.jinja", "w");
    assert_non_null(f);
    fputs(
        "{{ messages|length }} {{ tools }} {{ add_generation_prompt }} {{ more }} {{ größe }} {{ strftime_now('%Y') }}",
        f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(mf__chat_open("test_jinja_chat.jinja", NULL, &chat, &err), MF_OK);
    return 0;
}

static int close_template(void **state) {
    (void)state;
    mf__chat_close(&chat);
    return remove("test_jinja_chat.jinja");
}

static void renders(const char *request, const char *want) {
    mf__strbuf out = {0};
    mf_error err = {0};
    if (mf__chat_render_json(&chat, request, strlen(request), &out, &err) != MF_OK)
        fail_msg("%s: %s", request, err.text);
    assert_string_equal(out.data, want);
    mf__strbuf_free(&out);
}

static void refuses(const char *request, const char *needle) {
    mf__strbuf out = {0};
    mf_error err = {0};
    mf_status status = mf__chat_render_json(&chat, request, strlen(request), &out, &err);
    if (status != MF_E_FORMAT || !strstr(err.text, needle))
        fail_msg("%s: status %d \"%s\", expected \"%s\"", request, status, err.text, needle);
    mf__strbuf_free(&out);
}

static void test_variables(void **state) {
    (void)state;
    renders("{\"messages\":[],\"extra\":{\"strftime_now\":\"2025\"}}", "0 None False   2025");
    renders("{\"messages\":[1],\"tools\":[2],\"add_generation_prompt\":true,"
            "\"extra\":{\"strftime_now\":\"x\",\"more\":3,\"größe\":4,\"_unused1\":5}}",
            "1 [2] True 3 4 x");
    renders("{\"messages\":[],\"extra\":{\"tools\":[7],\"add_generation_prompt\":true,\"strftime_now\":\"x\"}}",
            "0 [7] True   x");
}

static void test_refused(void **state) {
    (void)state;
    refuses("{\"messages\":[],\"extra\":{\"1\":2}}", "\"1\", which cannot be a variable's name");
    refuses("{\"messages\":[],\"extra\":{\"a b\":2}}", "\"a b\"");
    refuses("{\"messages\":[],\"extra\":{\"a-b\":2}}", "\"a-b\"");
    refuses("{\"messages\":[],\"extra\":{\"\":2}}", "\"\"");
    refuses("{\"messages\":[],\"extra\":{\"messages\":[]}}", "\"messages\" is in the request and in its \"extra\"");
    refuses("{\"messages\":[],\"tools\":[],\"extra\":{\"tools\":[]}}", "\"tools\" is in the request");
    refuses("{\"messages\":[],\"extra\":{\"strftime_now\":2025}}", "\"strftime_now\" in \"extra\" is");
    refuses("{\"messages\":[],\"extra\":[]}", "expected an object");
    refuses("{\"messages\":{}}", "expected an array");
    refuses("[]", "a request is a JSON object");
}

static bool at_once(void *data) {
    (void)data;
    return true;
}

static void test_cancel(void **state) {
    (void)state;
    mf__strbuf out = {0};
    mf_error err = {0};
    json_t *request = json_pack("{s:[]}", "messages");
    mf__jinja_options opt = {.cancel = at_once};
    assert_int_equal(mf__chat_render_with(&chat, request, &opt, &out, &err), MF_E_CANCELLED);
    json_decref(request);
    mf__strbuf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variables), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_cancel)};
    return cmocka_run_group_tests(tests, open_template, close_template);
}
