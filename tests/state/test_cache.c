/* The prompt cache: what comes back is bit for bit what an evaluation from the beginning gives, from memory, from disk,
 * after a restart, after damage, after a kill, and with several processes at once. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "any.h"
#include "base/file.h"

#define N 40

static int n_kills, n_seconds;
static int32_t prompt[N + 16];

static mf_model *open_cached(const char *dir, int64_t ram, const char *cache_dir, int64_t disk) {
    mf_model_options opt;
    mf_model *m = NULL;
    mf_error err = {0};
    any_model_options(&opt, 1);
    opt.prompt_cache_ram = ram;
    opt.prompt_cache_dir = cache_dir;
    opt.prompt_cache_disk = disk;
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

/* Evaluated from the beginning, without a cache. */
static void from_scratch(mf_model *m, const int32_t *tokens, size_t n, float *logits) {
    mf_session *s = any_session(m);
    any_eval(m, s, tokens, n, logits);
    mf_session_free(s);
}

/* Through the cache, in a new session; returns how many tokens were reused. */
static int64_t through_cache(mf_model *m, const int32_t *tokens, size_t n, const int64_t *marks, size_t n_marks,
                             float *logits) {
    mf_session *s = any_session(m);
    int64_t reused = -1;
    mf_error err = {0};
    if (mf_prompt(s, tokens, n, marks, n_marks, logits, any_vocab(m), &reused, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(mf_memory_length(s), n);
    assert_memory_equal(mf_memory_tokens(s), tokens, n * sizeof *tokens);
    mf_session_free(s);
    return reused;
}

static void expect(mf_model *m, const int32_t *tokens, size_t n, const int64_t *marks, size_t n_marks, int64_t reused) {
    float *want = any_row(m, 1), *got = any_row(m, 1);
    from_scratch(m, tokens, n, want);
    assert_int_equal(through_cache(m, tokens, n, marks, n_marks, got), reused);
    any_same(m, want, got);
    free(want);
    free(got);
}

static const char *cache_dir(void) {
    static char name[64];
    snprintf(name, sizeof name, "cache_%ld", (long)getpid());
    mf__dir_remove(name, NULL);
    return name;
}

/* The files of the cache, of any fingerprint: names into out; returns how many. */
static int files(const char *dir, char out[][256], int max) {
    int n = 0;
    DIR *top = opendir(dir);
    struct dirent *sub, *entry;
    while (top && (sub = readdir(top))) {
        char path[160];
        if (sub->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.60s/%.60s", dir, sub->d_name);
        DIR *d = opendir(path);
        while (d && (entry = readdir(d)))
            if (entry->d_name[0] != '.' && n < max) snprintf(out[n++], 256, "%.120s/%.100s", path, entry->d_name);
        if (d) closedir(d);
    }
    if (top) closedir(top);
    return n;
}

static void edits_reuse_what_is_before_them(const char *dir, int64_t ram, const char *disk) {
    mf_model *m = open_cached(dir, ram, disk, 0);
    const int64_t marks[] = {10, 20, 30};
    int32_t edited[N];
    expect(m, prompt, N, marks, 3, 0);
    expect(m, prompt, N, marks, 3, 30);
    memcpy(edited, prompt, sizeof edited);
    edited[25] ^= 1;
    expect(m, edited, N, NULL, 0, 20);
    edited[12] ^= 1;
    expect(m, edited, N, NULL, 0, 10);
    edited[3] ^= 1;
    expect(m, edited, N, NULL, 0, 0);
    expect(m, prompt, 30, NULL, 0, 20); /* exactly at a state: its last token must be evaluated for the logits */
    expect(m, prompt, 31, NULL, 0, 30);
    mf_model_close(m);
}

static void test_memory(void **state) {
    edits_reuse_what_is_before_them(*state, 1 << 28, NULL);
}

static void test_disk(void **state) {
    const char *disk = cache_dir();
    edits_reuse_what_is_before_them(*state, 0, disk);
    mf__dir_remove(disk, NULL);
}

static void test_both_and_restart(void **state) {
    const char *disk = cache_dir();
    const int64_t marks[] = {7, 21};
    edits_reuse_what_is_before_them(*state, 1 << 28, disk);
    mf_model *m = open_cached(*state, 1 << 28, disk, 0); /* another process would see the same */
    expect(m, prompt, N, NULL, 0, 30);
    expect(m, prompt + 2, N, marks, 2, 0);
    mf_model_close(m);
    m = open_cached(*state, 0, disk, 0);
    expect(m, prompt + 2, N, NULL, 0, 21);
    mf_model_close(m);
    mf__dir_remove(disk, NULL);
}

static void test_the_session_itself_is_a_cache(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *s = any_session(m);
    int64_t reused = -1;
    assert_int_equal(mf_prompt(s, prompt, 20, NULL, 0, got, any_vocab(m), &reused, NULL), MF_OK);
    assert_int_equal(reused, 0);
    assert_int_equal(mf_prompt(s, prompt, 33, NULL, 0, got, any_vocab(m), &reused, NULL), MF_OK);
    assert_int_equal(reused, 20);
    from_scratch(m, prompt, 33, want);
    any_same(m, want, got);
    assert_int_equal(mf_prompt(s, prompt, 12, NULL, 0, got, any_vocab(m), &reused, NULL), MF_OK);
    assert_int_equal(reused, mf_model_info_get(m)->state_bytes ? 0 : 11);
    from_scratch(m, prompt, 12, want);
    any_same(m, want, got);
    mf_session_free(s);
    free(want);
    free(got);
    mf_model_close(m);
}

static bool stop_now(void *user) {
    int *left = user;
    return (*left)-- <= 0;
}

static void test_a_failed_prompt_changes_nothing(void **state) {
    mf_model *m = open_cached(*state, 1 << 28, NULL, 0);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    for (int after = 0; after < 20; after += 4) {
        int left = 1 << 30;
        mf_session_options opt;
        mf_session *s;
        mf_session_options_init(&opt);
        opt.n_chunk = any_chunk;
        opt.cancel = stop_now;
        opt.cancel_user = &left;
        assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
        any_eval(m, s, prompt + 5, 9, got);
        left = after;
        const int64_t marks[] = {8, 16};
        assert_int_equal(mf_prompt(s, prompt + after % 10, 30, marks, 2, got, any_vocab(m), NULL, NULL),
                         MF_E_CANCELLED);
        left = 1 << 30;
        assert_int_equal(mf_memory_length(s), 9);
        assert_memory_equal(mf_memory_tokens(s), prompt + 5, 9 * sizeof *prompt);
        any_eval(m, s, &(int32_t){7}, 1, got);
        mf_session *fresh = any_session(m);
        any_eval(m, fresh, prompt + 5, 9, want);
        any_eval(m, fresh, &(int32_t){7}, 1, want);
        any_same(m, want, got);
        mf_session_free(s);
        mf_session_free(fresh);
    }
    free(want);
    free(got);
    mf_model_close(m);
}

static void damage(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at < 0 ? at : at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(c ^ 0x10, f);
    fclose(f);
}

static void test_damage_is_a_miss_and_heals(void **state) {
    static const long PLACES[] = {0, 17, 33, 200, -1};
    const int64_t marks[] = {10, 20, 30};
    char names[16][256];
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        const char *disk = cache_dir();
        mf_model *m = open_cached(*state, 0, disk, 0);
        expect(m, prompt, N, marks, 3, 0);
        int n = files(disk, names, 16);
        assert_int_equal(n, 3);
        for (int k = 0; k < n; k++)
            if (strstr(names[k], "/20-")) damage(names[k], PLACES[i]);
        expect(m, prompt, N, marks, 3, 10); /* 20 is bad, 30 stands on it: both dropped, 10 is used */
        expect(m, prompt, N, NULL, 0, 30);  /* and they were written again */
        mf_model_close(m);
        mf__dir_remove(disk, NULL);
    }
}

static void test_strangers_and_pieces_are_ignored(void **state) {
    const char *disk = cache_dir();
    const int64_t marks[] = {10, 20};
    char names[16][256], path[300];
    mf_model *m = open_cached(*state, 0, disk, 0);
    expect(m, prompt, N, marks, 2, 0);
    assert_int_equal(files(disk, names, 16), 2);
    char *slash = strrchr(names[0], '/');
    *slash = '\0';
    static const char *const STRANGERS[] = {"notes.txt", "20-zz.state", "-5-0123456789abcdef.state",
                                            "9-0123456789abcdef", ".moeflux-1-2-0.tmp"};
    for (size_t i = 0; i < sizeof STRANGERS / sizeof *STRANGERS; i++) {
        snprintf(path, sizeof path, "%s/%s", names[0], STRANGERS[i]);
        assert_int_equal(mf__file_replace(path, "x", 1, NULL), MF_OK);
    }
    struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0); /* a temporary file of a process long dead */
    expect(m, prompt, N, NULL, 0, 20);
    assert_false(mf__path_exists(path));
    snprintf(path, sizeof path, "%s/notes.txt", names[0]);
    assert_true(mf__path_exists(path));
    mf_model_close(m);
    mf__dir_remove(disk, NULL);
}

/* Somebody removes the cache while it is in use, or puts a file in its place: prompts do not fail, and it comes back.
 */
static void test_a_removed_directory_comes_back(void **state) {
    const char *disk = cache_dir();
    const int64_t marks[] = {10, 20};
    char names[16][256];
    mf_model *m = open_cached(*state, 0, disk, 0);
    expect(m, prompt, N, marks, 2, 0);
    expect(m, prompt, N, NULL, 0, 20);
    mf__dir_remove(disk, NULL);
    expect(m, prompt, N, marks, 2, 0);
    assert_int_equal(files(disk, names, 16), 2);
    expect(m, prompt, N, NULL, 0, 20);
    mf__dir_remove(disk, NULL);
    assert_int_equal(mf__file_replace(disk, "x", 1, NULL), MF_OK);
    expect(m, prompt, N, marks, 2, 0);
    expect(m, prompt, N, marks, 2, 0);
    unlink(disk);
    expect(m, prompt, N, marks, 2, 0);
    expect(m, prompt, N, NULL, 0, 20);
    mf_model_close(m);
    mf__dir_remove(disk, NULL);
}

/* In steps, and without the disk: what is kept in memory alone is found there and nowhere else. */
static void test_memory_alone(void **state) {
    const char *disk = cache_dir();
    char names[16][256];
    int64_t n;
    mf_model *m = open_cached(*state, 1 << 28, disk, 0);
    float *logits = any_row(m, 1);
    mf_session *s = any_session(m), *t = any_session(m), *fork;
    any_eval(m, s, prompt, 20, logits);
    assert_int_equal(mf_prompt_keep_memory(s, NULL), MF_OK);
    assert_int_equal(files(disk, names, 16), 0);
    assert_int_equal(mf_prompt_begin_memory(t, prompt, N, &n, NULL), MF_OK);
    assert_int_equal(n, 20);
    assert_int_equal(mf_session_fork(s, &fork, NULL), MF_OK);
    assert_int_equal(mf_prompt_keep(fork, NULL), MF_OK);
    assert_int_equal(files(disk, names, 16), 1);
    assert_int_equal(mf_prompt_keep_memory(NULL, NULL), MF_E_INVALID);
    mf_session_free(fork);
    mf_session_free(s);
    mf_session_free(t);
    mf_model_close(m);
    m = open_cached(*state, 1 << 28, disk, 0); /* nothing is in memory now */
    s = any_session(m);
    assert_int_equal(mf_prompt_begin_memory(s, prompt, N, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    assert_int_equal(mf_prompt_begin(s, prompt, N, &n, NULL), MF_OK);
    assert_int_equal(n, 20);
    mf_session_free(s);
    free(logits);
    mf_model_close(m);
    mf__dir_remove(disk, NULL);
}

static int64_t total_bytes(const char *disk) {
    char names[64][256];
    int n = files(disk, names, 64);
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        struct stat st;
        if (!stat(names[i], &st)) bytes += st.st_size;
    }
    return bytes;
}

static void test_the_cap_is_kept(void **state) {
    const char *disk = cache_dir();
    mf_model *m = open_cached(*state, 0, disk, 0);
    const int64_t mark[] = {20};
    float *logits = any_row(m, 1);
    through_cache(m, prompt, 24, mark, 1, logits);
    int64_t one = total_bytes(disk);
    mf_model_close(m);
    m = open_cached(*state, 0, disk, 3 * one + one / 2);
    for (int i = 1; i < 8; i++) {
        through_cache(m, prompt + i, 24, mark, 1, logits);
        assert_true(total_bytes(disk) <= 3 * one + one / 2);
        if (i > 2) assert_true(total_bytes(disk) >= 2 * one); /* and used */
        struct timespec tick = {.tv_nsec = 20 * 1000 * 1000}; /* file times must differ */
        nanosleep(&tick, NULL);
    }
    expect(m, prompt + 7, 24, NULL, 0, 20); /* the newest is there */
    expect(m, prompt, 24, NULL, 0, 0);      /* the oldest is not */
    free(logits);
    mf_model_close(m);
    mf__dir_remove(disk, NULL);
}

static int64_t capped_run(const char *dir, const char *disk, int64_t cap, const int32_t *tokens, const int64_t *marks,
                          size_t n_marks) {
    mf_model *m = open_cached(dir, 0, disk, cap);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    from_scratch(m, tokens, N, want);
    int64_t reused = through_cache(m, tokens, N, marks, n_marks, got);
    any_same(m, want, got);
    free(want);
    free(got);
    mf_model_close(m);
    return reused;
}

/* Entries are increments: one whose parent went to make room for it could never be read. */
static void test_room_is_not_made_from_parents(void **state) {
    const char *disk = cache_dir();
    const int64_t marks[] = {10, 20, 30};
    capped_run(*state, disk, 0, prompt, marks, 2);
    int64_t two = total_bytes(disk), cap = two + two / 4;
    capped_run(*state, disk, cap, prompt, marks, 3); /* the third does not fit beside the others */
    assert_true(total_bytes(disk) <= cap);
    assert_true(capped_run(*state, disk, cap, prompt, NULL, 0) >= 20);
    mf__dir_remove(disk, NULL);
}

/* The last token is evaluated for its logits; nothing else is. */
static void test_the_same_prompt_again(void **state) {
    const char *disk = cache_dir();
    const int64_t marks[] = {10, N};
    for (int i = 0; i < 3; i++) {
        mf_model *m = open_cached(*state, 0, disk, 0);
        expect(m, prompt, N, marks, 2, i ? N - 1 : 0);
        mf_model_close(m);
    }
    mf__dir_remove(disk, NULL);
    mf_model *m = open_cached(*state, 1 << 28, NULL, 0);
    expect(m, prompt, N, marks + 1, 1, 0);
    expect(m, prompt, N, marks + 1, 1, N - 1);
    expect(m, prompt, N + 3, NULL, 0, N - 1);
    expect(m, prompt + 7, 1, &(int64_t){1}, 1, 0); /* nothing before the only token */
    mf_model_close(m);
}

/* ---- other processes -------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *rng) {
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return *rng >> 33;
}

/* A child: prompts from a small set, through the cache, checked against `rows` until the time is over. */
static void child(const char *dir, const char *disk, uint64_t seed, const float *rows, double seconds) {
    mf_model_options opt;
    mf_model *m;
    mf_session_options so;
    struct timespec start, now;
    any_model_options(&opt, 1);
    opt.prompt_cache_dir = disk;
    opt.prompt_cache_disk = 1 << 20; /* small: entries come and go */
    if (mf_model_open(dir, &opt, &m, NULL) != MF_OK) _exit(2);
    size_t vocab = any_vocab(m);
    float *logits = malloc(vocab * sizeof *logits);
    mf_session_options_init(&so);
    so.n_chunk = any_chunk;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        mf_session *s;
        size_t which = draw(&seed) % 8;
        int64_t marks[2] = {1 + (int64_t)(draw(&seed) % 8), 10 + (int64_t)(draw(&seed) % 6)};
        if (mf_session_create(m, &so, &s, NULL) != MF_OK) _exit(3);
        if (mf_prompt(s, prompt + which, 18, marks, 2, logits, vocab, NULL, NULL) != MF_OK) _exit(4);
        if (memcmp(logits, rows + which * vocab, vocab * sizeof *logits)) _exit(5); /* a wrong hit */
        mf_session_free(s);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) < seconds);
    _exit(0);
}

