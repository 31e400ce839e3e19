/* Mapping, whole reads, transfers, and names. Short transfers and EINTR are made by wrapped system calls. */
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>

#include "faults.h"

static mf_error err;

static void map_a_file(void **state) {
    static char bytes[70000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 31);
    mf__map map;
    const char *path = scratch_write(state, "a.bin", bytes, sizeof bytes);
    assert_int_equal(mf__map_open(path, &map, &err), MF_OK);
    assert_int_equal(map.size, sizeof bytes);
    assert_memory_equal(map.data, bytes, sizeof bytes);
    mf__map_close(&map);
    assert_null(map.data);
    mf__map_close(&map); /* zeroed: fine */

    assert_int_equal(mf__map_open(scratch_write(state, "empty", "", 0), &map, &err), MF_OK);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    mf__map_close(&map);
}

typedef struct told {
    int64_t done, total;
    int n;
} told;

static void on_reading(void *user, int64_t done, int64_t total) {
    told *t = user;
    assert_true(done > 0 && done <= total);
    *t = (told){done, total, t->n + 1};
}

/* Several huge pages and a part of one, and more than one thread reads at once. What becomes of the file does not
 * matter then. */
static void hold_a_file(void **state) {
    size_t size = ((size_t)53 << 20) + 123;
    told seen = {0};
    char *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (char)(i * 31 + (i >> 12));
    const char *path = scratch_write(state, "large.bin", bytes, size);
    mf__map map;
    assert_int_equal(mf__map_open(path, &map, &err), MF_OK);
    const uint8_t *data = map.data;
    assert_memory_equal(data, bytes, size);
#ifdef __linux__
    assert_true(mf__map_hold(&map, path, &(mf__reading){on_reading, &seen}));
    assert_int_equal(seen.done, size);
    assert_int_equal(seen.total, size);
#else
    mf__map_hold(&map, path, NULL);
#endif
    assert_ptr_equal(map.data, data);
    assert_int_equal(map.size, size);
    assert_memory_equal(data, bytes, size);
#ifdef __linux__
    assert_int_equal(truncate(path, 10), 0);
    assert_memory_equal(data, bytes, size);
    assert_false(mf__map_hold(&map, path, NULL)); /* another file now */
    assert_memory_equal(data, bytes, size);
#endif
    mf__map_close(&map);
    assert_false(mf__map_hold(&map, path, NULL));
    free(bytes);
}

/* What was let go is read again where somebody asks for it. */
static void let_go_of_a_file(void **state) {
    enum { SIZE = 100000 };
    static char bytes[SIZE];
    static const size_t ranges[][2] = {{0, 0}, {0, SIZE}, {1, 4096}, {4095, 12289}, {99000, SIZE}, {SIZE, SIZE}};
    mf__map map;
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i * 7 + i / 4096);
    assert_int_equal(mf__map_open(scratch_write(state, "go.bin", bytes, SIZE), &map, &err), MF_OK);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        assert_memory_equal(map.data, bytes, SIZE);
        mf__map_let_go(&map, ranges[i][0], ranges[i][1]);
    }
    assert_memory_equal(map.data, bytes, SIZE);
    mf__map_close(&map);
    mf__map_let_go(&map, 0, 0);
}

