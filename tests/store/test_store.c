/* The store by itself: hits and misses, rounds, every way of reading, budgets, loans, faults. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "store_turns.h"

/* ---- opening ---- */

static void bad_configs(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "bad", 2, 4, 8192, 8192));
    mf__store_config c = config_of(&f);
    c.stride = 100;
    expect_failure(&c, MF_E_INVALID, "100");
    c = config_of(&f);
    c.policy = "oracle";
    expect_failure(&c, MF_E_INVALID, "oracle");
    c = config_of(&f);
    c.most_slots = -1;
    expect_failure(&c, MF_E_INVALID, "-1 experts");
    c = config_of(&f);
    c.n_experts = 5; /* the files hold four */
    expect_failure(&c, MF_E_FORMAT, "layer_00.bin");
    c = config_of(&f);
    c.budget = 4096;
    expect_failure(&c, MF_E_NOMEM, "4096");
    unlink(f.paths[1]);
    c = config_of(&f);
    expect_failure(&c, MF_E_NOT_FOUND, "layer_01.bin");
    expert_files_remove(&f);
}

static void a_layer_may_have_no_file(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "dense", 3, 4, 8192, 8192));
    f.files[0] = NULL;
    mf__store_config c = config_of(&f);
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    mf_error err = {0};
    int32_t ids[2] = {1, 3};
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 2, 1, &err), MF_E_NOT_FOUND);
    turn_all(t, &f, 2, ids, 2);
    int32_t wrong[1] = {4};
    assert_int_equal(mf__turn_begin(t, 1, wrong, NULL, 1, 1, &err), MF_E_INVALID);
    assert_int_equal(mf__files_total(s), 2 * 4 * 8192); /* the missing layer does not count */
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* ---- reading ---- */

/* Aligned and unaligned experts, small ones and ones of several reads, by every engine. */
static void every_way_of_reading(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {
        {8192, 8192}, {5000, 4999}, {4096 * 3, 9001}, {3 * MB + 512, 3 * MB + 100}, {2 * MB, 2 * MB - 7}, {64, 64}};
    for (size_t i = 0; i < MF__COUNT(shapes); i++) {
        expert_files f;
        assert_true(expert_files_make(&f, "ways", 3, 9, shapes[i][0], shapes[i][1]));
        for (int io = MF_IO_AUTO; io <= MF_IO_URING; io++) {
            for (int direct = MF_SWITCH_ON; direct <= MF_SWITCH_OFF; direct++) {
                mf__store_config c = config_of(&f);
                c.io = (mf_io)io;
                c.direct = (mf_switch)direct;
                c.budget = 13 * f.bytes + 8 * MB;
                mf__store *s = open_store(&c);
                mf__turn *t = new_turn(s);
                int32_t ids[9] = {8, 0, 1, 5, 3, 2, 7, 6, 4};
                for (int round = 0; round < 2; round++)
                    for (int l = 0; l < 3; l++) turn_all(t, &f, l, ids, 9);
                mf__turn_free(t);
                mf__store_close(s);
            }
        }
        expert_files_remove(&f);
    }
}

static void hits_are_counted(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "hits", 2, 8, 8192, 8192));
    mf__store_config c = config_of(&f);
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s), *other = new_turn(s);
    int32_t a[3] = {1, 2, 3}, b[3] = {2, 3, 4};
    mf_stats sum, mine;
    turn_all(t, &f, 0, a, 3);
    turn_all(t, &f, 0, b, 3);
    turn_all(other, &f, 0, b, 3);
    mf__store_stats_get(s, &sum);
    assert_int_equal(sum.wanted, 9);
    assert_int_equal(sum.hits, 5);
    assert_int_equal(sum.bytes_wanted, 9 * 8192);
    assert_int_equal(sum.bytes_read, 4 * 8192);
    assert_int_equal(sum.cache_bytes, 4 * 8192);
    assert_string_equal(sum.io, "pread");
    mf__turn_stats_get(t, &mine);
    assert_int_equal(mine.wanted, 6);
    assert_int_equal(mine.hits, 2);
    assert_int_equal(mine.bytes_read, 4 * 8192);
    mf__turn_stats_get(other, &mine);
    assert_int_equal(mine.hits, 3);
    assert_int_equal(mine.bytes_read, 0);
    int64_t reads = 0;
    for (int i = 0; i < MF_LATENCY_BUCKETS; i++) reads += sum.latency[i];
    assert_int_equal(reads, 4);
    mf__store_stats_reset(s);
    mf__store_stats_get(s, &sum);
    assert_int_equal(sum.wanted + sum.hits + sum.bytes_read + sum.stall_ns, 0);
    assert_int_equal(sum.cache_bytes, 4 * 8192); /* resetting counters forgets no expert */
    mf__turn_free(t);
    mf__turn_free(other);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* Room for one expert, sixteen wanted. */
