/* Conversions whose world changes while they run. The progress callback does the damage, so that it comes in the
 * middle; each case says what must come of it. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint.h"
#include "convert/convert.h"
#include "convert/verify.h"
#include "weights/safetensors.h"

enum { LAYERS = 2 };

static char top[80];

static const char *at(const char *name) {
    static char paths[8][200];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", top, name);
    return p;
}

#define LAST_SHARD "source/model-00003-of-00003.safetensors"

static void setup_source(void) {
    mf_error err = {0};
    if (mf__path_exists(at("source"))) assert_int_equal(mf__dir_remove(at("source"), NULL), MF_OK);
    if (checkpoint_make(at("source"), "tiny", LAYERS, 3, &err)) fail_msg("%s", err.text);
}

static void clear_targets(void) {
    if (mf__path_exists(at("target"))) mf__dir_remove(at("target"), NULL);
    if (mf__path_exists(at("target.partial"))) mf__dir_remove(at("target.partial"), NULL);
}

/* Sum over the files of a directory: names and bytes. */
static uint64_t dir_hash(const char *path) {
    struct dirent **list;
    int n = scandir(path, &list, NULL, alphasort);
    uint64_t sum = 0;
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        char file[400], *bytes;
        size_t size;
        snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
        if (strcmp(list[i]->d_name, ".") && strcmp(list[i]->d_name, "..")) {
            if (mf__path_is_dir(file)) {
                sum = sum * 31 + dir_hash(file);
            } else {
                assert_int_equal(mf__file_read(file, 1 << 28, &bytes, &size, NULL), MF_OK);
                sum = sum * 31 + mf__hash_bytes(list[i]->d_name, strlen(list[i]->d_name));
                sum = sum * 31 + mf__hash_bytes(bytes, size);
                free(bytes);
            }
        }
        free(list[i]);
    }
    free(list);
    return sum;
}

typedef struct trouble {
    int calls, when; /* the call in which it happens; the first is 0 */
    void (*act)(void);
} trouble;

static bool on_progress(void *user, int64_t done, int64_t total) {
    trouble *t = user;
    (void)done, (void)total;
    if (t->calls++ == t->when && t->act) t->act();
    return false;
}

static mf_status convert(trouble *t, bool allow_nonfinite, mf_error *err) {
    mf__convert_options opt;
    mf__convert_options_init(&opt);
    mf__convert_preset(&opt, "balanced");
    opt.also_bits = 2; /* the most there is to write */
    opt.allow_nonfinite = allow_nonfinite;
    opt.progress = on_progress;
    opt.progress_user = t;
    return mf__convert(at("source"), at("target"), &opt, err);
}

static uint64_t undisturbed(void) {
    trouble none = {.when = -1};
    mf_error err = {0};
    clear_targets();
    if (convert(&none, false, &err)) fail_msg("%s", err.text);
    uint64_t h = dir_hash(at("target"));
    clear_targets();
    return h;
}

static void assert_nothing_left(void) {
    assert_false(mf__path_exists(at("target")));
    assert_false(mf__path_exists(at("target.partial")));
}

/* ---- the source ---- */

static void shrink(void) {
    assert_int_equal(truncate(at(LAST_SHARD), 100000), 0);
}

static void grow(void) {
    FILE *f = fopen(at(LAST_SHARD), "ab");
    assert_non_null(f);
    fputs("more", f);
    fclose(f);
}

static void remove_source(void) {
    assert_int_equal(mf__dir_remove(at("source"), NULL), MF_OK);
}

static void source_shrinks(void **state) {
    trouble t = {.when = 1, .act = shrink};
    mf_error err = {0};
    (void)state;
    setup_source();
    clear_targets();
    assert_int_equal(convert(&t, false, &err), MF_E_FORMAT);
    assert_non_null(strstr(err.text, "model-00003-of-00003.safetensors"));
    assert_non_null(strstr(err.text, "bytes short"));
    assert_nothing_left();
}

static void source_grows(void **state) {
    trouble t = {.when = 1, .act = grow};
    mf_error err = {0};
    (void)state;
    setup_source();
    clear_targets();
    assert_int_equal(convert(&t, false, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "model-00003-of-00003.safetensors"));
    assert_non_null(strstr(err.text, "changed while it was read"));
    assert_nothing_left();
}

