/* The tokenizer on small made-up vocabularies: merge order, splits, added tokens, bad files, bad text, linear time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "make_tokenizer.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/splitter.h"
#include "text/tokenizer.h"
#include "text/tokenizer_int.h"

static mf__tokenizer *open_made(make_options o) {
    mf__strbuf json = {0};
    mf_error err = {0};
    mf__tokenizer *tok;
    make_tokenizer(&o, &json);
    if (mf__tokenizer_parse("test.json", json.data, json.size, &tok, &err) != MF_OK) fail_msg("%s", err.text);
    mf__strbuf_free(&json);
    return tok;
}

static void expect_ids(const mf__tokenizer *tok, const char *text, size_t size, bool special, const int32_t *want,
                       size_t n_want) {
    int32_t *ids;
    size_t n;
    mf_error err = {0};
    if (mf__tokenizer_encode(tok, text, size, special, &ids, &n, &err) != MF_OK) fail_msg("\"%s\": %s", text, err.text);
    if (n != n_want) fail_msg("\"%s\": %zu ids, expected %zu", text, n, n_want);
    for (size_t i = 0; i < n; i++)
        if (ids[i] != want[i]) fail_msg("\"%s\": id %zu is %d, expected %d", text, i, (int)ids[i], (int)want[i]);
    free(ids);
}

#define EXPECT(tok, text, special, ...)                                                                                \
    expect_ids(tok, text, sizeof(text) - 1, special, (const int32_t[]){__VA_ARGS__},                                   \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Opens json and expects a failure with this status whose text has `needle`. */
static void expect_bad(const char *json, size_t size, mf_status status, const char *needle) {
    mf__tokenizer *tok = (mf__tokenizer *)1;
    mf_error err = {0};
    mf_status got = mf__tokenizer_parse("bad.json", json, size, &tok, &err);
    if (got != status) fail_msg("status %d, expected %d (%s) for %.200s", got, status, needle, json);
    assert_null(tok);
    if (!strstr(err.text, needle)) fail_msg("\"%s\" does not mention \"%s\"", err.text, needle);
    if (!strstr(err.text, "bad.json")) fail_msg("\"%s\" does not name the file", err.text);
}

static void bad_made(make_options o, mf_status status, const char *needle) {
    mf__strbuf json = {0};
    make_tokenizer(&o, &json);
    expect_bad(json.data, json.size, status, needle);
    mf__strbuf_free(&json);
}

/* ---- merging --------------------------------------------------------------------------------------------------- */

static void test_merge_order(void **state) {
    (void)state;
    /* "b c" comes first although "a b" stands left of it; equals merge from the left. */
    mf__tokenizer *tok = open_made((make_options){.merges = "b c\na b\na a\na bc\nabc abc"});
    EXPECT(tok, "abc", true, 259);
    EXPECT(tok, "ab", true, 257);
    EXPECT(tok, "abcabc", true, 260);
    EXPECT(tok, "aaa", true, 258, 'a');
    EXPECT(tok, "aaaaa", true, 258, 258, 'a');
    expect_ids(tok, "", 0, true, NULL, 0);
    assert_int_equal(mf__tokenizer_n_vocab(tok), 261);
    mf__tokenizer_free(tok);
}

static void test_ignore_merges(void **state) {
    (void)state;
    make_options o = {.merges = "a b", .vocab = ", \"xyz\": 300, \"abc\": 301", .extra = ", \"ignore_merges\": true"};
    mf__tokenizer *tok = open_made(o);
    EXPECT(tok, "xyz", true, 300);
    EXPECT(tok, "abc", true, 301);
    EXPECT(tok, "abcd", true, 256, 'c', 'd');
    mf__tokenizer_free(tok);
    o.extra = NULL;
    tok = open_made(o);
    EXPECT(tok, "abc", true, 256, 'c');
    mf__tokenizer_free(tok);
}