static void more_wanted_than_fit(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "rounds", 2, 16, MB, MB));
    for (int slots = 1; slots <= 5; slots += 2) {
        mf__store_config c = config_of(&f);
        c.budget = 2 * MB * ((slots + 1) / 2) + 60000;
        mf__store *s = open_store(&c);
        assert_in_range(s->n_slots, 1, slots + 1);
        mf__turn *t = new_turn(s);
        int32_t ids[16];
        for (int i = 0; i < 16; i++) ids[i] = i;
        assert_true(turn_all(t, &f, 0, ids, 16) >= 16 / s->n_slots);
        turn_all(t, &f, 1, ids, 16);
        mf__turn_free(t);
        mf__store_close(s);
    }
    expert_files_remove(&f);
}

static void a_second_directory_shares_the_reads(void **state) {
    (void)state;
    expert_files a, b;
    const char *files[6];
    assert_true(expert_files_make(&a, "drive_a", 3, 8, MB, MB));
    assert_true(expert_files_make(&b, "drive_b", 3, 8, MB, MB));
    memcpy(files, a.files, 3 * sizeof *files);
    memcpy(files + 3, b.files, 3 * sizeof *files);
    files[0] = NULL; /* layer 0 on b alone, layer 1 on a alone, layer 2 on both */
    files[4] = NULL;
    mf__store_config c = config_of(&a);
    c.files = files;
    c.n_dirs = 2;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int l = 0; l < 3; l++) turn_all(t, &a, l, ids, 8);
    assert_int_equal(mf__files_total(s), 3 * 8 * MB); /* a copy counts once */
    mf__turn_free(t);
    mf__store_close(s);

    int fd = open(b.paths[2], O_WRONLY); /* a stale copy is refused */
    assert_int_equal(pwrite(fd, "stale", 5, 10), 5);
    close(fd);
    expect_failure(&c, MF_E_MISMATCH, "layer_02.bin");
    expert_files_remove(&a);
    expert_files_remove(&b);
}

/* ---- budget ---- */

static void budget_goes_down_and_up(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "budget", 4, 16, MB, MB));
    mf__store_config c = config_of(&f);
    c.budget = 40 * MB + 100000;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[16];
    mf_stats st;
    for (int i = 0; i < 16; i++) ids[i] = i;
    for (int l = 0; l < 4; l++) turn_all(t, &f, l, ids, 16);
    mf__store_stats_get(s, &st);
    assert_in_range(st.cache_bytes, 36 * MB, 40 * MB);
    mf__store_budget_set(s, 10 * MB + 100000);
    check(s);
    mf__store_stats_get(s, &st);
    assert_in_range(st.cache_bytes, 1 * MB, 10 * MB);
    for (int l = 0; l < 4; l++) turn_all(t, &f, l, ids, 16);
    mf__store_stats_get(s, &st);
    assert_in_range(st.cache_bytes, 1 * MB, 10 * MB);
    mf__store_budget_set(s, 1); /* never less than what one expert takes */
    turn_all(t, &f, 0, ids, 16);
    mf__store_budget_set(s, INT64_MAX);
    for (int l = 0; l < 4; l++) turn_all(t, &f, l, ids, 16);
    mf__store_stats_get(s, &st);
    assert_in_range(st.cache_bytes, 36 * MB, 40 * MB);
    assert_int_equal(st.budget, c.budget);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void lending_takes_from_the_cache(void **state) {
    (void)state;
    expert_files f;
    mf_error err = {0};
    assert_true(expert_files_make(&f, "lend", 2, 16, MB, MB));
    mf__store_config c = config_of(&f);
    c.budget = 20 * MB + 100000;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[16];
    for (int i = 0; i < 16; i++) ids[i] = i;
    for (int l = 0; l < 2; l++) turn_all(t, &f, l, ids, 16);
    int before = s->limit;
    assert_int_equal(mf__store_lend(s, 10 * MB, &err), MF_OK);
    check(s);
    assert_in_range(s->limit, before - 11, before - 10);
    assert_int_equal(mf__store_lend(s, 9 * MB, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "budget"));
    check(s);
    for (int l = 0; l < 2; l++) turn_all(t, &f, l, ids, 16);
    assert_int_equal(mf__store_lend(s, -10 * MB, &err), MF_OK);
    assert_int_equal(s->limit, before);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* What is pinned is not taken away: it goes when it is done. */
static void shrinking_waits_for_pins(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "pins", 2, 16, MB, MB));
    mf__store_config c = config_of(&f);
    c.budget = 16 * MB + 100000;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[14], got[14];
    const void *blobs[14], *kept[14];
    int n, total = 0;
    for (int i = 0; i < 14; i++) ids[i] = i;
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 14, 1, NULL), MF_OK);
    while (total < 14) {
        assert_int_equal(mf__turn_next(t, got, blobs, &n, NULL), MF_OK);
        for (int i = 0; i < n; i++) kept[got[i]] = blobs[i];
        total += n;
    }
    mf__store_budget_set(s, 4 * MB + 100000);
    check(s);
    assert_true(s->n_over > 0);
    for (int i = 0; i < 14; i++) assert_true(blob_is(&f, 0, i, kept[i]));
    mf__turn_done(t, ids, 14);
    check(s);
    assert_int_equal(s->n_over, 0);
    mf__turn_end(t);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A machine that runs out of memory, told by files. */
