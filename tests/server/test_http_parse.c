/* The HTTP parser alone: what is taken, what is refused and with which status, however the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http_parse.h"

static const http_limits LIMITS = {.head_bytes = 1024, .body_bytes = 4096};

typedef struct outcome {
    http_result result;
    int status;
    size_t used, n_body;
    char body[4097];
    char target[128];
} outcome;

/* Feeds the bytes in pieces of at most `piece`. */
static outcome parse(const char *bytes, size_t n, size_t piece, http_budget *shared) {
    http_parser p;
    outcome o = {.result = HTTP_MORE};
    http_parser_init(&p, &LIMITS, shared);
    while (o.used < n && o.result != HTTP_DONE && o.result != HTTP_BAD) {
        size_t used, part = n - o.used < piece ? n - o.used : piece;
        o.result = http_parser_feed(&p, bytes + o.used, part, &used);
        o.used += used;
        if (o.result == HTTP_HEAD) assert_non_null(p.method);
    }
    if (o.result == HTTP_HEAD) o.result = HTTP_MORE;
    o.status = p.status;
    o.n_body = p.n_body;
    if (o.result == HTTP_DONE) {
        if (p.n_body) memcpy(o.body, p.body, p.n_body);
        strncpy(o.target, p.target, sizeof o.target - 1);
    }
    http_parser_deinit(&p);
    return o;
}

#define HOST "Host: a\r\n"
#define POST "POST /x HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

typedef struct example {
    const char *name, *bytes;
    size_t n;   /* 0: strlen */
    int status; /* 0: taken */
    const char *body;
} example;