static void test_missing_bytes(void **state) {
    (void)state;
    const char *json = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                       "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"?\":2},\"merges\":[]%s}}";
    static const struct {
        const char *extra;
        int32_t ids[4];
        size_t n;
    } cases[] = {
        {"", {0, 1}, 2},
        {",\"unk_token\":\"?\"", {0, 2, 2, 1}, 4},
        {",\"unk_token\":\"?\",\"fuse_unk\":true", {0, 2, 1}, 3},
    };
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        char text[400];
        mf_error err;
        mf__tokenizer *tok;
        snprintf(text, sizeof text, json, cases[i].extra);
        assert_int_equal(mf__tokenizer_parse("t", text, strlen(text), &tok, &err), MF_OK);
        expect_ids(tok, "axyb", 4, true, cases[i].ids, cases[i].n);
        mf__tokenizer_free(tok);
    }
}

/* Both ways of finding the best pair must give the same merges. */
static void test_heap_equals_scan(void **state) {
    (void)state;
    mf__bpe_pairs pairs = {0};
    mf__bpe_scratch scratch = {0};
    mf_error err;
    uint32_t seed = 12345;
    assert_int_equal(mf__bpe_pairs_init(&pairs, 300, &err), MF_OK);
    for (uint32_t i = 0; i < 300; i++) {
        seed = seed * 1664525u + 1013904223u;
        int32_t left = (int32_t)(seed >> 8) % (4 + (int32_t)i), right = (int32_t)(seed >> 16) % (4 + (int32_t)i);
        mf__bpe_pairs_set(&pairs, left, right, i, 4 + (int32_t)i);
    }
    for (int round = 0; round < 500; round++) {
        int32_t a[200], b[200];
        size_t n = 1 + (size_t)round % 200, n_a = n, n_b = n;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            a[i] = b[i] = (int32_t)(seed >> 24) % 4;
        }
        assert_int_equal(mf__bpe_merge(&pairs, &scratch, a, &n_a, 0, &err), MF_OK);
        assert_int_equal(mf__bpe_merge(&pairs, &scratch, b, &n_b, 1000, &err), MF_OK);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, n_a * sizeof *a);
    }
    mf__bpe_scratch_free(&scratch);
    free(pairs.slots);
}

static uint64_t steps_for(size_t n) {
    mf__bpe_pairs pairs = {0};
    mf__bpe_scratch scratch = {0};
    mf_error err;
    int32_t *ids = calloc(n, sizeof *ids);
    assert_int_equal(mf__bpe_pairs_init(&pairs, 20, &err), MF_OK);
    for (int32_t i = 0; i < 20; i++) mf__bpe_pairs_set(&pairs, i, i, (uint32_t)i, i + 1);
    assert_int_equal(mf__bpe_merge(&pairs, &scratch, ids, &n, MF__BPE_SCAN, &err), MF_OK);
    uint64_t steps = scratch.n_steps;
    mf__bpe_scratch_free(&scratch);
    free(pairs.slots);
    free(ids);
    return steps;
}

static void test_linear_time(void **state) {
    (void)state;
    uint64_t small = steps_for(100000), large = steps_for(1000000);
    assert_true(large < small * 11);
    assert_true(large < 4 * 1000000);
    /* A whole text without spaces goes through in one piece. */
    mf__tokenizer *tok = open_made((make_options){.merges = "a a\naa aa\naaaa aaaa"});
    size_t n = 1000000, n_ids;
    char *text = malloc(n);
    memset(text, 'a', n);
    int32_t *ids;
    mf_error err;
    assert_int_equal(mf__tokenizer_encode(tok, text, n, true, &ids, &n_ids, &err), MF_OK);
    assert_int_equal(n_ids, n / 8);
    free(ids);
    free(text);
    mf__tokenizer_free(tok);
}

/* ---- splitting ------------------------------------------------------------------------------------------------- */

