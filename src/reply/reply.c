/* Replies: made from a request. */
#include "reply/reply.h"

#include <stdlib.h>
#include <string.h>

void mf_reply_options_init(mf_reply_options *opt) {
    if (!opt) return;
    *opt = (mf_reply_options){.max_tokens = -1, .n_logprobs = -1};
    mf_sampler_options_init(&opt->sampling);
}

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for a reply");
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static mf_status check(const mf_model_info *info, const mf_reply_options *o, mf_error *err) {
    if ((o->request != NULL) + (o->text != NULL) + (o->ids != NULL) != 1)
        return mf__fail(err, MF_E_INVALID, "a reply needs one of request, text and ids");
    if (info->n_vocab <= 0 || info->n_eos < 0 || info->n_eos > MF_MAX_EOS)
        return mf__fail(err, MF_E_INVALID, "a model with %d tokens, of which %d end an answer", (int)info->n_vocab,
                        (int)info->n_eos);
    if (o->request_size > MF__MAX_BYTES || o->text_size > MF__MAX_BYTES || o->n_ids > MF__MAX_IDS ||
        o->n_known > MF__MAX_IDS)
        return mf__fail(err, MF_E_INVALID, "a request, text or list of tokens of more than %zu bytes", MF__MAX_BYTES);
    if (o->tool_choice < MF_TOOLS_AUTO || o->tool_choice > MF_TOOLS_NAMED ||
        (o->tool_choice == MF_TOOLS_NAMED && !o->tool_name))
        return mf__fail(err, MF_E_INVALID, "tool_choice is %d, and tool_name %s", (int)o->tool_choice,
                        o->tool_name ? o->tool_name : "NULL");
    if (o->reasoning < MF_SWITCH_AUTO || o->reasoning > MF_SWITCH_OFF || o->max_reasoning < 0)
        return mf__fail(err, MF_E_INVALID, "reasoning is %d, max_reasoning %lld", (int)o->reasoning,
                        (long long)o->max_reasoning);
    if (o->max_tokens < -1) return mf__fail(err, MF_E_INVALID, "max_tokens is %lld", (long long)o->max_tokens);
    if (o->n_ctx < 0) return mf__fail(err, MF_E_INVALID, "n_ctx is %lld", (long long)o->n_ctx);
    if (o->n_logprobs < -1 || o->n_logprobs > MF_REPLY_MAX_LOGPROBS)
        return mf__fail(err, MF_E_INVALID, "n_logprobs is %d; expected -1 to %d", o->n_logprobs, MF_REPLY_MAX_LOGPROBS);
    if (o->n_stops < 0 || o->n_stops > MF_REPLY_MAX_STOPS || (o->n_stops && !o->stops))
        return mf__fail(err, MF_E_INVALID, "%d stop texts; expected 0 to %d", o->n_stops, MF_REPLY_MAX_STOPS);
    for (int i = 0; i < o->n_stops; i++)
        if (!o->stops[i] || !*o->stops[i] || strlen(o->stops[i]) > MF__STOP_BYTES)
            return mf__fail(err, MF_E_INVALID, "stop text %d is empty or longer than %d bytes", i + 1, MF__STOP_BYTES);
    if (o->n_marks < 0 || o->n_marks > MF_REPLY_MAX_MARKS || (o->n_marks && !o->marks))
        return mf__fail(err, MF_E_INVALID, "%d marks; expected 0 to %d", o->n_marks, MF_REPLY_MAX_MARKS);
    if (o->n_known && !o->known) return mf__fail(err, MF_E_INVALID, "known is NULL");
    return MF_OK;
}

