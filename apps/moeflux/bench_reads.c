/* moeflux bench --io: how fast random experts are read through the store, and with how much processor time.
 *
 * A store of its own over the model's files, with room for little more than what is under way: nearly all that is
 * wanted must be read. Two turns take turns, so that the reads of one are queued while the other's come in: the number
 * of reads under way never falls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"
#include "engine/experts.h"

#define SECONDS 2.0 /* of one run */

struct expert_reader {
    mf__store *store;
    mf__turn *turns[2];
    int32_t *ids[2]; /* [n_experts] what each turn wants, first `batch` of a shuffled list */
    int32_t *got;
    const void **blobs;
    int *layers; /* that have experts */
    int n_layers, n_experts, batch;
    int64_t bytes, budget;
    uint64_t seed;
};

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static double processor_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static mf_status make_lists(expert_reader *r, const mf__store_config *c, mf_error *err) {
    r->n_experts = c->n_experts;
    r->got = calloc((size_t)c->n_experts, sizeof *r->got);
    r->blobs = calloc((size_t)c->n_experts, sizeof *r->blobs);
    r->layers = calloc((size_t)c->n_layers, sizeof *r->layers);
    for (int k = 0; k < 2; k++) r->ids[k] = calloc((size_t)c->n_experts, sizeof *r->ids[k]);
    if (!r->got || !r->blobs || !r->layers || !r->ids[0] || !r->ids[1])
        return mf__fail(err, MF_E_NOMEM, "no memory for lists of %d experts", c->n_experts);
    for (int k = 0; k < 2; k++)
        for (int e = 0; e < c->n_experts; e++) r->ids[k][e] = e;
    for (int l = 0; l < c->n_layers; l++) {
        bool has = false;
        for (int d = 0; d < c->n_dirs; d++) has = has || c->files[d * c->n_layers + l];
        if (has) r->layers[r->n_layers++] = l;
    }
    return r->n_layers ? MF_OK : mf__fail(err, MF_E_INVALID, "the model has no routed experts");
}

/* Room for two batches under way and one that is given out. */
static mf_status open_store(expert_reader *r, mf__store_config c, mf_io io, mf_switch direct, mf_error *err) {
    mf_stats st;
    c.io = io;
    c.direct = direct;
    c.prefetch = MF_SWITCH_OFF;
    c.quiet = true;
    c.log = (mf_log_sink){0};
    for (r->batch = 0;;) {
        c.budget = (3 * r->batch + 1) * (c.bytes + 16384) + ((int64_t)8 << 20);
        MF__TRY(mf__store_open(&c, &r->store, err));
        mf__store_stats_get(r->store, &st);
        if (r->batch) break;
        int64_t pieces = (c.bytes + st.read_bytes - 1) / st.read_bytes;
        r->batch = (int)((2 * st.read_depth + pieces - 1) / pieces);
        if (r->batch > c.n_experts) r->batch = c.n_experts;
        mf__store_close(r->store);
        r->store = NULL;
    }
    r->budget = c.budget;
    r->bytes = c.bytes;
    for (int k = 0; k < 2; k++) MF__TRY(mf__turn_create(r->store, &r->turns[k], err));
    return MF_OK;
}

mf_status expert_reader_open(mf_model *model, mf_io io, mf_switch direct, expert_reader **out, mf_error *err) {
    mf__store_config c = mf__model_store_config(model);
    expert_reader *r = *out = calloc(1, sizeof *r);
    if (!r) return mf__fail(err, MF_E_NOMEM, "no memory for a reader");
    r->seed = (uint64_t)(app_seconds() * 1e9);
    MF__TRY(make_lists(r, &c, err));
    return open_store(r, c, io, direct, err);
}

void expert_reader_close(expert_reader *r) {
    if (!r) return;
    for (int k = 0; k < 2; k++) {
        mf__turn_free(r->turns[k]);
        free(r->ids[k]);
    }
    mf__store_close(r->store);
    free(r->got);
    free(r->blobs);
    free(r->layers);
    free(r);
}

int64_t expert_reader_bytes(const expert_reader *r) {
    return r->budget;
}

