/* Damage and full disks. A damaged file is an error or a catalogue whose views lie inside the file, never a crash (the
 * tests also run under AddressSanitizer, on buffers of exactly the file's size). A full disk leaves nothing behind. */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "util.h"

static const char st_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                "\"m.q.weight\":{\"dtype\":\"U32\",\"shape\":[2,8],\"data_offsets\":[0,64]},"
                                "\"m.q.scales\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[64,68]},"
                                "\"m.q.biases\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[68,72]},"
                                "\"m.norm\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[72,84]},"
                                "\"m.conv\":{\"dtype\":\"F16\",\"shape\":[2,1,4],\"data_offsets\":[84,100]}}";

static const char manifest[] =
    "{\"model\":\"x\",\"num_tensors\":4,\"tensors\":{"
    "\"model.layers.3.q.weight\":{\"offset\":0,\"size\":64,\"shape\":[2,8],\"dtype\":\"U32\",\"bits\":4},"
    "\"model.layers.3.q.scales\":{\"offset\":64,\"size\":4,\"shape\":[2,1],\"dtype\":\"BF16\"},"
    "\"model.layers.3.q.biases\":{\"offset\":68,\"size\":4,\"shape\":[2,1],\"dtype\":\"BF16\"},"
    "\"norm\":{\"offset\":72,\"size\":12,\"shape\":[3],\"dtype\":\"F32\"}},"
    "\"moeflux\":{\"version\":1,\"experts\":{\"count\":2,\"stride\":4096,\"bytes\":1152,\"parts\":["
    "{\"name\":\"gate\",\"dtype\":\"BF16\",\"rows\":2,\"cols\":32,\"data\":0},"
    "{\"name\":\"up\",\"dtype\":\"AFFINE\",\"rows\":2,\"cols\":32,\"bits\":4,\"group\":32,\"scale_dtype\":\"F32\","
    "\"data\":128,\"scales\":160,\"biases\":168},"
    "{\"name\":\"down\",\"dtype\":\"BF16\",\"rows\":2,\"cols\":32,\"data\":1024}]}}}";

/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
static uint8_t *exact_copy(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    return copy;
}

static void try_safetensors(const uint8_t *bytes, size_t size) {
    uint8_t *copy = exact_copy(bytes, size);
    mf__catalog *cat;
    mf_error err = {0};
    mf_status status = mf__safetensors_parse("x.st", copy, size, &cat, &err);
    if (status == MF_OK)
        check_catalog(cat, copy, size);
    else
        assert_true(err.status == status && err.text[0]);
    mf__catalog_close(cat);
    free(copy);
}

static void try_manifest(const uint8_t *bytes, size_t size, size_t trunk_size) {
    uint8_t *copy = exact_copy(bytes, size), *trunk = calloc(1, trunk_size + 1);
    uint8_t *exact = exact_copy(trunk, trunk_size);
    mf__native n;
    mf_error err = {0};
    mf_status status = mf__manifest_parse("m.json", (const char *)copy, size, exact, trunk_size, &n, &err);
    if (status == MF_OK) {
        check_catalog(n.catalog, exact, trunk_size);
        if (n.has_layout) assert_int_equal(mf__expert_layout_check(&n.layout, NULL), MF_OK);
        assert_true(n.n_layers >= 0 && n.n_layers <= 10000);
    } else {
        assert_true(err.status == status && err.text[0]);
    }
    mf__native_close(&n);
    free(exact);
    free(trunk);
    free(copy);
}

static void damaged_safetensors(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = safetensors_bytes(st_header, 100, &size);
    for (int i = 0; i < 32; i++) try_safetensors(bytes, size * (size_t)i / 32);
    for (size_t n = size - 110; n <= size; n++) try_safetensors(bytes, n);
    size_t header_end = 8 + sizeof st_header - 1;
    for (size_t i = 0; i < header_end; i++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1 << bit);
            try_safetensors(bytes, size);
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    /* every truncation of the data is noticed */
    mf__catalog *cat;
    for (size_t n = header_end; n < size; n++)
        assert_int_equal(mf__safetensors_parse("x.st", bytes, n, &cat, NULL), MF_E_FORMAT);
    free(bytes);
}

static void damaged_manifest(void **state) {
    (void)state;
    size_t size = sizeof manifest - 1;
    uint8_t *bytes = exact_copy((const uint8_t *)manifest, size);
    for (int i = 0; i < 32; i++) try_manifest(bytes, size * (size_t)i / 32, 84);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1 << bit);
            try_manifest(bytes, size, 84);
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    mf__native n;
    for (size_t trunk = 0; trunk < 84; trunk++) {
        try_manifest(bytes, size, trunk);
        uint8_t small[84];
        assert_int_equal(mf__manifest_parse("m", manifest, size, small, trunk, &n, NULL), MF_E_FORMAT);
    }
    free(bytes);
}

