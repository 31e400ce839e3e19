/* One answer, token by token. */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/file.h"

/* ---- a model to talk to ------------------------------------------------------------------------------------------ */

static mf_status open_talker(talker *t, const char *dir, const app_model_options *opt, sampling_options *sampling,
                             mf_error *err) {
    mf_session_options so;
    MF__TRY(sampling_grammar(sampling, &t->grammar, err));
    MF__TRY(app_open(dir, opt, &t->model, err));
    t->info = mf_model_info_get(t->model);
    MF__TRY(sampling_finish(sampling, dir, err));
    MF__TRY(mf__tokenizer_open(dir, &t->tok, err));
    MF__TRY(mf__chat_open(dir, t->tok, &t->format, err));
    if (t->grammar) MF__TRY(mf__token_trie_create(t->tok, &t->trie, err));
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
    mf__token_trie_free(t->trie);
    mf__grammar_free(t->grammar);
    mf__chat_close(&t->format);
    mf__tokenizer_free(t->tok);
    mf_session_free(t->session);
    mf_model_close(t->model);
    *t = (talker){0};
}

mf_status talker_save(const talker *t, const char *path, mf_error *err) {
    size_t size, written;
    MF__TRY(mf_state_size(t->session, &size, err));
    void *buf = malloc(size ? size : 1);
    if (!buf) return mf__fail(err, MF_E_NOMEM, "no memory for a state of %zu bytes", size);
    mf_status st = mf_state_save(t->session, buf, size, &written, err);
    if (st == MF_OK) st = mf__file_replace(path, buf, written, err);
    free(buf);
    return st;
}

mf_status talker_load(const talker *t, const char *path, mf_error *err) {
    mf__map map;
    MF__TRY(mf__map_open(path, &map, err));
    mf_status st = mf_state_load(t->session, map.data, map.size, err);
    mf__map_close(&map);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "%s", path);
}

/* ---- while it speaks --------------------------------------------------------------------------------------------- */

typedef struct speech {
    talker *t;
    const answer_request *r;
    answer *a;
    mf_sampler *sampler;
    mf__detok detok;
    mf__outparse *parser;       /* NULL when raw */
    mf__constraint *constraint; /* NULL when free */
    bool bound;                 /* the constraint holds: reasoning is over */
    mf__strbuf text;            /* decided, not yet parsed */
    mf__strbuf held;            /* answer that may be the beginning of a stop text */
    mf__strbuf tail;            /* last bytes of reasoning, where its end is looked for */
    bool stopped;               /* a stop text has come */
    mf_error *err;
} speech;

static bool is_end(const speech *s, int32_t id) {
    for (int32_t i = 0; i < s->t->info->n_eos; i++)
        if (s->t->info->eos[i] == id) return true;
    return false;
}

static mf_status give(speech *s, size_t n) {
    if (!n) return MF_OK;
    MF__TRY(s->r->fn(s->r->user, &(mf__out_event){.kind = MF__OUT_TEXT, .text = s->held.data, .n_text = n}));
    memmove(s->held.data, s->held.data + n, s->held.size - n);
    s->held.size -= n;
    return MF_OK;
}

/* Bytes at the end of the held text that a stop text could begin with. */
static size_t maybe_stop(const speech *s) {
    size_t most = 0;
    for (int i = 0; i < s->r->sampling->stop.n; i++) {
        const char *stop = s->r->sampling->stop.items[i];
        size_t n = strlen(stop);
        if (n) n = n - 1 < s->held.size ? n - 1 : s->held.size;
        while (n > most && memcmp(s->held.data + s->held.size - n, stop, n)) n--;
        if (n > most) most = n;
    }
    return most;
}

static mf_status watch_stops(speech *s) {
    const char *first = NULL;
    for (int i = 0; i < s->r->sampling->stop.n; i++) {
        const char *stop = s->r->sampling->stop.items[i];
        const char *at = *stop ? memmem(s->held.data, s->held.size, stop, strlen(stop)) : NULL;
        if (at && (!first || at < first)) first = at;
    }
    if (!first) return give(s, s->held.size - maybe_stop(s));
    s->stopped = true;
    mf_status st = give(s, (size_t)(first - s->held.data));
    mf__strbuf_clear(&s->held);
    return st;
}