static void pressure_shrinks_the_cache(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "psi", 2, 16, MB, MB));
    mkdir("psi_root", 0700), mkdir("psi_root/proc", 0700), mkdir("psi_root/proc/pressure", 0700);
    write_text("psi_root/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n");
    write_text("psi_root/proc/pressure/memory", "some avg10=0.00 avg60=0 avg300=0 total=0\n");
    mf__store_config c = config_of(&f);
    c.budget = 20 * MB + 100000;
    c.root = "psi_root";
    c.quiet = true; /* polled by hand */
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[16];
    for (int i = 0; i < 16; i++) ids[i] = i;
    for (int l = 0; l < 2; l++) turn_all(t, &f, l, ids, 16);
    int whole = s->limit;
    write_text("psi_root/proc/meminfo",
               "MemTotal: 8000000 kB\nMemAvailable: 115000 kB\n"); /* 10 MB below the reserve */
    mf__pressure_poll(s);
    turn_all(t, &f, 0, ids, 16);
    assert_in_range(s->limit, whole / 4, whole * 3 / 4);
    int after = s->limit;
    write_text("psi_root/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 300000 kB\n"); /* enough, but tasks wait */
    write_text("psi_root/proc/pressure/memory", "some avg10=35.00 avg60=0 avg300=0 total=0\n");
    mf__pressure_poll(s);
    turn_all(t, &f, 0, ids, 16);
    assert_true(s->limit < after);
    write_text("psi_root/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n");
    write_text("psi_root/proc/pressure/memory", "some avg10=0.10 avg60=0 avg300=0 total=0\n");
    mf__pressure_poll(s);
    turn_all(t, &f, 0, ids, 16);
    assert_int_equal(s->limit, whole);
    mf__turn_free(t);
    mf__store_close(s);
    unlink("psi_root/proc/meminfo"), unlink("psi_root/proc/pressure/memory");
    rmdir("psi_root/proc/pressure"), rmdir("psi_root/proc"), rmdir("psi_root");
    expert_files_remove(&f);
}

/* ---- faults ---- */

typedef struct faults {
    atomic_int mode; /* 0 none, 1 EIO, 2 EINTR and halves, 3 end of file, 4 hold */
    atomic_int calls;
} faults;

static int64_t faulty(void *user, int64_t n) {
    faults *x = user;
    int call = atomic_fetch_add(&x->calls, 1);
    int mode = atomic_load(&x->mode);
    while (mode == 4 && atomic_load(&x->mode) == 4) usleep(1000);
    if (mode == 1) return -EIO;
    if (mode == 2 && call % 3 == 0) return -EINTR;
    if (mode == 2) return n > 1000 ? n / 2 : n;
    return mode == 3 ? 0 : n;
}