/* Splits and writes the pieces separated by '|'. */
static void split(const mf__split_step *steps, int n, const char *text, char *out) {
    mf__splitter *sp;
    mf__split_run run = {0};
    mf_error err = {0};
    if (mf__splitter_create("t", steps, n, &sp, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf__splitter_run(sp, text, strlen(text), &run, &err) != MF_OK) fail_msg("%s", err.text);
    *out = 0;
    for (size_t i = 0; i < run.n_pieces; i++) {
        if (i) strcat(out, "|");
        strncat(out, run.text + run.pieces[i].start, run.pieces[i].end - run.pieces[i].start);
    }
    mf__split_run_free(&run);
    mf__splitter_free(sp);
}

static void test_split_behaviors(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        bool literal, invert;
        mf__split_behavior behavior;
        const char *text, *want;
    } cases[] = {
        {"-", false, false, MF__SPLIT_ISOLATED, "the-final--countdown", "the|-|final|-|-|countdown"},
        {"-", false, false, MF__SPLIT_REMOVED, "the-final--countdown", "the|final|countdown"},
        {"-", false, false, MF__SPLIT_CONTIGUOUS, "the-final--countdown", "the|-|final|--|countdown"},
        {"-", false, false, MF__SPLIT_MERGED_WITH_PREVIOUS, "the-final--countdown", "the-|final-|-|countdown"},
        {"-", false, false, MF__SPLIT_MERGED_WITH_NEXT, "the-final--countdown", "the|-final|-|-countdown"},
        {"\\w+", false, true, MF__SPLIT_REMOVED, "how are you", "how|are|you"},
        {".", true, false, MF__SPLIT_ISOLATED, "a.b", "a|.|b"},
        {"(?i:'s|'T)", false, false, MF__SPLIT_ISOLATED, "a's'S't'\u017Fx", "a|'s|'S|'t|'\u017F|x"},
        {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}", false, false, MF__SPLIT_ISOLATED, "ab 12\u00e9x", "ab| |1|2|\u00e9x"},
        {"\\s+(?!\\S)|\\s+", false, false, MF__SPLIT_ISOLATED, "a   b \u180e\xc2\x85", "a|  | |b| |\u180e|\xc2\x85"},
        {"[\\p{L}&&[^\\p{Han}]]+", false, false, MF__SPLIT_ISOLATED, "ab\u4e2d\u6587c", "ab|\u4e2d\u6587|c"},
        {"\\p{N}{1,2}+x", false, false, MF__SPLIT_ISOLATED, "12345x", "12345x"},
        {"a++b|c*+", false, false, MF__SPLIT_ISOLATED, "aabccx", "aab|cc|x"},
        {"[[:digit:]a-c\\-\\]]+", false, false, MF__SPLIT_ISOLATED, "xb-]9z", "x|b-]9|z"},
        {"(?<=a)b", false, false, MF__SPLIT_ISOLATED, "abcb", "a|b|cb"},
        {"\\x41|\\x{1F600}|\\u00e9", false, false, MF__SPLIT_ISOLATED, "zAz\U0001F600z\u00e9",
         "z|A|z|\U0001F600|z|\u00e9"},
        {"(?i)\u00c4[^k]", false, false, MF__SPLIT_ISOLATED, "x\u00e4\u212a\u00e4lx", "x\u00e4\u212a|\u00e4l|x"},
    };
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf__split_step step = {cases[i].pattern, strlen(cases[i].pattern), cases[i].literal, cases[i].invert, false,
                               cases[i].behavior};
        char got[200];
        split(&step, 1, cases[i].text, got);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("/%s/ %d on \"%s\": \"%s\", expected \"%s\"", cases[i].pattern, cases[i].behavior, cases[i].text,
                     got, cases[i].want);
    }
}

static void test_split_sequence(void **state) {
    (void)state;
    /* The second step sees the pieces of the first only: its look-ahead stops at a piece's end. */
    mf__split_step steps[] = {{"\\d", 2, false, false, false, MF__SPLIT_ISOLATED},
                              {"a(?!\\d)", 7, false, false, false, MF__SPLIT_ISOLATED}};
    char got[100];
    split(steps, 2, "xa1a", got);
    assert_string_equal(got, "x|a|1|a");
    mf__split_step prefix[] = {{"\\d", 2, false, false, false, MF__SPLIT_REMOVED},
                               {"", 0, false, false, true, MF__SPLIT_ISOLATED}};
    split(prefix, 2, "\u00e91 b2c", got);
    assert_string_equal(got, " \u00e9| b| c");
}

