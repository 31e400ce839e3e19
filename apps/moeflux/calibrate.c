/* The pass runs in the engine as any other, so it streams what does not fit into memory; what the experts see comes
 * through the probe of a session, and goes into a file without a name beside the new directory. The model that reads is
 * one of 8 bits, made of the source first: half its bytes, and means of squares hardly differ from those of 16. */
#include "calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "convert/convert.h"
#include "documents.h"
#include "engine/experts.h"
#include "progress.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define PIECE 1024     /* tokens that are read from an empty context */
#define MIN_TOKENS 256 /* fewer say nothing */
#define ENOUGH_TOKENS 16384
#define MAX_TOKEN_BYTES 64

typedef struct reading {
    const calibrate_options *opt;
    mf_model *model;
    mf_session *session;
    mf__tokenizer *tok;
    mf__sample *sample;
    mf__hash hash;
    progress bar;
    int64_t piece;
    int64_t n_documents; /* of which some was read */
    mf_status status;    /* of what the probe does */
    mf_error error;
    int64_t at, n; /* rows of the pass at hand; tokens that were counted are before it */
} reading;

/* ---- the probe ---------------------------------------------------------------------------------------------------- */

static void on_probe(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    reading *r = user;
    (void)n_cols;
    if (r->status != MF_OK) return;
    if (!strcmp(name, "embed")) { /* a pass begins: all layers have had the one before */
        mf__sample_count(r->sample, r->n);
        r->n = n_rows;
    } else if (!strcmp(name, "h_post")) {
        r->status = mf__sample_rows(r->sample, layer, data, n_rows, &r->error);
    } else if (!strcmp(name, "route_ids")) {
        r->status = mf__sample_ids(r->sample, layer, data, n_rows, &r->error);
    } else if (!strcmp(name, "route_shares")) {
        r->status = mf__sample_shares(r->sample, layer, data, n_rows, &r->error);
    }
}

static bool stop_reading(void *user) {
    const reading *r = user;
    return r->status != MF_OK || app_interrupted(NULL);
}

/* ---- the text ----------------------------------------------------------------------------------------------------- */

static int64_t n_read(const reading *r) {
    return mf__sample_tokens(r->sample) + r->n;
}

static mf_status read_pieces(reading *r, const int32_t *ids, int64_t n, mf_error *err) {
    for (int64_t done = 0; done < n && n_read(r) < r->opt->n_tokens;) {
        int64_t left = r->opt->n_tokens - n_read(r), some = n - done < r->piece ? n - done : r->piece;
        if (some > left) some = left;
        mf_memory_clear(r->session);
        mf_status st = mf_eval_prompt(r->session, ids + done, (size_t)some, 0, NULL, 0, err);
        if (r->status != MF_OK) {
            if (err) *err = r->error;
            return r->status;
        }
        MF__TRY(st);
        mf__hash_update(&r->hash, ids + done, (size_t)some * sizeof *ids);
        done += some;
        progress_show(&r->bar, n_read(r), r->opt->n_tokens);
    }
    return MF_OK;
}

static mf_status read_text(reading *r, const char *text, size_t size, mf_error *err) {
    const char *doc;
    size_t at = 0, doc_size;
    while (n_read(r) < r->opt->n_tokens && document_next(text, size, &at, &doc, &doc_size)) {
        size_t most = (size_t)(r->opt->n_tokens - n_read(r)) * MAX_TOKEN_BYTES, n;
        int32_t *ids;
        if (doc_size > most)
            for (doc_size = most; doc_size && ((unsigned char)doc[doc_size] & 0xc0) == 0x80;) doc_size--;
        MF__TRY(mf__tokenizer_encode(r->tok, doc, doc_size, false, &ids, &n, err));
        mf_status st = read_pieces(r, ids, (int64_t)n, err);
        r->n_documents += n > 0;
        free(ids);
        MF__TRY(st);
    }
    mf__sample_count(r->sample, r->n);
    r->n = 0;
    if (mf__sample_tokens(r->sample) >= MIN_TOKENS) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s has %lld tokens; a calibration needs %d or more, and better 16K",
                    r->opt->text, (long long)mf__sample_tokens(r->sample), MIN_TOKENS);
}

/* What calibrates to little of what there is to read: other text is better served by none, or by several. */
static void warn(const reading *r) {
    int64_t n = mf__sample_tokens(r->sample);
    if (n < ENOUGH_TOKENS && n < r->opt->n_tokens)
        app_note("%s has only %lld tokens; a calibration is better with 16K or more", r->opt->text, (long long)n);
    if (r->n_documents == 1)
        app_note("the calibration read one document only; passages of several, between lines that read <|endoftext|>, "
                 "fit other text better");
}

/* ---- the model ---------------------------------------------------------------------------------------------------- */

