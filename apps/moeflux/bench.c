/* moeflux bench: how fast this machine evaluates a model, next to how fast it reads memory.
 *
 * Prompts and tokens are pseudo-random ids. The plain read loop runs before every repetition, on as many threads, so
 * that a noisy machine disturbs both. A token needs at least its weights from memory: the floor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/pool.h"
#include "base/probe.h"
#include "options.h"

#define READ_BYTES ((int64_t)256 << 20) /* more than any cache */
#define MAX_REPEAT 99

typedef struct bench_options {
    app_model_options model;
    int64_t prompt, tokens, repeat;
} bench_options;

typedef struct reader {
    const uint64_t *words;
    uint64_t sums[1024]; /* by thread: the loop must not be optimized away */
} reader;

typedef struct series {
    double values[MAX_REPEAT];
    int n;
} series;

static void read_words(void *ctx, int64_t begin, int64_t end, int thread) {
    reader *r = ctx;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin * 8; i < end * 8; i += 8) { /* items are cache lines */
        a ^= r->words[i] ^ r->words[i + 4];
        b ^= r->words[i + 1] ^ r->words[i + 5];
        c ^= r->words[i + 2] ^ r->words[i + 6];
        d ^= r->words[i + 3] ^ r->words[i + 7];
    }
    r->sums[thread] = a ^ b ^ c ^ d;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(series *s) {
    qsort(s->values, (size_t)s->n, sizeof *s->values, by_value);
    return s->n % 2 ? s->values[s->n / 2] : (s->values[s->n / 2 - 1] + s->values[s->n / 2]) / 2;
}

static void print_series(const char *name, series *s, const char *unit) {
    double middle = median(s);
    printf("%-12s %10.2f %-8s (%.2f to %.2f, %d runs)\n", name, middle, unit, s->values[0], s->values[s->n - 1], s->n);
}

typedef struct bench {
    const bench_options *opt;
    mf_session *session;
    mf__pool *pool;
    reader *reader;
    int32_t *ids;
    float *logits;
    int32_t n_vocab;
    series read, prefill, decode;
} bench;

static mf_status one_round(bench *b, bool counts, mf_error *err) {
    double t0 = app_seconds();
    mf__pool_run(b->pool, read_words, b->reader, READ_BYTES / 64);
    double t1 = app_seconds();
    mf_memory_clear(b->session);
    MF__TRY(mf_eval_prompt(b->session, b->ids, (size_t)b->opt->prompt, 0, b->logits, (size_t)b->n_vocab, err));
    double t2 = app_seconds();
    for (int64_t i = 0; i < b->opt->tokens; i++)
        MF__TRY(mf_eval_token(b->session, b->ids[i % b->opt->prompt], mf_memory_length(b->session), b->logits,
                              (size_t)b->n_vocab, err));
    double t3 = app_seconds();
    if (!counts) return MF_OK;
    b->read.values[b->read.n++] = (double)READ_BYTES / (t1 - t0) / 1e9;
    b->prefill.values[b->prefill.n++] = (double)b->opt->prompt / (t2 - t1);
    b->decode.values[b->decode.n++] = (double)b->opt->tokens / (t3 - t2);
    return MF_OK;
}

static void report(bench *b, const mf_model_info *info) {
    char trunk[APP_BYTES_TEXT], experts[APP_BYTES_TEXT], all[APP_BYTES_TEXT];
    double per_token = info->n_experts ? (double)info->expert_bytes / info->n_experts * info->n_experts_per_token : 0;
    double touched = (double)info->trunk_bytes + per_token;
    printf("%s (%s), backend %s, prompt %lld, tokens %lld\n", info->name, info->family, info->backend,
           (long long)b->opt->prompt, (long long)b->opt->tokens);
    print_series("prefill", &b->prefill, "tokens/s");
    print_series("decode", &b->decode, "tokens/s");
    print_series("memory read", &b->read, "GB/s");
    printf("a token touches at most %s: trunk %s (with the whole embedding table), experts %s\n",
           app_bytes(touched, all), app_bytes((double)info->trunk_bytes, trunk), app_bytes(per_token, experts));
    printf("memory alone would allow %.2f tokens/s; reached %.0f %%\n", median(&b->read) * 1e9 / touched,
           100 * median(&b->decode) * touched / (median(&b->read) * 1e9));
}

