/* One measurement of moeflux tune: a text, decoded token by token through the real cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "documents.h"
#include "text/tokenizer.h"
#include "tune.h"

static mf_status add_document(tune_text *t, const int32_t *ids, int64_t n, mf_error *err) {
    int32_t *all = realloc(t->ids, (size_t)(t->n_ids + n) * sizeof *all);
    if (all) t->ids = all;
    int64_t *starts = realloc(t->starts, (size_t)(t->n_docs + 2) * sizeof *starts);
    if (starts) t->starts = starts;
    if (!all || !starts) return mf__fail(err, MF_E_NOMEM, "no memory for the text");
    memcpy(t->ids + t->n_ids, ids, (size_t)n * sizeof *ids);
    t->starts[t->n_docs++] = t->n_ids;
    t->n_ids += n;
    t->n_scored += n - 1;
    t->starts[t->n_docs] = t->n_ids;
    return MF_OK;
}

mf_status tune_text_read(const char *dir, const char *file, int64_t n_tokens, int64_t per_doc, tune_text *out,
                         mf_error *err) {
    mf__tokenizer *tok = NULL;
    mf__map map = {0};
    const char *doc;
    size_t at = 0, size;
    *out = (tune_text){0};
    mf_status st = mf__map_open(file, &map, err);
    if (st == MF_OK) st = mf__tokenizer_open(dir, &tok, err);
    while (st == MF_OK && out->n_scored < n_tokens &&
           document_next((const char *)map.data, map.size, &at, &doc, &size)) {
        int32_t *ids;
        size_t n;
        st = mf__tokenizer_encode(tok, doc, size, false, &ids, &n, err);
        if (st != MF_OK) break;
        if ((int64_t)n > per_doc) n = (size_t)per_doc;
        if ((int64_t)n > n_tokens - out->n_scored + 1) n = (size_t)(n_tokens - out->n_scored + 1);
        if (n > 1) st = add_document(out, ids, (int64_t)n, err);
        free(ids);
    }
    mf__tokenizer_free(tok);
    mf__map_close(&map);
    if (st == MF_OK && !out->n_scored)
        st = mf__fail(err, MF_E_INVALID, "%s has no document of two tokens or more", file);
    if (st != MF_OK) tune_text_free(out);
    return st;
}

void tune_text_free(tune_text *t) {
    free(t->ids);
    free(t->starts);
    *t = (tune_text){0};
}

typedef struct decoding {
    mf_model *model;
    mf_session *session;
    float *logits;
    size_t n_vocab;
    const tune_parts *parts;
    double began; /* of what counts */
} decoding;

/* Counters begin behind the first part and anew behind the second. */
static void part_ends(decoding *d, tune_point *p) {
    if (p->nll.n != d->parts->n_warm && p->nll.n != d->parts->n_choose) return;
    double n = (double)(d->parts->n_choose - d->parts->n_warm), seconds = app_seconds() - d->began;
    if (p->nll.n == d->parts->n_choose) {
        mf_model_stats_get(d->model, &p->stats);
        p->bytes = (double)(p->stats.bytes_read + p->stats.bytes_prefetched) / n;
        p->tokens_s = seconds > 0 ? n / seconds : 0;
    }
    mf_model_stats_reset(d->model);
    d->began = app_seconds();
}

/* The first token is a prompt of one, which decodes as well. */
static mf_status decode_document(decoding *d, const int32_t *ids, int64_t n, tune_point *p, mf_error *err) {
    mf_memory_clear(d->session);
    for (int64_t i = 0; i + 1 < n && p->nll.n < d->parts->n; i++) {
        MF__TRY(mf_eval_token(d->session, ids[i], i, d->logits, d->n_vocab, err));
        double nll = loss_of(d->logits, d->n_vocab, ids[i + 1]);
        if (!isfinite(nll))
            return mf__fail(err, MF_E_FORMAT, "the model's output is not a number; moeflux verify looks for damage");
        bool new_part = p->nll.n == d->parts->n_warm || p->nll.n == d->parts->n_choose;
        MF__TRY(losses_add(&p->nll, nll, i % LOSSES_BLOCK == 0 || new_part, err));
        part_ends(d, p);
    }
    return MF_OK;
}

static mf_status decode_all(decoding *d, const tune_text *text, tune_point *p, mf_error *err) {
    for (int64_t i = 0; i < text->n_docs && p->nll.n < d->parts->n; i++)
        MF__TRY(decode_document(d, text->ids + text->starts[i], text->starts[i + 1] - text->starts[i], p, err));
    int64_t rest = p->nll.n - d->parts->n_choose;
    mf_stats stats;
    mf_model_stats_get(d->model, &stats);
    p->evictions = p->stats.evictions + stats.evictions;
    p->rest_bytes = rest > 0 ? (double)(stats.bytes_read + stats.bytes_prefetched) / (double)rest : 0;
    return MF_OK;
}

mf_status tune_measure(const char *dir, const app_model_options *model, const tune_text *text, const tune_parts *parts,
                       bool whole, tune_point *p, mf_error *err) {
    tune_parts limits = {parts->n_warm, parts->n_choose, whole ? text->n_scored : parts->n_choose};
    decoding d = {.parts = &limits};
    char setting[LOSSY_TEXT];
    app_model_options opt = *model;
    mf_session_options so;
    opt.lossy = lossy_any(&p->lossy) ? lossy_text(&p->lossy, setting) : NULL;
    opt.calm = true;
    MF__TRY(app_open(dir, &opt, &d.model, err));
    app_session_options(&opt, &so);
    for (int64_t i = 0; i < text->n_docs; i++)
        if (text->starts[i + 1] - text->starts[i] > so.n_ctx)
            so.n_ctx = (int32_t)(text->starts[i + 1] - text->starts[i]);
    d.n_vocab = (size_t)mf_model_info_get(d.model)->n_vocab;
    tuned_model(mf_model_info_get(d.model), p->model);
    d.logits = malloc(d.n_vocab * sizeof *d.logits);
    mf_status st =
        d.logits ? mf_session_create(d.model, &so, &d.session, err) : mf__fail(err, MF_E_NOMEM, "no memory for logits");
    if (st == MF_OK) st = decode_all(&d, text, p, err);
    mf_session_free(d.session);
    mf_model_close(d.model);
    free(d.logits);
    return st;
}
