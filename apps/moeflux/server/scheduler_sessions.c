/* Who gets which session: one that holds the beginning of the prompt, one that is free, or a fork of one that reads the
 * same beginning right now. */
#include <string.h>

#include "scheduler_int.h"

#define WORTH_FOLLOWING 16 /* tokens that following must save */

/* A state at the prompt's end is kept one token before it, so that the same prompt finds it and still gets its logits.
 */
static int64_t mark_at(const seq *q, size_t i) {
    int64_t n = (int64_t)q->prompt.n_ids;
    return q->prompt.marks[i] < n ? q->prompt.marks[i] : n - 1;
}

bool sched__at_mark(const seq *q) {
    for (size_t i = 0; i < q->prompt.n_marks; i++)
        if (mark_at(q, i) == q->pos) return true;
    return false;
}

int64_t sched__next_cut(const sched *s, const seq *q, int64_t pos) {
    int64_t piece = q->prompt_logprobs ? LOGPROB_ROWS : s->opt.piece;
    int64_t cut = (pos / piece + 1) * piece;
    for (size_t i = 0; i < q->prompt.n_marks; i++) {
        int64_t mark = mark_at(q, i);
        if (mark > pos && mark < cut) cut = mark;
    }
    return cut < (int64_t)q->prompt.n_ids ? cut : (int64_t)q->prompt.n_ids;
}

static int64_t common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int64_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static void tell_started(sched *s, seq *q) {
    double seconds = s->token_seconds * (double)((int64_t)q->prompt.n_ids - q->n_reused);
    sched__emit(s, q, &(sched_event){.kind = SCHED_STARTED, .n_reused = q->n_reused, .seconds = seconds});
}

/* ---- following --------------------------------------------------------------------------------------------------- */

/* Where q could be forked from a: the last place where both are cut within what they have in common, if a has not
 * passed it yet and both came there by the same cuts. 0: nowhere. */
static int64_t meeting_point(const sched *s, const seq *a, const seq *q) {
    int64_t n_a = (int64_t)a->prompt.n_ids, n_q = (int64_t)q->prompt.n_ids;
    int64_t same = common(a->prompt.ids, n_a, q->prompt.ids, n_q), at = 0;
    if (same == n_a && same == n_q) return a->pos < n_a ? n_a : 0; /* the same prompt: the logits serve both */
    for (int64_t cut = 0; cut < same && cut < n_q;) {
        cut = sched__next_cut(s, a, cut);
        if (cut != sched__next_cut(s, q, at)) break;
        if (cut > same || cut >= n_q) break;
        at = cut;
    }
    return at >= a->pos ? at : 0;
}

static seq *find_leader(const sched *s, const seq *q, int64_t *fork_at) {
    seq *best = NULL;
    *fork_at = WORTH_FOLLOWING - 1;
    if (q->prompt_logprobs) return NULL;
    for (seq *a = s->seqs; a; a = a->next) {
        if (a == q || a->state != SEQ_READING || a->prompt_logprobs || a->paused) continue;
        int64_t at = meeting_point(s, a, q);
        if (at > *fork_at) {
            *fork_at = at;
            best = a;
        }
    }
    return best;
}

static bool fork_now(sched *s, seq *q, const seq *leader) {
    if (s->n_sessions >= s->opt.max_sessions) sched__drop_idle(s);
    mf_status st = mf_session_fork(leader->session, &q->session, NULL);
    while (st == MF_E_NOMEM && sched__drop_idle(s)) st = mf_session_fork(leader->session, &q->session, NULL);
    if (st != MF_OK) return false;
    s->n_sessions++;
    q->leader = NULL;
    q->pos = q->n_reused = leader->pos;
    q->state = SEQ_READING;
    return true;
}

static void stop_following(sched *s, seq *q) {
    q->leader = NULL;
    q->state = SEQ_WAITING;
    s->n_running--;
}

void sched__leave_alone(sched *s, const seq *leader) {
    for (seq *q = s->seqs; q; q = q->next)
        if (q->state == SEQ_FOLLOWING && q->leader == leader) stop_following(s, q);
}