/* Every engine that reads: the faults sit below all of them. */
static const struct {
    mf_io io;
    mf_switch direct;
} readers[] = {{MF_IO_PREAD, MF_SWITCH_OFF},
               {MF_IO_PREAD, MF_SWITCH_ON},
               {MF_IO_URING, MF_SWITCH_OFF},
               {MF_IO_URING, MF_SWITCH_ON}};

static void read_errors_by(mf_io io, mf_switch direct) {
    expert_files f;
    faults x = {0};
    mf_error err = {0};
    assert_true(expert_files_make(&f, "eio", 2, 8, MB, MB));
    mf__store_config c = config_of(&f);
    c.io = io;
    c.direct = direct;
    c.fault = faulty;
    c.fault_user = &x;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[4] = {0, 2, 4, 6}, got[4];
    const void *blobs[4];
    int n;
    turn_all(t, &f, 0, ids, 1);
    for (int mode = 1; mode <= 3; mode += 2) {
        atomic_store(&x.mode, mode);
        assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 4, 1, &err), MF_OK);
        mf_status st = MF_OK;
        while (st == MF_OK) {
            st = mf__turn_next(t, got, blobs, &n, &err);
            assert_true(st != MF_OK || n > 0);
            if (st == MF_OK) mf__turn_done(t, got, n);
        }
        assert_int_equal(st, MF_E_IO);
        assert_non_null(strstr(err.text, "layer_00.bin"));
        const char *at = strstr(err.text, mode == 1 ? "at byte " : "ends at byte ");
        assert_non_null(at);
        at = strstr(at, "byte ") + 5; /* one of experts 2, 4 and 6: which is first is the drive's affair */
        assert_int_equal(atoll(at) % (2 * MB), 0);
        assert_in_range(atoll(at), 2 * MB, 6 * MB);
        mf__turn_end(t);
        wait_idle(s);
        check(s);
        assert_int_equal(pins_of_all(s), 0);
    }
    atomic_store(&x.mode, 2);
    turn_all(t, &f, 0, ids, 4); /* as if nothing had been */
    turn_all(t, &f, 1, ids, 4);
    mf_stats st;
    mf__store_stats_get(s, &st);
    assert_true(st.read_errors >= 2);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void read_errors_come_out_and_pass(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(readers); i++) read_errors_by(readers[i].io, readers[i].direct);
}

static void files_cut_while_open(void **state) {
    (void)state;
    static const struct {
        mf_io io;
        mf_switch direct;
        const char *text;
    } ways[] = {{MF_IO_PREAD, MF_SWITCH_OFF, "ends at byte"},
                {MF_IO_PREAD, MF_SWITCH_ON, "ends at byte"},
                {MF_IO_URING, MF_SWITCH_ON, "ends at byte"},
                {MF_IO_MMAP, MF_SWITCH_AUTO, "need"}};
    for (size_t i = 0; i < MF__COUNT(ways); i++) {
        expert_files f;
        mf_error err = {0};
        assert_true(expert_files_make(&f, "cut", 2, 8, MB, MB));
        mf__store_config c = config_of(&f);
        c.io = ways[i].io;
        c.direct = ways[i].direct;
        mf__store *s = open_store(&c);
        mf__turn *t = new_turn(s);
        int32_t ids[2] = {1, 6}, got[2];
        const void *blobs[2];
        int n;
        assert_int_equal(truncate(f.paths[0], 5 * MB + 10), 0);
        mf_status st = mf__turn_begin(t, 0, ids, NULL, 2, 1, &err);
        while (st == MF_OK) {
            st = mf__turn_next(t, got, blobs, &n, &err);
            if (st == MF_OK && !n) break;
            if (st == MF_OK) mf__turn_done(t, got, n);
        }
        mf__turn_end(t);
        assert_true(st == MF_E_IO || st == MF_E_FORMAT);
        assert_non_null(strstr(err.text, "layer_00.bin"));
        if (!strstr(err.text, ways[i].text)) fail_msg("\"%s\"", err.text);
        wait_idle(s);
        check(s);
        turn_all(t, &f, 1, ids, 2);
        mf__turn_free(t);
        mf__store_close(s);
        expert_files_remove(&f);
    }
}

static bool always(void *user) {
    atomic_store((atomic_int *)user, 1);
    return true;
}

