/* Writing a random model: the plan of its tensors, and the stages that fill and write them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/file.h"
#include "base/probe.h"
#include "convert/pipe.h"
#include "convert/synth_int.h"
#include "quant/affine.h"

#define ALIGN 4096
#define GROUP 64
#define N_SLOTS MF_SYNTH_SLOTS
#define ITEM_BYTES ((int64_t)16 << 20)

typedef mf__synth_state synth;
typedef mf__synth_weight weight;
typedef mf__synth_item item;

void mf__synth_options_init(mf__synth_options *opt) {
    *opt = (mf__synth_options){.shape = "a3b", .seed = 1, .expert_bits = 4, .trunk_bits = 8};
}

/* ---- the stages ---- */

static bool has_experts(const synth *s, int layer) {
    return s->bp.kinds[s->bp.kind_of[layer]].experts != NULL;
}

/* An expert and, where there is one, its small copy. */
static int64_t both_strides(const synth *s) {
    return s->layout.stride + (s->opt->also_bits ? s->small.stride : 0);
}

static mf_status load(void *ctx, void *slot, bool *end, mf_error *err) {
    synth *s = ctx;
    item *it = slot;
    int n = s->bp.config.moe.n_experts;
    (void)err;
    it->w = NULL;
    if (s->next_weight < s->n_weights) {
        it->w = &s->weights[s->next_weight];
        it->begin = s->next_row;
        it->end = it->begin + it->w->chunk_rows < it->w->n_rows ? it->begin + it->w->chunk_rows : it->w->n_rows;
        it->bytes = mf__tensor_bytes(&it->w->form) / it->w->n_rows * (it->end - it->begin);
        s->next_row = it->end < it->w->n_rows ? it->end : 0;
        s->next_weight += s->next_row == 0;
        return MF_OK;
    }
    while (s->next_layer < s->bp.config.n_layers && !has_experts(s, s->next_layer)) s->next_layer++;
    *end = s->next_layer >= s->bp.config.n_layers;
    if (*end) return MF_OK;
    it->layer = s->next_layer;
    it->first = s->next_expert;
    it->count = n - it->first < s->at_once ? n - it->first : s->at_once;
    it->bytes = it->count * both_strides(s);
    s->next_expert += it->count;
    if (s->next_expert == n) {
        s->next_expert = 0;
        s->next_layer++;
    }
    return MF_OK;
}

static mf_status work(void *ctx, void *slot, mf_error *err) {
    synth *s = ctx;
    item *it = slot;
    if (s->opt->progress && s->opt->progress(s->opt->progress_user, atomic_load(&s->done), s->total))
        return mf__fail(err, MF_E_CANCELLED, "stopped by the caller");
    return mf__synth_fill(s, it, err);
}

static mf_status put_side(synth *s, const weight *w, const char *ending, const uint8_t *data, mf_error *err) {
    char name[300];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(w->name) - strlen(".weight")), w->name, ending);
    mf__entry e = {.name = name,
                   .type = w->form.scale_type,
                   .n_dims = 2,
                   .dims = {w->n_rows, w->n_cols / w->form.group},
                   .data = data,
                   .size = w->n_rows * mf__tensor_scale_bytes(&w->form)};
    return mf__native_writer_tensor(s->writer, &e, 0, err);
}