/* The files are held open: a source that is removed does no harm to the conversion at work. */
static void source_is_removed(void **state) {
    trouble t = {.when = 1, .act = remove_source};
    mf_error err = {0};
    (void)state;
    setup_source();
    uint64_t want = undisturbed();
    if (convert(&t, false, &err)) fail_msg("%s", err.text);
    assert_int_equal(dir_hash(at("target")), want);
    clear_targets();
    /* but a new one says so */
    assert_int_equal(convert(&t, false, &err), MF_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "source"));
    assert_nothing_left();
}

static void source_is_not_touched(void **state) {
    (void)state;
    setup_source();
    uint64_t before = dir_hash(at("source"));
    struct stat a, b;
    assert_int_equal(stat(at(LAST_SHARD), &a), 0);
    assert_int_equal(chmod(at("source"), 0555), 0);
    undisturbed();
    assert_int_equal(chmod(at("source"), 0755), 0);
    assert_int_equal(stat(at(LAST_SHARD), &b), 0);
    assert_int_equal(dir_hash(at("source")), before);
    assert_true(a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec);
}

/* ---- values ---- */

/* Writes a BF16 value into a tensor of a shard. */
static void poke(const char *tensor, int64_t element, uint16_t value) {
    mf__catalog *cat;
    mf_error err = {0};
    if (mf__safetensors_open(at("source"), &cat, &err)) fail_msg("%s", err.text);
    const mf__entry *e = mf__catalog_find(cat, tensor);
    assert_non_null(e);
    int fd = open(mf__catalog_file(cat, e->file), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, 2, e->offset + 2 * element), 2);
    close(fd);
    mf__catalog_close(cat);
}

static void nonfinite(void **state) {
    static const struct {
        const char *tensor;
        int64_t element;
        uint16_t value;
        const char *says[3];
    } rows[] = {
        {"model.layers.1.mlp.experts.down_proj",
         5 * 256 * 128 + 3 * 128 + 7,
         0x7fc0,
         {"layer 1, expert 5, down_proj", "nan", "row 3, column 7"}},
        {"model.layers.0.mlp.shared_expert.up_proj.weight",
         256 * 2 + 1,
         0xff80,
         {"model.layers.0.mlp.shared_expert.up_proj.weight", "-inf", "row 2, column 1"}},
        {"model.norm.weight", 9, 0x7f80, {"model.norm.weight", "inf", "column 9"}}, /* kept as F32 */
        {"model.layers.0.mlp.gate.weight", 256, 0x7fc1, {"mlp.gate.weight", "nan", "row 1, column 0"}}, /* kept */
    };
    (void)state;
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        trouble none = {.when = -1};
        mf_error err = {0};
        setup_source();
        clear_targets();
        poke(rows[i].tensor, rows[i].element, rows[i].value);
        assert_int_equal(convert(&none, false, &err), MF_E_FORMAT);
        for (int k = 0; k < 3; k++)
            if (!strstr(err.text, rows[i].says[k])) fail_msg("\"%s\" does not say \"%s\"", err.text, rows[i].says[k]);
        assert_non_null(strstr(err.text, "--allow-nonfinite"));
        assert_nothing_left();
        if (convert(&none, true, &err)) fail_msg("%s", err.text);
        clear_targets();
    }
}

/* ---- the target ---- */

static void target_exists(void **state) {
    trouble none = {.when = -1};
    mf_error err = {0};
    (void)state;
    setup_source();
    clear_targets();
    assert_int_equal(mkdir(at("target"), 0777), 0);
    assert_int_equal(convert(&none, false, &err), MF_E_EXISTS);
    assert_non_null(strstr(err.text, "target"));
    assert_false(mf__path_exists(at("target.partial")));
    assert_int_equal(rmdir(at("target")), 0);
    assert_int_equal(mkdir(at("target.partial"), 0777), 0); /* somebody's */
    assert_int_equal(convert(&none, false, &err), MF_E_EXISTS);
    assert_non_null(strstr(err.text, "was not made by moeflux"));
    assert_int_equal(rmdir(at("target.partial")), 0);
}

static bool stop_late(void *user, int64_t done, int64_t total) {
    (void)user;
    return done > total / 2;
}