static mf_status run(bench *b, const mf_model_info *info, mf_error *err) {
    MF__TRY(one_round(b, false, err)); /* files and caches as they will be */
    for (int64_t i = 0; i < b->opt->repeat; i++) MF__TRY(one_round(b, true, err));
    report(b, info);
    return MF_OK;
}

static mf_status set_up(bench *b, const mf_model_info *info, mf_error *err) {
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    int threads = b->opt->model.threads ? (int)b->opt->model.threads : cpu.n_physical;
    MF__TRY(mf__pool_create(threads, &b->pool, err));
    void *words = aligned_alloc(64, (size_t)READ_BYTES);
    b->reader = calloc(1, sizeof *b->reader);
    b->n_vocab = info->n_vocab;
    b->ids = calloc((size_t)b->opt->prompt, sizeof *b->ids);
    b->logits = calloc((size_t)b->n_vocab, sizeof *b->logits);
    if (!words || !b->reader || !b->ids || !b->logits) {
        free(words);
        return mf__fail(err, MF_E_NOMEM, "no memory for the benchmark");
    }
    memset(words, 1, (size_t)READ_BYTES);
    b->reader->words = words;
    uint32_t random = 1;
    for (int64_t i = 0; i < b->opt->prompt; i++) {
        random = random * 1664525u + 1013904223u;
        b->ids[i] = (int32_t)((random >> 8) % (uint32_t)b->n_vocab);
    }
    return MF_OK;
}

static mf_status bench_model(const char *dir, const bench_options *opt, mf_error *err) {
    mf_model *model;
    bench b = {.opt = opt};
    mf_session_options so;
    MF__TRY(app_open(dir, &opt->model, &model, err));
    const mf_model_info *info = mf_model_info_get(model);
    app_session_options(&opt->model, &so);
    if (!so.n_ctx && opt->prompt + opt->tokens < info->n_ctx) so.n_ctx = (int32_t)(opt->prompt + opt->tokens);
    mf_status st = mf_session_create(model, &so, &b.session, err);
    if (st == MF_OK) st = set_up(&b, info, err);
    if (st == MF_OK) st = run(&b, info, err);
    mf_session_free(b.session);
    mf__pool_free(b.pool);
    if (b.reader) free((void *)b.reader->words);
    free(b.reader);
    free(b.ids);
    free(b.logits);
    mf_model_close(model);
    return st;
}

int cmd_bench(int argc, char **argv) {
    bench_options opt = {.prompt = 512, .tokens = 32, .repeat = 5};
    const opt_def defs[] = {
        {.name = "prompt",
         .kind = OPT_INT,
         .value = &opt.prompt,
         .arg = "N",
         .help = "tokens of the prompt (512)",
         .min = 1,
         .max = 1 << 20},
        {.name = "tokens",
         .kind = OPT_INT,
         .value = &opt.tokens,
         .arg = "N",
         .help = "tokens decoded after it (32)",
         .min = 1,
         .max = 1 << 20},
        {.name = "repeat",
         .kind = OPT_INT,
         .value = &opt.repeat,
         .arg = "N",
         .help = "runs that count (5)",
         .min = 1,
         .max = MAX_REPEAT},
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "bench DIR [options]",
        .about =
            "Measures prefill and decode speed of the model in DIR, and the memory bandwidth of a plain read loop\n"
            "in the same run: medians and spread, and the share of what memory would allow.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux bench models/stories-moe --prompt 128 --tokens 32\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    mf_error err;
    app_catch_interrupts();
    return bench_model(words[0], &opt, &err) == MF_OK ? APP_OK : app_fail(&err);
}
