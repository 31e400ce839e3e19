/* One answer, token by token. */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

/* ---- a model to talk to ------------------------------------------------------------------------------------------ */

static mf_status open_talker(talker *t, const char *dir, const app_model_options *opt, sampling_options *sampling,
                             mf_error *err) {
    mf_session_options so;
    MF__TRY(sampling_form(sampling, &t->form, err));
    MF__TRY(app_open(dir, opt, &t->model, err));
    t->info = mf_model_info_get(t->model);
    MF__TRY(sampling_finish(sampling, dir, err));
    MF__TRY(mf_text_open(dir, &t->text, err));
    mf_text_info_get(t->text, &t->about);
    app_session_options(opt, &so);
    t->n_ctx = so.n_ctx ? so.n_ctx : t->info->n_ctx;
    MF__TRY(mf_session_create(t->model, &so, &t->session, err));
    t->logits = malloc((size_t)t->info->n_vocab * sizeof *t->logits);
    return t->logits ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for logits");
}

mf_status talker_open(const char *dir, const app_model_options *opt, sampling_options *sampling, talker *out,
                      mf_error *err) {
    *out = (talker){0};
    mf_status st = open_talker(out, dir, opt, sampling, err);
    if (st != MF_OK) talker_close(out);
    return st;
}

void talker_close(talker *t) {
    free(t->logits);
    mf_form_free(t->form);
    mf_text_close(t->text);
    mf_session_free(t->session);
    mf_model_close(t->model);
    *t = (talker){0};
}

mf_status talker_save(const talker *t, const char *path, mf_error *err) {
    return mf_state_save_file(t->session, path, err);
}

mf_status talker_load(const talker *t, const char *path, mf_error *err) {
    return mf_state_load_file(t->session, path, err);
}

/* ---- one answer -------------------------------------------------------------------------------------------------- */

static const char *reason(mf_reply_end end) {
    switch (end) {
    case MF_END_STOP: return "the model ended";
    case MF_END_STOP_TEXT: return "stop text";
    case MF_END_LENGTH: return "token limit";
    case MF_END_TOOL_CALLS: return "tool calls";
    case MF_END_COMPLETE: return "complete";
    case MF_END_CONTEXT: return "context full";
    default: return "interrupted";
    }
}

static mf_status read_prompt(talker *t, const answer_request *r, const mf_reply *reply, answer *a, mf_error *err) {
    mf_reply_prompt p;
    mf_reply_prompt_get(reply, &p);
    a->n_prompt = (int64_t)p.n_ids;
    if (r->before) r->before(r->options.user, &p);
    return mf_prompt(t->session, p.ids, p.n_ids, p.marks, p.n_marks, t->logits, (size_t)t->info->n_vocab, &a->n_reused,
                     err);
}

static mf_status generate(talker *t, mf_reply *reply, answer *a, mf_error *err) {
    for (;;) {
        const int32_t *ids;
        size_t n;
        MF__TRY(mf_reply_step(reply, t->logits, &ids, &n, err));
        if (!n) return MF_OK;
        if (app_output_closed()) {
            a->stopped = "output closed";
            return MF_OK;
        }
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "interrupted");
        MF__TRY(
            mf_eval_prompt(t->session, ids, n, mf_memory_length(t->session), t->logits, (size_t)t->info->n_vocab, err));
    }
}

/* What was said comes out also when the next token failed. */
static mf_status say_it(talker *t, const answer_request *r, mf_reply *reply, answer *a, mf_error *err) {
    double start = app_seconds();
    mf_status st = read_prompt(t, r, reply, a, err);
    a->prompt_seconds = app_seconds() - start;
    start = app_seconds();
    bool begun = st == MF_OK;
    if (begun) st = generate(t, reply, a, err);
    a->interrupted = st == MF_E_CANCELLED;
    if (a->interrupted) st = MF_OK;
    mf_error why;
    mf_status end = begun ? mf_reply_finish(reply, &why) : MF_OK;
    if (st == MF_OK && end != MF_OK) {
        *err = why;
        st = end;
    }
    a->made_seconds = app_seconds() - start;
    return st;
}

mf_status answer_make(talker *t, const answer_request *r, answer *out, mf_error *err) {
    mf_stats before, after;
    mf_reply_options opt = r->options;
    mf_reply_result result;
    mf_logit_bias bias[APP_MAX_LIST];
    mf_reply *reply;
    *out = (answer){0};
    MF__TRY(sampling_apply(r->sampling, t->info->n_vocab, r->seed, bias, &opt, err));
    opt.n_ctx = t->n_ctx;
    opt.form = t->form;
    MF__TRY(mf_reply_create(t->text, t->info, &opt, &reply, err));
    mf_session_stats_get(t->session, &before);
    mf_status st = say_it(t, r, reply, out, err);
    mf_session_stats_get(t->session, &after);
    mf_reply_result_get(reply, &result);
    out->n_made = result.n_made;
    if (!out->stopped) out->stopped = reason(result.end);
    out->full = result.end == MF_END_CONTEXT;
    out->wanted = after.wanted - before.wanted;
    out->hits = after.hits - before.hits;
    mf_reply_free(reply);
    return st;
}

static double rate(int64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

void answer_describe(const answer *a, char text[ANSWER_TEXT]) {
    char reused[32] = "", experts[48] = "";
    if (a->n_reused) snprintf(reused, sizeof reused, " (%lld reused)", (long long)a->n_reused);
    if (a->wanted)
        snprintf(experts, sizeof experts, ", experts %.1f %% in memory", 100.0 * (double)a->hits / (double)a->wanted);
    snprintf(text, ANSWER_TEXT, "prompt %lld tokens%s at %.1f tokens/s, generated %lld at %.1f tokens/s%s",
             (long long)a->n_prompt, reused, rate(a->n_prompt - a->n_reused, a->prompt_seconds), (long long)a->n_made,
             rate(a->n_made, a->made_seconds), experts);
}
