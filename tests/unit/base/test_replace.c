/* Files appear whole or not at all; trees are removed without leaving them. */
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include "faults.h"

static mf_error err;

static void new_file_and_replacement(void **state) {
    const char *path = scratch_path(state, "a.json");
    assert_int_equal(mf__file_replace(path, "first", 5, &err), MF_OK);
    assert_file_is(path, "first");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(mf__file_replace(path, "second one", 10, &err), MF_OK);
    assert_file_is(path, "second one");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640); /* as the file it replaced */
    assert_int_equal(mf__file_replace(path, "", 0, &err), MF_OK);
    assert_file_is(path, "");
    assert_int_equal(scratch_count(*state), 1);
}

static void new_files_obey_the_umask(void **state) {
    mode_t old = umask(027);
    assert_int_equal(mf__file_replace(scratch_path(state, "a"), "x", 1, &err), MF_OK);
    umask(old);
    struct stat st;
    assert_int_equal(stat(scratch_path(state, "a"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
}

static void readers_see_the_old_file_or_the_new(void **state) {
    const char *path = scratch_text(state, "a", "old");
    int fd = open(path, O_RDONLY);
    assert_int_equal(mf__file_replace(path, "newer", 5, &err), MF_OK);
    char buf[8] = {0};
    assert_int_equal(read(fd, buf, sizeof buf), 3); /* what was open is what it was */
    assert_string_equal(buf, "old");
    close(fd);
}

static void name_without_directory(void **state) {
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "replace-here-%d", (int)getpid());
    assert_int_equal(mf__file_replace(name, "x", 1, &err), MF_OK);
    assert_file_is(name, "x");
    assert_int_equal(unlink(name), 0);
}

static void targets_that_cannot_be(void **state) {
    assert_int_equal(mf__file_replace(scratch_path(state, "no/such/dir"), "x", 1, &err), MF_E_NOT_FOUND);
    assert_contains(err.text, "no/such/dir");
    assert_int_equal(mkdir(scratch_path(state, "dir"), 0777), 0);
    assert_int_not_equal(mf__file_replace(scratch_path(state, "dir"), "x", 1, &err), MF_OK);
    assert_true(mf__path_is_dir(scratch_path(state, "dir")));
    assert_int_not_equal(mf__file_replace("", "x", 1, &err), MF_OK);
    assert_int_equal(scratch_count(*state), 1);
}

static void every_failure_keeps_the_old_file(void **state) {
    if (!FAULTS) skip();
    static const struct {
        struct faults faults;
        mf_status expected;
        const char *text;
    } cases[] = {
        {{.pwrite_errno = ENOSPC}, MF_E_NO_SPACE, "No space left"},
        {{.pwrite_errno = ENOSPC, .fail_after = 2, .max_transfer = 3}, MF_E_NO_SPACE, "No space left"},
        {{.pwrite_errno = EIO}, MF_E_IO, "cannot write"},
        {{.fsync_errno = EIO}, MF_E_IO, "cannot sync"},
        {{.fsync_errno = ENOSPC}, MF_E_NO_SPACE, "cannot sync"},
        {{.rename_errno = EACCES}, MF_E_IO, "cannot rename"},
    };
    const char *path = scratch_text(state, "a", "precious");
    const char *source = scratch_text(state, "source", "0123456789");
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        for (int copy = 0; copy < 2; copy++) {
            faults = cases[i].faults;
            mf_status status =
                copy ? mf__file_copy(source, path, &err) : mf__file_replace(path, "0123456789", 10, &err);
            faults = (struct faults){0};
            assert_int_equal(status, cases[i].expected);
            assert_contains(err.text, cases[i].text);
            assert_contains(err.text, path);
            assert_file_is(path, "precious");
            assert_int_equal(scratch_count(*state), 2); /* no temporary file */
        }
    }
    faults = (struct faults){.fsync_errno = EINVAL, .fail_after = 1}; /* a directory that cannot be synced */
    assert_int_equal(mf__file_replace(path, "new", 3, &err), MF_OK);
    faults = (struct faults){.fsync_errno = EIO, .fail_after = 1}; /* one whose sync fails */
    assert_int_equal(mf__file_replace(path, "newer", 5, &err), MF_E_IO);
    assert_int_equal(faults.n_calls, 2); /* the file, then the directory */
    faults = (struct faults){0};
}

static void file_size_limit(void **state) {
    const char *path = scratch_text(state, "a", "precious");
    static char big[100000];
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 40000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    mf_status status = mf__file_replace(path, big, sizeof big, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, MF_E_IO);
    assert_contains(err.text, "File too large");
    assert_file_is(path, "precious");
    assert_int_equal(scratch_count(*state), 1);
}

static void unwritable_directory(void **state) {
    if (geteuid() == 0) skip(); /* root writes everywhere */
    scratch_text(state, "d/a", "precious");
    assert_int_equal(chmod(scratch_path(state, "d"), 0555), 0);
    assert_int_equal(mf__file_replace(scratch_path(state, "d/a"), "x", 1, &err), MF_E_IO);
    assert_int_equal(chmod(scratch_path(state, "d"), 0755), 0);
    assert_file_is(scratch_path(state, "d/a"), "precious");
}

static void copies(void **state) {
    static char bytes[(2 << 20) + 12345];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    const char *from = scratch_write(state, "from", bytes, sizeof bytes), *to = scratch_path(state, "to");
    assert_int_equal(mf__file_copy(from, to, &err), MF_OK);
    mf__map map;
    assert_int_equal(mf__map_open(to, &map, &err), MF_OK);
    assert_int_equal(map.size, sizeof bytes);
    assert_memory_equal(map.data, bytes, sizeof bytes);
    mf__map_close(&map);
    assert_int_equal(mf__file_copy(from, from, &err), MF_OK); /* onto itself changes nothing */
    int64_t size;
    assert_int_equal(mf__file_size(from, &size, &err), MF_OK);
    assert_int_equal(size, sizeof bytes);
    assert_int_equal(mf__file_copy(scratch_path(state, "none"), to, &err), MF_E_NOT_FOUND);
    assert_int_equal(mf__file_copy(*state, to, &err), MF_E_INVALID);
    assert_int_equal(mf__file_copy(scratch_write(state, "empty", "", 0), to, &err), MF_OK);
    assert_file_is(to, "");
    assert_int_equal(scratch_count(*state), 3);
}

static void directories(void **state) {
    const char *dir = scratch_path(state, "d");
    assert_int_equal(mf__dir_make(dir, &err), MF_OK);
    assert_true(mf__path_is_dir(dir));
    assert_int_equal(mf__dir_make(dir, &err), MF_OK);
    assert_int_equal(mf__dir_sync(dir, &err), MF_OK);
    assert_int_equal(mf__dir_make(scratch_text(state, "file", "x"), &err), MF_E_EXISTS);
    assert_int_equal(mf__dir_make(scratch_path(state, "x/y"), &err), MF_E_NOT_FOUND);
    assert_int_not_equal(mf__dir_sync(scratch_path(state, "file"), &err), MF_OK);
}

static void removal_stays_inside(void **state) {
    scratch_text(state, "outside/keep", "precious");
    scratch_text(state, "tree/a", "x");
    scratch_text(state, "tree/.hidden", "x");
    scratch_text(state, "tree/sub/deeper/b", "x");
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "tree/many/%d", i);
        scratch_text(state, name, "");
    }
    assert_int_equal(symlink("../outside", scratch_path(state, "tree/link")), 0);
    assert_int_equal(symlink("../outside/keep", scratch_path(state, "tree/sub/file-link")), 0);
    assert_int_equal(symlink("outside", scratch_path(state, "link")), 0);

    assert_int_equal(mf__dir_remove(scratch_path(state, "link"), &err), MF_E_INVALID);
    assert_int_equal(mf__dir_remove(scratch_path(state, "link/"), &err), MF_E_INVALID);
    assert_int_equal(mf__dir_remove(scratch_path(state, "outside/keep"), &err), MF_E_INVALID);
    assert_int_equal(mf__dir_remove(scratch_path(state, "tree/"), &err), MF_OK);
    assert_false(mf__path_exists(scratch_path(state, "tree")));
    assert_file_is(scratch_path(state, "outside/keep"), "precious");
    assert_int_equal(mf__dir_remove(scratch_path(state, "tree"), &err), MF_E_NOT_FOUND);

    static const char *const refused[] = {"", "/", "//", ".", "..", "./", "../", "a/.."};
    for (size_t i = 0; i < MF__COUNT(refused); i++)
        assert_int_equal(mf__dir_remove(refused[i], &err), MF_E_INVALID);
    assert_int_equal(mf__dir_remove(scratch_path(state, "outside/.."), &err), MF_E_INVALID);
    assert_int_equal(mf__dir_remove(scratch_path(state, "outside/."), &err), MF_E_INVALID);
    assert_file_is(scratch_path(state, "outside/keep"), "precious");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(new_file_and_replacement),
        SCRATCH_TEST(new_files_obey_the_umask),
        SCRATCH_TEST(readers_see_the_old_file_or_the_new),
        SCRATCH_TEST(name_without_directory),
        SCRATCH_TEST(targets_that_cannot_be),
        SCRATCH_TEST(every_failure_keeps_the_old_file),
        SCRATCH_TEST(file_size_limit),
        SCRATCH_TEST(unwritable_directory),
        SCRATCH_TEST(copies),
        SCRATCH_TEST(directories),
        SCRATCH_TEST(removal_stays_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
