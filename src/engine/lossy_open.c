/* What is asked for of engine/lossy.h, whether this model can do it, and its memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/lossy.h"

#define SMALL_RAM 0.25 /* of the experts' memory, for small copies, where nobody says */

bool mf__lossy_asked(const mf_lossy *o) {
    return o->bonus > 0 || o->skip > 0 || o->small > 0;
}

mf_status mf__lossy_check(const mf_lossy *o, mf_error *err) {
    const struct {
        const char *name;
        double value, most;
    } all[] = {{"bonus", o->bonus, 20},
               {"skip", o->skip, 1},
               {"small", o->small, 2},
               {"promote", o->promote, 1},
               {"small-ram", o->small_ram, 0.9},
               {"sure", o->sure, 1},
               {"protect", o->protect, 64},
               {"most", o->most, 1 << 20},
               {"tail", o->tail, 64}};
    for (size_t i = 0; i < MF__COUNT(all); i++)
        if (!(all[i].value >= 0 && all[i].value <= all[i].most))
            return mf__fail(err, MF_E_INVALID, "lossy: %s is %g, expected 0 to %g", all[i].name, all[i].value,
                            all[i].most);
    const struct {
        const char *name, *of;
        bool given, there;
    } needs[] = {{"promote", "bonus, skip or small", o->promote > 0, mf__lossy_asked(o)},
                 {"small-ram", "small", o->small_ram > 0, o->small > 0},
                 {"sure", "bonus", o->sure > 0, o->bonus > 0},
                 {"tail", "bonus", o->tail > 0, o->bonus > 0},
                 {"most", "bonus or skip", o->most > 0, o->bonus > 0 || o->skip > 0},
                 {"protect", "bonus, skip or small", o->protect > 0, mf__lossy_asked(o)}};
    for (size_t i = 0; i < MF__COUNT(needs); i++)
        if (needs[i].given && !needs[i].there)
            return mf__fail(err, MF_E_INVALID, "lossy: %s does nothing without %s", needs[i].name, needs[i].of);
    return MF_OK;
}

/* The scores' correction in the choice of every layer that has one. */
static mf_status find_bias(mf_model *m, mf__lossy *x, mf_error *err) {
    x->bias = mf__arena_array(&m->arena, (size_t)m->bp.config.n_layers, sizeof *x->bias);
    if (!x->bias) return mf__fail(err, MF_E_NOMEM, "no memory for %d layers", m->bp.config.n_layers);
    for (int32_t l = 0; l < m->bp.config.n_layers; l++) {
        const mf__graph *mix = m->bp.kinds[m->bp.kind_of[l]].mix;
        x->bias[l] = NULL;
        for (int i = 0; i < mix->n_weights; i++)
            if (!strcmp(mix->weights[i].name, "mlp.gate.e_score_correction_bias"))
                x->bias[l] = m->layers[l][MF_GRAPH_MIX][i].data;
    }
    return MF_OK;
}

static mf_status find_copies(const mf_model *m, mf__expert_layout *small, mf_error *err) {
    const mf__expert_layout *full = &m->layout;
    const json_t *set = json_object_get(json_object_get(m->native.manifest, "moeflux"), MF_SMALL_SET);
    int n = 0;
    if (!set)
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s has no small copies of its experts, which lossy \"small\" needs; they are made by convert "
                        "--also 2",
                        m->native.dir);
    MF__TRY(mf__native_experts_parse(set, small, &n, err));
    for (int p = 0; p < MF_PART_COUNT; p++)
        if (n != m->bp.config.moe.n_experts || small->part[p].n_rows != full->part[p].n_rows ||
            small->part[p].n_cols != full->part[p].n_cols)
            return mf__fail(err, MF_E_FORMAT, "%s: the small copies are not of this model's experts", m->native.dir);
    return MF_OK;
}

static mf_status make_tables(mf_model *m, mf__lossy *x, mf_error *err) {
    size_t n = (size_t)m->bp.config.moe.n_experts, n_layers = (size_t)m->bp.config.n_layers;
    x->served = mf__arena_array(&m->arena, n, sizeof *x->served);
    x->resident = mf__arena_array(&m->arena, n, sizeof *x->resident);
    x->small_resident = mf__arena_array(&m->arena, n, sizeof *x->small_resident);
    x->chance = mf__arena_array(&m->arena, n, sizeof *x->chance);
    x->scores = mf__arena_array(&m->arena, n, sizeof *x->scores);
    x->shares = mf__arena_array(&m->arena, MF_MAX_TOPK, sizeof *x->shares);
    x->last = mf__arena_array(&m->arena, n_layers, sizeof *x->last);
    x->n_last = mf__arena_array(&m->arena, n_layers, sizeof *x->n_last);
    x->wanted = mf__arena_array(&m->arena, n, sizeof *x->wanted);
    x->counts = mf__arena_array(&m->arena, n, sizeof *x->counts);
    x->ahead = mf__arena_array(&m->arena, n, sizeof *x->ahead);
    x->used = mf__arena_array(&m->arena, n, sizeof *x->used);
    x->used_counts = mf__arena_array(&m->arena, n, sizeof *x->used_counts);
    if (x->served && x->resident && x->small_resident && x->chance && x->scores && x->shares && x->last && x->n_last &&
        x->wanted && x->counts && x->ahead && x->used && x->used_counts) {
        memset(x->last, 0, n_layers * sizeof *x->last);
        memset(x->n_last, 0, n_layers * sizeof *x->n_last);
        return MF_OK;
    }
    return mf__fail(err, MF_E_NOMEM, "no memory for the choices of %zu experts", n);
}

