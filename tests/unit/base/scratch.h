/* A scratch directory for tests that need files, below the current one (CTest's build directory). */
#ifndef TESTS_BASE_SCRATCH_H
#define TESTS_BASE_SCRATCH_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

static inline int scratch_setup(void **state) {
    char *dir = strdup("scratch-XXXXXX");
    *state = dir;
    return mkdtemp(dir) ? 0 : -1;
}

static inline int scratch_teardown(void **state) {
    int failed = mf__dir_remove(*state, NULL) != MF_OK;
    free(*state);
    return failed;
}

#define SCRATCH_TEST(fn) cmocka_unit_test_setup_teardown(fn, scratch_setup, scratch_teardown)

/* "DIR/NAME" in one of a few static buffers. */
static inline const char *scratch_path(void **state, const char *name) {
    static char paths[8][4096];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", (const char *)*state, name);
    return path;
}

/* Writes a file below the scratch directory, making the directories on the way. */
static inline const char *scratch_write(void **state, const char *name, const void *bytes, size_t size) {
    const char *path = scratch_path(state, name);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    for (char *p = strchr(dir, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(dir, 0777);
        *p = '/';
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *scratch_text(void **state, const char *name, const char *text) {
    return scratch_write(state, name, text, strlen(text));
}

/* Entries in a directory, hidden ones too. */
static inline int scratch_count(const char *path) {
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static inline void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static inline void assert_file_is(const char *path, const char *expected) {
    char *text;
    size_t size;
    assert_int_equal(mf__file_read(path, 1 << 20, &text, &size, NULL), MF_OK);
    assert_string_equal(text, expected);
    free(text);
}

#endif