/* A drive that does not answer: the caller can leave, and nothing stays pinned. */
static void cancel_by(mf_io io, mf_switch direct) {
    expert_files f;
    faults x = {0};
    atomic_int asked = 0;
    mf_error err = {0};
    assert_true(expert_files_make(&f, "stall", 1, 8, MB, MB));
    mf__store_config c = config_of(&f);
    c.io = io;
    c.direct = direct;
    c.fault = faulty;
    c.fault_user = &x;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    mf__turn_cancel_set(t, always, &asked);
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7}, got[8];
    const void *blobs[8];
    int n;
    atomic_store(&x.mode, 4);
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 8, 1, &err), MF_OK);
    assert_int_equal(mf__turn_next(t, got, blobs, &n, &err), MF_E_CANCELLED);
    assert_int_equal(atomic_load(&asked), 1);
    mf__turn_end(t);
    check(s);
    assert_int_equal(pins_of_all(s), 0);
    atomic_store(&x.mode, 0);
    mf__turn_cancel_set(t, NULL, NULL); /* or a drive that is merely slow would be left too */
    wait_idle(s);
    check(s);
    turn_all(t, &f, 0, ids, 8);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void cancelling_a_stalled_read(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(readers); i++) cancel_by(readers[i].io, readers[i].direct);
}

/* Misuse is an error, not a hang. */
static void holding_everything_and_asking_for_more(void **state) {
    (void)state;
    expert_files f;
    mf_error err = {0};
    assert_true(expert_files_make(&f, "hold", 1, 8, 2 * MB, 2 * MB));
    mf__store_config c = config_of(&f);
    c.budget = 4 * MB + 100000;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[4] = {0, 1, 2, 3}, got[4];
    const void *blobs[4];
    int n, held = 0;
    assert_int_equal(mf__turn_next(t, got, blobs, &n, &err), MF_E_INTERNAL);
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 4, 1, &err), MF_OK);
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 4, 1, &err), MF_E_INTERNAL);
    mf_status st;
    while ((st = mf__turn_next(t, got, blobs, &n, &err)) == MF_OK) held += n;
    assert_int_equal(st, MF_E_INTERNAL);
    assert_int_equal(held, 2);
    mf__turn_end(t);
    check(s);
    turn_all(t, &f, 0, ids, 4);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* The speed of a drive is measured once and then read from the file. */
static void drives_are_remembered(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "drive", 2, 16, MB, MB));
    mf__store_config c = config_of(&f);
    c.io = MF_IO_AUTO;
    c.direct = MF_SWITCH_AUTO;
    c.budget = 16 * MB;
    c.speed_dir = "drive_home/cache"; /* neither is there yet */
    mf__store *s = open_store(&c);
    assert_false(s->mapped);
    assert_true(s->ceiling > 0);
    int64_t measured = s->ceiling;
    mf__store_close(s);
    assert_int_equal(access("drive_home/cache/drives.json", R_OK), 0);
    s = open_store(&c);
    assert_int_equal(s->ceiling, measured);
    mf__store_close(s);
    /* Not for ever: a measurement of last week, of tomorrow or of nobody knows when is made again. */
    static const long long SPEED = 77000000000000; /* nothing is as fast: not a bit of it may stay */
    static const long AGES[] = {6 * 86400, 8 * 86400, -86400, 0};
    for (size_t i = 0; i < MF__COUNT(AGES); i++) {
        char text[600], measured_at[64] = "";
        if (AGES[i]) snprintf(measured_at, sizeof measured_at, ", \"measured\": %lld", (long long)time(NULL) - AGES[i]);
        s = open_store(&c);
        snprintf(text, sizeof text, "{\"%s\": {\"direct\": %lld, \"buffered\": %lld, \"uring\": %lld%s}}", s->drive_key,
                 SPEED, SPEED, SPEED, measured_at);
        mf__store_close(s);
        write_text("drive_home/cache/drives.json", text);
        s = open_store(&c);
        if ((s->ceiling == SPEED) != (i == 0))
            fail_msg("a measurement %ld s old: %lld", AGES[i], (long long)s->ceiling);
        s->drive_seen = (mf__drive_seen){0};
        mf__store_close(s);
    }
    /* Nor when a run shows that it is wrong. */
    for (int wrong = 0; wrong < 2; wrong++) {
        s = open_store(&c);
        measured = s->ceiling;
        s->drive_seen = (mf__drive_seen){measured * (wrong ? 7 : 3), 3000000000, 100, 1600};
        mf__store_close(s);
        char text[600] = "";
        FILE *file = fopen("drive_home/cache/drives.json", "r");
        assert_non_null(file);
        assert_true(fread(text, 1, sizeof text - 1, file) > 0);
        fclose(file);
        assert_int_equal(strstr(text, "measured") == NULL, wrong);
    }
    write_text("drive_home/cache/drives.json", "{ broken");
    s = open_store(&c);
    assert_true(s->ceiling > 0);
    mf__store_close(s);
    assert_int_equal(mf_guard_install(NULL), MF_OK); /* or nothing is mapped by itself */
    c.budget = 64 * MB;                              /* 32 MB of experts fit in three quarters of it */
    s = open_store(&c);
    assert_true(s->mapped);
    mf__store_close(s);
    c.budget = 42 * MB; /* and in three quarters of this they do not */
    s = open_store(&c);
    assert_false(s->mapped);
    mf__store_close(s);
    unlink("drive_home/cache/drives.json");
    rmdir("drive_home/cache");
    rmdir("drive_home");
    expert_files_remove(&f);
}

