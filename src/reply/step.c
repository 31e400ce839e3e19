/* A reply from token to token:
 *
 *   logits -> sampler (within the constraint) -> id -> detokenizer -> answer -> stop texts -> events */
#include <string.h>

#include "reply/reply.h"

/* ---- stop texts -------------------------------------------------------------------------------------------------- */

static mf_status send(mf_reply *r, const mf_event *e) {
    return r->opt.fn && !r->muted ? r->opt.fn(r->opt.user, e) : MF_OK;
}

/* Gives out the first n bytes of the text that was held back. */
static mf_status give(mf_reply *r, size_t n) {
    if (!n) return MF_OK;
    MF__TRY(send(r, &(mf_event){.kind = MF_EVENT_TEXT, .text = r->held.data, .n_text = n}));
    memmove(r->held.data, r->held.data + n, r->held.size - n);
    r->held.size -= n;
    return MF_OK;
}

/* Bytes at the end of the held text that a stop text could begin with. */
static size_t maybe_stop(const mf_reply *r) {
    size_t most = 0;
    for (int i = 0; i < r->n_stops; i++) {
        size_t n = strlen(r->stops[i]) - 1;
        if (n > r->held.size) n = r->held.size;
        while (n > most && memcmp(r->held.data + r->held.size - n, r->stops[i], n)) n--;
        if (n > most) most = n;
    }
    return most;
}

/* The first stop text to be complete ends the answer; of several that are complete at once, the one that begins first.
 */
static mf_status watch_stops(mf_reply *r) {
    const char *first = NULL;
    for (int i = 0; i < r->n_stops; i++) {
        const char *at = memmem(r->held.data, r->held.size, r->stops[i], strlen(r->stops[i]));
        if (at && (!first || at < first)) {
            first = at;
            r->result.stop = i;
        }
    }
    if (!first) return give(r, r->held.size - maybe_stop(r));
    r->stopped = true;
    mf_status st = give(r, (size_t)(first - r->held.data));
    mf__strbuf_clear(&r->held);
    return st;
}

mf_status mf__reply_on_event(void *reply, const mf_event *e) {
    mf_reply *r = reply;
    if (r->stopped || r->muted) return MF_OK;
    if (e->kind == MF_EVENT_TEXT) {
        if (!r->n_stops) return send(r, e);
        MF__TRY(mf__strbuf_append(&r->held, e->text, e->n_text, r->err));
        return watch_stops(r);
    }
    MF__TRY(give(r, r->held.size));
    if (e->kind == MF_EVENT_CALL_END) r->result.n_calls++;
    return send(r, e);
}

/* Which constraint holds for what comes next. */
static mf_status follow(mf_reply *r) {
    mf_event_kind part = r->answer ? mf__answer_part(r->answer) : MF_EVENT_TEXT;
    if (r->constraint && !r->bound && part == MF_EVENT_TEXT) r->bound = true;
    if (r->calls_bound && !r->tools && (part != MF_EVENT_ARGUMENTS || mf_constraint_ended(r->in_calls))) {
        r->calls_bound = false;
        mf__answer_sure(r->answer, false);
    } else if (!r->calls_bound && r->tools && mf__answer_called(r->answer)) {
        return mf__reply_hold_arguments(r, mf__answer_called(r->answer));
    } else if (!r->calls_bound && r->in_calls && mf__answer_opens_block(r->answer)) {
        mf_constraint_reset(r->in_calls);
        mf__answer_sure(r->answer, true);
        r->calls_bound = true;
    }
    return MF_OK;
}

static mf_constraint *holds(const mf_reply *r) {
    return r->bound ? r->constraint : r->calls_bound ? r->in_calls : NULL;
}

