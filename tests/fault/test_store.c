/* The expert store where the system refuses: files cut while they are mapped, no io_uring, no huge pages, no locked
 * memory, no files. What changes the process for good happens in a child of its own, which ends with 0, the number of
 * the line that did not hold, or a signal. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "../store/expert_files.h"
#include "base/guard.h"
#include "store/internal.h"

#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif

#define MB ((int64_t)1 << 20)
#define N_EXPERTS 8

#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) return __LINE__ % 251 + 1;                                                                           \
    } while (0)

static expert_files files;

static int setup(void **state) {
    (void)state;
    return expert_files_make(&files, "fault", 2, N_EXPERTS, MB, MB) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    expert_files_remove(&files);
    return 0;
}

static void in_child(int (*fn)(void)) {
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) _exit(fn());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) fail_msg("killed by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status)) fail_msg("a condition on line %d (modulo 251) does not hold", WEXITSTATUS(status) - 1);
}

static mf_status open_store(mf_io io, mf_switch direct, int64_t budget, mf_log_sink log, mf__store **out,
                            mf_error *err) {
    mf__store_config c = {.n_layers = files.n_layers,
                          .n_dirs = 1,
                          .files = files.files,
                          .n_experts = N_EXPERTS,
                          .stride = files.stride,
                          .bytes = files.bytes,
                          .budget = budget,
                          .io = io,
                          .direct = direct,
                          .log = log};
    return mf__store_open(&c, out, err);
}

/* All experts of a layer, with their bytes. */
static bool read_layer(mf__turn *t, int layer, mf_error *err) {
    int32_t ids[N_EXPERTS], got[N_EXPERTS];
    const void *blobs[N_EXPERTS];
    int n = 1;
    bool right = true;
    for (int i = 0; i < N_EXPERTS; i++) ids[i] = i;
    bool ok = mf__turn_begin(t, layer, ids, NULL, N_EXPERTS, 1, err) == MF_OK;
    while (ok && n) {
        ok = mf__turn_next(t, got, blobs, &n, err) == MF_OK;
        for (int i = 0; ok && i < n; i++) right = right && blob_is(&files, layer, got[i], blobs[i]);
        if (ok) mf__turn_done(t, got, n);
    }
    mf__turn_end(t);
    return ok && right;
}

/* Opens, reads all, closes. name: the engine that must have done it; NULL: any. */
static int all_is_read(mf_io io, mf_switch direct, mf_log_sink log, const char *name) {
    mf_error err = {0};
    mf__store *s = NULL;
    mf__turn *t = NULL;
    mf_stats st;
    MUST(open_store(io, direct, 5 * MB + 200000, log, &s, &err) == MF_OK);
    MUST(mf__turn_create(s, &t, &err) == MF_OK);
    for (int l = 0; l < 2; l++) MUST(read_layer(t, l, &err));
    mf__store_stats_get(s, &st);
    MUST(!name || !strcmp(st.io, name));
    mf__turn_free(t);
    mf__store_close(s);
    return 0;
}

/* ---- files that are cut ---- */

static volatile sig_atomic_t others;
static sigjmp_buf back;

static void other_handler(int number) {
    (void)number;
    others++;
    siglongjmp(back, 1);
}

