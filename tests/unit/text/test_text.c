/* The public text calls: buffers that are too small, streams, what is not valid. argv[1]: the story model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moeflux.h"

static mf_text *text;
static mf_error err;

static void test_encode_says_how_many_there_are(void **state) {
    (void)state;
    static const char story[] = "Once upon a time there was a little fox.";
    int32_t all[64], some[3] = {-1, -1, -1};
    size_t n, again;
    assert_int_equal(mf_text_encode(text, story, strlen(story), false, NULL, 0, &n, &err), MF_OK);
    assert_in_range(n, 4, 64);
    assert_int_equal(mf_text_encode(text, story, strlen(story), false, all, 64, &again, &err), MF_OK);
    assert_int_equal(again, n);
    assert_int_equal(mf_text_encode(text, story, strlen(story), false, some, 2, &again, &err), MF_OK);
    assert_int_equal(again, n);
    assert_int_equal(some[0], all[0]);
    assert_int_equal(some[1], all[1]);
    assert_int_equal(some[2], -1);
    char back[128];
    assert_int_equal(mf_text_decode(text, NULL, all, n, back, sizeof back, &again, &err), MF_OK);
    assert_int_equal(again, strlen(story));
    assert_memory_equal(back, story, again);
}

static void test_markers_are_text_unless_asked(void **state) {
    (void)state;
    int32_t ids[32];
    size_t n;
    assert_int_equal(mf_text_encode(text, "<|im_end|>", 10, true, ids, 32, &n, &err), MF_OK);
    assert_int_equal(n, 1);
    assert_int_equal(mf_text_encode(text, "<|im_end|>", 10, false, ids, 32, &n, &err), MF_OK);
    assert_true(n > 1);
}

static void test_a_stream_never_gives_half_a_character(void **state) {
    (void)state;
    static const char story[] = "a \xf0\x9f\xa6\x8a caf\xc3\xa9 \xe6\xbc\xa2";
    int32_t ids[64];
    size_t n, piece, total = 0;
    char out[128];
    mf_text_stream stream = {{0}, 0};
    assert_int_equal(mf_text_encode(text, story, strlen(story), false, ids, 64, &n, &err), MF_OK);
    assert_true(n <= 64);
    bool waited = false;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(mf_text_decode(text, &stream, &ids[i], 1, out + total, sizeof out - total, &piece, &err),
                         MF_OK);
        waited |= piece == 0;
        if (piece) assert_int_not_equal(out[total] & 0xC0, 0x80); /* begins with a character, not inside one */
        total += piece;
    }
    assert_true(waited); /* some character took several tokens: else this tests nothing */
    assert_int_equal(mf_text_decode(text, &stream, NULL, 0, out + total, sizeof out - total, &piece, &err), MF_OK);
    assert_int_equal(piece, 0);
    assert_int_equal(total, strlen(story));
    assert_memory_equal(out, story, total);
}

static void test_a_stream_waits_where_there_is_no_room(void **state) {
    (void)state;
    int32_t ids[16];
    size_t n, need;
    char out[16] = "";
    mf_text_stream stream = {{0}, 0}, before;
    assert_int_equal(mf_text_encode(text, "\xf0\x9f\xa6\x8a", 4, false, ids, 16, &n, &err), MF_OK);
    assert_in_range(n, 2, 16);
    assert_int_equal(mf_text_decode(text, &stream, ids, n - 1, out, sizeof out, &need, &err), MF_OK);
    assert_int_equal(need, 0);
    before = stream;
    assert_int_equal(mf_text_decode(text, &stream, &ids[n - 1], 1, out, 1, &need, &err), MF_OK);
    assert_int_equal(need, 4);
    assert_memory_equal(&stream, &before, sizeof stream);
    assert_int_equal(mf_text_decode(text, &stream, &ids[n - 1], 1, out, sizeof out, &need, &err), MF_OK);
    assert_memory_equal(out, "\xf0\x9f\xa6\x8a", 4);
    assert_int_equal(mf_text_decode(text, &before, NULL, 0, out, sizeof out, &need, &err), MF_OK);
    assert_memory_equal(out, "\xef\xbf\xbd", 3); /* cut off for good: U+FFFD */
    assert_int_equal(before.n_held, 0);
}

static void test_chat_is_the_models_template(void **state) {
    (void)state;
    static const char request[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"add_generation_prompt\":true}";
    int32_t ids[256];
    char out[256];
    size_t n, n_out;
    assert_int_equal(mf_text_chat(text, request, strlen(request), ids, 256, &n, &err), MF_OK);
    assert_in_range(n, 3, 256);
    assert_int_equal(mf_text_decode(text, NULL, ids, n, out, sizeof out - 1, &n_out, &err), MF_OK);
    out[n_out] = 0;
    assert_non_null(strstr(out, "Hi"));
    assert_non_null(strstr(out, "assistant"));
    assert_int_equal(mf_text_chat(text, "{}", 2, ids, 256, &n, &err), MF_E_FORMAT);
    assert_non_null(strstr(err.text, "messages"));
}

static void test_bad_arguments(void **state) {
    (void)state;
    mf_text *none;
    size_t n;
    char out[8];
    int32_t beyond = 1 << 30;
    mf_text_stream wild = {{0}, 9};
    assert_int_equal(mf_text_open("no/such/folder", &none, &err), MF_E_NOT_FOUND);
    assert_null(none);
    assert_int_equal(mf_text_open(NULL, &none, &err), MF_E_INVALID);
    assert_int_equal(mf_text_encode(text, "\xff", 1, false, NULL, 0, &n, &err), MF_E_INVALID);
    assert_int_equal(mf_text_encode(text, NULL, 1, false, NULL, 0, &n, &err), MF_E_INVALID);
    assert_int_equal(mf_text_decode(text, NULL, &beyond, 1, out, sizeof out, &n, &err), MF_OK);
    assert_int_equal(n, 0); /* models have rows of logits without a token */
    assert_int_equal(mf_text_decode(text, &wild, NULL, 0, out, sizeof out, &n, &err), MF_E_INVALID);
    mf_text_close(NULL);
}

int main(int argc, char **argv) {
    if (argc < 2 || mf_text_open(argv[1], &text, &err)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_says_how_many_there_are),
        cmocka_unit_test(test_markers_are_text_unless_asked),
        cmocka_unit_test(test_a_stream_never_gives_half_a_character),
        cmocka_unit_test(test_a_stream_waits_where_there_is_no_room),
        cmocka_unit_test(test_chat_is_the_models_template),
        cmocka_unit_test(test_bad_arguments),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mf_text_close(text);
    return failed;
}