static mf_status copy_options(mf_reply *r, const mf_model_info *info, const mf_reply_options *o, mf_error *err) {
    r->opt = *o;
    r->n_vocab = info->n_vocab;
    r->n_eos = o->ignore_eos ? 0 : info->n_eos;
    memcpy(r->eos, info->eos, sizeof r->eos);
    for (; r->n_stops < o->n_stops; r->n_stops++)
        if (!(r->stops[r->n_stops] = strdup(o->stops[r->n_stops]))) return no_memory(err);
    MF__TRY(mf_sampler_create(&o->sampling, info->n_vocab, &r->sampler, err));
    if (!o->form) return MF_OK;
    return mf_constraint_create(o->form, r->text, info->n_vocab, r->eos, r->n_eos, &r->constraint, err);
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

/* The names that templates give the switch for thinking. */
static int set_reasoning(json_t *extra, const mf_reply_options *o) {
    int bad = 0;
    if (o->reasoning != MF_SWITCH_AUTO) {
        bool on = o->reasoning == MF_SWITCH_ON;
        bad |= json_object_set_new(extra, "enable_thinking", json_boolean(on));
        bad |= json_object_set_new(extra, "thinking", json_boolean(on));
        if (!on) bad |= json_object_set_new(extra, "reasoning_effort", json_string("low"));
    }
    if (o->effort) bad |= json_object_set_new(extra, "reasoning_effort", json_string(o->effort));
    return bad;
}

static mf_status prepare_request(const mf_reply_options *o, json_t *request, mf_error *err) {
    if (!json_is_object(request)) return mf__fail(err, MF_E_FORMAT, "a request is a JSON object");
    json_t *given = json_object_get(request, "extra");
    if (given && !json_is_object(given) && !json_is_null(given))
        return mf__fail(err, MF_E_FORMAT, "\"extra\" is %s, expected an object", mf__json_type_name(given));
    json_t *extra = json_is_object(given) ? json_incref(given) : json_object();
    int bad = !extra || set_reasoning(extra, o) || json_object_set(request, "extra", extra) ||
              json_object_set_new(request, "add_generation_prompt", json_true());
    json_decref(extra);
    return bad ? no_memory(err) : MF_OK;
}

static mf_status make_answer(mf_reply *r, const json_t *request, mf_error *err) {
    mf__answer_setup setup = {.notation = r->text->chat.notation,
                              .in_reasoning = r->prompt.in_reasoning,
                              .tools = json_object_get(request, "tools"),
                              .fn = mf__reply_on_event,
                              .user = r};
    MF__TRY(mf__answer_create(&setup, &r->answer, err));
    if (!r->prompt.in_reasoning) return MF_OK;
    return mf__tokenizer_encode(r->text->tok, MF__END_THINK, sizeof MF__END_THINK - 1, true, &r->end_think,
                                &r->n_end_think, err);
}

/* Channels are outside of what a form describes: such an answer begins in the final one. */
static mf_status open_final(mf_reply *r, mf_error *err) {
    static const char opening[] = "<|channel|>final<|message|>";
    int32_t *ids;
    size_t n;
    if (r->text->chat.notation != MF__NOTATION_HARMONY || !r->constraint) return MF_OK;
    MF__TRY(mf__tokenizer_encode(r->text->tok, opening, sizeof opening - 1, true, &ids, &n, err));
    mf_status st = mf__prompt_append(&r->prompt, ids, n, err);
    free(ids);
    return st == MF_OK ? mf_answer_push(r->answer, opening, sizeof opening - 1, err) : st;
}

static mf_status from_request(mf_reply *r, const mf_reply_options *o, mf_error *err) {
    json_t *request;
    MF__TRY(mf__chat_parse(o->request, o->request_size, &request, err));
    mf__prompt_request q = {
        .request = request, .marks = o->marks, .n_marks = o->n_marks, .known = o->known, .n_known = o->n_known};
    mf_status st = prepare_request(o, request, err);
    if (st == MF_OK) st = mf__prompt_make(r->text, &q, &r->prompt, err);
    if (st == MF_OK) st = make_answer(r, request, err);
    if (st == MF_OK) st = open_final(r, err);
    json_decref(request);
    return st;
}

static mf_status from_text(mf_reply *r, const mf_reply_options *o, mf_error *err) {
    mf__prompt *p = &r->prompt;
    if (o->text)
        MF__TRY(mf__tokenizer_encode(r->text->tok, o->text, o->text_size, o->text_special, &p->ids, &p->n_ids, err));
    else
        MF__TRY(mf__prompt_append(p, o->ids, o->n_ids, err));
    for (size_t i = 0; i < p->n_ids; i++)
        if (p->ids[i] < 0 || p->ids[i] >= r->n_vocab)
            return mf__fail(err, MF_E_TOKEN, "token %d of the prompt is %d; the vocabulary has %d", (int)i,
                            (int)p->ids[i], (int)r->n_vocab);
    p->marks[p->n_marks++] = (int64_t)p->n_ids;
    return MF_OK;
}

static mf_status create(mf_reply *r, const mf_model_info *info, const mf_reply_options *o, mf_error *err) {
    r->err = err;
    mf__detok_init(&r->detok, r->text->tok);
    MF__TRY(copy_options(r, info, o, err));
    MF__TRY(o->request ? from_request(r, o, err) : from_text(r, o, err));
    if (!r->prompt.n_ids) return mf__fail(err, MF_E_INVALID, "the prompt has no tokens");
    if (o->n_ctx && (int64_t)r->prompt.n_ids > o->n_ctx)
        return mf__fail(err, MF_E_CONTEXT_FULL, "the %zu tokens of the prompt do not fit in a context of %lld",
                        r->prompt.n_ids, (long long)o->n_ctx);
    r->bound = r->constraint && !r->prompt.in_reasoning;
    r->n_given = r->result.n_prompt = (int64_t)r->prompt.n_ids;
    r->result.stop = -1;
    return MF_OK;
}

mf_status mf_reply_create(const mf_text *text, const mf_model_info *info, const mf_reply_options *opt, mf_reply **out,
                          mf_error *err) {
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_reply_create: out is NULL");
    *out = NULL;
    if (!text || !info || !opt) return mf__fail(err, MF_E_INVALID, "mf_reply_create: an argument is NULL");
    MF__TRY(check(info, opt, err));
    mf_reply *r = calloc(1, sizeof *r);
    if (!r) return no_memory(err);
    r->text = text;
    mf_status st = create(r, info, opt, err);
    if (st == MF_OK)
        *out = r;
    else
        mf_reply_free(r);
    return st;
}

void mf_reply_free(mf_reply *r) {
    if (!r) return;
    for (int i = 0; i < r->n_stops; i++) free(r->stops[i]);
    mf__prompt_free(&r->prompt);
    mf_sampler_free(r->sampler);
    mf_answer_free(r->answer);
    mf_constraint_free(r->constraint);
    mf__strbuf_free(&r->decoded);
    mf__strbuf_free(&r->held);
    free(r->end_think);
    free(r);
}

void mf_reply_prompt_get(const mf_reply *r, mf_reply_prompt *out) {
    if (!r || !out) return;
    *out = (mf_reply_prompt){.ids = r->prompt.ids,
                             .n_ids = r->prompt.n_ids,
                             .marks = r->prompt.marks,
                             .n_marks = r->prompt.n_marks,
                             .asked = r->prompt.asked,
                             .in_reasoning = r->prompt.in_reasoning};
}

void mf_reply_result_get(const mf_reply *r, mf_reply_result *out) {
    if (r && out) *out = r->result;
}