/* Cuts the file while its experts are in use, and makes it whole again. */
static int cut_in_use(void) {
    mf_error err = {0};
    mf__store *s = NULL;
    mf__turn *t = NULL;
    int32_t ids[3] = {0, 3, 7}, got[3];
    const void *blobs[3], *seven = NULL;
    char *whole;
    size_t size;
    int n = 0, total = 0;
    MUST(mf_guard_install(&err) == MF_OK && mf_guard_install(&err) == MF_OK);
    MUST(mf__file_read(files.paths[0], 1 << 30, &whole, &size, &err) == MF_OK);
    MUST(open_store(MF_IO_AUTO, MF_SWITCH_AUTO, 0, (mf_log_sink){0}, &s, &err) == MF_OK);
    MUST(s->mapped && mf__turn_create(s, &t, &err) == MF_OK);
    MUST(read_layer(t, 0, &err) && read_layer(t, 1, &err));

    MUST(mf__turn_begin(t, 0, ids, NULL, 3, 1, &err) == MF_OK);
    while (total < 3) {
        MUST(mf__turn_next(t, got, blobs, &n, &err) == MF_OK);
        for (int i = 0; i < n; i++) seven = got[i] == 7 ? blobs[i] : seven;
        total += n;
    }
    MUST(blob_is(&files, 0, 7, seven));
    MUST(truncate(files.paths[0], 2 * MB + 5) == 0);
    for (int64_t i = 0; i < MB; i += 1000) MUST(((const char *)seven)[i] == 0); /* gone, and no signal */
    mf__turn_done(t, ids, 3);
    MUST(mf__turn_next(t, got, blobs, &n, &err) == MF_E_IO); /* but said */
    MUST(strstr(err.text, "layer_00.bin") && strstr(err.text, "was cut"));
    mf__turn_end(t);
    MUST(mf__store_check(s, &err) == MF_OK);
    MUST(mf__turn_begin(t, 0, ids, NULL, 3, 1, &err) == MF_E_FORMAT);
    MUST(read_layer(t, 1, &err));

    int fd = open(files.paths[0], O_WRONLY);
    MUST(mf__pwrite_all(fd, whole, size, 0, files.paths[0], &err) == MF_OK);
    close(fd);
    for (int i = 0; i < 2; i++) MUST(read_layer(t, 0, &err));
    mf__turn_free(t);
    mf__store_close(s);
    free(whole);
    return 0;
}

static void a_mapped_file_cut_in_use(void **state) {
    (void)state;
    in_child(cut_in_use);
}

/* The same without turns. */
static int cut_whole(void) {
    mf_error err = {0};
    mf__store *s = NULL;
    mf__turn *t = NULL;
    char *bytes;
    size_t size;
    uint64_t version;
    int64_t mark;
    MUST(mf_guard_install(&err) == MF_OK);
    MUST(mf__file_read(files.paths[0], 1 << 30, &bytes, &size, &err) == MF_OK);
    MUST(open_store(MF_IO_AUTO, MF_SWITCH_AUTO, 0, (mf_log_sink){0}, &s, &err) == MF_OK);
    MUST(s->mapped && mf__turn_create(s, &t, &err) == MF_OK && read_layer(t, 0, &err) && read_layer(t, 1, &err));
    const void *const *table = mf__store_whole(s, &version);
    MUST(table && mf__store_whole_before(s, &mark, &err) == MF_OK && blob_is(&files, 0, 7, table[7]));
    MUST(mf__store_whole_after(s, mark, &err) == MF_OK);
    MUST(truncate(files.paths[0], 2 * MB + 5) == 0);
    MUST(((const char *)table[7])[100] == 0 && blob_is(&files, 1, 7, table[N_EXPERTS + 7]));
    MUST(mf__store_whole_after(s, mark, &err) == MF_E_IO);
    MUST(strstr(err.text, "layer_00.bin was cut"));
    MUST(mf__store_whole_before(s, &mark, &err) == MF_E_FORMAT);

    int fd = open(files.paths[0], O_WRONLY);
    MUST(mf__pwrite_all(fd, bytes, size, 0, files.paths[0], &err) == MF_OK);
    close(fd);
    for (int i = 0; i < 2; i++) {
        MUST(mf__store_whole_before(s, &mark, &err) == MF_OK && blob_is(&files, 0, 7, table[7]));
        MUST(mf__store_whole_after(s, mark, &err) == MF_OK);
    }
    mf__store_whole_release(s);
    mf__turn_free(t);
    mf__store_close(s);
    free(bytes);
    return 0;
}

static void a_mapped_file_cut_without_turns(void **state) {
    (void)state;
    in_child(cut_whole);
}

/* The file is cut while a store that stands on the mapped one copies an expert: zeros must not become an expert. */
static bool cut_now;

static mf_status copy_and_cut(void *user, void *to, const void *from, int64_t bytes, mf_error *err) {
    (void)user;
    if (cut_now && truncate(files.paths[0], 2 * MB + 5)) return mf__fail_errno(err, errno, "truncate");
    memcpy(to, from, (size_t)bytes);
    return MF_OK;
}

