/* What memory a model needs: before it is opened for good, and to say so when it runs short. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/experts.h"
#include "engine/internal.h"

#define MIB ((int64_t)1 << 20)
#define DEFAULT_CHUNK 512

static int64_t pages_for(int64_t n_tokens) {
    return (n_tokens + MF_KV_BLOCK - 1) / MF_KV_BLOCK;
}

/* Of a session with room for n_ctx tokens, without its pages. */
static int64_t session_bytes(const mf_model *m, int32_t n_ctx) {
    return 2 * m->recurrent_floats * (int64_t)sizeof(float) + pages_for(n_ctx) * (int64_t)sizeof(int32_t);
}

/* Others borrow from the store of the experts, never from that of small copies. */
mf_status mf__experts_least(const mf_model *m, int64_t beside, int64_t *out, mf_error *err) {
    int64_t full = 0, small = 0;
    MF__TRY(mf__store_least(&m->store_config, &full, err));
    *out = full + beside;
    if (!m->small_config.bytes) return MF_OK;
    MF__TRY(mf__store_least(&m->small_config, &small, err));
    double for_full = (double)*out / (1 - m->small_part), for_small = (double)small / m->small_part;
    *out = (int64_t)ceil(for_full > for_small ? for_full : for_small) + 1; /* parts are rounded */
    return MF_OK;
}

mf_status mf__memory_count(const mf_model *m, int64_t n_tokens, int32_t n_chunk, mf_memory_needs *out, mf_error *err) {
    int32_t n_ctx = m->bp.config.n_ctx;
    if (!n_chunk) n_chunk = DEFAULT_CHUNK;
    if (n_chunk > n_ctx) n_chunk = n_ctx;
    if (n_tokens < n_chunk) n_tokens = n_chunk;
    if (n_tokens > n_ctx) n_tokens = n_ctx;
    out->program = MF_PROGRAM_BYTES;
    out->trunk = mf__model_trunk_bytes(m);
    out->workspace = mf__workspace_bytes(m, n_chunk) + mf__kv_pool_first_bytes(m);
    out->state = session_bytes(m, n_ctx);
    out->kv = pages_for(n_tokens) * m->kv.page_bytes;
    if (m->experts_only) {
        out->trunk = out->state = out->kv = 0;
        out->workspace = mf__workspace_bytes(m, n_chunk);
    }
    int64_t beside = out->workspace + out->state + out->kv;
    MF__TRY(mf__experts_least(m, beside, &out->experts, err));
    out->total = out->program + out->trunk + out->experts;
    out->experts -= beside;
    return MF_OK;
}

int32_t mf__model_pass_rows(const mf_model *m, int64_t n_chunk) {
    int64_t n_ctx = m->bp.config.n_ctx, rows = n_chunk > 0 ? n_chunk : DEFAULT_CHUNK;
    return (int32_t)(rows < n_ctx ? rows : n_ctx) + MF_MAX_BATCH;
}

mf_status mf_model_memory(const char *dir, const mf_model_options *opt, int64_t n_tokens, int32_t n_chunk,
                          mf_memory_needs *out, mf_error *err) {
    mf_model_options defaults;
    if (out) *out = (mf_memory_needs){0};
    if (!dir || !out) return mf__fail(err, MF_E_INVALID, "mf_model_memory: an argument is NULL");
    if (n_tokens < 0 || n_chunk < 0)
        return mf__fail(err, MF_E_INVALID, "mf_model_memory: %lld tokens in chunks of %d", (long long)n_tokens,
                        n_chunk);
    mf_model_options_init(&defaults);
    if (opt) MF__TRY(mf__model_options_check(opt, err));
    mf_model *m = calloc(1, sizeof *m);
    if (!m) return mf__fail(err, MF_E_NOMEM, "no memory for the model");
    mf_status st = mf__model_open_parts(m, dir, opt ? opt : &defaults, err);
    if (st == MF_OK) st = mf__model_measure(m, err);
    if (st == MF_OK) st = mf__model_store_plan(m, opt ? opt : &defaults, err);
    if (st == MF_OK) st = mf__memory_count(m, n_tokens, n_chunk, out, err);
    mf_model_close(m);
    return st;
}

/* What is lent now, what this session still wants, and what nobody can do without. */
mf_status mf__memory_error(const mf_session *s, int64_t n_tokens, mf_error *err) {
    const mf_model *m = s->model;
    int64_t kv = (pages_for(n_tokens) - s->n_pages) * m->kv.page_bytes, state = 0, workspace = 0, least = 0;
    if (!s->recurrent[0] && !s->page_table) state = session_bytes(m, s->opt.n_ctx);
    if (s->opt.n_chunk > m->ws.n_rows)
        workspace = mf__workspace_bytes(m, s->opt.n_chunk) - (m->ws.n_rows ? mf__workspace_bytes(m, m->ws.n_rows) : 0);
    int64_t beside = m->lent + state + workspace + (kv > 0 ? kv : 0);
    if (mf__experts_least(m, beside, &least, NULL) != MF_OK) least = m->layout.bytes + beside;
    int64_t need = MF_PROGRAM_BYTES + mf__model_trunk_bytes(m) + least, fixed = need - beside;
    return mf__fail(err, MF_E_NOMEM,
                    "not enough memory for %lld tokens: it takes at least --ram %lldM (%lld MB for weights, one expert "
                    "and the program, %lld MB for sessions), and %lld MB are allowed; with less, smaller chunks "
                    "(--chunk), a shorter context (--ctx) or smaller keys and values (--kv int8) may do",
                    (long long)n_tokens, (long long)((need + MIB - 1) / MIB), (long long)((fixed + MIB - 1) / MIB),
                    (long long)((beside + MIB - 1) / MIB),
                    (long long)((m->experts_budget + MF_PROGRAM_BYTES + mf__model_trunk_bytes(m)) / MIB));
}
