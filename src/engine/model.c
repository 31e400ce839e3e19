/* Opening a model: files -> config -> graphs -> weights -> store. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/probe.h"
#include "engine/cache.h"
#include "engine/internal.h"
#include "engine/lossy.h"
#include "model/native_config.h"
#include "text/utf8.h"

#define DEFAULT_CACHE_DISK ((int64_t)8 << 30)
#define MAX_THREADS 1024
#define HOLD_LEAST ((int64_t)64 << 20) /* smaller trunks stay mapped: they are there at once */

void mf_model_options_init(mf_model_options *opt) {
    if (opt) memset(opt, 0, sizeof *opt);
}

/* What can be judged without the model; its numbers of experts and the policy's name are judged where they are used. */
mf_status mf__model_options_check(const mf_model_options *o, mf_error *err) {
    const struct {
        const char *name;
        int64_t value, most;
    } ranges[] = {{"kv", (int)o->kv, MF_KV_INT8},
                  {"io", (int)o->io, MF_IO_URING},
                  {"direct", (int)o->direct, MF_SWITCH_OFF},
                  {"prefetch", (int)o->prefetch, MF_SWITCH_OFF},
                  {"n_threads", o->n_threads, MAX_THREADS},
                  {"ram_bytes", o->ram_bytes, INT64_MAX},
                  {"vram_bytes", o->vram_bytes, INT64_MAX},
                  {"most_experts", o->most_experts, INT_MAX},
                  {"prompt_cache_ram", o->prompt_cache_ram, INT64_MAX},
                  {"prompt_cache_disk", o->prompt_cache_disk, INT64_MAX}};
    for (size_t i = 0; i < MF__COUNT(ranges); i++)
        if (ranges[i].value < 0 || ranges[i].value > ranges[i].most)
            return mf__fail(err, MF_E_INVALID, "%s is %lld, expected 0 to %lld", ranges[i].name,
                            (long long)ranges[i].value, (long long)ranges[i].most);
    if (o->prompt_cache_dir && !*o->prompt_cache_dir)
        return mf__fail(err, MF_E_INVALID, "prompt_cache_dir is an empty name");
    const mf_elsewhere *e = &o->elsewhere;
    if (!e->begin != !e->finish || (!e->begin && (e->hint || e->wants_hints)) || !e->hint != !e->wants_hints)
        return mf__fail(err, MF_E_INVALID,
                        "elsewhere has some of its functions; begin and finish go together, and so "
                        "do hint and wants_hints");
    if (o->experts_only && (e->begin || o->prompt_cache_ram || o->prompt_cache_dir || o->prompt_cache_disk))
        return mf__fail(err, MF_E_INVALID,
                        "experts_only goes neither with elsewhere nor with a prompt cache: nothing "
                        "is evaluated there but experts");
    if (mf__lossy_asked(&o->lossy) && (e->begin || o->experts_only))
        return mf__fail(err, MF_E_INVALID,
                        "lossy reading is for one machine: it goes neither with elsewhere nor with "
                        "experts_only");
    return mf__lossy_check(&o->lossy, err);
}

const mf_model_info *mf_model_info_get(const mf_model *model) {
    return model ? &model->info : NULL;
}

static mf_status open_pool(mf_model *m, const mf_model_options *opt, mf_error *err) {
    int threads = opt->n_threads;
    if (!threads) {
        mf__cpu cpu;
        mf__cpu_probe(&cpu);
        threads = cpu.n_physical > 0 ? cpu.n_physical : 1;
    }
    MF__TRY(mf__pool_create(threads, &m->pool, err));
    return opt->pin_threads ? mf__pool_pin(m->pool, err) : MF_OK;
}

/* The first op of the blueprint that the backend cannot do; NULL: none. */
static const mf__op *missing_op(const mf__backend *be, const mf__blueprint *bp) {
    const mf__graph *graphs[2 + MF_MAX_KINDS * MF_LAYER_GRAPHS] = {bp->embed, bp->tail};
    for (int k = 0; k < bp->n_kinds; k++) mf__layer_graphs(&bp->kinds[k], graphs + 2 + k * MF_LAYER_GRAPHS);
    for (size_t i = 0; i < MF__COUNT(graphs); i++)
        for (int j = 0; graphs[i] && j < graphs[i]->n_ops; j++)
            if (!be->supports(be, &graphs[i]->ops[j])) return &graphs[i]->ops[j];
    return NULL;
}