static const example EXAMPLES[] = {
    {"get", "GET / HTTP/1.1\r\n" HOST "\r\n", 0, 0, ""},
    {"get 1.0 without host", "GET /a?b=c HTTP/1.0\r\n\r\n", 0, 0, ""},
    {"an empty line before", "\r\nGET / HTTP/1.1\r\n" HOST "\r\n", 0, 0, ""},
    {"body", POST "Content-Length: 5\r\n\r\nhello", 0, 0, "hello"},
    {"body of nothing", POST "Content-Length: 0\r\n\r\n", 0, 0, ""},
    {"length with white space around", POST "Content-Length: \t 5 \t\r\n\r\nhello", 0, 0, "hello"},
    {"latin-1 in a value", "GET / HTTP/1.1\r\n" HOST "X: \xe9\r\n\r\n", 0, 0, ""},
    {"empty value", "GET / HTTP/1.1\r\n" HOST "X:\r\n\r\n", 0, 0, ""},
    {"chunks", CHUNKED "3\r\nabc\r\n2;name=value\r\nde\r\n0\r\n\r\n", 0, 0, "abcde"},
    {"chunks with a trailer", CHUNKED "A\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", 0, 0, "0123456789"},
    {"chunk size with zeros before", CHUNKED "00000003\r\nabc\r\n00\r\n\r\n", 0, 0, "abc"},
    {"chunked in capitals", POST "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 0, 0, ""},

    {"two lengths that differ", POST "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", 0, 400, NULL},
    {"two equal lengths", POST "Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc", 0, 400, NULL},
    {"a list of lengths", POST "Content-Length: 3, 3\r\n\r\nabc", 0, 400, NULL},
    {"length and coding", POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400, NULL},
    {"coding and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 0, 400, NULL},
    {"two codings", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 0, 400, NULL},
    {"another coding", POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 0, 501, NULL},
    {"almost chunked", POST "Transfer-Encoding: xchunked\r\n\r\n", 0, 501, NULL},
    {"coding in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 0, 400, NULL},
    {"length with a sign", POST "Content-Length: +3\r\n\r\nabc", 0, 400, NULL},
    {"negative length", POST "Content-Length: -3\r\n\r\nabc", 0, 400, NULL},
    {"hexadecimal length", POST "Content-Length: 0x3\r\n\r\nabc", 0, 400, NULL},
    {"empty length", POST "Content-Length:\r\n\r\nabc", 0, 400, NULL},
    {"length that overflows", POST "Content-Length: 18446744073709551619\r\n\r\nabc", 0, 413, NULL},
    {"length beyond the limit", POST "Content-Length: 4097\r\n\r\n", 0, 413, NULL},
    {"chunk size beyond the limit", CHUNKED "1001\r\n", 0, 413, NULL},
    {"chunk size that overflows", CHUNKED "fffffffffffffffff\r\n", 0, 400, NULL},
    {"chunk size of nine digits", CHUNKED "000000001\r\na\r\n", 0, 400, NULL},
    {"chunk size with a sign", CHUNKED "+3\r\nabc\r\n", 0, 400, NULL},
    {"chunk size with 0x", CHUNKED "0x3\r\nabc\r\n", 0, 400, NULL},
    {"chunk size with a space", CHUNKED "3 \r\nabc\r\n", 0, 400, NULL},
    {"chunk size missing", CHUNKED "\r\nabc\r\n", 0, 400, NULL},
    {"chunk size line in LF", CHUNKED "3\nabc\r\n", 0, 400, NULL},
    {"chunk longer than its size", CHUNKED "3\r\nabcd\r\n", 0, 400, NULL},
    {"chunk that ends in LF", CHUNKED "3\r\nabc\n0\r\n\r\n", 0, 400, NULL},
    {"LF in an extension", CHUNKED "3;a\nb\r\nabc\r\n", 0, 400, NULL},
    {"trailer line in LF", CHUNKED "0\r\nX: 1\n\r\n", 0, 400, NULL},

    {"bare LF after the request line", "GET / HTTP/1.1\n" HOST "\r\n", 0, 400, NULL},
    {"bare LF after a field", "GET / HTTP/1.1\r\nHost: a\n\r\n", 0, 400, NULL},
    {"bare LF at the end", "GET / HTTP/1.1\r\n" HOST "\n", 0, 400, NULL},
    {"bare CR", "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 0, 400, NULL},
    {"CR before a request", "\rGET / HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"LF before a request", "\nGET / HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"many empty lines", "\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"NUL in a value", "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 30, 400, NULL},
    {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 29, 400, NULL},
    {"folded", "GET / HTTP/1.1\r\n" HOST "X: 1\r\n 2\r\n\r\n", 0, 400, NULL},
    {"folded first", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 0, 400, NULL},
    {"space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 0, 400, NULL},
    {"no colon", "GET / HTTP/1.1\r\n" HOST "nonsense\r\n\r\n", 0, 400, NULL},
    {"no name", "GET / HTTP/1.1\r\n" HOST ": x\r\n\r\n", 0, 400, NULL},
    {"two hosts", "GET / HTTP/1.1\r\n" HOST HOST "\r\n", 0, 400, NULL},
    {"no host", "GET / HTTP/1.1\r\n\r\n", 0, 400, NULL},
    {"two spaces", "GET  / HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"space in the target", "GET /a b HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"tab in the target", "GET /a\tb HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"another host's target", "GET http://b/ HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"no version", "GET /\r\n" HOST "\r\n", 0, 400, NULL},
    {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 505, NULL},
    {"HTTP/1.2", "GET / HTTP/1.2\r\n" HOST "\r\n", 0, 505, NULL},
    {"http in small letters", "GET / http/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"method of another kind", "G@T / HTTP/1.1\r\n" HOST "\r\n", 0, 400, NULL},
    {"a long method", "ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\n" HOST "\r\n", 0, 501, NULL},
    {"another expectation", POST "Expect: cake\r\nContent-Length: 1\r\n\r\na", 0, 417, NULL},
    {"TLS", "\x16\x03\x01\x02\x00\x01\x00", 7, 400, NULL},
};

static void test_examples(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof EXAMPLES / sizeof *EXAMPLES; i++) {
        const example *e = &EXAMPLES[i];
        size_t n = e->n ? e->n : strlen(e->bytes);
        for (size_t piece = 1; piece <= n; piece = piece < 8 ? piece + 1 : piece * 2) {
            outcome o = parse(e->bytes, n, piece, NULL);
            int want = e->status ? HTTP_BAD : HTTP_DONE;
            if (o.result != (http_result)want || o.status != e->status)
                fail_msg("%s in pieces of %zu: result %d status %d, expected status %d", e->name, piece, o.result,
                         o.status, e->status);
            if (!e->status) {
                assert_int_equal(o.used, n);
                assert_int_equal(o.n_body, strlen(e->body));
                assert_memory_equal(o.body, e->body, o.n_body);
            }
        }
    }
}

/* Every truncation of a good request wants more; nothing behind its end is touched. */
static void test_prefixes(void **state) {
    (void)state;
    static const char whole[] = CHUNKED "3\r\nabc\r\n0\r\nX: y\r\n\r\nGET /next";
    size_t end = sizeof whole - 1 - strlen("GET /next");
    for (size_t n = 0; n < end; n++) assert_int_equal(parse(whole, n, n + 1, NULL).result, HTTP_MORE);
    outcome o = parse(whole, sizeof whole - 1, sizeof whole, NULL);
    assert_int_equal(o.result, HTTP_DONE);
    assert_int_equal(o.used, end);
}

static void test_head_limits(void **state) {
    (void)state;
    char big[4096];
    int n = snprintf(big, sizeof big, "GET / HTTP/1.1\r\n" HOST "X: ");
    memset(big + n, 'x', sizeof big - (size_t)n);
    outcome o = parse(big, sizeof big, 100, NULL);
    assert_int_equal(o.status, 431);
    assert_true(o.used <= LIMITS.head_bytes + 16);
    n = snprintf(big, sizeof big, "GET / HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 64; i++) n += snprintf(big + n, sizeof big - (size_t)n, "X%d:\r\n", i);
    n += snprintf(big + n, sizeof big - (size_t)n, "\r\n");
    assert_int_equal(parse(big, (size_t)n, 4096, NULL).status, 431);
    n = snprintf(big, sizeof big, CHUNKED "1;");
    memset(big + n, 'x', sizeof big - (size_t)n);
    char *much = calloc(3, sizeof big);
    memcpy(much, big, sizeof big);
    memset(much + sizeof big, 'x', 2 * sizeof big);
    assert_int_equal(parse(much, 3 * sizeof big, 4096, NULL).status, 431);
    free(much);
}

/* Many small chunks cannot pass the limit that one large one cannot. */
static void test_chunks_add_up(void **state) {
    (void)state;
    size_t n = 0;
    char *bytes = malloc(100000);
    n += (size_t)sprintf(bytes, CHUNKED);
    for (int i = 0; i < 300; i++) n += (size_t)sprintf(bytes + n, "10\r\n0123456789abcdef\r\n");
    assert_int_equal(parse(bytes, n, 1000, NULL).status, 413);
    free(bytes);
}

static void test_shared_budget(void **state) {
    (void)state;
    http_budget shared = {.max = 8192};
    http_parser a, b;
    size_t used;
    static const char head[] = POST "Content-Length: 4000\r\n\r\n";
    char part[3000] = {0};
    http_parser_init(&a, &LIMITS, &shared);
    http_parser_init(&b, &LIMITS, &shared);
    assert_int_equal(http_parser_feed(&a, head, sizeof head - 1, &used), HTTP_HEAD);
    assert_int_equal(shared.used, 0); /* a promise costs nothing */
    assert_int_equal(http_parser_feed(&a, part, sizeof part, &used), HTTP_MORE);
    assert_int_equal(http_parser_feed(&b, head, sizeof head - 1, &used), HTTP_HEAD);
    assert_int_equal(http_parser_feed(&b, part, sizeof part, &used), HTTP_MORE);
    http_parser c;
    http_parser_init(&c, &LIMITS, &shared);
    http_parser_feed(&c, head, sizeof head - 1, &used);
    assert_int_equal(http_parser_feed(&c, part, sizeof part, &used), HTTP_BAD);
    assert_int_equal(c.status, 503);
    http_parser_deinit(&a);
    http_parser_deinit(&b);
    http_parser_deinit(&c);
    assert_int_equal(shared.used, 0);
}

static void test_lists(void **state) {
    (void)state;
    assert_true(http_list_has("keep-alive, Close", "close"));
    assert_true(http_list_has("close", "close"));
    assert_false(http_list_has("closed", "close"));
    assert_false(http_list_has("not-close,x", "close"));
    assert_false(http_list_has("", "close"));
    assert_false(http_list_has(NULL, "close"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),      cmocka_unit_test(test_prefixes),      cmocka_unit_test(test_head_limits),
        cmocka_unit_test(test_chunks_add_up), cmocka_unit_test(test_shared_budget), cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