static void test_bad_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        mf_status status;
    } cases[] = {
        {"(", MF_E_FORMAT},
        {")", MF_E_FORMAT},
        {"[a", MF_E_FORMAT},
        {"[b-a]", MF_E_FORMAT},
        {"*", MF_E_FORMAT},
        {"\\p{Klingon}", MF_E_UNSUPPORTED},
        {"\\p{L", MF_E_FORMAT},
        {"\\bx", MF_E_UNSUPPORTED},
        {"(a)\\1", MF_E_UNSUPPORTED},
        {"^a", MF_E_UNSUPPORTED},
        {"\\x{110000}", MF_E_FORMAT},
        {"a\\", MF_E_FORMAT},
        {"(?<name>a)", MF_E_UNSUPPORTED},
        {"[[[[[[[[[[[[a]]]]]]]]]]]]", MF_E_FORMAT},
        {"\\pL", MF_E_FORMAT},
        {"x{3,2}", MF_E_FORMAT},
        {"(?<=a*)b", MF_E_FORMAT},
    };
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf__split_step step = {.pattern = cases[i].pattern, .size = strlen(cases[i].pattern)};
        mf__splitter *sp;
        mf_error err = {0};
        mf_status status = mf__splitter_create("t", &step, 1, &sp, &err);
        if (status != cases[i].status) fail_msg("/%s/: %d %s", cases[i].pattern, status, err.text);
        assert_null(sp);
    }
}

static void test_catastrophic_pattern(void **state) {
    (void)state;
    mf__split_step step = {.pattern = "(?:a|a)+(?:a|a)+(?:a|a)+b", .size = 25};
    mf__splitter *sp;
    mf__split_run run = {0};
    mf_error err = {0};
    char text[400];
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "cb", 2); /* the b is there, so the search cannot be skipped */
    assert_int_equal(mf__splitter_create("t", &step, 1, &sp, &err), MF_OK);
    assert_int_equal(mf__splitter_run(sp, text, sizeof text, &run, &err), MF_E_LIMIT);
    mf__split_run_free(&run);
    mf__splitter_free(sp);
}

/* ---- pre-tokenizer kinds from JSON ----------------------------------------------------------------------------- */

