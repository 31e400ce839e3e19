/* An answer of a form ends within the tokens that it may have.
 *
 * As long as the bytes of the shortest end are no more than the tokens that are left, any token is fine. Behind that
 * the shortest end is cut into tokens: a token behind which it does not fit is not taken, and another is drawn; after a
 * few draws the shortest end itself is said. So an end that fits at the first token fits at every later one. Where it
 * never fitted, the answer runs into the limit and its text is completed without the model (step.c). */
#include <string.h>

#include "reply/reply.h"

#define DRAWS 8

/* Tokens that can come behind the next one; *limit: what they end with. */
static int64_t left_behind(const mf_reply *r, mf_reply_end *limit) {
    int64_t left = INT64_MAX;
    *limit = MF_END_NONE;
    if (r->opt.max_tokens >= 0) left = r->opt.max_tokens - r->result.n_made - 1, *limit = MF_END_LENGTH;
    if (r->opt.n_ctx > 0 && r->opt.n_ctx - r->n_given < left) left = r->opt.n_ctx - r->n_given, *limit = MF_END_CONTEXT;
    return left < 0 ? 0 : left;
}

/* Draws again, without the token that did not fit. */
static int32_t draw_without(mf_reply *r, const float *logits, const uint32_t **mask, int32_t id) {
    if (*mask != r->mask) memcpy(r->mask, *mask, ((size_t)r->n_vocab / 32 + 1) * sizeof *r->mask);
    r->mask[id / 32] &= ~(1u << id % 32);
    *mask = r->mask;
    return mf_sampler_next_masked(r->sampler, logits, r->mask);
}

mf_status mf__reply_accept(mf_reply *r, mf_constraint *c, const float *logits, const uint32_t *mask, int32_t *id) {
    mf_reply_end limit;
    uint64_t left = (uint64_t)left_behind(r, &limit), n;
    int32_t first = -1, ignored;
    if (limit == MF_END_NONE || r->too_few) return mf_constraint_accept(c, *id, r->err);
    for (int i = 0; i < DRAWS && *id >= 0; i++) {
        mf_status st = mf__constraint_accept_within(c->inner, *id, left, r->err);
        if (st != MF_E_LIMIT) return st;
        MF__TRY(mf__constraint_way(c->inner, *id, left, &n, &ignored, r->err));
        if (n <= left) return mf_constraint_accept(c, *id, r->err);
        if (i == 0) MF__TRY(mf__constraint_way(c->inner, -1, left + 1, &n, &first, r->err));
        r->too_few = i == 0 && n > left + 1;
        if (r->too_few) return mf_constraint_accept(c, *id, r->err);
        r->shortened_by = limit;
        *id = draw_without(r, logits, &mask, *id);
    }
    *id = first;
    if (first < 0) return mf__fail(r->err, MF_E_INTERNAL, "the shortest end of the answer has no token");
    return mf_constraint_accept(c, first, r->err);
}