static mf_status on_event(void *user, const mf__out_event *event) {
    speech *s = user;
    if (s->stopped) return MF_OK;
    if (event->kind == MF__OUT_TEXT) {
        MF__TRY(mf__strbuf_append(&s->held, event->text, event->n_text, s->err));
        return watch_stops(s);
    }
    MF__TRY(give(s, s->held.size));
    return s->r->fn(s->r->user, event);
}

/* Passes on the text that is decided. */
static mf_status pass_on(speech *s, mf_error *err) {
    mf_status st = MF_OK;
    if (s->text.size && s->parser)
        st = mf__outparse_push(s->parser, s->text.data, s->text.size, err);
    else if (s->text.size)
        st = on_event(s, &(mf__out_event){.kind = MF__OUT_TEXT, .text = s->text.data, .n_text = s->text.size});
    if (st == MF_OK && s->constraint && !s->bound) {
        st = mf__strbuf_append(&s->tail, s->text.data, s->text.size, err);
        s->bound = s->tail.size && memmem(s->tail.data, s->tail.size, "</think>", 8);
    }
    mf__strbuf_clear(&s->text);
    return st;
}

static mf_status choose(speech *s, int32_t *id, mf_error *err) {
    const uint32_t *mask = NULL;
    if (s->bound) MF__TRY(mf__constraint_mask(s->constraint, &mask, err));
    *id = mf__sampler_next_masked(s->sampler, s->t->logits, mask);
    if (*id < 0) return mf__fail(err, MF_E_INTERNAL, "no token can be chosen: none is allowed that has a probability");
    if (s->r->token) s->r->token(s->r->user, *id, s->t->logits);
    return s->bound ? mf__constraint_accept(s->constraint, *id, err) : MF_OK;
}

/* A model that ends, or runs out of tokens, while it reasons owes an answer that must be of a form: the reasoning is
 * ended in its place. */
static mf_status end_reasoning(speech *s, bool evaluate, mf_error *err) {
    static const char end[] = "\n</think>\n\n";
    size_t n_vocab = (size_t)s->t->info->n_vocab, n;
    int32_t *ids;
    MF__TRY(mf__detok_flush(&s->detok, &s->text, err));
    MF__TRY(mf__strbuf_append(&s->text, end, sizeof end - 1, err));
    MF__TRY(pass_on(s, err));
    s->bound = true;
    if (!evaluate) return MF_OK;
    MF__TRY(mf__tokenizer_encode(s->t->tok, end, sizeof end - 1, true, &ids, &n, err));
    mf_status st = mf_eval_prompt(s->t->session, ids, n, mf_memory_length(s->t->session), s->t->logits, n_vocab, err);
    free(ids);
    return st;
}

/* One token: chosen, and given out. a->stopped is set when it was the last. */
static mf_status speak(speech *s, int32_t *id, mf_error *err) {
    answer *a = s->a;
    MF__TRY(choose(s, id, err));
    if (is_end(s, *id) && s->constraint && !s->bound) {
        MF__TRY(end_reasoning(s, true, err));
        MF__TRY(choose(s, id, err));
    }
    if (is_end(s, *id)) {
        a->stopped = "the model ended";
        return MF_OK;
    }
    a->n_made++;
    mf_sampler_accept(s->sampler, *id);
    MF__TRY(mf__detok_push(&s->detok, *id, &s->text, err));
    MF__TRY(pass_on(s, err));
    if (s->stopped)
        a->stopped = "stop text";
    else if (s->bound && mf__constraint_ended(s->constraint))
        a->stopped = "complete";
    else if (app_output_closed())
        a->stopped = "output closed";
    else if (a->n_made >= s->r->sampling->n_tokens)
        a->stopped = "token limit";
    else if (mf_memory_length(s->t->session) >= s->t->n_ctx)
        a->stopped = "context full";
    return MF_OK;
}

static mf_status generate(speech *s, mf_error *err) {
    size_t n_vocab = (size_t)s->t->info->n_vocab;
    if (s->r->sampling->n_tokens == 0) s->a->stopped = "token limit";
    while (!s->a->stopped) {
        int32_t id;
        MF__TRY(speak(s, &id, err));
        if (s->a->stopped) break;
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "interrupted");
        MF__TRY(mf_eval_token(s->t->session, id, mf_memory_length(s->t->session), s->t->logits, n_vocab, err));
    }
    return MF_OK;
}