static void test_byte_level_regex(void **state) {
    (void)state;
    mf__tokenizer *tok = open_made(
        (make_options){.merges = "\u0120 a\n\u0120a b", .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"});
    EXPECT(tok, "ab ab", true, 257, 257); /* a space is put in front */
    EXPECT(tok, " ab's", true, 257, '\'', 's');
    mf__tokenizer_free(tok);
    tok = open_made((make_options){.merges = "1 1",
                                   .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                                          "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                                          "false,\"use_regex\":false}]}"});
    EXPECT(tok, "x11", true, 'x', '1', '1');
    mf__tokenizer_free(tok);
    tok = open_made((make_options){.merges = "1 1\n11 x",
                                   .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":"
                                          "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"});
    EXPECT(tok, "11x", true, 256, 'x');
    mf__tokenizer_free(tok);
}

/* ---- added tokens ---------------------------------------------------------------------------------------------- */

#define ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"
#define RAW ",\"special\":true,\"normalized\":false"

static void test_added_tokens(void **state) {
    (void)state;
    mf__tokenizer *tok = open_made((make_options){
        .normalizer = "{\"type\":\"NFC\"}",
        .added = "[" ADDED(300, "<a>", RAW) "," ADDED(301, "<a><b>", RAW) "," ADDED(302, "<c", RAW) "," ADDED(
            303, "e\\u0301!",
            ",\"normalized\":true") "," ADDED(304, "LL",
                                              RAW
                                              ",\"lstrip\":true") "," ADDED(305, "RR",
                                                                            RAW
                                                                            ",\"rstrip\":true") "," ADDED(306, "WW",
                                                                                                          RAW
                                                                                                          ",\"singl"
                                                                                                          "e_"
                                                                                                          "word\":"
                                                                                                          "true") "]"});
    EXPECT(tok, "<a><b><a><c", true, 301, 300, 302);
    EXPECT(tok, "<a>", false, '<', 'a', '>');
    EXPECT(tok, "x \t LL RR  y", true, 'x', 304, ' ', 305, 'y');
    EXPECT(tok, "WW xWW WWx WW", true, 306, ' ', 'x', 'W', 'W', ' ', 'W', 'W', 'x', ' ', 306);
    EXPECT(tok, "\u00e9!", true, 303); /* matched after normalization, in either form */
    EXPECT(tok, "e\u0301!", true, 303);
    EXPECT(tok, "e\u0301!", false, 0xC3, 0xA9, '!');
    assert_int_equal(mf__tokenizer_id(tok, "<a>"), 300);
    assert_int_equal(mf__tokenizer_id(tok, "a"), -1);
    assert_int_equal(mf__tokenizer_n_vocab(tok), 307);
    size_t n;
    assert_memory_equal(mf__tokenizer_bytes(tok, 301, &n), "<a><b>", 6);
    assert_int_equal(n, 6);
    mf__tokenizer_bytes(tok, 280, &n);
    assert_int_equal(n, 0);
    mf__tokenizer_bytes(tok, -1, &n);
    assert_int_equal(n, 0);
    mf__tokenizer_bytes(tok, 307, &n);
    assert_int_equal(n, 0);
    mf__tokenizer_free(tok);
}

/* ---- bad text and normalization -------------------------------------------------------------------------------- */

static void test_invalid_utf8(void **state) {
    (void)state;
    static const char *const bad[] = {
        "ab\xff",     "ab\xc0\x80", "ab\xe0\x80\x80",        "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80",
        "ab\xe4\xb8", "ab\x80",     "ab\xf8\x88\x80\x80\x80"};
    mf__tokenizer *tok = open_made((make_options){0});
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        int32_t *ids = (int32_t *)1;
        size_t n = 1;
        mf_error err = {0};
        assert_int_equal(mf__tokenizer_encode(tok, bad[i], strlen(bad[i]), true, &ids, &n, &err), MF_E_INVALID);
        assert_null(ids);
        assert_non_null(strstr(err.text, "offset 2"));
    }
    expect_ids(tok, "a\0b", 3, true, (const int32_t[]){'a', 0, 'b'}, 3);
    mf__tokenizer_free(tok);
}

static void expect_nfc(const char *text, const char *want) {
    mf__strbuf out = {0};
    mf_error err;
    bool same;
    assert_int_equal(mf__nfc(text, strlen(text), &same, &out, &err), MF_OK);
    assert_string_equal(same ? text : out.data, want);
    mf__strbuf_free(&out);
}

static void test_nfc(void **state) {
    (void)state;
    expect_nfc("plain", "plain");
    expect_nfc("xe\u0301y", "x\u00e9y");
    expect_nfc("\u0301a", "\u0301a");
    expect_nfc("\u1100\u1161\u11a8", "\uac01");
    expect_nfc("\uac00\u11a8\uac00", "\uac01\uac00");
    expect_nfc("\u212b\u2126", "\u00c5\u03a9");
    expect_nfc("a\u0323\u0301", "\u1ea1\u0301");
    expect_nfc("a\u0301\u0323", "\u1ea1\u0301"); /* marks are put in order first */
    expect_nfc("\u0958", "\u0915\u093c");        /* excluded from composition */
    expect_nfc("q\u0307\u0323b\u0304", "q\u0323\u0307b\u0304");
    /* A long run of marks in the worst order is sorted, not bubbled. */
    mf__strbuf text = {0}, out = {0};
    mf_error err;
    bool same;
    size_t n = 200000;
    for (size_t i = 0; i < n; i++) mf__strbuf_append(&text, "\u0301\u0323", 4, NULL);
    assert_int_equal(mf__nfc(text.data, text.size, &same, &out, &err), MF_OK);
    assert_int_equal(out.size, 4 * n);
    for (size_t i = 0; i < 2 * n; i++) assert_memory_equal(out.data + 2 * i, i < n ? "\u0323" : "\u0301", 2);
    mf__strbuf_free(&text);
    mf__strbuf_free(&out);
}

/* ---- bad files ------------------------------------------------------------------------------------------------- */

static void test_bad_files(void **state) {
    (void)state;
#define BAD(json, status, needle) expect_bad(json, sizeof(json) - 1, status, needle)
#define BL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}"
    BAD("", MF_E_FORMAT, "");
    BAD("[]", MF_E_FORMAT, "model");
    BAD("{}", MF_E_FORMAT, "model");
    BAD("{\"model\":{}}", MF_E_FORMAT, "vocab");
    BAD("{\"model\":{\"vocab\":{},\"merges\":[]}}", MF_E_FORMAT, "vocab");
    BAD("{\"model\":{\"vocab\":{\"a\":0}}}", MF_E_FORMAT, "merges");
    BAD("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", MF_E_UNSUPPORTED, "pre-tokenizer");
    BAD("{" BL ",\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"merges\":[]}}", MF_E_UNSUPPORTED, "WordPiece");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", MF_E_FORMAT, "not an integer");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", MF_E_FORMAT, "-1");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":2147483647},\"merges\":[]}}", MF_E_FORMAT, "2147483647");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", MF_E_FORMAT, "same id 1");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a\"]}}", MF_E_FORMAT, "merge 0");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a a a\"]}}", MF_E_FORMAT, "merge 0");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}", MF_E_FORMAT, "merge 0");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[[\"a\",7]]}}", MF_E_FORMAT, "merge 0");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a b\"]}}", MF_E_FORMAT, "\"b\"");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1,\"b\":2},\"merges\":[\"a b\"]}}", MF_E_FORMAT, "\"ab\"");
    BAD("{" BL ",\"model\":{\"vocab\":{\"a\":1},\"merges\":[],\"byte_fallback\":true}}", MF_E_UNSUPPORTED, "fallback");
    BAD("{" BL ",\"added_tokens\":7,\"model\":{\"vocab\":{\"a\":1},\"merges\":[]}}", MF_E_FORMAT, "added_tokens");
    BAD("{" BL ",\"added_tokens\":[7],\"model\":{\"vocab\":{\"a\":1},\"merges\":[]}}", MF_E_FORMAT, "added token");
    bad_made((make_options){.added = "[{\"id\":5,\"content\":\"x\"}]"}, MF_E_FORMAT, "id 5");
    bad_made((make_options){.added = "[{\"id\":500,\"content\":\"x\"}]"}, MF_E_FORMAT, "id 500");
    bad_made((make_options){.added = "[{\"id\":500}]"}, MF_E_FORMAT, "content");
    bad_made((make_options){.added = "[{\"id\":500,\"content\":\"yy\"},{\"id\":501,\"content\":\"yy\"}]"}, MF_E_FORMAT,
             "twice");
    bad_made((make_options){.normalizer = "{\"type\":\"NFKC\"}"}, MF_E_UNSUPPORTED, "NFKC");
    bad_made((make_options){.pre = "{\"type\":\"Metaspace\"}"}, MF_E_UNSUPPORTED, "Metaspace");
    bad_made((make_options){.pre = "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(\"}}"},
             MF_E_UNSUPPORTED, "ByteLevel");
    bad_made((make_options){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":"
                                   "\"Isolated\",\"pattern\":{\"Regex\":\"(\"}},{\"type\":\"ByteLevel\"}]}"},
             MF_E_FORMAT, "not closed");
    bad_made((make_options){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
                                   "\"Digits\"}]}"},
             MF_E_UNSUPPORTED, "behind ByteLevel");
    mf__tokenizer *tok;
    mf_error err;
    assert_int_equal(mf__tokenizer_open("does-not-exist.json", &tok, &err), MF_E_NOT_FOUND);
    assert_null(tok);
}