/* Makes a backend of this kind; MF_E_UNSUPPORTED where it cannot run the model. */
static mf_status try_backend(mf_model *m, const mf__backend_kind *kind, const mf_model_options *opt, mf_error *err) {
    char why[256] = "";
    if (!kind->available(why, sizeof why))
        return mf__fail(err, MF_E_UNSUPPORTED, "backend %s cannot be used here: %s", kind->name, why);
    mf__backend_config config = {.pool = m->pool, .exact = opt->exact, .log = m->log};
    MF__TRY(kind->create(&config, &m->be, err));
    m->be_kind = kind;
    const mf__op *missing = missing_op(m->be, &m->bp);
    if (!missing) return MF_OK;
    m->be->free(m->be);
    m->be = NULL;
    return mf__fail(err, MF_E_UNSUPPORTED, "backend %s cannot do %s (%s), which this model needs", kind->name,
                    mf__op_name(missing->kind), missing->label);
}

static mf_status open_backend(mf_model *m, const mf_model_options *opt, mf_error *err) {
    const char *name = opt->backend ? opt->backend : "auto";
    if (strcmp(name, "auto")) {
        char names[MF_BACKEND_NAMES];
        const mf__backend_kind *kind = mf__backend_find(name);
        mf__backend_names(names);
        if (!kind) return mf__fail(err, MF_E_INVALID, "backend \"%s\" is not known; known are %s", name, names);
        return try_backend(m, kind, opt, err);
    }
    mf_status st = MF_E_UNSUPPORTED;
    for (int i = 0; i < mf__backend_count(); i++) {
        const mf__backend_kind *kind = mf__backend_at(i);
        mf_error why;
        if (!kind->automatic) continue;
        if ((st = try_backend(m, kind, opt, &why)) == MF_OK) return MF_OK;
        char absent[256]; /* a device that is there and cannot be used is worth a word; one that is not, is not */
        bool there = kind->reference || kind->available(absent, sizeof absent);
        mf__log(&m->log, there ? MF_LOG_WARN : MF_LOG_INFO, "%s%s", why.text, there ? ": another is used" : "");
        if (err) *err = why;
    }
    return st;
}

static void choose_kv(mf_model *m, const mf_model_options *opt) {
    static const mf__type TYPES[] = {[MF_KV_F16] = MF_TYPE_F16, [MF_KV_F32] = MF_TYPE_F32, [MF_KV_INT8] = MF_TYPE_I8};
    bool reference = opt->exact || m->be_kind->reference;
    mf_kv kv = opt->kv != MF_KV_AUTO ? opt->kv : reference ? MF_KV_F32 : MF_KV_F16;
    m->kv_type = TYPES[kv];
}

/* Fewer experts per token than the model has, if the caller wants that. */
static mf_status choose_top_k(mf_model *m, const mf_model_options *opt, mf__config *config, mf_error *err) {
    m->info.n_experts_trained = config->moe.top_k;
    if (!opt->experts_per_token) return MF_OK;
    if (opt->experts_per_token < 1 || opt->experts_per_token > config->moe.top_k)
        return mf__fail(err, MF_E_INVALID, "experts_per_token is %d, this model takes 1 to %d (0: its own number)",
                        opt->experts_per_token, config->moe.top_k);
    config->moe.top_k = opt->experts_per_token;
    if (config->moe.top_k < m->info.n_experts_trained)
        mf__log(&m->log, MF_LOG_WARN,
                "lossy: %d experts per token instead of the %d the model was trained with; its results are not those "
                "of the model",
                config->moe.top_k, m->info.n_experts_trained);
    return MF_OK;
}

/* A longer context than the model's, if the caller wants that. */
static mf_status choose_ctx(mf_model *m, const mf_model_options *opt, mf__config *config, mf_error *err) {
    m->info.n_ctx_trained = config->n_ctx;
    if (opt->yarn == 0) return MF_OK;
    MF__TRY(mf__config_stretch(config, opt->yarn, err));
    mf__log(&m->log, MF_LOG_WARN,
            "the context is stretched from %d to %d tokens by YaRN: what that costs in quality was not measured",
            m->info.n_ctx_trained, config->n_ctx);
    return MF_OK;
}