/* The page cache is used where it is clearly faster and could hold half of the files, or nothing else works. */
static void direct_unless_the_page_cache_has_room(void **state) {
    (void)state;
    static const struct {
        mf__drive drive; /* direct, buffered, uring */
        int64_t beside, total;
        bool direct;
    } cases[] = {{{27, 9, 28}, 100, 100, true},  {{10, 12, 10}, 100, 100, true}, {{10, 13, 10}, 100, 100, false},
                 {{10, 13, 11}, 100, 100, true}, {{10, 99, 10}, 50, 100, false}, {{10, 99, 10}, 49, 100, true},
                 {{1, 219, 6}, 6, 181, true},    {{0, 9, 0}, 0, 100, false}};
    for (size_t i = 0; i < MF__COUNT(cases); i++)
        if (mf__drive_direct_pays(&cases[i].drive, cases[i].beside, cases[i].total) != cases[i].direct)
            fail_msg("case %zu", i);
}

/* What counts as another speed: long enough, and lower only where as many reads were under way. */
static void runs_that_contradict(void **state) {
    (void)state;
    static const struct {
        double speed, seconds, depth;
        bool contradicts;
    } cases[] = {{1e9, 10, 12, false},   {1.4e9, 10, 12, false}, {1.6e9, 10, 12, true}, {1.6e9, 1, 12, false},
                 {0.5e9, 10, 12, false}, {0.3e9, 10, 12, true},  {0.3e9, 10, 2, false}, {0.3e9, 1, 12, false}};
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf__drive_seen seen = {(int64_t)(cases[i].speed * cases[i].seconds), (int64_t)(cases[i].seconds * 1e9), 100,
                               (int64_t)(100 * cases[i].depth)};
        bool slow = cases[i].speed < 1e9; /* what is too fast through the page cache says nothing of the drive */
        if (mf__drive_contradicted(1000000000, true, &seen) != cases[i].contradicts) fail_msg("case %zu", i);
        if (mf__drive_contradicted(1000000000, false, &seen) != (cases[i].contradicts && slow)) fail_msg("case %zu", i);
        assert_false(mf__drive_contradicted(0, true, &seen));
    }
    assert_false(mf__drive_contradicted(1000000000, true, &(mf__drive_seen){0}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configs),
        cmocka_unit_test(a_layer_may_have_no_file),
        cmocka_unit_test(every_way_of_reading),
        cmocka_unit_test(hits_are_counted),
        cmocka_unit_test(more_wanted_than_fit),
        cmocka_unit_test(a_second_directory_shares_the_reads),
        cmocka_unit_test(budget_goes_down_and_up),
        cmocka_unit_test(lending_takes_from_the_cache),
        cmocka_unit_test(shrinking_waits_for_pins),
        cmocka_unit_test(pressure_shrinks_the_cache),
        cmocka_unit_test(read_errors_come_out_and_pass),
        cmocka_unit_test(files_cut_while_open),
        cmocka_unit_test(cancelling_a_stalled_read),
        cmocka_unit_test(holding_everything_and_asking_for_more),
        cmocka_unit_test(drives_are_remembered),
        cmocka_unit_test(runs_that_contradict),
        cmocka_unit_test(direct_unless_the_page_cache_has_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