static float *expected_rows(const char *dir) {
    mf_model *m = any_open(dir);
    float *rows = any_row(m, 8);
    for (size_t i = 0; i < 8; i++) from_scratch(m, prompt + i, 18, rows + i * any_vocab(m));
    mf_model_close(m);
    return rows;
}

static void wait_for(pid_t pid, bool killed) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (killed)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

static void test_kills_leave_nothing_wrong(void **state) {
    const char *disk = cache_dir();
    float *rows = expected_rows(*state);
    uint64_t rng = 99;
    for (int i = 0; i < n_kills; i++) {
        pid_t pid = fork();
        if (!pid) child(*state, disk, draw(&rng) + (uint64_t)i, rows, 60);
        struct timespec nap = {.tv_nsec = (long)(20 + draw(&rng) % 120) * 1000 * 1000};
        nanosleep(&nap, NULL);
        kill(pid, SIGKILL);
        wait_for(pid, true);
    }
    pid_t pid = fork(); /* and somebody who goes on checks everything that is there */
    if (!pid) child(*state, disk, 1, rows, 1);
    wait_for(pid, false);
    free(rows);
    mf__dir_remove(disk, NULL);
}

static void test_two_processes_share_a_directory(void **state) {
    const char *disk = cache_dir();
    float *rows = expected_rows(*state);
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        if (!(pids[i] = fork())) child(*state, disk, 1000 + (uint64_t)i, rows, n_seconds);
    for (int i = 0; i < 2; i++) wait_for(pids[i], false);
    free(rows);
    mf__dir_remove(disk, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_both_and_restart),
        cmocka_unit_test(test_the_session_itself_is_a_cache),
        cmocka_unit_test(test_a_failed_prompt_changes_nothing),
        cmocka_unit_test(test_damage_is_a_miss_and_heals),
        cmocka_unit_test(test_strangers_and_pieces_are_ignored),
        cmocka_unit_test(test_a_removed_directory_comes_back),
        cmocka_unit_test(test_memory_alone),
        cmocka_unit_test(test_the_cap_is_kept),
        cmocka_unit_test(test_room_is_not_made_from_parents),
        cmocka_unit_test(test_the_same_prompt_again),
        cmocka_unit_test(test_kills_leave_nothing_wrong),
        cmocka_unit_test(test_two_processes_share_a_directory),
    };
    if (argc < 5 || (n_kills = atoi(argv[3])) < 1 || (n_seconds = atoi(argv[4])) < 1 || !any_options(argc, argv, 5))
        return 2;
    tiny_checkpoint = argv[1];
    any_chunk = atoi(argv[2]);
    for (int i = 0; i < N + 16; i++) prompt[i] = (i * 37 + 5 + i * i % 11) % 256;
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
