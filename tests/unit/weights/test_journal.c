/* Resuming: a writer killed after any number of steps goes on where its journal ends, and the result is the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "util.h"

#define TENSORS 5
#define LAYERS 3
#define EXPERTS 4
#define STEPS (TENSORS + LAYERS * EXPERTS)

static const mf__native_work work = {.source = "s1", .options = "experts 4", .encoder = 3};

static mf__expert_layout layout_of(int cols) {
    mf__expert_layout l = {0};
    for (int i = 0; i < MF_PART_COUNT; i++) {
        l.part[i].type = MF_TYPE_F32;
        l.part[i].n_rows = 10;
        l.part[i].n_cols = cols;
    }
    assert_int_equal(mf__expert_layout_pack(&l, 4096, NULL), MF_OK);
    return l;
}

static void fill(uint8_t *out, size_t n, int seed) {
    uint32_t x = (uint32_t)seed * 77 + 1;
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
}

typedef struct run {
    mf__native_writer *w;
    int steps;   /* parts written */
    int kill_at; /* the process ends when that many are written; -1: never */
} run;

/* Ends the process like a kill: nothing is flushed, no destructor runs. */
static void step(run *r, json_t *note) {
    assert_int_equal(mf__native_writer_part(r->w, note, NULL), MF_OK);
    r->steps++;
    if (r->steps == r->kill_at) _exit(9);
}

static void write_tensors(run *r) {
    uint8_t data[5000];
    for (int i = 0; i < TENSORS; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.t", i);
        if (mf__native_writer_has_tensor(r->w, name)) continue;
        fill(data, sizeof data, i);
        mf__entry e = make_entry(name, MF_TYPE_U8, 1, 1000 * i + 7, data);
        assert_int_equal(mf__native_writer_tensor(r->w, &e, 0, NULL), MF_OK);
        step(r, json_pack("{s:s}", "tensor", name));
    }
}

static void write_layers(run *r, bool second) {
    mf__expert_layout l = layout_of(100), small = layout_of(50);
    uint8_t *blob = malloc((size_t)l.bytes);
    assert_non_null(blob);
    if (second) assert_int_equal(mf__native_writer_second_set(r->w, &small, NULL), MF_OK);
    for (int layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(mf__native_writer_experts_begin(r->w, layer, &l, EXPERTS, NULL), MF_OK);
        for (int e = mf__native_writer_experts_done(r->w, layer); e < EXPERTS; e++) {
            fill(blob, (size_t)l.bytes, 100 + layer * EXPERTS + e);
            assert_int_equal(mf__native_writer_expert_pair(r->w, blob, second ? blob : NULL, NULL), MF_OK);
            step(r, json_pack("[i,i]", layer, e));
        }
        assert_int_equal(mf__native_writer_experts_end(r->w, NULL), MF_OK);
    }
    free(blob);
}

/* One run of the work from wherever the last one stopped. Returns the parts it had to write. */
static int do_work(const char *dir, int kill_at, bool second) {
    run r = {.kill_at = kill_at};
    mf_error err;
    if (mf__native_writer_resume(dir, &work, &r.w, &err)) fail_msg("%s", err.text);
    write_tensors(&r);
    write_layers(&r, second);
    assert_int_equal(json_array_size(mf__native_writer_notes(r.w)), STEPS);
    json_t *notes = json_deep_copy(mf__native_writer_notes(r.w));
    if (mf__native_writer_finish_about(r.w, "m", NULL, notes, &err)) fail_msg("%s", err.text);
    json_decref(notes);
    return r.steps;
}

static bool exists(const char *dir, const char *name) {
    char *path = join(dir, name);
    bool found = mf__path_exists(path);
    free(path);
    return found;
}

static uint64_t file_hash(const char *dir, const char *name) {
    char *path = join(dir, name), *bytes;
    size_t size;
    if (mf__file_read(path, 1 << 24, &bytes, &size, NULL)) fail_msg("%s is not there", path);
    uint64_t h = mf__hash_bytes(bytes, size);
    free(bytes);
    free(path);
    return h;
}