/* What a stopped conversion left is for the same source and the same options only. */
static void other_work(void **state) {
    trouble none = {.when = -1};
    mf__convert_options opt;
    mf_error err = {0};
    (void)state;
    setup_source();
    uint64_t want = undisturbed();
    mf__convert_options_init(&opt);
    mf__convert_preset(&opt, "balanced");
    opt.progress = stop_late;
    assert_int_equal(mf__convert(at("source"), at("target"), &opt, &err), MF_E_CANCELLED);
    assert_non_null(strstr(err.text, "goes on from there"));
    assert_true(mf__path_exists(at("target.partial")));
    opt.progress = NULL;
    opt.expert_bits = 8;
    assert_int_equal(mf__convert(at("source"), at("target"), &opt, &err), MF_E_EXISTS);
    assert_non_null(strstr(err.text, "experts 4"));
    assert_non_null(strstr(err.text, "experts 8"));
    assert_non_null(strstr(err.text, "--restart"));
    poke("model.norm.weight", 0, 0);
    assert_int_equal(convert(&none, false, &err), MF_E_EXISTS);
    assert_non_null(strstr(err.text, "another source"));
    opt.restart = true;
    if (mf__convert(at("source"), at("target"), &opt, &err)) fail_msg("%s", err.text);
    clear_targets();
    setup_source();
    opt = (mf__convert_options){0};
    mf__convert_options_init(&opt);
    mf__convert_preset(&opt, "balanced");
    opt.also_bits = 2;
    opt.progress = stop_late;
    assert_int_equal(mf__convert(at("source"), at("target"), &opt, &err), MF_E_CANCELLED);
    if (convert(&none, false, &err)) fail_msg("%s", err.text);
    assert_int_equal(dir_hash(at("target")), want);
    clear_targets();
}

/* ---- a full disk ---- */

static void fill_disk(void) {
    static char zeros[1 << 16];
    FILE *f = fopen(at("hog"), "wb");
    if (!f) return;
    while (fwrite(zeros, 1, sizeof zeros, f) == sizeof zeros && fflush(f) == 0) {
    }
    fclose(f);
}

enum { CHILD_OK, CHILD_FAIL, CHILD_SKIP = 77 };

/* In a mount namespace of its own: a disk with room enough at first, which somebody else fills in the middle. */
static int full_disk_child(uint64_t want) {
    trouble t = {.when = 12, .act = fill_disk}, none = {.when = -1};
    mf_error err = {0};
    char here[80];
    snprintf(here, sizeof here, "%.60s/disk", top);
    mkdir(here, 0777);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", here, "tmpfs", 0, "size=64m") != 0)
        return CHILD_SKIP;
    memcpy(top, here, sizeof here);
    if (checkpoint_make(at("source"), "tiny", LAYERS, 3, &err)) return CHILD_FAIL;
    mf_status st = convert(&t, false, &err);
    if (st != MF_E_NO_SPACE || mf__path_exists(at("target"))) {
        fprintf(stderr, "%s: %s\n", mf_status_name(st), err.text);
        return CHILD_FAIL;
    }
    bool kept = mf__path_exists(at("target.partial"));
    if (kept != (strstr(err.text, "goes on from there") != NULL)) return CHILD_FAIL;
    unlink(at("hog"));
    if (convert(&none, false, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return CHILD_FAIL;
    }
    return dir_hash(at("target")) == want && !mf__path_exists(at("target.partial")) ? CHILD_OK : CHILD_FAIL;
}

static void disk_gets_full(void **state) {
    (void)state;
    setup_source();
    uint64_t want = undisturbed();
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(full_disk_child(want));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    rmdir(at("disk"));
    if (WEXITSTATUS(status) == CHILD_SKIP) skip();
    assert_int_equal(WEXITSTATUS(status), CHILD_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(source_shrinks),    cmocka_unit_test(source_grows),
        cmocka_unit_test(source_is_removed), cmocka_unit_test(source_is_not_touched),
        cmocka_unit_test(nonfinite),         cmocka_unit_test(target_exists),
        cmocka_unit_test(other_work),        cmocka_unit_test(disk_gets_full),
    };
    snprintf(top, sizeof top, "fault_%ld", (long)getpid());
    mkdir(top, 0777);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mf__dir_remove(top, NULL);
    return failed;
}