static mf_status open_reader(reading *r, const char *dir, const char *folder, mf_error *err) {
    app_model_options opt = {.threads = r->opt->threads, .exact = true, .no_prompts = true, .kv = MF_KV_F32};
    mf_session_options so;
    MF__TRY(app_open(dir, &opt, &r->model, err));
    MF__TRY(mf__tokenizer_open(dir, &r->tok, err));
    const mf_model_info *info = mf_model_info_get(r->model);
    if (!info->n_experts)
        return mf__fail(err, MF_E_INVALID, "the model has no routed experts that a calibration could be for");
    uint64_t reader; /* another reader is another calibration: a conversion does not go on with it */
    MF__TRY(mf__model_content(r->model, &reader, err));
    mf__hash_update(&r->hash, &reader, sizeof reader);
    r->piece = info->n_ctx < PIECE ? info->n_ctx : PIECE;
    mf__sample_shape shape = {.n_layers = info->n_layers,
                              .n_experts = info->n_experts,
                              .top_k = info->n_experts_per_token,
                              .n_hidden = info->n_hidden,
                              .max_tokens = r->opt->n_tokens};
    MF__TRY(mf__sample_create(folder, &shape, &r->sample, err));
    app_session_options(&opt, &so);
    so.n_ctx = (int32_t)r->piece;
    so.probe = (mf_probe){on_probe, r};
    so.cancel = stop_reading;
    so.cancel_user = r;
    return mf_session_create(r->model, &so, &r->session, err);
}

static mf_status read_with(const char *dir, const char *folder, const mf__map *text, reading *r, mf_error *err) {
    progress_start(&r->bar, "calibrating", "tokens");
    mf_status st = open_reader(r, dir, folder, err);
    if (st == MF_OK) st = read_text(r, (const char *)text->data, text->size, err);
    progress_end(&r->bar);
    if (st == MF_OK) warn(r);
    if (st == MF_OK)
        app_note("calibrated on %lld tokens of %s in %.1f s", (long long)mf__sample_tokens(r->sample), r->opt->text,
                 app_seconds() - r->bar.start);
    mf__tokenizer_free(r->tok);
    mf_session_free(r->session);
    mf_model_close(r->model);
    return st;
}

/* dst's name with an ending; slashes at its end do not count. malloc'd */
static char *beside(const char *dst, const char *ending) {
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    char *path = malloc(n + strlen(ending) + 1);
    if (path) sprintf(path, "%.*s%s", (int)n, dst, ending);
    return path;
}

static char *folder_of(const char *dst) {
    char *path = beside(dst, ""), *slash = path ? strrchr(path, '/') : NULL;
    if (slash == path && slash) slash++;
    if (slash)
        *slash = '\0';
    else if (path)
        strcpy(path, path[0] ? "." : "");
    return path;
}

static bool show(void *user, int64_t done, int64_t total) {
    progress_show(user, done, total);
    return app_interrupted(NULL);
}

/* A model of 8 bits in dir, for as long as it is read with. */
static mf_status make_reader(const char *src, const char *dir, int64_t threads, mf_error *err) {
    mf__convert_options opt;
    progress bar;
    mf__convert_options_init(&opt);
    opt.expert_bits = opt.trunk_bits = opt.embed_bits = opt.head_bits = 8;
    opt.n_threads = (int)threads;
    opt.restart = true;
    opt.progress = show;
    opt.progress_user = &bar;
    if (mf__path_exists(dir))
        return mf__fail(err, MF_E_EXISTS,
                        "%s exists already: an earlier calibration was killed, or it is somebody's; remove it, or give "
                        "the model that reads the text with --calibrate-with",
                        dir);
    progress_start(&bar, "making a model that reads the text", NULL);
    mf_status st = mf__convert(src, dir, &opt, err);
    progress_end(&bar);
    char *promise = st != MF_OK && err ? strstr(err->text, ". What is finished") : NULL;
    if (promise) *promise = '\0'; /* it is removed */
    return st;
}

static void remove_reader(const char *dir) {
    char *partial = beside(dir, ".partial");
    if (mf__path_exists(dir)) mf__dir_remove(dir, NULL);
    if (partial && mf__path_exists(partial)) mf__dir_remove(partial, NULL);
    free(partial);
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

mf_status calibrate(const char *src, const char *dst, const calibrate_options *opt, mf__sample **out,
                    char name[CALIBRATE_NAME], mf_error *err) {
    reading r = {.opt = opt};
    mf__map text = {0};
    char *made = beside(dst, ".calibration"), *folder = folder_of(dst), digits[17], file[41];
    mf_status st = made && folder ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    *out = NULL;
    mf__hash_init(&r.hash, 0);
    app_catch_interrupts();
    if (st == MF_OK) st = mf__map_open(opt->text, &text, err);
    if (st == MF_OK && mf__path_exists(dst))
        st = mf__fail(err, MF_E_EXISTS, "%s exists already; remove it or choose another name", dst);
    bool make = st == MF_OK && !opt->model;
    if (make) {
        bool there = mf__path_exists(made);
        st = make_reader(src, made, opt->threads, err);
        make = !there;
    }
    if (st == MF_OK) st = read_with(opt->model ? opt->model : made, folder, &text, &r, err);
    if (make) remove_reader(made);
    mf__map_close(&text);
    free(made);
    free(folder);
    if (st != MF_OK) {
        mf__sample_free(r.sample);
        return st;
    }
    mf__hash_text(mf__hash_digest(&r.hash), digits);
    snprintf(name, CALIBRATE_NAME, "%s (%.16s)", mf__utf8_clean(last_name(opt->text), file, sizeof file), digits);
    *out = r.sample;
    return MF_OK;
}
