/* XXH64 against the vectors its authors publish, and pieces against the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/sha.h"

#define PRIME32 2654435761u

static uint64_t seeded(const void *data, size_t size, uint64_t seed) {
    mf__hash h;
    mf__hash_init(&h, seed);
    mf__hash_update(&h, data, size);
    return mf__hash_digest(&h);
}

/* The buffer of xxHash's own sanity check. */
static void sanity_buffer(uint8_t *out, size_t n) {
    uint64_t gen = PRIME32;
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(gen >> 56);
        gen *= 11400714785074694797u;
    }
}

static void published_vectors(void **state) {
    (void)state;
    static const struct {
        size_t size;
        uint64_t seed, hash;
    } rows[] = {
        {0, 0, 0xEF46DB3751D8E999u},        {0, PRIME32, 0xAC75FDA2929B17EFu}, {1, 0, 0xE934A84ADB052768u},
        {1, PRIME32, 0x5014607643A9B4C3u},  {4, 0, 0x9136A0DCA57457EEu},       {14, 0, 0x8282DCC4994E35C8u},
        {14, PRIME32, 0xC3BD6BF63DEB6DF0u}, {222, 0, 0xB641AE8CB691C174u},     {222, PRIME32, 0x20CB8AB7AE10C14Au},
    };
    uint8_t buf[222];
    sanity_buffer(buf, sizeof buf);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(seeded(buf, rows[i].size, rows[i].seed), rows[i].hash);
    assert_int_equal(mf__hash_bytes("a", 1), 0xD24EC4F1A98C6E5Bu);
    assert_int_equal(mf__hash_bytes("abc", 3), 0x44BC2CF5AD770999u);
    static const char text[] = "Nobody inspects the spammish repetition";
    assert_int_equal(mf__hash_bytes(text, strlen(text)), 0xFBCEA83C8A378BF1u);
}

/* Every way of cutting 100 bytes in three gives the hash of the whole. */
static void pieces(void **state) {
    (void)state;
    uint8_t buf[100];
    sanity_buffer(buf, sizeof buf);
    uint64_t whole = mf__hash_bytes(buf, sizeof buf);
    for (size_t a = 0; a <= sizeof buf; a++)
        for (size_t b = a; b <= sizeof buf; b++) {
            mf__hash h;
            mf__hash_init(&h, 0);
            mf__hash_update(&h, buf, a);
            mf__hash_update(&h, buf + a, b - a);
            mf__hash_update(&h, buf + b, sizeof buf - b);
            assert_int_equal(mf__hash_digest(&h), whole);
        }
}

static void text(void **state) {
    (void)state;
    char t[17];
    uint64_t v = 1;
    mf__hash_text(0x00123456789ABCDEu, t);
    assert_string_equal(t, "00123456789abcde");
    assert_true(mf__hash_parse(t, &v));
    assert_int_equal(v, 0x00123456789ABCDEu);
    assert_false(mf__hash_parse("0012345678", &v));
    assert_false(mf__hash_parse("00123456789ABCDE", &v));
}

/* The examples of FIPS 180-4, in pieces of every length. */
static void sha(void **state) {
    static const struct {
        const char *unit;
        int times;
        const char *sha256, *sha1;
    } cases[] = {{"", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                  "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
                 {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                  "a9993e364706816aba3e25717850c26c9cd0d89d"},
                 {"aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
                  "34aa973cd4c4daa4f61eeb2bdbad27316534016f"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = 0; kind < 2; kind++) {
            char t[MF_SHA_TEXT];
            mf__sha s;
            mf__sha_init(&s, (mf__sha_kind)kind);
            for (int k = 0; k < cases[i].times; k++) mf__sha_update(&s, cases[i].unit, strlen(cases[i].unit));
            mf__sha_text(&s, t);
            assert_string_equal(t, kind == MF_SHA_256 ? cases[i].sha256 : cases[i].sha1);
        }
    uint8_t buf[300];
    char whole[MF_SHA_TEXT], cut[MF_SHA_TEXT];
    for (size_t i = 0; i < sizeof buf; i++) buf[i] = (uint8_t)(i * 7);
    mf__sha s;
    mf__sha_init(&s, MF_SHA_256);
    mf__sha_update(&s, buf, sizeof buf);
    mf__sha_text(&s, whole);
    for (size_t a = 0; a <= sizeof buf; a++) {
        mf__sha_init(&s, MF_SHA_256);
        mf__sha_update(&s, buf, a);
        mf__sha_text(&s, cut); /* asking in between changes nothing */
        mf__sha_update(&s, buf + a, sizeof buf - a);
        mf__sha_text(&s, cut);
        assert_string_equal(cut, whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(pieces),
        cmocka_unit_test(text),
        cmocka_unit_test(sha),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