mf_status mf__lossy_open(mf_model *m, const mf_lossy *opt, mf_error *err) {
    if (!mf__lossy_asked(opt)) return MF_OK;
    if (!m->be->host_memory)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "lossy reading is not for backend %s, which has memory of its own; use --backend cpu",
                        m->be->name);
    const mf__features *has = &m->bp.config.has;
    if (m->bp.config.moe.n_identity)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "lossy reading is not for %s, whose router chooses among more than experts",
                        m->bp.config.family->name);
    if ((has->route_apart || has->weigh_first) && opt->bonus > 0)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "lossy \"bonus\" is not for %s, whose router scales %s; \"skip\" and \"small\" are",
                        m->bp.config.family->name, has->weigh_first ? "what experts read" : "experts one by one");
    mf__lossy *x = mf__arena_array(&m->arena, 1, sizeof *x);
    if (!x) return mf__fail(err, MF_E_NOMEM, "no memory for choices");
    *x = (mf__lossy){.opt = *opt};
    MF__TRY(find_bias(m, x, err));
    MF__TRY(make_tables(m, x, err));
    if (opt->small > 0) MF__TRY(find_copies(m, &x->layout, err));
    m->lossy = x;
    mf__log(&m->log, MF_LOG_WARN,
            "lossy: once its memory is full of experts, tokens are decoded with fewer, other or smaller ones than the "
            "model would take; its results are not those of the model");
    return MF_OK;
}

static mf_status find_files(mf_model *m, const char *const **out, mf_error *err) {
    int n_layers = m->bp.config.n_layers;
    const char **files = mf__arena_array(&m->arena, (size_t)n_layers, sizeof *files);
    if (!files) return mf__fail(err, MF_E_NOMEM, "no memory for %d expert files", n_layers);
    for (int l = 0; l < n_layers; l++) {
        bool has = m->bp.kinds[m->bp.kind_of[l]].experts != NULL;
        files[l] = has ? mf__arena_printf(&m->arena, "%s/" MF_SMALL_DIR "/layer_%02d.bin", m->native.dir, l) : NULL;
        if (has && !files[l]) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    }
    *out = files;
    return MF_OK;
}

/* As many bytes in all as most_slots experts have. */
static void divide_slots(mf_model *m) {
    mf__store_config *full = &m->store_config, *small = &m->small_config;
    double part = m->small_part * full->most_slots;
    if (!full->most_slots) return;
    full->most_slots -= (int)part;
    small->most_slots = (int)(part * (double)full->bytes / (double)small->bytes);
    if (small->most_slots < 1) small->most_slots = 1;
    if (full->most_slots < 1) full->most_slots = 1;
}

mf_status mf__lossy_store_plan(mf_model *m, const mf_lossy *opt, mf_error *err) {
    mf__expert_layout layout;
    m->store_config.logical = mf__lossy_asked(opt);
    if (!(opt->small > 0)) return MF_OK;
    MF__TRY(find_copies(m, &layout, err));
    m->small_part = opt->small_ram > 0 ? opt->small_ram : SMALL_RAM;
    m->small_config = m->store_config;
    m->small_config.n_dirs = 1;
    m->small_config.stride = layout.stride;
    m->small_config.bytes = layout.bytes;
    divide_slots(m);
    return find_files(m, &m->small_config.files, err);
}

mf_status mf__lossy_open_store(mf_model *m, mf_error *err) {
    mf__lossy *x = m->lossy;
    mf__store_config *c = &m->small_config;
    if (!c->bytes) return MF_OK;
    c->budget = (int64_t)((double)m->experts_budget * m->small_part);
    if (m->experts_budget && !c->budget) c->budget = 1;
    mf_status st = mf__store_open(c, &x->store, err);
    if (st != MF_OK) return mf__fail_prefix(err, st, "the small copies of experts");
    m->store_config.budget = m->experts_budget - c->budget;
    m->store_config.beside = x->store;
    return mf__turn_create(x->store, &x->turn, err);
}

void mf__lossy_close(mf_model *m) {
    mf__lossy *x = m->lossy;
    if (!x) return;
    mf__turn_free(x->turn);
    mf__store_close(x->store);
    x->turn = NULL;
    x->store = NULL;
}

/* ---- counters ----------------------------------------------------------------------------------------------------- */

void mf__lossy_stats_add(mf__lossy *x, mf_stats *out) {
    mf_stats s = {0};
    if (!x) return;
    out->lossy_experts = x->n_pairs;
    out->lossy_replaced = x->n_replaced;
    out->lossy_skipped = x->n_skipped;
    out->lossy_small = x->n_small;
    if (!x->store) return;
    mf__store_stats_get(x->store, &s);
    out->lossy_small_bytes = s.bytes_read + s.bytes_prefetched;
    out->bytes_read += s.bytes_read;
    out->bytes_prefetched += s.bytes_prefetched;
    out->stall_ns += s.stall_ns;
    out->cache_bytes += s.cache_bytes;
    out->budget += s.budget;
    out->busy_ns += s.busy_ns;
    for (int i = 0; i < MF_PREDICTORS; i++) {
        mf_predictor_stats *sum = &out->predictors[i];
        const mf_predictor_stats *p = &s.predictors[i];
        sum->wanted += p->wanted;
        sum->foretold += p->foretold;
        sum->right += p->right;
        sum->read += p->read;
        sum->useful += p->useful;
        sum->late += p->late;
        sum->useless += p->useless;
        sum->stall_ns += p->stall_ns;
    }
}

void mf__lossy_stats_reset(mf__lossy *x) {
    if (!x) return;
    x->n_pairs = x->n_replaced = x->n_skipped = x->n_small = 0;
    if (x->store) mf__store_stats_reset(x->store);
}