static mf_status put_rows(synth *s, const item *it, mf_error *err) {
    const weight *w = it->w;
    const mf__tensor *form = &w->form;
    mf__entry e = {.name = w->name, .type = form->type, .n_dims = 2, .dims = {w->n_rows, w->n_cols}};
    int64_t rows = it->end - it->begin, data = rows * mf__tensor_row_bytes(form), side = mf__tensor_scale_bytes(form);
    bool affine = form->type == MF_TYPE_AFFINE;
    if (w->vector && w->n_rows == 1) e.n_dims = 1, e.dims[0] = w->n_cols;
    if (w->vector && w->n_rows > 1) e.n_dims = 3, e.dims[2] = 1;
    if (affine) e.type = MF_TYPE_U32, e.dims[1] = w->n_cols * form->bits / 32;
    e.size = w->n_rows * mf__tensor_row_bytes(form);
    if (it->begin == 0) MF__TRY(mf__native_writer_tensor_begin(s->writer, &e, affine ? form->bits : 0, err));
    MF__TRY(mf__native_writer_tensor_data(s->writer, it->out, data, err));
    if (affine) memcpy(s->scales + it->begin * side, it->out + data, (size_t)(rows * side));
    if (affine) memcpy(s->biases + it->begin * side, it->out + data + rows * side, (size_t)(rows * side));
    if (it->end < w->n_rows) return MF_OK;
    MF__TRY(mf__native_writer_tensor_end(s->writer, err));
    if (!affine) return MF_OK;
    MF__TRY(put_side(s, w, ".scales", s->scales, err));
    return put_side(s, w, ".biases", s->biases, err);
}

static mf_status put(void *ctx, void *slot, mf_error *err) {
    synth *s = ctx;
    item *it = slot;
    int n = s->bp.config.moe.n_experts;
    if (it->w) {
        MF__TRY(put_rows(s, it, err));
    } else {
        if (it->first == 0) MF__TRY(mf__native_writer_experts_begin(s->writer, it->layer, &s->layout, n, err));
        mf__expert_run run = {.n = it->count,
                              .blobs = it->out,
                              .seconds = s->opt->also_bits ? it->out + it->count * s->layout.stride : NULL,
                              .hashes = it->hashes,
                              .second_hashes = it->small_hashes};
        MF__TRY(mf__native_writer_expert_run(s->writer, &run, err));
        if (it->first + it->count == n) MF__TRY(mf__native_writer_experts_end(s->writer, err));
    }
    atomic_fetch_add(&s->done, it->bytes);
    return MF_OK;
}

/* ---- the whole ---- */

static bool is_router(const char *name) {
    static const char end[] = ".mlp.gate.weight";
    size_t n = strlen(name);
    return n >= sizeof end && !strcmp(name + n - (sizeof end - 1), end);
}

static mf__tensor form_of(int64_t rows, int64_t cols, int bits) {
    mf__tensor t = {.type = MF_TYPE_BF16, .n_planes = 1, .n_rows = rows, .n_cols = cols};
    if (!bits || cols % GROUP) return t;
    t.type = MF_TYPE_AFFINE;
    t.bits = bits;
    t.group = GROUP;
    t.scale_type = MF_TYPE_BF16;
    return t;
}

static mf_status add_weight(void *ctx, const char *name, const mf__weight_info *info, mf_error *err) {
    synth *s = ctx;
    weight w = {.vector = info->kind == MF_WEIGHT_VECTOR, .n_rows = info->n_rows, .n_cols = info->n_cols, .layer = -1};
    w.router = is_router(name);
    w.form = form_of(w.n_rows, w.n_cols, w.router ? 0 : s->opt->trunk_bits);
    if (w.vector) w.form = (mf__tensor){.type = MF_TYPE_F32, .n_planes = 1, .n_rows = w.n_rows, .n_cols = w.n_cols};
    sscanf(name, "model.layers.%d.", &w.layer);
    int64_t row = mf__tensor_bytes(&w.form) / w.n_rows, side = w.n_rows * mf__tensor_scale_bytes(&w.form);
    w.chunk_rows = w.form.type == MF_TYPE_AFFINE && row * w.n_rows > ITEM_BYTES ? ITEM_BYTES / row : w.n_rows;
    if (row * w.chunk_rows > s->max_out) s->max_out = row * w.chunk_rows;
    if (side > s->max_side) s->max_side = side;
    weight *grown = realloc(s->weights, (size_t)(s->n_weights + 1) * sizeof *grown);
    w.name = strdup(name);
    if (grown) s->weights = grown;
    if (!grown || !w.name) {
        free(w.name);
        return mf__fail(err, MF_E_NOMEM, "no memory for a model's plan");
    }
    s->weights[s->n_weights++] = w;
    s->total += mf__tensor_bytes(&w.form);
    return MF_OK;
}

