/* XXH64 against the vectors its authors publish, and pieces against the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(pieces),
        cmocka_unit_test(text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
