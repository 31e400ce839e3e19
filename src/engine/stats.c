/* Counters, as the public header offers them. */
#include "engine/cache.h"
#include "engine/lossy.h"

void mf__stats_turns(const mf_model *m, mf_stats *out) {
    mf_stats small = {0};
    mf__turn_stats_get(m->turn, out);
    if (m->lossy && m->lossy->turn) mf__turn_stats_get(m->lossy->turn, &small);
    out->bytes_read += small.bytes_read;
    out->stall_ns += small.stall_ns;
}

void mf__stats_pass(const mf__pass *pass, const mf_stats *before) {
    mf_stats now;
    mf__stats_turns(pass->model, &now);
    for (int i = 0; i < pass->n; i++) {
        mf_stats *s = &pass->parts[i].session->stats;
        s->wanted += now.wanted - before->wanted;
        s->hits += now.hits - before->hits;
        s->bytes_wanted += now.bytes_wanted - before->bytes_wanted;
        s->bytes_read += now.bytes_read - before->bytes_read;
        s->stall_ns += now.stall_ns - before->stall_ns;
    }
}

void mf_model_stats_get(mf_model *m, mf_stats *out) {
    if (!out) return;
    *out = (mf_stats){0};
    if (!m) return;
    pthread_mutex_lock(&m->store_lock);
    if (m->store) mf__store_stats_get(m->store, out);
    mf__lossy_stats_add(m->lossy, out);
    pthread_mutex_unlock(&m->store_lock);
    out->lent_bytes = m->lent;
    mf__cache_bytes(m->cache, &out->prompt_cache_bytes, &out->prompt_cache_budget);
}

void mf_model_stats_reset(mf_model *m) {
    if (!m) return;
    pthread_mutex_lock(&m->store_lock);
    if (m->store) mf__store_stats_reset(m->store);
    mf__lossy_stats_reset(m->lossy);
    pthread_mutex_unlock(&m->store_lock);
}

void mf_session_stats_get(const mf_session *s, mf_stats *out) {
    if (out) *out = s ? s->stats : (mf_stats){0};
}

void mf_session_stats_reset(mf_session *s) {
    if (s) s->stats = (mf_stats){0};
}

void mf_prefetch_forget(mf_model *m) {
    if (!m) return;
    pthread_mutex_lock(&m->store_lock);
    if (m->store) mf__store_forget(m->store);
    if (m->lossy && m->lossy->store) mf__store_forget(m->lossy->store);
    pthread_mutex_unlock(&m->store_lock);
}