/* What is still held back. An answer that must be of a form, and was cut off, is completed in the shortest way. */
static mf_status finish(speech *s, mf_error *err) {
    MF__TRY(mf__detok_flush(&s->detok, &s->text, err));
    if (s->constraint && !s->bound && !s->a->interrupted) MF__TRY(end_reasoning(s, false, err));
    if (s->bound && !s->a->interrupted && !s->stopped && !mf__constraint_complete(s->constraint))
        MF__TRY(mf__constraint_shortest(s->constraint, &s->text, err));
    MF__TRY(pass_on(s, err));
    if (s->parser) MF__TRY(mf__outparse_finish(s->parser, err));
    return s->stopped ? MF_OK : give(s, s->held.size);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static const char *opening_of_answer(const speech *s) {
    bool harmony = s->t->format.out == MF__OUT_HARMONY && !s->r->raw;
    return harmony && s->constraint ? "<|channel|>final<|message|>" : "";
}

static mf_status prepare(speech *s, mf_error *err) {
    talker *t = s->t;
    mf__out_options po = {.format = t->format.out, .in_reasoning = s->r->in_reasoning, .fn = on_event, .user = s};
    mf__detok_init(&s->detok, t->tok);
    MF__TRY(sampling_make(s->r->sampling, t->info->n_vocab, s->r->seed, &s->sampler, err));
    if (t->grammar)
        MF__TRY(mf__constraint_create(t->grammar, t->trie, t->info->n_vocab, t->info->eos, t->info->n_eos,
                                      &s->constraint, err));
    s->bound = s->constraint && (s->r->raw || !s->r->in_reasoning);
    if (s->r->raw) return MF_OK;
    MF__TRY(mf__outparse_create(&po, &s->parser, err));
    const char *opening = opening_of_answer(s);
    return mf__outparse_push(s->parser, opening, strlen(opening), err);
}

/* Channels are outside of what a grammar describes: such an answer begins in the final one. */
static mf_status read_prompt(speech *s, mf_error *err) {
    const char *opening = opening_of_answer(s);
    int32_t *more = NULL;
    size_t n = 0, n_vocab = (size_t)s->t->info->n_vocab;
    if (*opening) MF__TRY(mf__tokenizer_encode(s->t->tok, opening, strlen(opening), true, &more, &n, err));
    int32_t *ids = malloc((s->r->n_ids + n + 1) * sizeof *ids);
    mf_status st = ids ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for the prompt");
    if (ids) {
        memcpy(ids, s->r->ids, s->r->n_ids * sizeof *ids);
        if (n) memcpy(ids + s->r->n_ids, more, n * sizeof *ids);
        s->a->n_prompt = (int64_t)(s->r->n_ids + n);
        st = mf_prompt(s->t->session, ids, s->r->n_ids + n, s->r->marks, s->r->n_marks, s->t->logits, n_vocab,
                       &s->a->n_reused, err);
    }
    free(ids);
    free(more);
    return st;
}

static mf_status say_it(speech *s, mf_error *err) {
    double start = app_seconds();
    MF__TRY(prepare(s, err));
    mf_status st = read_prompt(s, err);
    s->a->prompt_seconds = app_seconds() - start;
    start = app_seconds();
    bool begun = st == MF_OK;
    if (begun) st = generate(s, err);
    if (st == MF_E_CANCELLED) {
        s->a->interrupted = true;
        s->a->stopped = "interrupted";
        st = MF_OK;
    }
    mf_error why; /* what was said comes out also when the next token failed */
    mf_status end = begun ? finish(s, &why) : MF_OK;
    if (st == MF_OK && end != MF_OK) {
        *err = why;
        st = end;
    }
    s->a->made_seconds = app_seconds() - start;
    return st;
}

mf_status answer_make(talker *t, const answer_request *r, answer *out, mf_error *err) {
    mf_stats before, after;
    *out = (answer){0};
    speech s = {.t = t, .r = r, .a = out, .err = err};
    mf_session_stats_get(t->session, &before);
    mf_status st = say_it(&s, err);
    mf_session_stats_get(t->session, &after);
    out->wanted = after.wanted - before.wanted;
    out->hits = after.hits - before.hits;
    mf_sampler_free(s.sampler);
    mf__outparse_free(s.parser);
    mf__constraint_free(s.constraint);
    mf__strbuf_free(&s.text);
    mf__strbuf_free(&s.held);
    mf__strbuf_free(&s.tail);
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
