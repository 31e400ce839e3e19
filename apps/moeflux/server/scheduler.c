/* The scheduler's thread: admission, passes, and what follows from them. */
#include "scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "scheduler_int.h"

/* ---- sequences --------------------------------------------------------------------------------------------------- */

seq *seq_create(void *owner, int index, const atomic_bool *cancelled, uint64_t client) {
    seq *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->owner = owner;
    q->index = index;
    q->cancelled = cancelled;
    q->client = client;
    return q;
}

void seq_free(seq *q) {
    if (!q) return;
    mf_reply_free(q->reply);
    free(q->again);
    free(q);
}

void sched__emit(sched *s, seq *q, const sched_event *e) {
    sched_event full = *e;
    full.n_prompt = q->n_prompt;
    s->opt.event(s->opt.user, q, &full);
}

mf_status sched_on_event(void *seq_user, const mf_event *event) {
    seq *q = seq_user;
    sched__emit(q->sched, q, &(sched_event){.kind = SCHED_REPLY, .reply = event});
    return MF_OK;
}

static void unlink_seq(sched *s, const seq *q) {
    seq **at = &s->seqs;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    if (!*at) s->tail = at;
}

/* The last word about a sequence; q is gone afterwards. */
static void end_seq(sched *s, seq *q, mf_status status, const char *error) {
    sched_event e = {.kind = SCHED_ENDED, .status = status, .error = error};
    if (q->state == SEQ_READING) sched__leave_alone(s, q);
    if (q->state != SEQ_WAITING) s->n_running--;
    mf_reply_result_get(q->reply, &e.result);
    if (q->state == SEQ_SPEAKING && status == MF_OK)
        s->opt.said(s->opt.user, mf_memory_tokens(q->session), (size_t)q->n_prompt,
                    (size_t)mf_memory_length(q->session));
    sched__release(s, q, (status == MF_OK || status == MF_E_CANCELLED) && !q->fresh);
    unlink_seq(s, q);
    q->state = SEQ_ENDED;
    s->n_left++;
    s->full = false;
    for (seq *other = s->seqs; other; other = other->next) other->yielded = false;
    sched__emit(s, q, &e);
    seq_free(q);
}

void sched_submit(sched *s, seq *const *seqs, int n) {
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        seq *q = seqs[i];
        q->sched = s;
        q->next = NULL;
        q->state = SEQ_WAITING;
        q->submitted = mf__clock_seconds();
        mf_reply_prompt_get(q->reply, &q->prompt);
        q->n_prompt = (int64_t)q->prompt.n_ids;
        *s->inbox_tail = q;
        s->inbox_tail = &q->next;
    }
    s->stats.waiting += n;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* ---- admission --------------------------------------------------------------------------------------------------- */

/* Sequences of the client that are past waiting. */
static int active(const sched *s, uint64_t client) {
    int n = 0;
    for (const seq *q = s->seqs; q; q = q->next) n += q->client == client && q->state != SEQ_WAITING;
    return n;
}

/* When the client was served last, counted in sequences; 0: not lately. */
static int64_t served(const sched *s, uint64_t client) {
    for (int i = 0; i < SCHED_CLIENTS; i++)
        if (s->clients[i].client == client) return s->clients[i].served;
    return 0;
}

static void note_served(sched *s, uint64_t client) {
    int at = 0;
    for (int i = 0; i < SCHED_CLIENTS; i++) {
        if (s->clients[i].served < s->clients[at].served) at = i;
        if (s->clients[i].client == client) {
            at = i;
            break;
        }
    }
    s->clients[at].client = client;
    s->clients[at].served = ++s->n_served;
}

/* Since when the sequence has been waiting while its client had no turn, in halves of turns: who came during a turn is
 * before the one who had it. What comes later is always behind, so that nobody waits for ever. */
static int64_t waits_since(const sched *s, const seq *q) {
    int64_t last = served(s, q->client), came = 2 * q->arrived;
    return last && 2 * last + 1 > came ? 2 * last + 1 : came;
}

