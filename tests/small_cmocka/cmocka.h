/* As much of cmocka's interface as the op table uses, for machines that have no cmocka: a failed assertion ends the
 * program. Include it where <cmocka.h> would be included. */
#ifndef TESTS_SMALL_CMOCKA_H
#define TESTS_SMALL_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)                                                                                                  \
    do {                                                                                                               \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        exit(1);                                                                                                       \
    } while (0)

#define assert_true(what)                                                                                              \
    do {                                                                                                               \
        if (!(what)) fail_msg("not so: %s", #what);                                                                    \
    } while (0)
#define assert_non_null(what) assert_true((what) != NULL)
#define assert_int_equal(a, b)                                                                                         \
    do {                                                                                                               \
        long long value_a = (long long)(a), value_b = (long long)(b);                                                  \
        if (value_a != value_b) fail_msg("%s is %lld, not %lld", #a, value_a, value_b);                                \
    } while (0)
#define assert_string_equal(a, b)                                                                                      \
    do {                                                                                                               \
        if (strcmp((a), (b)) != 0) fail_msg("%s is \"%s\", not \"%s\"", #a, (a), (b));                                 \
    } while (0)

#define cmocka_unit_test(function)                                                                                     \
    { #function, function }

static inline int small_cmocka_run(const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        tests[i].run(&state);
        printf("%s: ok\n", tests[i].name);
        fflush(stdout);
    }
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown) small_cmocka_run(tests, sizeof(tests) / sizeof *(tests))

#endif