/* Passes on the text that is decided. */
static mf_status pass_on(mf_reply *r) {
    mf_status st = MF_OK;
    if (r->decoded.size && r->answer)
        st = mf_answer_push(r->answer, r->decoded.data, r->decoded.size, r->err);
    else if (r->decoded.size)
        st = mf__reply_on_event(r,
                                &(mf_event){.kind = MF_EVENT_TEXT, .text = r->decoded.data, .n_text = r->decoded.size});
    mf__strbuf_clear(&r->decoded);
    return st == MF_OK ? follow(r) : st;
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

static bool is_end(const mf_reply *r, int32_t id) {
    for (int i = 0; i < r->n_eos; i++)
        if (r->eos[i] == id) return true;
    return false;
}

static mf_event_kind part_of(const mf_reply *r) {
    return r->answer ? mf__answer_part(r->answer) : MF_EVENT_TEXT;
}

static mf_status tell_token(mf_reply *r, int32_t id, const float *logits) {
    mf_event e = {.kind = MF_EVENT_TOKEN, .token = id, .part = part_of(r), .top = r->top};
    if (!r->opt.tokens) return MF_OK;
    e.text = mf__tokenizer_bytes(r->text->tok, id, &e.n_text);
    e.n_top = r->opt.n_logprobs;
    if (e.n_top >= 0)
        e.logprob = mf_logprobs(logits, r->n_vocab, id, r->top, &e.n_top);
    else
        e.n_top = 0;
    return send(r, &e);
}

/* The tokens that may come: those of the constraint, perhaps the beginning of reasoning; all but the banned ones. */
static mf_status make_mask(mf_reply *r, const uint32_t **mask) {
    size_t words = (size_t)r->n_vocab / 32 + 1;
    mf_constraint *c = holds(r);
    *mask = NULL;
    if (c) MF__TRY(mf_constraint_mask(c, mask, r->err));
    if (c ? r->think_id < 0 : !r->n_banned) return MF_OK;
    if (c)
        memcpy(r->mask, *mask, words * sizeof *r->mask);
    else
        memset(r->mask, 0xff, words * sizeof *r->mask);
    if (c) r->mask[r->think_id / 32] |= 1u << r->think_id % 32;
    for (int i = 0; i < r->n_banned && !c; i++) r->mask[r->banned[i] / 32] &= ~(1u << r->banned[i] % 32);
    *mask = r->mask;
    return MF_OK;
}

static mf_status choose(mf_reply *r, const float *logits, int32_t *id) {
    const uint32_t *mask;
    MF__TRY(make_mask(r, &mask));
    *id = mf_sampler_next_masked(r->sampler, logits, mask);
    if (*id < 0)
        return mf__fail(r->err, MF_E_INTERNAL, "no token can be chosen: none is allowed that has a probability");
    if (r->think_id >= 0 && mask == r->mask) r->mask[r->think_id / 32] &= ~(1u << r->think_id % 32); /* only now */
    if (r->bound && *id == r->think_id) r->bound = false; /* the form begins behind the reasoning */
    r->think_id = -1;
    mf_constraint *c = holds(r);
    return c ? mf__reply_accept(r, c, logits, mask, id) : MF_OK;
}

/* A model that ends, or has used up its tokens, while it reasons owes an answer: the reasoning is ended in its place.
 */
static mf_status end_reasoning(mf_reply *r, bool evaluate) {
    MF__TRY(mf__detok_flush(&r->detok, &r->decoded, r->err));
    MF__TRY(mf__strbuf_append(&r->decoded, r->end_text.data, r->end_text.size, r->err));
    MF__TRY(pass_on(r));
    r->bound = r->constraint != NULL;
    if (!evaluate) return MF_OK;
    r->next = r->end_ids;
    r->n_next = r->n_end_ids;
    return MF_OK;
}

static bool must_end_reasoning(const mf_reply *r, int32_t id) {
    if (!r->answer || part_of(r) != MF_EVENT_REASONING) return false;
    if (is_end(r, id) || id == r->end_id) return r->constraint && !r->bound;
    return r->opt.max_reasoning > 0 && r->result.n_reasoning >= r->opt.max_reasoning;
}

static mf_reply_end why_end(const mf_reply *r) {
    if (r->stopped) return MF_END_STOP_TEXT;
    if (r->opt.one_call && r->result.n_calls) return MF_END_TOOL_CALLS;
    if (r->bound && mf_constraint_ended(r->constraint)) return MF_END_COMPLETE;
    if (r->tools && r->calls_bound && mf_constraint_ended(r->in_calls))
        return MF_END_COMPLETE; /* it waits for the tool */
    if (r->opt.max_tokens >= 0 && r->result.n_made >= r->opt.max_tokens) return MF_END_LENGTH;
    if (r->opt.n_ctx > 0 && r->n_given >= r->opt.n_ctx) return MF_END_CONTEXT;
    return MF_END_NONE;
}

static mf_status step(mf_reply *r, const float *logits) {
    int32_t id;
    MF__TRY(choose(r, logits, &id));
    if (must_end_reasoning(r, id)) {
        MF__TRY(end_reasoning(r, true));
        if (r->opt.n_ctx > 0 && r->n_given + (int64_t)r->n_next > r->opt.n_ctx) r->result.end = MF_END_CONTEXT;
        return MF_OK;
    }
    if (is_end(r, id)) {
        r->result.end = MF_END_STOP;
        return MF_OK;
    }
    r->result.n_made++;
    if (part_of(r) == MF_EVENT_REASONING) r->result.n_reasoning++;
    mf_sampler_accept(r->sampler, id);
    MF__TRY(tell_token(r, id, logits));
    MF__TRY(mf__detok_push(&r->detok, id, &r->decoded, r->err));
    MF__TRY(pass_on(r));
    r->result.end = why_end(r);
    r->chosen = id;
    r->next = &r->chosen;
    r->n_next = 1;
    return MF_OK;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* What is still held back. An answer that must be of a form, and was cut off, is completed in the shortest way. */
static mf_status complete(mf_reply *r) {
    bool owed = r->result.end != MF_END_CANCELLED && !r->stopped;
    mf__strbuf rest = {0};
    mf_status st = MF_OK;
    if (r->constraint && !r->bound && owed) MF__TRY(end_reasoning(r, false));
    mf_constraint *c = holds(r);
    if (c && owed && !mf_constraint_complete(c)) {
        st = mf__constraint_shortest(c->inner, &rest, r->err); /* may begin in the middle of a character */
        if (st == MF_OK) st = mf__detok_bytes(&r->detok, rest.data, rest.size, &r->decoded, r->err);
    }
    mf__strbuf_free(&rest);
    if (st == MF_OK) st = mf__detok_flush(&r->detok, &r->decoded, r->err);
    if (st == MF_OK) st = pass_on(r);
    if (st == MF_OK && r->answer) st = mf_answer_finish(r->answer, r->err);
    return st != MF_OK || r->stopped ? st : give(r, r->held.size);
}

static mf_status end(mf_reply *r) {
    mf_status st = complete(r);
    bool by_itself = r->result.end == MF_END_STOP || r->result.end == MF_END_COMPLETE;
    if (st == MF_OK && by_itself && r->result.n_calls) r->result.end = MF_END_TOOL_CALLS;
    by_itself = by_itself || r->result.end == MF_END_TOOL_CALLS;
    if (st == MF_OK && by_itself && r->shortened_by) r->result.end = r->shortened_by;
    return st;
}

mf_status mf_reply_step(mf_reply *r, const float *logits, const int32_t **ids, size_t *n, mf_error *err) {
    if (!r || !ids || !n || !logits) return mf__fail(err, MF_E_INVALID, "mf_reply_step: an argument is NULL");
    *ids = NULL;
    *n = 0;
    if (r->result.end != MF_END_NONE) return MF_OK;
    r->err = err;
    r->n_next = 0;
    mf_status st = MF_OK;
    if (r->opt.max_tokens == 0)
        r->result.end = MF_END_LENGTH;
    else
        st = step(r, logits);
    if (st == MF_OK && r->result.end != MF_END_NONE) st = end(r);
    if (st != MF_OK) {
        r->result.end = MF_END_FAILED;
        return st;
    }
    if (r->result.end != MF_END_NONE) return MF_OK;
    r->n_given += (int64_t)r->n_next;
    *ids = r->next;
    *n = r->n_next;
    return MF_OK;
}

mf_status mf_reply_finish(mf_reply *r, mf_error *err) {
    if (!r) return mf__fail(err, MF_E_INVALID, "mf_reply_finish: reply is NULL");
    if (r->result.end != MF_END_NONE) return MF_OK;
    r->err = err;
    r->result.end = MF_END_CANCELLED;
    mf_status st = end(r);
    if (st != MF_OK) r->result.end = MF_END_FAILED;
    return st;
}