/* Whose turn it is: the client with the fewest sequences under way; among equals the one that was not served for
 * longest, and of its own the first that came. */
static seq *next_waiting(const sched *s) {
    seq *best = NULL;
    int least = 0;
    int64_t earliest = 0;
    for (seq *q = s->seqs; q; q = q->next) {
        if (q->state != SEQ_WAITING || (q->yielded && s->n_running)) continue;
        int n = active(s, q->client);
        int64_t when = waits_since(s, q);
        if (!best || n < least || (n == least && when < earliest)) {
            best = q;
            least = n;
            earliest = when;
        }
    }
    return best;
}

static void admit(sched *s) {
    seq *q;
    while (!(s->full && s->n_running) && s->n_running < s->opt.max_running && (q = next_waiting(s))) {
        mf_error err = {0};
        mf_status st = sched__start(s, q, &err);
        s->full = st == MF_E_NOMEM;
        if (s->full && s->n_running) return; /* again when another one has ended */
        note_served(s, q->client);
        if (st != MF_OK) end_seq(s, q, st, err.text);
    }
}

/* Those whose beginnings have been read from the disk. */
static void take_loaded(sched *s) {
    for (seq *q; (q = disk_loaded(s->disk));) {
        mf_error err = {0};
        s->n_loading--;
        mf_status st = *q->cancelled ? MF_E_CANCELLED : sched__loaded(s, q, &err);
        if (st == MF_E_NOMEM) { /* it waits until another one has ended */
            s->full = true;
            continue;
        }
        if (st != MF_OK) end_seq(s, q, st, err.text[0] ? err.text : mf_status_text(st));
    }
}

