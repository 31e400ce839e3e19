/* moeflux check: a model against recorded numbers of another implementation.
 *
 * The golden file has, for prompts I = 0, 1, ...: pI.tokens [T], pI.logits [R][vocab] (the last R rows) and perhaps
 * pI.hidden [layers + 1][T][hidden] (the embedding, the output of every layer but the last, the final norm), or, where
 * a layer has several streams, pI.hidden [layers][T][streams * hidden] and pI.final [T][hidden]; and greedy.tokens, p0
 * followed by its greedy continuation. Besides, all ways of evaluating a prompt must agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "cluster/cluster.h"
#include "compare.h"
#include "models.h"
#include "options.h"
#include "weights/safetensors.h"

#define MIN_COSINE 0.999999
#define MAX_REL 3e-4
#define MAX_REL_LONG 1e-3 /* prompts of more than LONG tokens */
#define LONG 256
#define MIN_COSINE_WAYS 0.9999 /* between two ways of evaluating the same prompt */

/* One prompt of the golden file; everything borrowed from it. */
typedef struct prompt {
    int index;
    const int32_t *tokens;
    int64_t n_tokens;
    const float *logits;
    int64_t n_logits;
    const float *hidden; /* NULL when not recorded */
    const float *final;  /* the final norm, where it is not hidden's last */
    int64_t n_wide;      /* of a row of hidden */
    int32_t step;        /* layers of the model that are one there */
} prompt;

typedef struct checker {
    const app_model_options *opt;
    mf_model *model;
    const mf_model_info *info;
    mf__catalog *golden;
    bool show_layers, failed;
    float *logits, *batched; /* of one prompt */
    /* while a prompt is evaluated with the probe: */
    const prompt *probed;
    comparison *hidden; /* [n_layers + 1] */
    int64_t row0;       /* of the golden rows that the next final_norm rows belong to */
} checker;

/* ---- the golden file ------------------------------------------------------------------------------------------- */

/* A golden tensor of the wanted type whose first dimensions are free and whose last are n_last (0: 1-D). */
static mf_status golden_tensor(const checker *c, const char *name, mf__type type, int n_dims, int64_t last,
                               const mf__entry **out, mf_error *err) {
    const char *file = mf__catalog_file(c->golden, 0);
    const mf__entry *e = mf__catalog_find(c->golden, name);
    *out = e;
    if (!e) return mf__fail(err, MF_E_NOT_FOUND, "%s: no tensor %s", file, name);
    if (e->type != type || e->n_dims != n_dims)
        return mf__fail(err, MF_E_FORMAT, "%s: %s is %s with %d dimensions, expected %s with %d", file, name,
                        mf__type_name(e->type), e->n_dims, mf__type_name(type), n_dims);
    if (last && e->dims[n_dims - 1] != last)
        return mf__fail(err, MF_E_MISMATCH, "%s: %s has rows of %lld, the model of %lld: another model's numbers?",
                        file, name, (long long)e->dims[n_dims - 1], (long long)last);
    if ((uintptr_t)e->data % 4) return mf__fail(err, MF_E_FORMAT, "%s: %s is not aligned", file, name);
    return MF_OK;
}

