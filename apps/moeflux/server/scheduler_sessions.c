/* Who gets which session: one that holds the beginning of the prompt, one that is free, or a fork of one that reads the
 * same beginning right now. */
#include <stdlib.h>
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
    if (q->again) return; /* it had been */
    sched_event e = {.kind = SCHED_STARTED, .n_reused = q->n_reused};
    sched__foresee(s, (int64_t)q->prompt.n_ids - q->n_reused, &e);
    sched__emit(s, q, &e);
}

/* By what the latest prompts cost; for the first one, every piece wants all experts that are not in memory. Where all
 * fit, none is read twice. */
void sched__foresee(sched *s, int64_t n, sched_event *e) {
    mf_stats now;
    mf_model_stats_get(s->opt.model, &now);
    double absent = (double)(s->info->expert_bytes - now.cache_bytes);
    bool fits = !now.budget || now.budget >= s->info->expert_bytes;
    bool mapped = now.io && !strcmp(now.io, "mmap");
    double bytes =
        s->token_bytes >= 0 ? s->token_bytes * (double)n : absent * (double)((n + s->opt.piece - 1) / s->opt.piece);
    if (fits && bytes > absent) bytes = absent;
    if (mapped || bytes < 0) bytes = 0;
    e->bytes = (int64_t)bytes;
    e->seconds = s->token_seconds * (double)n;
    if (e->seconds <= 0 && now.ceiling) e->seconds = bytes / (double)now.ceiling;
}

/* The session that was not used for longest; false: all are in use. */
static bool drop_session(sched *s) {
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
    if (q->fresh) return NULL;
    for (seq *a = s->seqs; a; a = a->next) {
        if (a == q || a->state != SEQ_READING || a->fresh || a->paused) continue;
        int64_t at = meeting_point(s, a, q);
        if (at > *fork_at) {
            *fork_at = at;
            best = a;
        }
    }
    return best;
}