/* Where each layer's recurrent state lies in a session's. Starts are multiples of 16 floats: 64 bytes. */
static mf_status place_state(mf_model *m, mf_error *err) {
    const mf__config *c = &m->bp.config;
    m->conv_off = mf__arena_array(&m->arena, (size_t)c->n_layers, sizeof *m->conv_off);
    m->delta_off = mf__arena_array(&m->arena, (size_t)c->n_layers, sizeof *m->delta_off);
    if (!m->conv_off || !m->delta_off) return mf__fail(err, MF_E_NOMEM, "no memory for %d layers", c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[l]];
        m->conv_off[l] = m->recurrent_floats;
        m->delta_off[l] = m->conv_off[l] + (k->conv_floats + 15) / 16 * 16;
        m->recurrent_floats = m->delta_off[l] + (k->delta_floats + 15) / 16 * 16;
    }
    return MF_OK;
}

static int64_t set_bytes(const mf__graph *g, mf__weight_set weights) {
    int64_t bytes = 0;
    for (int i = 0; g && i < g->n_weights; i++) bytes += mf__tensor_bytes(&weights[i]);
    return bytes;
}

/* What one decoded token touches: of the embedding one row, of the experts those it goes to, all else whole. */
static int64_t token_bytes(const mf_model *m) {
    const mf__tensor *embed = &m->embed[0];
    int64_t bytes = set_bytes(m->bp.embed, m->embed) - mf__tensor_bytes(embed);
    bytes += mf__tensor_bytes(embed) / (embed->n_planes * embed->n_rows) + set_bytes(m->bp.tail, m->tail);
    for (int32_t l = 0; l < m->bp.config.n_layers; l++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&m->bp.kinds[m->bp.kind_of[l]], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) bytes += set_bytes(graphs[i], m->layers[l][i]);
        if (m->bp.kinds[m->bp.kind_of[l]].experts) bytes += m->bp.config.moe.top_k * m->layout.bytes;
    }
    return bytes;
}

static mf_status fill_info(mf_model *m, mf_error *err) {
    const mf__config *c = &m->bp.config;
    const char *slash = strrchr(m->native.dir, '/');
    char *name = mf__arena_strdup(&m->arena, slash ? slash + 1 : m->native.dir);
    if (!name) return mf__fail(err, MF_E_NOMEM, "no memory for the model's name");
    mf__utf8_clean(name, name, strlen(name) + 1); /* it will be said in JSON */
    int32_t trained = m->info.n_experts_trained, ctx_trained = m->info.n_ctx_trained;
    m->info = (mf_model_info){.name = name,
                              .family = c->family->name,
                              .backend = m->be->name,
                              .n_vocab = c->n_vocab,
                              .n_ctx = c->n_ctx,
                              .n_ctx_trained = ctx_trained,
                              .n_layers = c->n_layers,
                              .n_hidden = c->n_hidden,
                              .n_experts = c->moe.n_experts,
                              .n_experts_per_token = c->moe.top_k,
                              .n_experts_trained = trained,
                              .n_eos = c->n_eos};
    memcpy(m->info.eos, c->eos, sizeof c->eos);
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++)
        m->info.trunk_bytes += mf__catalog_at(m->native.catalog, i)->size;
    for (int32_t l = 0; l < c->n_layers; l++) {
        const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[l]];
        if (k->experts) m->info.expert_bytes += c->moe.n_experts * m->layout.bytes;
        m->info.n_expert_layers += k->experts != NULL;
    }
    if (!m->experts_only) m->info.token_bytes = token_bytes(m);
    m->info.kv_bytes_per_token = mf__blueprint_kv_bytes(&m->bp, m->kv_type);
    m->info.kv = mf__kv_name(m->kv_type);
    m->info.state_bytes = m->recurrent_floats * (int64_t)sizeof(float);
    return MF_OK;
}

/* A shard has some of the experts: it can compute those for others, or be the first of several that share them. */
static mf_status check_shard(const mf_model *m, mf_error *err) {
    const mf__shard *s = m->native.shard;
    if (!s || m->experts_only || (m->elsewhere.begin && s->trunk)) return MF_OK;
    if (m->elsewhere.begin)
        return mf__fail(
            err, MF_E_INVALID,
            "%s is the shard of rank %d of %d, which has no resident weights: rank 0 needs the whole model or "
            "the shard of rank 0",
            m->native.dir, s->rank, s->n_ranks);
    return mf__fail(
        err, MF_E_INVALID,
        "%s is the shard of rank %d of %d, and has no other experts: start all of them together (mpirun -n %d, "
        "docs/CLUSTER.md), or use the whole model",
        m->native.dir, s->rank, s->n_ranks, s->n_ranks);
}