mf__store *expert_reader_store(expert_reader *r) {
    return r->store;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* n random experts of a random layer. */
static mf_status begin(expert_reader *r, int k, int n, mf_error *err) {
    int32_t *ids = r->ids[k];
    for (int i = 0; i < n; i++) {
        int j = i + (int)(next_random(&r->seed) % (uint64_t)(r->n_experts - i));
        int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
    int layer = r->layers[next_random(&r->seed) % (uint64_t)r->n_layers];
    return mf__turn_begin(r->turns[k], layer, ids, NULL, n, 2, err);
}

static mf_status finish(expert_reader *r, int k, mf_error *err) {
    mf_status st = MF_OK;
    for (int n = 1; st == MF_OK && n;) {
        st = mf__turn_next(r->turns[k], r->got, r->blobs, &n, err);
        if (st == MF_OK) mf__turn_done(r->turns[k], r->got, n);
    }
    mf__turn_end(r->turns[k]);
    return st;
}

/* Until the time is over: turns of n experts, one ahead or not. Returns what the store read, in bytes. */
static mf_status read_for(expert_reader *r, int n, bool ahead, double seconds, double *gb_s, double *cpu_s_per_gb,
                          mf_error *err) {
    mf_status st = ahead ? begin(r, 0, n, err) : MF_OK;
    mf_stats before, after;
    mf__store_stats_get(r->store, &before);
    double began = app_seconds(), cpu = processor_seconds(), took = 0;
    for (int k = ahead; st == MF_OK && took < seconds; k = ahead ? !k : 0) {
        st = begin(r, k, n, err);
        if (st == MF_OK) st = finish(r, ahead ? !k : k, err);
        took = app_seconds() - began;
        if (st == MF_OK && app_interrupted(NULL)) st = mf__fail(err, MF_E_CANCELLED, "interrupted");
    }
    mf__store_stats_get(r->store, &after);
    cpu = processor_seconds() - cpu;
    for (int k = 0; k < 2; k++) mf__turn_end(r->turns[k]);
    double gb = (double)(after.bytes_read - before.bytes_read) * 1e-9;
    *gb_s = took > 0 ? gb / took : 0;
    if (cpu_s_per_gb) *cpu_s_per_gb = gb > 0 ? cpu / gb : 0;
    return st;
}

mf_status expert_reader_run(expert_reader *r, double seconds, double *gb_s, double *cpu_s_per_gb, mf_error *err) {
    return read_for(r, r->batch, true, seconds, gb_s, cpu_s_per_gb, err);
}

mf_status expert_reader_turns(expert_reader *r, int n, double seconds, double *gb_s, double *cpu_s_per_gb,
                              mf_error *err) {
    return read_for(r, n, false, seconds, gb_s, cpu_s_per_gb, err);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static mf_status show(const bench_options *opt, const mf_model_info *info, expert_reader *r, series *full,
                      series *full_cpu, series *turns, mf_error *err) {
    mf_stats st;
    mf__store_stats_get(r->store, &st);
    if (opt->json) {
        json_t *o = json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:i, s:i}", "mode", "io", "model", info->name, "io",
                              st.io, "direct", st.direct, "expert_bytes", (json_int_t)r->bytes, "block_bytes",
                              (json_int_t)st.read_bytes, "queue_depth", (int)st.read_depth, "runs", full->n);
        series_json(o, "gb_s", full);
        series_json(o, "cpu_s_per_gb", full_cpu);
        series_json(o, "turn_gb_s", turns);
        return bench_print_json(o, err);
    }
    printf("%s: random experts of %lld bytes with %s%s, %d reads of %lld bytes under way\n", info->name,
           (long long)r->bytes, st.io, st.direct ? ", direct" : "", st.read_depth, (long long)st.read_bytes);
    series_print("reads", full, "GB/s");
    series_print("processor", full_cpu, "s/GB");
    series_print("token by token", turns, "GB/s");
    return MF_OK;
}

static mf_status run(const bench_options *opt, mf_model *model, expert_reader *r, mf_error *err) {
    const mf_model_info *info = mf_model_info_get(model);
    series full = {0}, full_cpu = {0}, turns = {0};
    double gb_s, cpu;
    MF__TRY(expert_reader_run(r, SECONDS / 4, &gb_s, &cpu, err)); /* memory touched for the first time is slow */
    for (int64_t i = 0; i < opt->repeat; i++) {
        MF__TRY(expert_reader_run(r, SECONDS, &gb_s, &cpu, err));
        series_add(&full, gb_s);
        series_add(&full_cpu, cpu);
        MF__TRY(expert_reader_turns(r, info->n_experts_per_token, SECONDS / 4, &gb_s, &cpu, err));
        series_add(&turns, gb_s);
    }
    return show(opt, info, r, &full, &full_cpu, &turns, err);
}

mf_status bench_reads(const char *dir, const bench_options *opt, mf_error *err) {
    mf_model *model;
    expert_reader *r = NULL;
    mf_switch direct = opt->model.direct ? (mf_switch)opt->model.direct : MF_SWITCH_ON;
    if (opt->model.io == MF_IO_MMAP)
        return mf__fail(err, MF_E_INVALID, "--io mmap reads nothing by itself; measure pread or uring");
    MF__TRY(app_open(dir, &opt->model, &model, err));
    mf_status st = expert_reader_open(model, (mf_io)opt->model.io, direct, &r, err);
    if (st == MF_OK) st = run(opt, model, r, err);
    expert_reader_close(r);
    mf_model_close(model);
    return st;
}
