/* Between prompt and answer.
 *
 *   <think> models   (and those with other markers, mf__think_of) the prompt may open the reasoning; forced to end it,
 *                    one writes "\n</think>\n\n"
 *   gpt-oss          an answer of a form begins in its channel: analysis first if it may reason, then final, or
 *                    commentary for a tool
 *   a message that is continued: its reasoning and text, as if the model had said them */
#include <stdlib.h>
#include <string.h>

#include "reply/reply.h"

#define FINAL "<|channel|>final<|message|>"
#define ANALYSIS "<|channel|>analysis<|message|>"
#define NEXT "<|end|><|start|>assistant"

/* Text of our own (markers count) or of the request's (they do not), at the end of the prompt. */
static mf_status write(mf_reply *r, const char *text, size_t n, bool own, mf_error *err) {
    int32_t *ids;
    size_t n_ids;
    if (!n) return MF_OK;
    MF__TRY(mf__tokenizer_encode(r->text->tok, text, n, own, &ids, &n_ids, err));
    mf_status st = mf__prompt_append(&r->prompt, ids, n_ids, err);
    for (size_t i = 0; st == MF_OK && !own && r->constraint && r->bound && i < n_ids; i++) {
        st = mf_constraint_accept(r->constraint, ids[i], err);
        if (st != MF_OK)
            st = mf__fail(err, MF_E_INVALID, "the message that is to be continued does not begin as its form demands");
    }
    free(ids);
    return st == MF_OK ? mf_answer_push(r->answer, text, n, err) : st;
}

static mf_status write_own(mf_reply *r, const char *text, mf_error *err) {
    return write(r, text, strlen(text), true, err);
}

static const char *harmony_channel(const mf_reply *r) {
    return r->calls_only ? "<|channel|>commentary to=functions." : FINAL;
}

/* The analysis is left by <|end|> alone: what follows is written here. */
static void stay_in_analysis(mf_reply *r) {
    static const char *const others[] = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"};
    for (size_t i = 0; i < MF__COUNT(others); i++) {
        int32_t id = mf__tokenizer_id(r->text->tok, others[i]);
        if (id >= 0 && id < r->n_vocab) r->banned[r->n_banned++] = id;
    }
}

static mf_status open_harmony(mf_reply *r, mf_error *err) {
    if (!r->constraint) return MF_OK;
    r->prompt.in_reasoning = r->opt.reasoning != MF_SWITCH_OFF;
    if (r->prompt.in_reasoning) {
        stay_in_analysis(r);
        return write_own(r, ANALYSIS, err);
    }
    r->bound = true;
    return write_own(r, harmony_channel(r), err);
}

/* A message that is continued. With no text yet, its reasoning is. */
static mf_status write_last(mf_reply *r, const json_t *last, mf_error *err) {
    const json_t *reasoning = json_object_get(last, "reasoning_content"), *content = json_object_get(last, "content");
    const char *thought = json_string_value(reasoning);
    size_t n_thought = json_string_length(reasoning), n = json_string_length(content);
    bool harmony = r->notation == MF__NOTATION_HARMONY, in = r->prompt.in_reasoning;
    const mf__think *think = mf__think_of(r->notation);
    if (n_thought && !in) MF__TRY(write_own(r, harmony ? ANALYSIS : think->open, err));
    if (n_thought && !in && !harmony && think->end[0] == '\n') MF__TRY(write_own(r, "\n", err));
    MF__TRY(write(r, thought, n_thought, false, err));
    r->prompt.in_reasoning = (in || n_thought) && !n;
    if (!n) return MF_OK;
    if (in || n_thought) MF__TRY(write_own(r, harmony ? NEXT : think->end, err));
    if (harmony) MF__TRY(write_own(r, FINAL, err));
    r->bound = r->constraint != NULL;
    return write(r, json_string_value(content), n, false, err);
}

static mf_status prepare_end(mf_reply *r, mf_error *err) {
    bool harmony = r->notation == MF__NOTATION_HARMONY;
    if (harmony)
        MF__TRY(mf__strbuf_printf(&r->end_text, err, "%s%s", NEXT, harmony_channel(r)));
    else
        MF__TRY(mf__strbuf_printf(&r->end_text, err, "%s", mf__think_of(r->notation)->end));
    r->end_id = harmony && r->constraint ? mf__tokenizer_id(r->text->tok, "<|end|>") : -1;
    return mf__tokenizer_encode(r->text->tok, r->end_text.data, r->end_text.size, true, &r->end_ids, &r->n_end_ids,
                                err);
}

/* A model that opens its reasoning itself may do so before an answer of a form. */
static void let_think(mf_reply *r, bool closed) {
    bool may = r->text->chat.has_reasoning && r->opt.reasoning != MF_SWITCH_OFF && !closed;
    if (r->constraint && r->bound && may && r->notation != MF__NOTATION_HARMONY)
        r->think_id = mf__tokenizer_id(r->text->tok, mf__think_of(r->notation)->open);
}

mf_status mf__reply_open(mf_reply *r, const mf__request *request, mf_error *err) {
    mf_status st = MF_OK;
    r->muted = true;
    r->bound = r->constraint && !r->prompt.in_reasoning && r->notation != MF__NOTATION_HARMONY;
    if (request->last)
        st = write_last(r, request->last, err);
    else if (r->notation == MF__NOTATION_HARMONY)
        st = open_harmony(r, err);
    else
        let_think(r, r->prompt.closed_reasoning);
    mf__answer_begin_here(r->answer);
    r->muted = false;
    return st == MF_OK ? prepare_end(r, err) : st;
}