static void only_regular_files(void **state) {
    mf__map map;
    char *text;
    size_t n;
    int64_t size;
    assert_int_equal(mf__map_open(scratch_path(state, "none"), &map, &err), MF_E_NOT_FOUND);
    assert_contains(err.text, "none: No such file");
    assert_int_equal(mf__map_open(*state, &map, &err), MF_E_INVALID);
    assert_contains(err.text, "a directory, expected a regular file");
    assert_int_equal(mf__map_open("/dev/zero", &map, &err), MF_E_INVALID);
    assert_contains(err.text, "a character device");
    const char *pipe = scratch_path(state, "pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(mf__map_open(pipe, &map, &err), MF_E_INVALID); /* and does not wait for a writer */
    assert_int_equal(mf__file_read(pipe, 10, &text, &n, &err), MF_E_INVALID);
    assert_int_equal(mf__file_read("/dev/zero", 10, &text, &n, &err), MF_E_INVALID);
    assert_int_equal(mf__file_size(*state, &size, &err), MF_E_INVALID);
    assert_int_equal(mf__file_size("/dev/zero", &size, &err), MF_E_INVALID);
    const char *link = scratch_path(state, "link");
    scratch_text(state, "target", "abc");
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(mf__file_size(link, &size, &err), MF_OK); /* a link to a file is a file: hubs store models so */
    assert_int_equal(size, 3);
}

static void read_whole_files(void **state) {
    char *text;
    size_t size;
    const char *path = scratch_write(state, "a", "ab\0cd", 5);
    assert_int_equal(mf__file_read(path, 5, &text, &size, &err), MF_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(text, "ab\0cd", 6); /* with the NUL behind it */
    free(text);
    assert_int_equal(mf__file_read(path, 4, &text, &size, &err), MF_E_LIMIT);
    assert_null(text);
    assert_contains(err.text, "5 bytes, more than the 4 accepted");
    assert_int_equal(mf__file_read(scratch_write(state, "b", "", 0), 0, &text, &size, &err), MF_OK);
    assert_int_equal(size, 0);
    assert_string_equal(text, "");
    free(text);
#if defined(__linux__)
    assert_int_equal(mf__file_read("/proc/self/status", 1 << 20, &text, &size, &err), MF_OK); /* claims no size */
    assert_true(size > 100 && strlen(text) == size);
    free(text);
    assert_int_equal(mf__file_read("/proc/self/status", 20, &text, &size, &err), MF_E_LIMIT);
#endif
}

static void sizes_and_names(void **state) {
    int64_t size;
    const char *path = scratch_text(state, "a", "12345");
    assert_int_equal(mf__file_size(path, &size, &err), MF_OK);
    assert_int_equal(size, 5);
    assert_int_equal(mf__file_size(scratch_path(state, "none"), &size, &err), MF_E_NOT_FOUND);
    assert_true(mf__path_exists(path));
    assert_false(mf__path_exists(scratch_path(state, "none")));
    assert_true(mf__path_is_dir(*state));
    assert_false(mf__path_is_dir(path));
    static const char *const joins[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}, {"a/b", "c/d", "a/b/c/d"}};
    for (size_t i = 0; i < MF__COUNT(joins); i++) {
        char *joined = mf__path_join(joins[i][0], joins[i][1]);
        assert_string_equal(joined, joins[i][2]);
        free(joined);
    }
}

static void reads_past_the_end(void **state) {
    const char *path = scratch_text(state, "a", "0123456789");
    int fd = open(path, O_RDONLY);
    char buf[16];
    assert_int_equal(mf__pread_all(fd, buf, 10, 0, path, &err), MF_OK);
    assert_memory_equal(buf, "0123456789", 10);
    assert_int_equal(mf__pread_all(fd, buf, 4, 6, path, &err), MF_OK);
    assert_memory_equal(buf, "6789", 4);
    assert_int_equal(mf__pread_all(fd, buf, 5, 6, path, &err), MF_E_FORMAT);
    assert_contains(err.text, path);
    assert_contains(err.text, "is 1 bytes short");
    assert_int_equal(mf__pread_all(fd, buf, 5, 100, path, &err), MF_E_FORMAT);
    assert_contains(err.text, "is 5 bytes short");
    assert_int_equal(mf__pread_all(fd, buf, 0, 100, path, &err), MF_OK);
    assert_int_equal(mf__pwrite_all(fd, "x", 1, 0, path, &err), MF_E_IO); /* open for reading */
    assert_contains(err.text, "cannot write 1 bytes at offset 0");
    close(fd);
    assert_int_equal(mf__pread_all(fd, buf, 1, 0, path, &err), MF_E_IO);
}

static void short_transfers_and_interrupts(void **state) {
    if (!FAULTS) skip();
    static char bytes[5000], back[5000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 13 + i / 256);
    const char *path = scratch_path(state, "a");
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    faults = (struct faults){.max_transfer = 7, .interrupt_every = 3};
    assert_int_equal(mf__pwrite_all(fd, bytes, sizeof bytes, 11, path, &err), MF_OK);
    assert_int_equal(mf__pread_all(fd, back, sizeof back, 11, path, &err), MF_OK);
    assert_true(faults.n_interrupts > 100);
    faults = (struct faults){0};
    assert_memory_equal(bytes, back, sizeof bytes);
    memset(back, 0, sizeof back);
    assert_int_equal(pread(fd, back, sizeof back, 11), sizeof back);
    assert_memory_equal(bytes, back, sizeof bytes);

    faults = (struct faults){.pread_errno = EIO, .fail_after = 3};
    assert_int_equal(mf__pread_all(fd, back, sizeof back, 0, path, &err), MF_OK); /* one call: not yet */
    faults = (struct faults){.pread_errno = EIO, .fail_after = 3, .max_transfer = 100};
    assert_int_equal(mf__pread_all(fd, back, sizeof back, 0, path, &err), MF_E_IO);
    assert_contains(err.text, path);
    faults = (struct faults){.zero_writes = 1};
    assert_int_equal(mf__pwrite_all(fd, bytes, sizeof bytes, 0, path, &err), MF_E_IO); /* and does not hang */
    faults = (struct faults){0};
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(map_a_file),         SCRATCH_TEST(hold_a_file),
        SCRATCH_TEST(let_go_of_a_file),   SCRATCH_TEST(only_regular_files),
        SCRATCH_TEST(read_whole_files),   SCRATCH_TEST(sizes_and_names),
        SCRATCH_TEST(reads_past_the_end), SCRATCH_TEST(short_transfers_and_interrupts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
