/* moeflux bench: what its measurements share. */
#ifndef MOEFLUX_BENCH_H
#define MOEFLUX_BENCH_H

#include <jansson.h>

#include "app.h"
#include "store/store.h"

#define BENCH_MAX_RUNS 99
#define BENCH_MAX_SESSIONS 64 /* that mf_eval_batch takes */

typedef struct bench_options {
    app_model_options model;
    int64_t prefill, decode, repeat;
    int64_t sessions; /* 0: the option is not there */
    bool prefill_given, decode_given, repeat_given;
    bool io; /* the store alone */
    bool profile;
    const char *trace;
    const char *html; /* a page of pictures, besides */
    bool json;
} bench_options;

/* ---- bench.c: results ------------------------------------------------------------------------------------------- */

/* Medians count: a run that others disturbed does not. */
typedef struct series {
    double values[BENCH_MAX_RUNS + 1]; /* one more: what is measured around runs; in rising order after a question */
    int n;
} series;

void series_add(series *s, double value);
double series_median(series *s); /* 0 for none */
void series_print(const char *name, series *s, const char *unit);
/* KEY, KEY_min and KEY_max; null for a series without values. */
void series_json(json_t *to, const char *key, series *s);
/* n pseudo-random tokens, the same every time. */
void bench_random_ids(int32_t *ids, int64_t n, int32_t n_vocab);
/* Prints the object and frees it. */
mf_status bench_print_json(json_t *object, mf_error *err);

/* ---- the kinds of measurement ------------------------------------------------------------------------------------ */

mf_status bench_eval(const char *dir, const bench_options *opt, mf_error *err);     /* prefill and decode */
mf_status bench_reads(const char *dir, const bench_options *opt, mf_error *err);    /* --io */
mf_status bench_sessions(const char *dir, const bench_options *opt, mf_error *err); /* --sessions */
mf_status bench_trace(const char *dir, const bench_options *opt, mf_error *err);    /* --trace */
mf_status bench_profile(const char *dir, const bench_options *opt, mf_error *err);  /* --profile */

/* ---- bench_machine.c: what the machine can do ------------------------------------------------------------------- */

typedef struct memory_reader memory_reader;

int bench_threads(const bench_options *opt);
/* What it reads is borrowed from the model's experts: the memory budget holds for all of the program. Where that leaves
 * too little to measure by, *out is NULL, and a line says so. Without a model (NULL) nothing is borrowed. */
mf_status memory_reader_open(mf_model *model, int threads, memory_reader **out, mf_error *err);
/* A plain loop over more bytes than caches have, on all threads. */
mf_status memory_reader_run(memory_reader *r, double *gb_s, mf_error *err);
void memory_reader_close(memory_reader *r); /* before the model; NULL is fine */

/* Asks the system to drop the model's files from its page cache; returns the share of them that is still there. */
double page_cache_drop(const char *dir, const opt_list *experts_dirs);

/* ---- bench_reads.c: reads of random experts through a store of its own ------------------------------------------ */

typedef struct expert_reader expert_reader;

/* io and direct as in mf__store_config. */
mf_status expert_reader_open(mf_model *model, mf_io io, mf_switch direct, expert_reader **out, mf_error *err);
/* Reads for that long with as many reads under way as the store has. cpu_s_per_gb may be
 * NULL. */
mf_status expert_reader_run(expert_reader *r, double seconds, double *gb_s, double *cpu_s_per_gb, mf_error *err);
/* The same in turns as a decoded token has them: n experts of a layer, and all of them before the next layer. */
mf_status expert_reader_turns(expert_reader *r, int n, double seconds, double *gb_s, double *cpu_s_per_gb,
                              mf_error *err);
int64_t expert_reader_bytes(const expert_reader *r); /* of memory */
mf__store *expert_reader_store(expert_reader *r);
void expert_reader_close(expert_reader *r); /* NULL is fine */

#endif