void sched__fork_followers(sched *s, seq *leader) {
    for (seq *q = s->seqs; q; q = q->next) {
        if (q->state != SEQ_FOLLOWING || q->leader != leader || q->fork_at > leader->pos) continue;
        if (q->fork_at < leader->pos || !fork_now(s, q, leader)) {
            stop_following(s, q);
            continue;
        }
        pthread_mutex_lock(&s->lock);
        s->stats.reused_fork++;
        s->stats.reused_tokens += q->n_reused;
        pthread_mutex_unlock(&s->lock);
        tell_started(s, q);
    }
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

bool sched__drop_idle(sched *s) {
    int oldest = -1;
    for (int i = 0; i < s->n_idle; i++)
        if (oldest < 0 || s->idle[i].used < s->idle[oldest].used) oldest = i;
    if (oldest < 0) return false;
    mf_session_free(s->idle[oldest].session);
    s->idle[oldest] = s->idle[--s->n_idle];
    s->n_sessions--;
    pthread_mutex_lock(&s->lock);
    s->stats.sessions_dropped++;
    pthread_mutex_unlock(&s->lock);
    return true;
}

void sched__release(sched *s, seq *q, bool keep) {
    if (!q->session) return;
    if (keep && s->n_idle < SCHED_MAX_SESSIONS) {
        s->idle[s->n_idle++] = (idle_session){q->session, s->stats.passes};
    } else {
        mf_session_free(q->session);
        s->n_sessions--;
    }
    q->session = NULL;
}

/* The idle session that holds the longest beginning of the prompt and nothing else; -1: none. */
static int best_idle(const sched *s, const seq *q) {
    int64_t most = 0;
    int best = -1;
    for (int i = 0; i < s->n_idle; i++) {
        int64_t n = mf_memory_length(s->idle[i].session);
        if (n <= most || n >= (int64_t)q->prompt.n_ids) continue;
        if (common(mf_memory_tokens(s->idle[i].session), n, q->prompt.ids, (int64_t)q->prompt.n_ids) < n) continue;
        most = n;
        best = i;
    }
    return best;
}

/* A session with the longest known beginning of the prompt, or an empty one. */
static mf_status take_session(sched *s, seq *q, mf_error *err) {
    int idle = q->prompt_logprobs ? -1 : best_idle(s, q);
    if (idle >= 0) {
        q->session = s->idle[idle].session;
        s->idle[idle] = s->idle[--s->n_idle];
        return MF_OK;
    }
    while (s->n_sessions >= s->opt.max_sessions && sched__drop_idle(s)) {
    }
    mf_session_options so;
    mf_session_options_init(&so);
    so.n_ctx = s->opt.n_ctx;
    so.n_chunk = s->opt.piece;
    mf_status st = mf_session_create(s->opt.model, &so, &q->session, err);
    while (st == MF_E_NOMEM && sched__drop_idle(s)) st = mf_session_create(s->opt.model, &so, &q->session, err);
    if (st == MF_OK) s->n_sessions++;
    return st;
}

static void count_reuse(sched *s, const seq *q, int64_t held) {
    pthread_mutex_lock(&s->lock);
    if (q->n_reused && q->n_reused == held) s->stats.reused_session++;
    if (q->n_reused > held) s->stats.reused_cache++;
    s->stats.reused_tokens += q->n_reused;
    pthread_mutex_unlock(&s->lock);
}

mf_status sched__start(sched *s, seq *q, mf_error *err) {
    int64_t fork_at, held;
    seq *leader = find_leader(s, q, &fork_at);
    mf_status st = MF_OK;
    if (!q->session) st = take_session(s, q, err);
    if (st != MF_OK) return st;
    held = mf_memory_length(q->session);
    q->n_reused = 0;
    if (!q->prompt_logprobs) st = mf_prompt_begin(q->session, q->prompt.ids, q->prompt.n_ids, &q->n_reused, err);
    if (st != MF_OK) {
        sched__release(s, q, false);
        return st;
    }
    if (leader && fork_at > q->n_reused + WORTH_FOLLOWING) {
        sched__release(s, q, q->n_reused > 0);
        q->n_reused = 0;
        q->leader = leader;
        q->fork_at = fork_at;
        q->state = SEQ_FOLLOWING;
        s->n_running++;
        if (leader->pos == fork_at) sched__fork_followers(s, leader);
        return MF_OK;
    }
    q->pos = q->n_reused;
    q->state = SEQ_READING;
    s->n_running++;
    count_reuse(s, q, held);
    tell_started(s, q);
    return MF_OK;
}