/* false in *found at the end of the prompts */
static mf_status read_prompt(const checker *c, int index, prompt *p, bool *found, mf_error *err) {
    const mf__entry *e;
    char name[32];
    *p = (prompt){.index = index};
    snprintf(name, sizeof name, "p%d.tokens", index);
    *found = mf__catalog_find(c->golden, name) != NULL;
    if (!*found) return MF_OK;
    MF__TRY(golden_tensor(c, name, MF_TYPE_I32, 1, 0, &e, err));
    p->tokens = (const int32_t *)(const void *)e->data;
    p->n_tokens = e->dims[0];
    snprintf(name, sizeof name, "p%d.logits", index);
    MF__TRY(golden_tensor(c, name, MF_TYPE_F32, 2, c->info->n_vocab, &e, err));
    p->logits = (const float *)(const void *)e->data;
    p->n_logits = e->dims[0];
    if (p->n_logits < 1 || p->n_logits > p->n_tokens)
        return mf__fail(err, MF_E_FORMAT, "%s: %s has %lld rows for %lld tokens", mf__catalog_file(c->golden, 0), name,
                        (long long)p->n_logits, (long long)p->n_tokens);
    snprintf(name, sizeof name, "p%d.hidden", index);
    if (!mf__catalog_find(c->golden, name)) return MF_OK;
    char last[32];
    const mf__entry *f = NULL;
    snprintf(last, sizeof last, "p%d.final", index);
    if (mf__catalog_find(c->golden, last)) MF__TRY(golden_tensor(c, last, MF_TYPE_F32, 2, c->info->n_hidden, &f, err));
    MF__TRY(golden_tensor(c, name, MF_TYPE_F32, 3, f ? 0 : c->info->n_hidden, &e, err));
    int64_t layers = e->dims[0] - (f ? 0 : 1);
    if (layers < 1 || layers > c->info->n_layers || c->info->n_layers % layers || e->dims[1] != p->n_tokens ||
        e->dims[2] % c->info->n_hidden || (f && f->dims[0] != p->n_tokens))
        return mf__fail(err, MF_E_MISMATCH, "%s: %s is for %lld layers and %lld tokens, expected %d and %lld",
                        mf__catalog_file(c->golden, 0), name, (long long)e->dims[0] - 1, (long long)e->dims[1],
                        c->info->n_layers, (long long)p->n_tokens);
    p->hidden = (const float *)(const void *)e->data;
    p->n_wide = e->dims[2];
    p->step = (int32_t)(c->info->n_layers / layers);
    p->final = f ? (const float *)(const void *)f->data : p->hidden + layers * p->n_tokens * p->n_wide;
    return MF_OK;
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

static void verdict(checker *c, bool good) {
    puts(good ? "" : "  FAILED");
    c->failed = c->failed || !good;
}

static void logits_line(checker *c, const char *what, const comparison *k, double min_cosine, double max_rel) {
    double rel = compare_rel(k);
    printf("%s cosine=%.9f max_rel=%.2e argmax=%lld/%lld", what, k->cosine, rel, (long long)k->n_argmax,
           (long long)k->n_rows);
    verdict(c, k->cosine >= min_cosine && rel <= max_rel && k->n_argmax == k->n_rows);
}

static void hidden_lines(checker *c, const prompt *p) {
    for (int32_t i = 0; i <= c->info->n_layers; i += p->step) {
        const comparison *k = &c->hidden[i];
        double rel = compare_rel(k);
        bool good = rel <= MAX_REL && k->n_rows > 0;
        if (good && !c->show_layers) continue;
        if (i == 0)
            printf("p%d embed     ", p->index);
        else if (i == c->info->n_layers)
            printf("p%d final_norm", p->index);
        else
            printf("p%d layer %-4d", p->index, i - 1);
        printf(" cosine=%.9f max_rel=%.2e rows=%lld", k->cosine, rel, (long long)k->n_rows);
        verdict(c, good);
    }
}

/* ---- evaluating ------------------------------------------------------------------------------------------------ */

static void on_probe(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    checker *c = user;
    const prompt *p = c->probed;
    int64_t slot, row0 = 0;
    if (!p || !p->hidden) return;
    if (!strcmp(name, "embed"))
        slot = 0;
    else if (!strcmp(name, "hidden") && layer + 1 < c->info->n_layers && (layer + 1) % p->step == 0)
        slot = layer + 1;
    else if (!strcmp(name, "final_norm")) {
        slot = c->info->n_layers;
        row0 = c->row0;
        c->row0 += n_rows;
    } else
        return;
    bool is_final = slot == c->info->n_layers;
    if (row0 + n_rows > p->n_tokens || n_cols != (is_final ? c->info->n_hidden : p->n_wide)) return;
    const float *want = is_final ? p->final : p->hidden + slot / p->step * p->n_tokens * p->n_wide;
    compare_rows(&c->hidden[slot], data, want + row0 * n_cols, n_rows, n_cols);
}

static mf_status new_session(checker *c, int64_t n_ctx, int64_t n_chunk, bool probe, mf_session **out, mf_error *err) {
    mf_session_options so;
    app_session_options(c->opt, &so);
    if (n_ctx > c->info->n_ctx)
        return mf__fail(err, MF_E_INVALID, "%s: a prompt needs %lld positions, the model has %d",
                        mf__catalog_file(c->golden, 0), (long long)n_ctx, c->info->n_ctx);
    if (!so.n_ctx) so.n_ctx = (int32_t)n_ctx;
    so.n_chunk = (int32_t)n_chunk;
    if (probe) so.probe = (mf_probe){.fn = on_probe, .user = c};
    return mf_session_create(c->model, &so, out, err);
}

/* The whole prompt in one chunk (or in those of --chunk), compared with the golden numbers; leaves the logits in
 * c->batched. */
static mf_status check_prompt(checker *c, const prompt *p, mf_error *err) {
    size_t n_logits = (size_t)p->n_logits * (size_t)c->info->n_vocab;
    mf_session *s = NULL;
    comparison k;
    char what[16];
    c->probed = p;
    c->row0 = p->n_tokens - p->n_logits;
    for (int32_t i = 0; i <= c->info->n_layers; i++) compare_init(&c->hidden[i]);
    int64_t n_chunk = c->opt->n_chunk ? c->opt->n_chunk : p->n_tokens > 8192 ? 8192 : p->n_tokens;
    mf_status st = new_session(c, p->n_tokens, n_chunk, true, &s, err);
    if (st == MF_OK) st = mf_eval_prompt(s, p->tokens, (size_t)p->n_tokens, 0, c->batched, n_logits, err);
    mf_session_free(s);
    c->probed = NULL;
    if (st != MF_OK) return mf__fail_prefix(err, st, "p%d", p->index);
    compare_init(&k);
    compare_rows(&k, c->batched, p->logits, p->n_logits, c->info->n_vocab);
    snprintf(what, sizeof what, "p%d", p->index);
    logits_line(c, what, &k, MIN_COSINE, p->n_tokens > LONG ? MAX_REL_LONG : MAX_REL);
    if (p->hidden) hidden_lines(c, p);
    return MF_OK;
}

/* The same prompt, token by token (n_chunk 0) or in chunks; compared with c->batched. */
static mf_status other_way(checker *c, const prompt *p, int64_t n_chunk, comparison *k, mf_error *err) {
    size_t n_vocab = (size_t)c->info->n_vocab;
    mf_session *s = NULL;
    int64_t first = p->n_tokens - p->n_logits;
    mf_status st = new_session(c, p->n_tokens, n_chunk ? n_chunk : 1, false, &s, err);
    if (st == MF_OK && n_chunk)
        st = mf_eval_prompt(s, p->tokens, (size_t)p->n_tokens, 0, c->logits, (size_t)p->n_logits * n_vocab, err);
    for (int64_t i = 0; st == MF_OK && !n_chunk && i < p->n_tokens; i++)
        st = mf_eval_token(s, p->tokens[i], i, c->logits + (i < first ? 0 : (size_t)(i - first)) * n_vocab, n_vocab,
                           err);
    mf_session_free(s);
    if (st != MF_OK) return mf__fail_prefix(err, st, "p%d", p->index);
    compare_rows(k, c->logits, c->batched, p->n_logits, c->info->n_vocab);
    return MF_OK;
}

static mf_status make_room(checker *c, const prompt *p, mf_error *err) {
    size_t bytes = (size_t)p->n_logits * (size_t)c->info->n_vocab * sizeof(float);
    free(c->logits);
    free(c->batched);
    c->logits = malloc(bytes);
    c->batched = malloc(bytes);
    return c->logits && c->batched ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for logits");
}

static mf_status check_prompts(checker *c, mf_error *err) {
    static const int64_t chunks[] = {0, 1, 4, 16};
    comparison ways[MF__COUNT(chunks)];
    bool found;
    int n = 0;
    for (size_t w = 0; w < MF__COUNT(chunks); w++) compare_init(&ways[w]);
    for (prompt p;; n++) {
        MF__TRY(read_prompt(c, n, &p, &found, err));
        if (!found) break;
        MF__TRY(make_room(c, &p, err));
        MF__TRY(check_prompt(c, &p, err));
        for (size_t w = 0; w < MF__COUNT(chunks); w++) MF__TRY(other_way(c, &p, chunks[w], &ways[w], err));
        fflush(stdout);
    }
    if (!n) return mf__fail(err, MF_E_NOT_FOUND, "%s: no tensor p0.tokens", mf__catalog_file(c->golden, 0));
    logits_line(c, "token by token = batched", &ways[0], MIN_COSINE_WAYS, 1);
    for (size_t w = 1; w < MF__COUNT(chunks); w++) {
        char what[40];
        snprintf(what, sizeof what, "chunks of %-2lld   = batched", (long long)chunks[w]);
        logits_line(c, what, &ways[w], MIN_COSINE_WAYS, 1);
    }
    return MF_OK;
}

/* greedy.tokens: the model must choose the same tokens when it is fed its own choices. */
static mf_status check_greedy(checker *c, mf_error *err) {
    const mf__entry *e;
    prompt p;
    bool found;
    if (!mf__catalog_find(c->golden, "greedy.tokens")) return MF_OK;
    MF__TRY(golden_tensor(c, "greedy.tokens", MF_TYPE_I32, 1, 0, &e, err));
    MF__TRY(read_prompt(c, 0, &p, &found, err));
    const int32_t *want = (const int32_t *)(const void *)e->data;
    int64_t n = e->dims[0] - p.n_tokens, same = 0;
    if (!found || n < 1 || memcmp(want, p.tokens, (size_t)p.n_tokens * sizeof *want))
        return mf__fail(err, MF_E_FORMAT, "%s: greedy.tokens does not begin with p0.tokens",
                        mf__catalog_file(c->golden, 0));
    mf_session *s = NULL;
    size_t n_vocab = (size_t)c->info->n_vocab;
    mf_status st = new_session(c, e->dims[0], 0, false, &s, err);
    if (st == MF_OK) st = mf_eval_prompt(s, p.tokens, (size_t)p.n_tokens, 0, c->logits, n_vocab, err);
    for (int64_t i = 0; st == MF_OK && i < n; i++) {
        int32_t id = compare_argmax(c->logits, c->info->n_vocab);
        same += id == want[p.n_tokens + i];
        if (i + 1 < n) st = mf_eval_token(s, id, p.n_tokens + i, c->logits, n_vocab, err);
    }
    mf_session_free(s);
    if (st != MF_OK) return mf__fail_prefix(err, st, "greedy");
    printf("greedy %lld/%lld", (long long)same, (long long)n);
    verdict(c, same == n);
    return MF_OK;
}

static int check(const char *dir, const char *golden, const app_model_options *opt, bool show_layers) {
    checker c = {.opt = opt, .show_layers = show_layers};
    mf_error err = {0};
    app_catch_interrupts();
    mf_status st = app_open(dir, opt, &c.model, &err);
    if (st == MF_OK) st = mf__safetensors_open(golden, &c.golden, &err);
    if (st == MF_OK) {
        c.info = mf_model_info_get(c.model);
        c.hidden = calloc((size_t)c.info->n_layers + 1, sizeof *c.hidden);
        st = c.hidden ? check_prompts(&c, &err) : mf__fail(&err, MF_E_NOMEM, "no memory");
    }
    if (st == MF_OK) st = check_greedy(&c, &err);
    free(c.hidden);
    free(c.logits);
    free(c.batched);
    mf__catalog_close(c.golden);
    mf_model_close(c.model);
    if (st != MF_OK) return app_fail(&err);
    if (c.failed) app_say("%s is out of tolerance", dir);
    return c.failed ? APP_FAILED : APP_OK;
}

int cmd_check(int argc, char **argv) {
    app_model_options opt = {.no_prompts = true};
    bool layers = false;
    opt_def defs[] = {
        {.name = "layers",
         .kind = OPT_FLAG,
         .value = &layers,
         .help = "a line for every layer's hidden states, not only for those that differ"},
        OPT_FIND_ROWS(opt.find),
        OPT_MODEL_ROWS(opt),
    };
    opt_spec spec = {
        .usage = "check DIR GOLDEN.safetensors [options]",
        .about =
            "Compares the model's logits, hidden states and greedy continuation with recorded ones, and the ways of\n"
            "evaluating a prompt with each other. Exit code 1 when anything is out of tolerance: cosine below\n"
            "0.999999, a difference above 3e-4 of the largest value (1e-3 beyond 256 tokens), another argmax.\n"
            "Always with f32 activations and, unless --kv says otherwise, f32 keys and values, as --exact: use eval\n"
            "to judge the default arithmetic.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 2,
        .max_words = 2,
        .examples = "  moeflux convert golden/qwen3_5_moe /tmp/tiny --bits keep\n"
                    "  moeflux check /tmp/tiny golden/qwen3_5_moe/golden.safetensors --layers\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    opt.exact = true; /* recorded values are exact ones; rounded activations are for eval to judge */
    if (r != OPT_DONE) return opt_exit(r);
    char *dir;
    mf_error err;
    if (models_ready(&opt.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    if (cluster_worker()) return cluster_work(dir, &opt);
    int code = check(dir, words[1], &opt, layers);
    free(dir);
    return code;
}