static void assert_same_model(const char *a, const char *b) {
    static const char *const names[] = {"model_weights.json",
                                        "model_weights.bin",
                                        "packed_experts/layer_00.bin",
                                        "packed_experts/layer_01.bin",
                                        "packed_experts/layer_02.bin",
                                        "packed_experts_2bit/layer_00.bin",
                                        "packed_experts_2bit/layer_02.bin"};
    for (size_t i = 0; i < MF__COUNT(names); i++) assert_int_equal(file_hash(a, names[i]), file_hash(b, names[i]));
    assert_false(exists(b, ".moeflux-partial") || exists(b, ".moeflux-journal") || exists(b, ".moeflux-1-2-0.tmp"));
}

/* In a child, which is killed after `kill_at` parts; by a stop that commits, or without one. */
static void killed_run(const char *dir, int kill_at, bool commit) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!commit) _exit(do_work(dir, kill_at, true) >= 0);
        run r = {.kill_at = -1};
        if (mf__native_writer_resume(dir, &work, &r.w, NULL)) _exit(1);
        mf__expert_layout small = layout_of(50), l = layout_of(100);
        uint8_t data[5000], *blob = malloc((size_t)l.bytes);
        if (!blob || mf__native_writer_second_set(r.w, &small, NULL)) _exit(1);
        for (int i = 0; i < TENSORS && r.steps < kill_at; i++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%d.t", i);
            fill(data, sizeof data, i);
            mf__entry e = make_entry(name, MF_TYPE_U8, 1, 1000 * i + 7, data);
            if (mf__native_writer_tensor(r.w, &e, 0, NULL)) _exit(1);
            step(&r, json_pack("{s:s}", "tensor", name));
        }
        for (int layer = 0; layer < LAYERS && r.steps < kill_at; layer++) {
            if (mf__native_writer_experts_begin(r.w, layer, &l, EXPERTS, NULL)) _exit(1);
            for (int e = 0; e < EXPERTS && r.steps < kill_at; e++) {
                fill(blob, (size_t)l.bytes, 100 + layer * EXPERTS + e);
                if (mf__native_writer_expert_pair(r.w, blob, blob, NULL)) _exit(1);
                step(&r, json_pack("[i,i]", layer, e));
            }
            if (r.steps < kill_at && mf__native_writer_experts_end(r.w, NULL)) _exit(1);
        }
        _exit(mf__native_writer_suspend(r.w) ? 9 : 1);
    }
    int result;
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 9);
}

static void goes_on(void **state) {
    (void)state;
    char *top = scratch_make(), *whole = join(top, "whole"), *dir = join(top, "model");
    char *partial = join(top, "model.partial");
    assert_int_equal(do_work(whole, -1, true), STEPS);
    for (int kill_at = 1; kill_at < STEPS; kill_at += 2) {
        killed_run(dir, kill_at, true);                        /* all of its parts are in the journal */
        char *cut_short = join(partial, ".moeflux-1-2-0.tmp"); /* a replace that a kill cut short */
        assert_int_equal(mf__file_replace(cut_short, "x", 1, NULL), MF_OK);
        free(cut_short);
        mf__native n;
        mf_error err;
        assert_error(mf__native_open(partial, &n, &err), &err, MF_E_FORMAT, "unfinished", NULL);
        assert_error(mf__native_open(dir, &n, &err), &err, MF_E_NOT_FOUND, "did not finish", NULL);
        assert_int_equal(do_work(dir, -1, true), STEPS - kill_at);
        assert_false(mf__path_exists(partial));
        assert_same_model(whole, dir);
        assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
        killed_run(dir, kill_at, false); /* with or without a commit on the way, as the clock had it */
        int left = do_work(dir, -1, true);
        assert_true(left >= STEPS - kill_at && left <= STEPS);
        assert_same_model(whole, dir);
        assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
    }
    free(partial);
    free(dir);
    free(whole);
    scratch_free(top);
}