mf_status mf__model_open_parts(mf_model *m, const char *dir, const mf_model_options *opt, mf_error *err) {
    mf__config config;
    m->log = opt->log;
    m->routes = opt->routes;
    m->elsewhere = opt->elsewhere;
    m->experts_only = opt->experts_only;
    MF__TRY(mf__model_lock_init(m, err));
    MF__TRY(open_pool(m, opt, err));
    MF__TRY(mf__native_open(dir, &m->native, err));
    MF__TRY(check_shard(m, err));
    mf__catalog_guard(m->native.catalog);
    MF__TRY(mf__native_config(&m->native, &config, err));
    MF__TRY(choose_top_k(m, opt, &config, err));
    MF__TRY(choose_ctx(m, opt, &config, err));
    config.moe.scores = mf__lossy_asked(&opt->lossy);
    MF__TRY(mf__blueprint_build(&config, &m->bp, err));
    MF__TRY(open_backend(m, opt, err));
    choose_kv(m, opt);
    return MF_OK;
}

mf_status mf__model_measure(mf_model *m, mf_error *err) {
    MF__TRY(mf__native_layout(&m->native, &m->bp, &m->layout, err));
    MF__TRY(place_state(m, err));
    return mf__kv_pool_plan(m, err);
}

/* Experts have no weights but their blobs. */
static mf_status bind_none(mf_model *m, mf_error *err) {
    m->layers = mf__arena_array(&m->arena, (size_t)m->bp.config.n_layers, sizeof *m->layers);
    return m->layers ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for %d layers", m->bp.config.n_layers);
}

static mf_status open_model(mf_model *m, const char *dir, const mf_model_options *opt, mf_error *err) {
    MF__TRY(mf__model_open_parts(m, dir, opt, err));
    MF__TRY(m->experts_only ? bind_none(m, err)
                            : mf__model_bind(m, err)); /* first: it knows best what is wrong with tensors */
    MF__TRY(mf__model_measure(m, err));
    MF__TRY(mf__lossy_open(m, &opt->lossy, err));
    MF__TRY(mf__model_open_stores(m, opt, err));
    const mf__reading told = {opt->progress.fn, opt->progress.user};
    if (m->be->host_memory && !m->experts_only)
        mf__catalog_hold(m->native.catalog, HOLD_LEAST, &told); /* the store has left room for it */
    MF__TRY(fill_info(m, err));
    if (m->experts_only) {
        mf__log(&m->log, MF_LOG_INFO, "%s: experts only, backend %s with %d threads", m->info.name, m->be->name,
                mf__pool_threads(m->pool));
        return MF_OK;
    }
    MF__TRY(mf__kv_pool_init(m, err));
    MF__TRY(mf__cache_open(m, opt->prompt_cache_ram, opt->prompt_cache_dir,
                           opt->prompt_cache_disk ? opt->prompt_cache_disk : DEFAULT_CACHE_DISK, &m->cache, err));
    mf__log(&m->log, MF_LOG_INFO, "%s: %s, %d layers, %d experts (%d per token), backend %s with %d threads",
            m->info.name, m->info.family, m->info.n_layers, m->info.n_experts, m->info.n_experts_per_token, m->be->name,
            mf__pool_threads(m->pool));
    return MF_OK;
}

mf_status mf_model_open(const char *dir, const mf_model_options *opt, mf_model **out, mf_error *err) {
    mf_model_options defaults;
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_model_open: out is NULL");
    *out = NULL;
    if (!dir) return mf__fail(err, MF_E_INVALID, "mf_model_open: dir is NULL");
    mf_model_options_init(&defaults);
    if (opt) MF__TRY(mf__model_options_check(opt, err));
    mf_model *m = calloc(1, sizeof *m);
    if (!m) return mf__fail(err, MF_E_NOMEM, "no memory for the model");
    mf_status st = open_model(m, dir, opt ? opt : &defaults, err);
    if (st != MF_OK) {
        mf_model_close(m);
        return st;
    }
    *out = m;
    return MF_OK;
}

void mf_model_close(mf_model *m) {
    if (!m) return;
    mf__cache_close(m, m->cache);
    mf__workspace_free(m);
    mf__kv_pool_deinit(m);
    mf__model_close_stores(m); /* after everything that borrowed from them */
    mf__lossy_close(m);
    if (m->be) m->be->free(m->be);
    mf__pool_free(m->pool);
    mf__blueprint_free(&m->bp);
    mf__native_close(&m->native);
    free(m->profile);
    mf__arena_free(&m->arena);
    mf__model_lock_deinit(m);
    free(m);
}