static void drop_cancelled(sched *s) {
    for (seq *q = s->seqs, *next; q; q = next) {
        next = q->next;
        if (*q->cancelled && q->state != SEQ_LOADING) end_seq(s, q, MF_E_CANCELLED, "the client has left");
    }
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

typedef struct pass {
    mf_part parts[SCHED_MAX_PARTS];
    mf_error errors[SCHED_MAX_PARTS];
    seq *seqs[SCHED_MAX_PARTS];
    int n;
    int64_t n_prompt; /* tokens of prompts in it */
    bool has_many;    /* a part uses s->many */
} pass;

static bool ask_cancelled(void *user) {
    const seq *q = user;
    return *q->cancelled || q->sched->halt;
}

static float *row(sched *s, int i) {
    if (!s->rows[i]) s->rows[i] = malloc((size_t)s->info->n_vocab * sizeof(float));
    return s->rows[i];
}

static void add_part(sched *s, pass *p, seq *q, const int32_t *tokens, int64_t n, bool wants_logits) {
    mf_part *part = &p->parts[p->n];
    *part = (mf_part){.session = q->session, .tokens = tokens, .n_tokens = (size_t)n};
    part->cancel = ask_cancelled;
    part->cancel_user = q;
    part->error = &p->errors[p->n];
    p->errors[p->n] = (mf_error){0};
    if (q->state == SEQ_READING && q->prompt_logprobs) {
        if (!s->many) s->many = malloc((size_t)LOGPROB_ROWS * (size_t)s->info->n_vocab * sizeof(float));
        part->logits = s->many;
        part->n_logits = (size_t)n;
        p->has_many = true;
    } else if (wants_logits) {
        part->logits = row(s, p->n);
        part->n_logits = 1;
    }
    if (part->n_logits && !part->logits) return; /* no memory: in a later pass */
    p->seqs[p->n++] = q;
}

static void add_piece(sched *s, pass *p, seq *q) {
    int64_t n = sched__next_cut(s, q, q->pos) - q->pos;
    if (p->n == SCHED_MAX_PARTS || (q->prompt_logprobs && p->has_many)) return;
    add_part(s, p, q, q->prompt.ids + q->pos, n, q->pos + n == (int64_t)q->prompt.n_ids);
    p->n_prompt += n;
}

static bool is_long(const sched *s, const seq *q) {
    return (int64_t)q->prompt.n_ids - q->pos > s->opt.piece;
}

static void compose(sched *s, pass *p) {
    seq *turn = NULL;
    int n_short = 0;
    *p = (pass){0};
    for (seq *q = s->seqs; q && p->n < SCHED_MAX_PARTS; q = q->next)
        if (q->state == SEQ_SPEAKING && !q->paused) add_part(s, p, q, q->tokens, (int64_t)q->n_tokens, true);
    for (seq *q = s->seqs; q; q = q->next) {
        if (q->state != SEQ_READING || q->paused) continue;
        if (is_long(s, q)) {
            if (!turn || q->turn < turn->turn) turn = q;
        } else if (p->n_prompt < s->opt.piece) {
            add_piece(s, p, q);
            n_short++;
        }
    }
    if (!turn) return;
    if (n_short && s->n_without_long < SCHED_WITHOUT_LONG && s->short_tokens < s->opt.piece) {
        s->n_without_long++;
        s->short_tokens += p->n_prompt;
        return;
    }
    turn->turn = ++s->turn;
    add_piece(s, p, turn);
    s->n_without_long = 0;
    s->short_tokens = 0;
}

/* ---- after a pass ------------------------------------------------------------------------------------------------ */

/* The reply gets these logits when all parts of the pass have been looked at. */
static void step_later(sched *s, seq *q, const float *logits) {
    q->state = SEQ_SPEAKING;
    q->logits = logits;
    s->to_step[s->n_to_step++] = q;
}

/* On any of the steppers' threads. */
static void step(void *user, int i) {
    sched *s = user;
    seq *q = s->to_step[i];
    q->step_error = (mf_error){0};
    q->stepped = mf_reply_step(q->reply, q->logits, &q->tokens, &q->n_tokens, &q->step_error);
}

/* Gives the logits to the replies: each speaks on, or has ended. */
static void step_all(sched *s) {
    double start = mf__clock_seconds();
    for (int i = 0; i < s->n_to_step; i++) s->to_step[i]->stepping = true;
    steppers_run(s->steppers, step, s, s->n_to_step);
    for (int i = 0; i < s->n_to_step; i++) {
        seq *q = s->to_step[i];
        q->stepping = false;
        s->opt.deliver(s->opt.user, q);
        if (q->stepped != MF_OK || !q->n_tokens) end_seq(s, q, q->stepped, q->step_error.text);
    }
    s->n_to_step = 0;
    pthread_mutex_lock(&s->lock);
    s->stats.step_seconds += mf__clock_seconds() - start;
    pthread_mutex_unlock(&s->lock);
}

static void report_prompt(sched *s, seq *q, const float *rows, int64_t n) {
    mf_logprob top[MF_REPLY_MAX_LOGPROBS];
    mf_event e = {.kind = MF_EVENT_TOKEN, .part = MF_EVENT_TEXT, .top = top};
    if (q->pos == 0) {
        e.token = q->prompt.ids[0];
        sched__emit(s, q, &(sched_event){.kind = SCHED_PROMPT_TOKEN, .reply = &e});
    }
    for (int64_t i = 0; i < n && q->pos + i + 1 < (int64_t)q->prompt.n_ids; i++) {
        e.n_top = q->n_top;
        e.token = q->prompt.ids[q->pos + i + 1];
        e.logprob = mf_logprobs(rows + i * s->info->n_vocab, s->info->n_vocab, e.token, top, &e.n_top);
        sched__emit(s, q, &(sched_event){.kind = SCHED_PROMPT_TOKEN, .n_read = q->pos + i + 1, .reply = &e});
    }
}

/* All that stand at the end of their prompts with the same logits: the one that read, and its forks. */
static void finish_reading(sched *s, seq *leader, const float *logits) {
    const mf_reply_prompt *p = &leader->prompt;
    for (seq *q = s->seqs; q; q = q->next)
        if (q != leader && q->state == SEQ_READING && q->pos == (int64_t)q->prompt.n_ids && q->prompt.n_ids == p->n_ids)
            step_later(s, q, logits);
    step_later(s, leader, logits);
}

static void piece_read(sched *s, seq *q, const mf_part *part) {
    int64_t n = (int64_t)part->n_tokens, n_ids = (int64_t)q->prompt.n_ids;
    if (q->prompt_logprobs) report_prompt(s, q, part->logits, n);
    q->pos += n;
    if (!q->fresh && sched__at_mark(q)) sched__keep(s, q);
    sched__fork_followers(s, q);
    if (q->pos == n_ids) {
        finish_reading(s, q, part->logits + (part->n_logits - 1) * (size_t)s->info->n_vocab);
        return;
    }
    if (q->again) return;
    sched_event e = {.kind = SCHED_PROGRESS, .n_read = q->pos};
    sched__foresee(s, n_ids - q->pos, &e);
    sched__emit(s, q, &e);
}

static void after_part(sched *s, seq *q, const mf_part *part) {
    if (part->status == MF_E_NOMEM) {
        q->paused = true;
        q->step_error = *part->error;
    } else if (part->status == MF_E_CANCELLED && s->halt) {
        return; /* the session is as it was; run() ends it with what it has said */
    } else if (part->status != MF_OK) {
        end_seq(s, q, part->status, part->error->text[0] ? part->error->text : mf_status_text(part->status));
    } else if (q->state == SEQ_READING) {
        piece_read(s, q, part);
    } else {
        step_later(s, q, part->logits);
    }
}

/* Those that found no memory go on when something was given up for them; if nothing is left to give, the one that came
 * last gives up its session, and fails where it is alone. */
static void care_for_paused(sched *s, bool idle) {
    seq *last = NULL;
    int n_paused = 0;
    for (seq *q = s->seqs; q; q = q->next) {
        if (!q->paused) continue;
        n_paused++;
        last = q;
    }
    if (!n_paused) return;
    bool room = s->n_left > 0 || sched__drop_idle(s);
    for (seq *q = s->seqs; room && q; q = q->next) q->paused = false;
    if (room || !idle) return;
    bool alone = s->n_running < 2;
    if (alone || !sched__yield(s, last)) /* a prompt that has all the memory there is will never fit */
        end_seq(s, last, alone && last->state == SEQ_READING ? MF_E_LIMIT : MF_E_NOMEM, last->step_error.text);
    for (seq *q = s->seqs; q; q = q->next) q->paused = false;
}

static void learn(double *mean, bool known, double latest) {
    *mean = known ? 0.7 * *mean + 0.3 * latest : latest;
}

/* What prompts cost, for those that come. */
static void learn_costs(sched *s, int64_t n_prompt, double seconds) {
    mf_stats now;
    mf_model_stats_get(s->opt.model, &now);
    int64_t seen = now.bytes_read + now.bytes_prefetched;
    if (n_prompt >= 16) {
        learn(&s->token_seconds, s->token_seconds > 0, seconds / (double)n_prompt);
        learn(&s->token_bytes, s->token_bytes >= 0, (double)(seen - s->bytes_seen) / (double)n_prompt);
    }
    s->bytes_seen = seen;
}

static void count_pass(sched *s, const pass *p, double seconds) {
    int64_t n_made = 0;
    int bucket = 0;
    for (int i = 0; i < p->n; i++) n_made += p->seqs[i]->state == SEQ_SPEAKING;
    while (bucket + 1 < SCHED_BATCH_BUCKETS && p->n > 1 << bucket) bucket++;
    learn_costs(s, p->n_prompt, seconds);
    pthread_mutex_lock(&s->lock);
    s->stats.passes++;
    s->stats.batch[bucket]++;
    s->stats.batch_sum += p->n;
    s->stats.pass_seconds += seconds;
    s->stats.prompt_tokens += p->n_prompt;
    s->stats.made_tokens += n_made;
    pthread_mutex_unlock(&s->lock);
}

/* Nothing can go on now: not a loop that spins. */
static void rest(sched *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&s->lock);
    if (!s->inbox && !s->stop && !s->has_loaded) pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

static void run_pass(sched *s) {
    static _Thread_local pass p; /* large, and one per thread */
    compose(s, &p);
    s->n_left = 0;
    if (p.n) {
        double start = mf__clock_seconds();
        mf_error err = {0};
        mf_status st = mf_eval(s->opt.model, p.parts, (size_t)p.n, &err);
        bool all_fine = true;
        for (int i = 0; i < p.n; i++) all_fine = all_fine && p.parts[i].status == MF_OK;
        count_pass(s, &p, mf__clock_seconds() - start);
        for (int i = 0; i < p.n; i++) {
            if (st != MF_OK && all_fine) { /* refused as a whole */
                p.parts[i].status = st;
                p.errors[i] = err;
            }
            after_part(s, p.seqs[i], &p.parts[i]);
        }
        step_all(s);
    }
    care_for_paused(s, p.n == 0 && !s->n_loading);
    if (!p.n) rest(s);
    s->opt.flush(s->opt.user);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Takes what was submitted; waits for it where there is nothing to do. False: stop. */
static bool take_inbox(sched *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->inbox && !s->seqs && !s->stop) pthread_cond_wait(&s->wake, &s->lock);
    if (s->inbox) {
        for (seq *q = s->inbox; q; q = q->next) q->arrived = s->n_served;
        *s->tail = s->inbox;
        s->tail = s->inbox_tail;
        s->inbox = NULL;
        s->inbox_tail = &s->inbox;
    }
    s->has_loaded = false;
    bool go_on = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void count_state(sched *s) {
    int n_waiting = 0;
    for (const seq *q = s->seqs; q; q = q->next) n_waiting += q->state == SEQ_WAITING;
    pthread_mutex_lock(&s->lock);
    for (const seq *q = s->inbox; q; q = q->next) n_waiting++;
    s->stats.waiting = n_waiting;
    s->stats.running = s->n_running;
    s->stats.idle_sessions = s->n_idle;
    pthread_mutex_unlock(&s->lock);
}

static void *run(void *user) {
    sched *s = user;
    while (take_inbox(s)) {
        take_loaded(s);
        drop_cancelled(s);
        admit(s);
        count_state(s);
        run_pass(s);
        count_state(s);
    }
    disk_stop_loading(s->disk);
    while (s->seqs) {
        seq *q = s->seqs;
        mf_reply_finish(q->reply, NULL); /* what was said so far comes out */
        end_seq(s, q, MF_OK, NULL);
    }
    s->opt.flush(s->opt.user);
    return NULL;
}

static void on_loaded(void *user) {
    sched *s = user;
    pthread_mutex_lock(&s->lock);
    s->has_loaded = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

mf_status sched_create(const sched_options *opt, sched **out, mf_error *err) {
    sched *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->opt = *opt;
        s->info = mf_model_info_get(opt->model);
        s->inbox_tail = &s->inbox;
        s->tail = &s->seqs;
        s->token_bytes = -1;
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->wake, NULL);
        s->steppers = steppers_create(opt->n_steppers);
        s->disk = opt->disk ? disk_create(opt->max_running, on_loaded, s) : NULL;
        if ((s->disk || !opt->disk) && !pthread_create(&s->thread, NULL, run, s)) {
            *out = s;
            return MF_OK;
        }
        disk_free(s->disk);
        steppers_free(s->steppers);
        free(s);
    }
    if (err) {
        err->status = MF_E_NOMEM;
        snprintf(err->text, sizeof err->text, "no memory for the scheduler and its thread");
    }
    return MF_E_NOMEM;
}

void sched_stop(sched *s) {
    if (!s || s->stopped) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    s->halt = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->stopped = true;
}

void sched_free(sched *s) {
    if (!s) return;
    sched_stop(s);
    disk_free(s->disk);
    steppers_free(s->steppers);
    for (int i = 0; i < s->n_idle; i++) mf_session_free(s->idle[i].session);
    for (int i = 0; i < SCHED_MAX_PARTS; i++) free(s->rows[i]);
    free(s->many);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
}

void sched_stats_get(sched *s, sched_stats *out) {
    *out = (sched_stats){0};
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}
