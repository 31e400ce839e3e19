/* Replies: made from a request. */
#include "reply/reply.h"

#include <stdlib.h>
#include <string.h>

#include "reply/form_cache.h"
#include "reply/values.h"

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
    if (o->like && (o->like->opt.request != NULL) != (o->request != NULL))
        return mf__fail(err, MF_E_INVALID, "like is a reply to a %s", o->request ? "text" : "chat request");
    return MF_OK;
}

static mf_status copy_options(mf_reply *r, const mf_model_info *info, const mf_reply_options *o, mf_error *err) {
    r->opt = *o;
    r->n_vocab = info->n_vocab;
    r->n_eos = o->ignore_eos ? 0 : info->n_eos;
    memcpy(r->eos, info->eos, sizeof r->eos);
    for (; r->n_stops < o->n_stops; r->n_stops++)
        if (!(r->stops[r->n_stops] = strdup(o->stops[r->n_stops]))) return no_memory(err);
    r->end_id = r->think_id = -1;
    return mf_sampler_create(&o->sampling, info->n_vocab, &r->sampler, err);
}

/* ---- what may be said -------------------------------------------------------------------------------------------- */

static mf_status make_mask(mf_reply *r, mf_error *err) {
    r->mask = malloc(((size_t)r->n_vocab / 32 + 1) * sizeof *r->mask);
    return r->mask ? MF_OK : no_memory(err);
}

static mf_status constrain_calls(mf_reply *r, const mf__tool_form *f, mf_constraint **out, mf_error *err) {
    const char *markers[MF__MAX_CALL_MARKERS];
    const mf__token_trie *trie;
    const mf_form *form;
    MF__TRY(mf__text_marker_trie(r->text, markers, mf__tool_form_markers(f->style, markers), &trie, err));
    MF__TRY(mf__form_cache_get(r->text, f, &form, err));
    mf_status st = mf__constraint_of(form, trie, r->n_vocab, r->eos, r->n_eos, out, err);
    mf_form_free((mf_form *)form);
    return st;
}

/* No call can be made where the marker that begins one cannot be said; where that is ordinary text, it is text. */
static void ban_calls(mf_reply *r) {
    int32_t id = mf__tokenizer_id(r->text->tok, mf__tool_form_opening(r->style));
    if (id >= 0 && id < r->n_vocab) r->banned[r->n_banned++] = id;
}

static mf_status constrain(mf_reply *r, const mf_reply_options *o, const json_t *tools, mf_error *err) {
    mf__tool_form f = {.style = r->style,
                       .tools = tools,
                       .only = o->tool_choice == MF_TOOLS_NAMED ? o->tool_name : NULL,
                       .one_call = o->one_call || o->tool_choice == MF_TOOLS_NAMED};
    MF__TRY(make_mask(r, err));
    r->calls_only = o->tool_choice == MF_TOOLS_REQUIRED || o->tool_choice == MF_TOOLS_NAMED;
    if (r->calls_only) return constrain_calls(r, &f, &r->constraint, err);
    if (o->tool_choice == MF_TOOLS_NONE) ban_calls(r);
    if (o->form) return mf_constraint_create(o->form, r->text, r->n_vocab, r->eos, r->n_eos, &r->constraint, err);
    f.inside = true;
    if (!tools || o->tool_choice == MF_TOOLS_NONE) return MF_OK;
    if (r->notation == MF__NOTATION_HARMONY) return r->tools = json_incref((json_t *)tools), MF_OK;
    return constrain_calls(r, &f, &r->in_calls, err);
}

mf_status mf__reply_hold_arguments(mf_reply *r, const char *tool) {
    mf__tool_form f = {.style = r->style, .tools = r->tools, .only = tool, .arguments = true};
    mf_constraint_free(r->in_calls);
    r->in_calls = NULL;
    if (!mf__tool_find(r->tools, (mf__span){tool, strlen(tool)})) return MF_OK;
    MF__TRY(constrain_calls(r, &f, &r->in_calls, r->err));
    mf__constraint_order(r->in_calls->inner);
    mf__answer_sure(r->answer, true);
    r->calls_bound = true;
    return MF_OK;
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */

static mf_status make_answer(mf_reply *r, const mf__request *q, mf_error *err) {
    mf__answer_setup setup = {.notation = q->notation,
                              .wrap = r->text->chat.wrap,
                              .in_reasoning = r->prompt.in_reasoning,
                              .no_calls = r->opt.tool_choice == MF_TOOLS_NONE,
                              .tools = q->tools,
                              .fn = mf__reply_on_event,
                              .user = r};
    return mf__answer_create(&setup, &r->answer, err);
}

/* The opening of the answer is written behind it once more: it goes through the constraint. */
static mf_status copy_prompt(mf_reply *r, const mf_reply *from, mf_error *err) {
    MF__TRY(mf__prompt_copy(&from->prompt, from->n_rendered, &r->prompt, err));
    r->prompt.in_reasoning = from->rendered_in_reasoning;
    return MF_OK;
}

static mf_status from_prepared(mf_reply *r, const mf_reply_options *o, const mf__request *q, mf_error *err) {
    r->notation = q->notation;
    r->style = q->style;
    MF__TRY(constrain(r, o, q->tools, err));
    MF__TRY(o->like ? copy_prompt(r, o->like, err)
                    : mf__prompt_make(r->text, q, o->n_marks, o->known, o->n_known, &r->prompt, err));
    r->n_rendered = r->prompt.n_ids;
    r->rendered_in_reasoning = r->prompt.in_reasoning;
    MF__TRY(make_answer(r, q, err));
    mf__answer_sure(r->answer, r->calls_only);
    return mf__reply_open(r, q, err);
}

static mf_status from_request(mf_reply *r, const mf_reply_options *o, mf_error *err) {
    json_t *root;
    mf__request q;
    MF__TRY(mf__chat_parse(o->request, o->request_size, &root, err));
    MF__TRY(mf__request_prepare(r->text, o, root, &q, err));
    mf_status st = from_prepared(r, o, &q, err);
    mf__request_free(&q);
    return st;
}

static mf_status from_text(mf_reply *r, const mf_reply_options *o, mf_error *err) {
    mf__prompt *p = &r->prompt;
    if (o->tool_choice == MF_TOOLS_REQUIRED || o->tool_choice == MF_TOOLS_NAMED || o->continue_last)
        return mf__fail(err, MF_E_INVALID, "tool calls and messages to continue are for chat requests");
    if (o->form) MF__TRY(mf_constraint_create(o->form, r->text, r->n_vocab, r->eos, r->n_eos, &r->constraint, err));
    if (o->form) MF__TRY(make_mask(r, err));
    r->bound = r->constraint != NULL;
    if (o->like) return mf__prompt_copy(&o->like->prompt, o->like->prompt.n_ids, p, err);
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
    if (r->constraint) mf__constraint_order(r->constraint->inner); /* a message that is continued was in any order */
    if (r->in_calls) mf__constraint_order(r->in_calls->inner);
    if (!r->prompt.n_ids) return mf__fail(err, MF_E_INVALID, "the prompt has no tokens");
    if (o->n_ctx && (int64_t)r->prompt.n_ids > o->n_ctx) /* words by which agents know that they must shorten it */
        return mf__fail(err, MF_E_CONTEXT_FULL, "the prompt is too long: %zu tokens > %lld, which the context holds",
                        r->prompt.n_ids, (long long)o->n_ctx);
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
    mf__strbuf_free(&r->end_text);
    mf_constraint_free(r->in_calls);
    json_decref(r->tools);
    free(r->mask);
    free(r->end_ids);
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