static mf_status plan_experts(const mf__config *c, int bits, mf__expert_layout *out, mf_error *err) {
    for (int p = 0; p < MF_PART_COUNT; p++) {
        int64_t rows = p == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner;
        mf__tensor form = form_of(rows, p == MF_PART_DOWN ? mf__config_expert_wide(c) : c->n_hidden, bits);
        out->part[p].type = form.type;
        out->part[p].n_rows = form.n_rows;
        out->part[p].n_cols = form.n_cols;
        out->part[p].bits = form.bits;
        out->part[p].group = form.group;
        out->part[p].scale_type = form.scale_type;
    }
    return mf__expert_layout_pack(out, ALIGN, err);
}

static mf_status plan(synth *s, mf_error *err) {
    const mf__config *c = &s->bp.config;
    MF__TRY(mf__blueprint_each_weight(&s->bp, add_weight, s, err));
    MF__TRY(plan_experts(c, s->opt->expert_bits, &s->layout, err));
    if (s->opt->also_bits) MF__TRY(plan_experts(c, s->opt->also_bits, &s->small, err));
    for (int l = 0; l < c->n_layers; l++)
        if (has_experts(s, l)) s->total += c->moe.n_experts * both_strides(s);
    int64_t n = ITEM_BYTES / both_strides(s);
    s->at_once = n < 2 ? 2 : n > MF_SYNTH_EXPERTS ? MF_SYNTH_EXPERTS : (int)n;
    if (s->at_once * both_strides(s) > s->max_out) s->max_out = s->at_once * both_strides(s);
    return MF_OK;
}

static mf_status write_json(mf__native_writer *w, const char *name, json_t *root, mf_error *err) {
    char *path = mf__native_writer_path(w, name), *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    mf_status st = path && text ? mf__file_replace(path, text, strlen(text), err)
                                : mf__fail(err, MF_E_NOMEM, "no memory for %s", name);
    free(path);
    free(text);
    return st;
}

static mf_status run(synth *s, json_t *config, mf_error *err) {
    int threads = s->opt->n_threads;
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    MF__TRY(mf__pool_create(threads ? threads : cpu.n_logical > 0 ? cpu.n_logical : 1, &s->pool, err));
    void *slots[N_SLOTS];
    for (int i = 0; i < N_SLOTS; i++) {
        slots[i] = &s->items[i];
        s->items[i].out = mf__direct_alloc((size_t)s->max_out);
        if (!s->items[i].out) return mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes", (long long)s->max_out);
    }
    s->scales = malloc((size_t)s->max_side + 1);
    s->biases = malloc((size_t)s->max_side + 1);
    if (!s->scales || !s->biases) return mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes", (long long)s->max_side);
    json_t *tokenizer = mf__synth_tokenizer();
    mf_status st = write_json(s->writer, "config.json", config, err);
    if (st == MF_OK) st = write_json(s->writer, "tokenizer.json", tokenizer, err);
    json_decref(tokenizer);
    mf__pipe pipe = {.ctx = s, .n_slots = N_SLOTS, .slots = slots, .load = load, .work = work, .put = put};
    return st == MF_OK ? mf__pipe_run(&pipe, err) : st;
}

static mf_status check_options(const mf__synth_options *opt, mf_error *err) {
    int bits[2] = {opt->expert_bits, opt->trunk_bits};
    for (int i = 0; i < 2; i++)
        if (!mf__affine_bits_ok(bits[i]))
            return mf__fail(err, MF_E_INVALID, "%d bits are not possible; possible are 2, 3, 4, 5, 6 and 8", bits[i]);
    if (opt->also_bits && opt->also_bits != 2 && opt->also_bits != 3)
        return mf__fail(err, MF_E_INVALID, "small copies of %d bits are not possible; 2 and 3 are", opt->also_bits);
    if (!(opt->popularity >= 0 && opt->popularity <= 4))
        return mf__fail(err, MF_E_INVALID, "a popularity of %g is not possible; 0 to 4 is", opt->popularity);
    return MF_OK;
}