/* The journal cut off at every byte: a line that is not whole does not count. */
static void torn_journal(void **state) {
    (void)state;
    char *top = scratch_make(), *whole = join(top, "whole"), *dir = join(top, "model");
    char *journal = join(top, "model.partial/.moeflux-journal"), *text;
    size_t size;
    assert_int_equal(do_work(whole, -1, true), STEPS);
    killed_run(dir, 7, true);
    assert_int_equal(mf__file_read(journal, 1 << 20, &text, &size, NULL), MF_OK);
    int last = STEPS;
    for (size_t cut = 0;; cut = cut + 97 < size ? cut + 97 : size) {
        char *partial = join(top, "model.partial");
        if (mf__path_exists(dir)) assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
        if (!mf__path_exists(partial)) killed_run(dir, 7, true);
        assert_int_equal(truncate(journal, (off_t)cut), 0);
        int left = do_work(dir, -1, true);
        assert_true(left <= last && left >= STEPS - 7);
        last = left;
        assert_same_model(whole, dir);
        free(partial);
        if (cut == size) break;
    }
    assert_int_equal(last, STEPS - 7);
    free(text);
    free(journal);
    free(dir);
    free(whole);
    scratch_free(top);
}

/* A journal of a time when they did not say which encoder made the bytes. */
static void journal_without_encoder(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model"), *journal = join(top, "model.partial/.moeflux-journal");
    char *text, *field;
    size_t size;
    mf__native_writer *w;
    mf_error err;
    killed_run(dir, 3, true);
    assert_int_equal(mf__file_read(journal, 1 << 20, &text, &size, NULL), MF_OK);
    static const char encoder[] = ",\"encoder\":3";
    assert_non_null(field = memmem(text, size, encoder, strlen(encoder)));
    memmove(field, field + strlen(encoder), (size_t)(text + size - field) - strlen(encoder));
    assert_int_equal(mf__file_replace(journal, text, size - strlen(encoder), NULL), MF_OK);
    assert_error(mf__native_writer_resume(dir, &work, &w, &err), &err, MF_E_EXISTS, "encoder", "version 0", NULL);
    free(text);
    free(journal);
    free(dir);
    scratch_free(top);
}

static void other_work(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model"), *partial = join(top, "model.partial");
    mf__native_writer *w;
    mf_error err;
    killed_run(dir, 3, true);
    mf__native_work other = {.source = "s1", .options = "experts 8"};
    assert_error(mf__native_writer_resume(dir, &other, &w, &err), &err, MF_E_EXISTS, "model.partial", "experts 4",
                 "experts 8", "--restart", NULL);
    other = (mf__native_work){.source = "s2", .options = "experts 4"};
    assert_error(mf__native_writer_resume(dir, &other, &w, &err), &err, MF_E_EXISTS, "another source", NULL);
    other = (mf__native_work){.source = "s1", .options = "experts 4", .encoder = 4};
    assert_error(mf__native_writer_resume(dir, &other, &w, &err), &err, MF_E_EXISTS, "model.partial", "encoder",
                 "version 3", "this one is 4", "--restart", NULL);
    assert_true(exists(partial, ".moeflux-journal"));
    assert_int_equal(mf__native_writer_resume(dir, &work, &w, &err), MF_OK); /* in use */
    mf__native_writer *second;
    assert_error(mf__native_writer_resume(dir, &work, &second, &err), &err, MF_E_EXISTS, "another moeflux", NULL);
    assert_true(mf__native_writer_suspend(w));
    other.restart = true;
    assert_int_equal(mf__native_writer_resume(dir, &other, &w, &err), MF_OK);
    assert_false(mf__native_writer_has_tensor(w, "model.layers.0.t"));
    assert_false(mf__native_writer_suspend(w)); /* nothing finished: nothing left */
    assert_false(mf__path_exists(partial));
    free(partial);
    free(dir);
    scratch_free(top);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on),
        cmocka_unit_test(torn_journal),
        cmocka_unit_test(other_work),
        cmocka_unit_test(journal_without_encoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
