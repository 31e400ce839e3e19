/* Direct files: what is appended in pieces of any size is what is read back at any offset, also after an interruption,
 * also where the file system has no direct access. */
#include <fcntl.h>

#include "base/direct.h"
#include "scratch.h"

#define TOTAL ((size_t)20 << 20)

static uint8_t *pattern(size_t n) {
    uint8_t *p = mf__direct_alloc(n);
    assert_non_null(p);
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    return p;
}

static void assert_content(const char *path, const uint8_t *want, size_t size) {
    char *bytes;
    size_t n;
    assert_int_equal(mf__file_read(path, TOTAL, &bytes, &n, NULL), MF_OK);
    assert_int_equal(n, size);
    assert_memory_equal(bytes, want, size);
    free(bytes);
}

/* Pieces of odd and even sizes, some aligned so that they go straight to the disk, with syncs in between. */
static void append_to(const char *path) {
    static const size_t pieces[] = {1, 4095, 4096, 100, 8192 - 100 - 4096, 9 << 20, 3, 5000, 1 << 20, 77};
    uint8_t *data = pattern(TOTAL);
    mf__outfile f;
    size_t at = 0;
    assert_int_equal(mf__outfile_open(path, 0, &f, NULL), MF_OK);
    for (size_t i = 0; i < MF__COUNT(pieces); i++) {
        assert_int_equal(mf__outfile_append(&f, data + at, (int64_t)pieces[i], NULL), MF_OK);
        at += pieces[i];
        if (i % 3 == 0) {
            assert_int_equal(mf__outfile_sync(&f, NULL), MF_OK);
            assert_content(path, data, at);
        }
    }
    /* as if killed: what came after the last sync may be there or not; go back to a length that was synced */
    mf__outfile_drop(&f);
    assert_int_equal(mf__outfile_open(path, 4097, &f, NULL), MF_OK);
    assert_int_equal(f.size, 4097);
    assert_int_equal(mf__outfile_append(&f, data + 4097, (int64_t)(TOTAL - 4097 - 5), NULL), MF_OK);
    assert_int_equal(mf__outfile_close(&f, NULL), MF_OK);
    assert_int_equal(mf__outfile_close(&f, NULL), MF_OK);
    assert_content(path, data, TOTAL - 5);
    mf__direct_free(data, TOTAL);
}

static void append(void **state) {
    append_to(scratch_path(state, "f"));
}

static void append_without_direct(void **state) {
    (void)state;
    char dir[] = "/dev/shm/moeflux-XXXXXX", path[64];
    if (!mkdtemp(dir)) skip();
    snprintf(path, sizeof path, "%s/f", dir);
    append_to(path);
    unlink(path);
    rmdir(dir);
}

static void refused(void **state) {
    mf__outfile f;
    mf_error err;
    const char *path = scratch_text(state, "f", "abc");
    assert_int_equal(mf__outfile_open(path, 0, &f, &err), MF_E_EXISTS);
    assert_int_equal(mf__outfile_open(path, 4, &f, &err), MF_E_FORMAT);
    assert_contains(err.text, "3 bytes, expected at least 4");
    assert_int_equal(mf__outfile_open(scratch_path(state, "none/f"), 0, &f, &err), MF_E_NOT_FOUND);
    mf__outfile_drop(&f);
}

static void read_back(void **state) {
    uint8_t *data = pattern(100001);
    const char *path = scratch_write(state, "f", data, 100001);
    mf__infile f;
    mf_error err;
    const uint8_t *got;
    void *buf = mf__direct_alloc(mf__infile_room(100001));
    assert_int_equal(mf__infile_open(path, &f, NULL), MF_OK);
    static const int64_t at[][2] = {{0, 100001}, {0, 1}, {4096, 4096}, {4095, 2}, {100000, 1}, {77777, 22224}, {5, 0}};
    for (size_t i = 0; i < MF__COUNT(at); i++) {
        assert_int_equal(mf__infile_read(&f, at[i][0], at[i][1], buf, &got, NULL), MF_OK);
        assert_memory_equal(got, data + at[i][0], (size_t)at[i][1]);
    }
    assert_int_equal(mf__infile_unchanged(&f, NULL), MF_OK);
    assert_int_equal(mf__infile_read(&f, 100000, 2, buf, &got, &err), MF_E_FORMAT);
    assert_contains(err.text, "1 bytes short");
    assert_int_equal(truncate(path, 50000), 0); /* shrinks while it is open */
    assert_int_equal(mf__infile_read(&f, 49990, 20, buf, &got, &err), MF_E_FORMAT);
    assert_contains(err.text, "10 bytes short");
    assert_int_equal(mf__infile_unchanged(&f, &err), MF_E_MISMATCH);
    assert_contains(err.text, "it had 100001 bytes, now 50000");
    mf__infile_close(&f);
    mf__infile_close(&f);
    mf__direct_free(buf, mf__infile_room(100001));
    mf__direct_free(data, 100001);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(append),
        SCRATCH_TEST(append_without_direct),
        SCRATCH_TEST(refused),
        SCRATCH_TEST(read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