static void release(synth *s) {
    for (int i = 0; i < N_SLOTS; i++) mf__direct_free(s->items[i].out, (size_t)s->max_out);
    for (int64_t i = 0; i < s->n_weights; i++) free(s->weights[i].name);
    free(s->weights);
    free(s->scales);
    free(s->biases);
    mf__pool_free(s->pool);
    mf__blueprint_free(&s->bp);
}

/* In whatever words the shape says it; what is impossible will not be parsed. */
static void set_experts(json_t *config, int n) {
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    for (size_t i = 0; i < MF__COUNT(keys); i++)
        if (json_object_get(config, keys[i])) json_object_set_new(config, keys[i], json_integer(n));
}

/* The config and the plan; s is to be released whatever comes back, and json is the caller's. */
static mf_status begin(synth *s, json_t **json, mf_error *err) {
    mf__config config;
    MF__TRY(check_options(s->opt, err));
    *json = mf__synth_config(s->opt->shape, s->opt->n_layers, err);
    if (!*json) return err ? err->status : MF_E_INVALID;
    if (s->opt->n_experts) set_experts(*json, s->opt->n_experts);
    MF__TRY(mf__config_parse(*json, "config.json", &config, err));
    MF__TRY(mf__blueprint_build(&config, &s->bp, err));
    if (s->opt->popularity > 0 && config.moe.n_groups > 1)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "popularity is not possible in the shape %s: its router chooses groups first", s->opt->shape);
    return plan(s, err);
}

mf_status mf__synth_measure(const mf__synth_options *opt, mf__synth_sizes *out, mf_error *err) {
    synth s = {.opt = opt};
    json_t *json = NULL;
    *out = (mf__synth_sizes){0};
    mf_status st = begin(&s, &json, err);
    const mf__config *c = &s.bp.config;
    for (int64_t i = 0; st == MF_OK && i < s.n_weights; i++) {
        int64_t bytes = mf__tensor_bytes(&s.weights[i].form);
        out->trunk += bytes;
        bool embeds = !strcmp(s.weights[i].name, "model.embed_tokens.weight");
        out->token += c->tied_head || !embeds ? bytes : 0;
        out->body += embeds || !strcmp(s.weights[i].name, "lm_head.weight") ? 0 : bytes;
    }
    for (int l = 0; st == MF_OK && l < c->n_layers; l++) out->n_expert_layers += has_experts(&s, l);
    if (st == MF_OK) {
        out->expert = s.layout.stride;
        out->expert_weights = c->n_hidden * (2LL * c->moe.n_inner + mf__config_expert_wide(c));
        out->n_experts = (int64_t)out->n_expert_layers * c->moe.n_experts;
        out->n_wanted = (int64_t)out->n_expert_layers * c->moe.top_k;
    }
    release(&s);
    json_decref(json);
    return st;
}

mf_status mf__synth(const mf__synth_options *opt, const char *dst, mf_error *err) {
    synth s = {.opt = opt};
    json_t *json = NULL;
    mf_status st = begin(&s, &json, err);
    if (st == MF_OK) st = mf__native_writer_begin(dst, &s.writer, err);
    if (st == MF_OK && opt->also_bits) st = mf__native_writer_second_set(s.writer, &s.small, err);
    if (st == MF_OK) st = run(&s, json, err);
    if (st == MF_OK) {
        char name[64];
        snprintf(name, sizeof name, "synthetic %s", opt->shape);
        st = mf__native_writer_finish(s.writer, name, json, err);
    } else {
        mf__native_writer_abort(s.writer);
    }
    release(&s);
    json_decref(json);
    return st;
}