static bool fork_now(sched *s, seq *q, const seq *leader) {
    if (s->n_sessions >= s->opt.max_sessions) drop_session(s);
    mf_status st = mf_session_fork(leader->session, &q->session, NULL);
    while (st == MF_E_NOMEM && sched__drop_idle(s)) st = mf_session_fork(leader->session, &q->session, NULL);
    if (st != MF_OK) return false;
    s->n_sessions++;
    q->leader = NULL;
    q->pos = q->n_reused = leader->pos;
    q->state = SEQ_READING;
    q->turn = ++s->turn;
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
    return drop_session(s) || disk_give_up(s->disk);
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

/* What it held and what was to be evaluated next becomes its prompt. What it has said stays said, so the logprobs of a
 * prompt would be reported twice: such a one cannot. */
bool sched__yield(sched *s, seq *q) {
    if (q->prompt_logprobs && q->state == SEQ_READING) return false;
    if (q->state == SEQ_READING) sched__leave_alone(s, q);
    if (q->state == SEQ_SPEAKING) {
        size_t n = (size_t)mf_memory_length(q->session);
        int32_t *ids = malloc((n + q->n_tokens) * sizeof *ids);
        if (!ids) return false;
        memcpy(ids, mf_memory_tokens(q->session), n * sizeof *ids);
        memcpy(ids + n, q->tokens, q->n_tokens * sizeof *ids);
        free(q->again);
        q->again = ids;
        q->prompt.ids = ids;
        q->prompt.n_ids = n + q->n_tokens;
    }
    sched__release(s, q, false);
    q->state = SEQ_WAITING;
    q->paused = false;
    q->yielded = true;
    q->pos = q->n_reused = 0;
    s->n_running--;
    pthread_mutex_lock(&s->lock);
    s->stats.yielded++;
    pthread_mutex_unlock(&s->lock);
    return true;
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
    int idle = q->fresh ? -1 : best_idle(s, q);
    if (idle >= 0) {
        q->session = s->idle[idle].session;
        s->idle[idle] = s->idle[--s->n_idle];
        return MF_OK;
    }
    while (s->n_sessions >= s->opt.max_sessions && drop_session(s)) {
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

static void count_reuse(sched *s, const seq *q) {
    pthread_mutex_lock(&s->lock);
    if (q->n_reused && q->n_reused == q->n_held)
        s->stats.reused_session++;
    else if (q->n_reused > q->n_memory)
        s->stats.reused_disk++;
    else if (q->n_reused)
        s->stats.reused_memory++;
    s->stats.reused_tokens += q->n_reused;
    pthread_mutex_unlock(&s->lock);
}

void sched__keep(sched *s, seq *q) {
    mf_session *copy;
    mf_prompt_keep_memory(q->session, NULL); /* a cache that is full is no failure */
    if (s->disk && mf_session_fork(q->session, &copy, NULL) == MF_OK) disk_keep(s->disk, copy);
}

/* The session holds what is known of the prompt. Where another one is reading more of it, that is waited for. */
static void begin_reading(sched *s, seq *q) {
    int64_t fork_at;
    seq *leader = find_leader(s, q, &fork_at);
    if (leader && fork_at > q->n_reused + WORTH_FOLLOWING) {
        sched__release(s, q, q->n_reused > 0);
        q->n_reused = 0;
        q->leader = leader;
        q->fork_at = fork_at;
        q->state = SEQ_FOLLOWING;
        if (leader->pos == fork_at) sched__fork_followers(s, leader);
        return;
    }
    q->pos = q->n_reused;
    q->state = SEQ_READING;
    q->turn = ++s->turn; /* behind all that are there: a stream of new ones must not keep an old one waiting */
    count_reuse(s, q);
    tell_started(s, q);
}

/* Brings what memory knows of the prompt into the session. Where there is no room for it, and nobody who would make
 * some, the session stays as it is: the prompt is read from there. */
static mf_status begin_known(sched *s, seq *q, bool alone, mf_error *err) {
    int64_t n = 0;
    mf_status st;
    do {
        st = mf_prompt_begin_memory(q->session, q->prompt.ids, q->prompt.n_ids, &n, err);
    } while (st == MF_E_NOMEM && sched__drop_idle(s));
    if (st == MF_E_NOMEM && alone) {
        n = mf_memory_length(q->session);
        st = MF_OK;
    }
    if (st == MF_OK) q->n_reused = n;
    return st;
}

static void load(sched *s, seq *q) {
    q->state = SEQ_LOADING;
    s->n_loading++;
    disk_load(s->disk, q);
}

mf_status sched__start(sched *s, seq *q, mf_error *err) {
    mf_status st = q->session ? MF_OK : take_session(s, q, err);
    if (st != MF_OK) return st;
    q->n_held = mf_memory_length(q->session);
    q->n_reused = 0;
    if (!q->fresh) st = begin_known(s, q, !s->n_running, err);
    if (st != MF_OK) {
        sched__release(s, q, false);
        return st;
    }
    q->n_memory = q->n_reused;
    s->n_running++;
    if (s->disk && !q->fresh && (int64_t)q->prompt.n_ids - q->n_reused > WORTH_FOLLOWING) {
        load(s, q);
    } else {
        begin_reading(s, q);
    }
    return MF_OK;
}

/* What others have read meanwhile is in memory, and may be more than was on disk. A load that found no memory is tried
 * again while there is something to give up for it, and left out where nobody else is under way. */
mf_status sched__loaded(sched *s, seq *q, mf_error *err) {
    bool alone = s->n_running < 2;
    mf_status st = q->loaded;
    if (st == MF_E_NOMEM && sched__drop_idle(s)) {
        load(s, q);
        return MF_OK;
    }
    if (st == MF_OK || (st == MF_E_NOMEM && alone)) {
        int64_t n_loaded = mf_memory_length(q->session);
        st = begin_known(s, q, alone, &q->load_error);
        if (st == MF_OK) {
            if (q->n_reused > n_loaded) q->n_memory = q->n_reused;
            begin_reading(s, q);
            return MF_OK;
        }
    }
    *err = q->load_error;
    sched__release(s, q, false);
    q->n_reused = 0;
    q->state = SEQ_WAITING;
    s->n_running--;
    return st;
}
