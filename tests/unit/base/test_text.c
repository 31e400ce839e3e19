/* Status text, strings, arenas and the log. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/log.h"
#include "base/strbuf.h"

static void status_names_and_texts(void **state) {
    (void)state;
    assert_string_equal(mf_status_name(MF_OK), "OK");
    assert_string_equal(mf_status_name(MF_E_NO_SPACE), "E_NO_SPACE");
    assert_string_equal(mf_status_text(MF_E_NO_SPACE), "the disk is full");
    assert_string_equal(mf_status_name((mf_status)-1000), "E_UNKNOWN");
}

static void errors_carry_code_and_text(void **state) {
    (void)state;
    mf_error err;
    assert_int_equal(mf__fail(&err, MF_E_FORMAT, "%s has %d", "x", 3), MF_E_FORMAT);
    assert_int_equal(err.status, MF_E_FORMAT);
    assert_string_equal(err.text, "x has 3");
    assert_int_equal(mf__fail(NULL, MF_E_IO, "unheard"), MF_E_IO);
    assert_int_equal(mf__fail_errno(&err, ENOSPC, "cannot write y"), MF_E_NO_SPACE);
    assert_string_equal(err.text, "cannot write y: No space left on device");
    assert_int_equal(mf__fail_errno(&err, ENOENT, "z"), MF_E_NOT_FOUND);
    assert_int_equal(mf__fail_errno(&err, EACCES, "z"), MF_E_IO);
    mf__fail(&err, MF_E_FORMAT, "inner");
    assert_int_equal(mf__fail_prefix(&err, err.status, "outer %d", 1), MF_E_FORMAT);
    assert_string_equal(err.text, "outer 1: inner");

    char longer[MF_ERROR_TEXT * 2];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    mf__fail_errno(&err, EIO, "%s", longer);
    assert_int_equal(strlen(err.text), MF_ERROR_TEXT - 1);
    mf__fail_prefix(&err, MF_E_IO, "%s", longer);
    assert_int_equal(strlen(err.text), MF_ERROR_TEXT - 1);
}

static void strbuf_grows(void **state) {
    (void)state;
    mf__strbuf b = {0};
    assert_int_equal(mf__strbuf_append(&b, "", 0, NULL), MF_OK);
    assert_null(b.data);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(mf__strbuf_append(&b, "ab\0c", 4, NULL), MF_OK);
        assert_int_equal(mf__strbuf_printf(&b, NULL, "%03d", i), MF_OK);
    }
    assert_int_equal(b.size, 7000);
    assert_int_equal(b.data[b.size], '\0');
    for (int i = 0; i < 1000; i++) {
        char expected[8];
        memcpy(expected, "ab\0c", 4);
        snprintf(expected + 4, 4, "%03d", i);
        assert_memory_equal(b.data + i * 7, expected, 7);
    }
    char *kept = b.data;
    mf__strbuf_clear(&b);
    assert_int_equal(b.size, 0);
    assert_int_equal(mf__strbuf_append(&b, "x", 1, NULL), MF_OK);
    assert_ptr_equal(b.data, kept);
    assert_string_equal(b.data, "x");

    mf_error err;
    assert_int_equal(mf__strbuf_append(&b, "x", SIZE_MAX - 1, &err), MF_E_LIMIT);
    assert_string_equal(b.data, "x");
    mf__strbuf_free(&b);
    assert_null(b.data);
    assert_int_equal(b.capacity, 0);
}

static void arena_is_aligned_zeroed_and_apart(void **state) {
    (void)state;
    mf__arena a = {0};
    enum { N = 3000 };
    static unsigned char *p[N];
    static size_t size[N];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            size[i] = i % 500 == 499 ? 100000 : (size_t)(i * 7 % 97); /* some larger than a block, some empty */
            p[i] = mf__arena_alloc(&a, size[i]);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 16, 0);
            for (size_t k = 0; k < size[i]; k++)
                assert_int_equal(p[i][k], 0);
            memset(p[i], i & 0xff, size[i]); /* would show in a neighbour that overlaps */
        }
        for (int i = 0; i < N; i++)
            for (size_t k = 0; k < size[i]; k++)
                assert_int_equal(p[i][k], i & 0xff);
        mf__arena_free(&a);
        assert_null(a.head);
    }
}

static void arena_large_block_keeps_the_small_one_open(void **state) {
    (void)state;
    mf__arena a = {0};
    char *first = mf__arena_alloc(&a, 16);
    assert_non_null(mf__arena_alloc(&a, 1 << 20));
    char *second = mf__arena_alloc(&a, 16);
    assert_true(second > first && second - first < 1024);
    mf__arena_free(&a);
}

static void arena_refuses_overflow(void **state) {
    (void)state;
    mf__arena a = {0};
    assert_null(mf__arena_array(&a, SIZE_MAX / 8, 16));
    assert_null(mf__arena_array(&a, (size_t)1 << 33, (size_t)1 << 31)); /* wraps to zero */
    assert_null(mf__arena_alloc(&a, SIZE_MAX));
    assert_null(mf__arena_alloc(&a, SIZE_MAX - 16));
    assert_null(mf__arena_alloc(&a, SIZE_MAX - 48));
    int *ints = mf__arena_array(&a, 10, sizeof *ints);
    assert_non_null(ints);
    assert_non_null(mf__arena_array(&a, 0, 8));
    mf__arena_free(&a);
}

static void arena_strings(void **state) {
    (void)state;
    mf__arena a = {0};
    char text[] = "layer";
    char *copy = mf__arena_strdup(&a, text);
    text[0] = 'X';
    assert_string_equal(copy, "layer");
    assert_string_equal(mf__arena_printf(&a, "%s.%d.%0100d", "w", 7, 1) + 103, "1");
    mf__arena_free(&a);
}

static int n_lines;
static char last_line[2048];

static void keep_line(void *user, mf_log_level level, const char *text) {
    assert_ptr_equal(user, &n_lines);
    assert_int_equal(level, MF_LOG_WARN);
    n_lines++;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void log_goes_to_the_sink_only(void **state) {
    (void)state;
    mf__log(NULL, MF_LOG_ERROR, "nobody %d", 1);
    mf__log(&(mf_log_sink){0}, MF_LOG_ERROR, "nobody");
    mf_log_sink sink = {keep_line, &n_lines};
    mf__log(&sink, MF_LOG_WARN, "slot %d of %s", 3, "x");
    assert_int_equal(n_lines, 1);
    assert_string_equal(last_line, "slot 3 of x");
    mf__log(&sink, MF_LOG_WARN, "%05000d", 1);
    assert_int_equal(strlen(last_line), 1023);
}

static void endings(void **state) {
    (void)state;
    assert_true(mf__text_ends_with("model.norm.weight", ".weight"));
    assert_true(mf__text_ends_with(".weight", ".weight"));
    assert_true(mf__text_ends_with("x", ""));
    assert_false(mf__text_ends_with("weight", ".weight"));
    assert_false(mf__text_ends_with("model.weights", ".weight"));
    assert_false(mf__text_ends_with("", "x"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names_and_texts),
        cmocka_unit_test(errors_carry_code_and_text),
        cmocka_unit_test(strbuf_grows),
        cmocka_unit_test(endings),
        cmocka_unit_test(arena_is_aligned_zeroed_and_apart),
        cmocka_unit_test(arena_large_block_keeps_the_small_one_open),
        cmocka_unit_test(arena_refuses_overflow),
        cmocka_unit_test(arena_strings),
        cmocka_unit_test(log_goes_to_the_sink_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