/* ---- compiled files -------------------------------------------------------------------------------------------- */

static mf__tokenizer *made_for_compiling(void) {
    return open_made((make_options){
        .merges = "a b\nab c",
        .vocab = ", \"xyz\": 300",
        .normalizer = "{\"type\":\"NFC\"}",
        .extra = ", \"ignore_merges\": true",
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},"
               "\"behavior\":\"MergedWithNext\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
        .added =
            "[" ADDED(301, "<L>", RAW ",\"lstrip\":true") "," ADDED(302, "e\\u0301!", ",\"normalized\":true") "]"});
}

static void test_compiled(void **state) {
    (void)state;
    mf__tokenizer *tok = made_for_compiling(), *again;
    mf__strbuf b = {0};
    mf_error err = {0};
    assert_int_equal(mf__tokenizer_write(tok, &b, &err), MF_OK);
    assert_int_equal(mf__tokenizer_read("c", (const uint8_t *)b.data, b.size, &again, &err), MF_OK);
    for (int k = 0; k < 2; k++) {
        const mf__tokenizer *t = k ? again : tok;
        EXPECT(t, "abc-xyz  <L>e\u0301!", true, 257, '-', 300, 301, 302);
        EXPECT(t, "<L>", false, '<', 'L', '>');
    }
    mf__tokenizer_free(again);
    /* Every damaged copy is refused: the checksum sees single bits, and cut files are short. */
    for (size_t i = 0; i < b.size; i += 7) {
        b.data[i] ^= 0x10;
        assert_int_equal(mf__tokenizer_read("c", (const uint8_t *)b.data, b.size, &again, &err), MF_E_FORMAT);
        assert_null(again);
        b.data[i] ^= 0x10;
        assert_int_equal(mf__tokenizer_read("c", (const uint8_t *)b.data, i, &again, &err), MF_E_FORMAT);
        assert_null(again);
    }
    mf__strbuf_free(&b);
    mf__tokenizer_free(tok);
}