static int cut_below(void) {
    mf_error err = {0};
    mf__store *low = NULL, *high = NULL;
    mf__turn *t = NULL;
    char *bytes;
    size_t size;
    MUST(mf_guard_install(&err) == MF_OK);
    MUST(mf__file_read(files.paths[0], 1 << 30, &bytes, &size, &err) == MF_OK);
    MUST(open_store(MF_IO_AUTO, MF_SWITCH_AUTO, 0, (mf_log_sink){0}, &low, &err) == MF_OK && low->mapped);
    mf__store_config c = {.n_layers = 2, .n_experts = N_EXPERTS, .stride = MB, .bytes = MB};
    c.below = low;
    c.copy = copy_and_cut;
    c.n_io_threads = 2;
    MUST(mf__store_open(&c, &high, &err) == MF_OK && mf__turn_create(high, &t, &err) == MF_OK);
    mf__turn *lower = NULL; /* all pages are there: only the copy can notice */
    MUST(mf__turn_create(low, &lower, &err) == MF_OK && read_layer(lower, 0, &err) && read_layer(t, 1, &err));
    mf__turn_free(lower);
    cut_now = true;
    int32_t seven = 7, got;
    const void *blob;
    int n;
    MUST(mf__turn_begin(t, 0, &seven, NULL, 1, 1, &err) == MF_OK);
    MUST(mf__turn_next(t, &got, &blob, &n, &err) == MF_E_IO);
    mf__turn_end(t);
    MUST(strstr(err.text, "layer_00.bin") && strstr(err.text, "was cut"));
    MUST(mf__store_check(high, &err) == MF_OK);
    cut_now = false;
    int fd = open(files.paths[0], O_WRONLY);
    MUST(mf__pwrite_all(fd, bytes, size, 0, files.paths[0], &err) == MF_OK);
    close(fd);
    MUST(read_layer(t, 0, &err)); /* with its own bytes */
    mf__turn_free(t);
    mf__store_close(high);
    mf__store_close(low);
    free(bytes);
    return 0;
}

static void a_mapped_file_cut_below(void **state) {
    (void)state;
    in_child(cut_below);
}

/* Written in place: the same experts are fine, others are not, whatever is still in memory. */
static int replaced_in_use(void) {
    static const mf_io ways[] = {MF_IO_PREAD, MF_IO_URING, MF_IO_MMAP};
    mf_error err = {0};
    char *whole;
    size_t size;
    MUST(mf__file_read(files.paths[0], 1 << 30, &whole, &size, &err) == MF_OK);
    for (size_t i = 0; i < MF__COUNT(ways); i++) {
        mf__store *s = NULL;
        mf__turn *t = NULL;
        MUST(open_store(ways[i], MF_SWITCH_AUTO, 0, (mf_log_sink){0}, &s, &err) == MF_OK);
        MUST(mf__turn_create(s, &t, &err) == MF_OK && read_layer(t, 0, &err));
        int fd = open(files.paths[0], O_WRONLY);
        MUST(pwrite(fd, whole, 100, 0) == 100 && read_layer(t, 0, &err));
        usleep(20000); /* times of files are no finer than a clock tick on some systems */
        MUST(pwrite(fd, "others", 6, (off_t)((int64_t)size - MB + 10)) == 6 && !read_layer(t, 0, &err));
        MUST(err.status == MF_E_MISMATCH && strstr(err.text, "layer_00.bin was replaced"));
        MUST(read_layer(t, 1, &err));
        MUST(pwrite(fd, whole, size, 0) == (ssize_t)size && read_layer(t, 0, &err));
        close(fd);
        mf__turn_free(t);
        mf__store_close(s);
    }
    free(whole);
    return 0;
}

static void a_file_replaced_in_use(void **state) {
    (void)state;
    in_child(replaced_in_use);
}

/* A library that owns no signal maps nothing by itself. */
static int not_guarded(void) {
    mf_error err = {0};
    mf__store *s = NULL;
    MUST(!mf__guard_installed() && mf__guard_add("text", 4) == -1 && mf__guard_faults(-1) == 0);
    MUST(open_store(MF_IO_AUTO, MF_SWITCH_OFF, 0, (mf_log_sink){0}, &s, &err) == MF_OK);
    MUST(!s->mapped && s->limit == 2 * N_EXPERTS); /* but has room for all */
    mf__store_close(s);
    return 0;
}