/* ---- full disks ---- */

static mf__expert_layout plain_layout(void) {
    mf__expert_layout l = {0};
    for (int i = 0; i < MF_PART_COUNT; i++) {
        l.part[i].type = MF_TYPE_F32;
        l.part[i].n_rows = l.part[i].n_cols = 64;
    }
    assert_int_equal(mf__expert_layout_pack(&l, 4096, NULL), MF_OK);
    return l;
}

/* Writes a model of about 200 KB (trunk 64 KB, two layers of 48 KB, a config) until something fails. */
static mf_status write_until_failure(const char *dir, mf_error *err) {
    static const uint8_t data[65536] = {1};
    mf__expert_layout l = plain_layout();
    mf__native_writer *w;
    MF__TRY(mf__native_writer_begin(dir, &w, err));
    mf__entry e = make_entry("a", MF_TYPE_U8, 256, 256, data);
    mf_status status = mf__native_writer_tensor(w, &e, 0, err);
    for (int layer = 0; layer < 2 && status == MF_OK; layer++) {
        status = mf__native_writer_experts_begin(w, layer, &l, 1, err);
        if (status == MF_OK) status = mf__native_writer_expert(w, data, err);
        if (status == MF_OK) status = mf__native_writer_experts_end(w, err);
    }
    if (status != MF_OK) {
        mf__native_writer_abort(w);
        return status;
    }
    return mf__native_writer_finish(w, "m", NULL, err);
}

static int count_entries(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return -1;
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n - 2;
}

/* A limit on the size of files: every write beyond it fails in the middle. */
static void file_size_limit(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 10, 4096, 40000, 65535, 65536, 1 << 20};
    for (size_t i = 0; i < MF__COUNT(limits); i++) {
        small = old;
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        mf_error err = {0};
        mf_status status = write_until_failure(dir, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0); /* before any assertion prints to a file */
        if (limits[i] < 65536) {
            assert_error(status, &err, MF_E_IO, "model.partial/", NULL);
            assert_int_equal(count_entries(top), 0);
        } else {
            assert_int_equal(status, MF_OK);
            assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
        }
    }
    signal(SIGXFSZ, handler);
    free(dir);
    scratch_free(top);
}

enum { CHILD_OK = 0, CHILD_SKIP = 77, CHILD_FAIL = 1 };

static bool put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f) return false;
    bool written = fputs(text, f) >= 0;
    return fclose(f) == 0 && written;
}

/* A mount namespace of its own; without privileges, inside a user namespace where we are root. */
static bool own_mounts(void) {
    char uid[64], gid[64];
    snprintf(uid, sizeof uid, "0 %d 1", (int)geteuid());
    snprintf(gid, sizeof gid, "0 %d 1", (int)getegid());
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNS) != 0) return false;
    } else if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put("/proc/self/setgroups", "deny") ||
               !put("/proc/self/uid_map", uid) || !put("/proc/self/gid_map", gid)) {
        return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* In a mount namespace of its own: a file system of `kilobytes`, and the writer on it. */
static int full_disk_child(const char *top, int kilobytes) {
    char options[64];
    snprintf(options, sizeof options, "size=%dk", kilobytes);
    if (!own_mounts() || mount("tmpfs", top, "tmpfs", 0, options) != 0) return CHILD_SKIP;
    char dir[300];
    snprintf(dir, sizeof dir, "%s/model", top);
    mf_error err = {0};
    mf_status status = write_until_failure(dir, &err);
    if (status == MF_E_NO_SPACE && count_entries(top) == 0) return CHILD_OK;
    fprintf(stderr, "%d KB: %s (%s), %d entries left\n", kilobytes, mf_status_name(status), err.text,
            count_entries(top));
    return CHILD_FAIL;
}

static void full_disk(void **state) {
    (void)state;
    char *top = scratch_make();
    /* full in the trunk, in the first layer, in the second, and when the manifest is written */
    static const int kilobytes[] = {32, 80, 128, 160};
    bool skipped = false;
    for (size_t i = 0; i < MF__COUNT(kilobytes); i++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) _exit(full_disk_child(top, kilobytes[i]));
        int result;
        assert_int_equal(waitpid(pid, &result, 0), pid);
        assert_true(WIFEXITED(result));
        if (WEXITSTATUS(result) == CHILD_SKIP)
            skipped = true;
        else
            assert_int_equal(WEXITSTATUS(result), CHILD_OK);
    }
    scratch_free(top);
    if (skipped) skip(); /* no namespaces here */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_safetensors),
        cmocka_unit_test(damaged_manifest),
        cmocka_unit_test(file_size_limit),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