static void test_compiled_dir(void **state) {
    (void)state;
    mf__tokenizer *tok = made_for_compiling();
    mf_error err = {0};
    mf__strbuf json = {0};
    make_tokenizer(&(make_options){.merges = "x y"}, &json);
    assert_int_equal(mf__dir_make("compiled", &err), MF_OK);
    assert_int_equal(mf__tokenizer_compile(tok, "compiled/" MF__TOKENIZER_COMPILED, &err), MF_OK);
    mf__tokenizer_free(tok);
    assert_int_equal(mf__tokenizer_open("compiled", &tok, &err), MF_OK); /* alone */
    EXPECT(tok, "abc", true, 257);
    mf__tokenizer_free(tok);
    /* beside another tokenizer.json: that one counts */
    assert_int_equal(mf__file_replace("compiled/tokenizer.json", json.data, json.size, &err), MF_OK);
    assert_int_equal(mf__tokenizer_open("compiled", &tok, &err), MF_OK);
    EXPECT(tok, "xy", true, 256);
    assert_int_equal(mf__tokenizer_compile(tok, "compiled/" MF__TOKENIZER_COMPILED, &err), MF_OK);
    mf__tokenizer_free(tok);
    assert_int_equal(mf__tokenizer_open("compiled", &tok, &err), MF_OK);
    EXPECT(tok, "xy", true, 256);
    mf__tokenizer_free(tok);
    mf__strbuf_free(&json);
    assert_int_equal(mf__dir_remove("compiled", &err), MF_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_heap_equals_scan),
        cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_split_sequence),
        cmocka_unit_test(test_bad_patterns),
        cmocka_unit_test(test_catastrophic_pattern),
        cmocka_unit_test(test_byte_level_regex),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_compiled),
        cmocka_unit_test(test_compiled_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