static void nothing_is_mapped_without_a_guard(void **state) {
    (void)state;
    in_child(not_guarded);
}

static int somebody_elses_fault(void) {
    mf_error err = {0};
    struct sigaction act = {.sa_handler = other_handler};
    sigaction(SIGBUS, &act, NULL);
    MUST(mf_guard_install(&err) == MF_OK);
    int fd = open(files.paths[1], O_RDWR);
    volatile char *map = mmap(NULL, (size_t)(2 * MB), PROT_READ, MAP_SHARED, fd, 0);
    MUST(map != MAP_FAILED);
    int guard = mf__guard_add((const char *)map, (size_t)MB); /* the first half only */
    MUST(guard >= 0 && ftruncate(fd, 10) == 0);
    MUST(map[MB / 2] == 0 && others == 0 && mf__guard_faults(guard) == 1);
    if (!sigsetjmp(back, 1)) MUST(map[MB + MB / 2] == 99); /* does not return */
    MUST(others == 1 && mf__guard_faults(guard) == 1);
    mf__guard_remove(guard);
    MUST(mf__guard_add((const char *)map, 1) == guard && mf__guard_faults(guard) == 0);
    return 0;
}

static void faults_elsewhere_go_where_they_went(void **state) {
    (void)state;
    in_child(somebody_elses_fault);
    teardown(NULL); /* the file was cut */
    assert_int_equal(setup(NULL), 0);
}

/* ---- a system that refuses ---- */

static bool warned;

static void note_warning(void *user, mf_log_level level, const char *text) {
    (void)user;
    warned = warned || (level >= MF_LOG_WARN && strstr(text, "io_uring cannot be used"));
}

static int no_ring(void) {
#ifdef __linux__
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 4, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) return 0; /* a kernel without filters */
    int failed = all_is_read(MF_IO_URING, MF_SWITCH_ON, (mf_log_sink){.write = note_warning}, "pread");
    if (failed) return failed;
    MUST(warned);
    return all_is_read(MF_IO_AUTO, MF_SWITCH_AUTO, (mf_log_sink){0}, "pread");
#else
    return 0;
#endif
}

static void a_sandbox_without_io_uring(void **state) {
    (void)state;
    in_child(no_ring);
}

static int small_pages(void) {
#ifdef PR_SET_THP_DISABLE
    MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
#endif
    int failed = all_is_read(MF_IO_PREAD, MF_SWITCH_ON, (mf_log_sink){0}, "pread");
    return failed ? failed : all_is_read(MF_IO_URING, MF_SWITCH_ON, (mf_log_sink){0}, NULL);
}

static void no_huge_pages(void **state) {
    (void)state;
    in_child(small_pages);
}

static int nothing_locked(void) {
    struct rlimit none = {0, 0};
    MUST(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
    (void)!setgid(65534); /* an ordinary user, where we may become one: limits do not hold for root */
    (void)!setuid(65534);
    return all_is_read(MF_IO_URING, MF_SWITCH_OFF, (mf_log_sink){0}, NULL);
}

static void no_locked_memory(void **state) {
    (void)state;
    assert_int_equal(chmod(files.dir, 0755), 0);
    in_child(nothing_locked);
}

static int few_files(void) {
    mf_error err = {0};
    mf__store *s = NULL;
    struct rlimit few = {4, 4};
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
    MUST(open_store(MF_IO_PREAD, MF_SWITCH_OFF, 0, (mf_log_sink){0}, &s, &err) == MF_E_IO);
    MUST(!s && strstr(err.text, "layer_0"));
    return 0;
}

static void no_more_files(void **state) {
    (void)state;
    in_child(few_files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_mapped_without_a_guard), /* before the others: forked children inherit */
        cmocka_unit_test(a_mapped_file_cut_in_use),
        cmocka_unit_test(a_mapped_file_cut_without_turns),
        cmocka_unit_test(a_mapped_file_cut_below),
        cmocka_unit_test(a_file_replaced_in_use),
        cmocka_unit_test(faults_elsewhere_go_where_they_went),
        cmocka_unit_test(a_sandbox_without_io_uring),
        cmocka_unit_test(no_huge_pages),
        cmocka_unit_test(no_locked_memory),
        cmocka_unit_test(no_more_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
