/* Items: a piece of rows of a trunk tensor, or a few experts of a layer. The trunk's tensors come in the order of the
 * plan, and the experts of a layer after the trunk's tensors of that layer, about as checkpoints have them: a source
 * whose files come one after the other (mf__feed) is used up in that order. What is in an item depends on the plan
 * alone, so an interrupted stream goes on with the same items. */
#include "convert/flow.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/probe.h"
#include "convert/calibrate.h"
#include "convert/pipe.h"
#include "convert/report.h"

#define N_SLOTS 3

typedef struct item {
    bool is_trunk;
    /* trunk */
    const mf__plan_tensor *tensor;
    int64_t begin, end; /* rows */
    /* experts first ... first + count - 1; count 0: the sink has the whole layer */
    int layer, first, count;
    mf__source *src;     /* staged: 1, or [count][3] matrices and then as many biases */
    mf__loss loss[2][3]; /* [set][part]; the trunk uses the first */
    bool lossy;
    int64_t source_bytes;
    uint8_t *in, *out; /* out: codes, scales, biases; or experts one stride after the other, then the second set */
    uint64_t *hashes;  /* [count] of experts, then of the second set */
    int *used;         /* [n_files] pieces of tensors, per file, that are finished with this item */
} item;

typedef struct flow {
    const mf__plan *plan;
    const mf__stage *stage;
    const mf__sink *sink;
    mf__pool *pool;
    item items[N_SLOTS];
    mf__loss *rows;
    float *scratch, *strips;
    mf__calibrator *calibrator; /* NULL: none */
    /* What the sink had before the run. The loading thread looks here: the sink itself is being written to. */
    bool *had_tensor; /* [n_tensors] */
    int *had_experts; /* [n_layers] */
    /* load: where the next item begins */
    int64_t next_tensor, next_row;
    int next_layer, next_expert; /* next_expert -1: after those the sink had */
    /* put: of the tensor being written */
    uint8_t *scales, *biases;
    int64_t side_bytes; /* capacity of each */
    mf__loss loss;
    _Atomic int64_t done; /* source bytes */
    /* with a feed */
    int n_files;
    int *left; /* [n_files] pieces of tensors that are still to come */
} flow;

/* ---- load ---- */

static mf_status load_trunk(flow *f, item *it, mf_error *err) {
    const mf__plan_tensor *t = &f->plan->tensors[f->next_tensor];
    size_t used = 0;
    it->is_trunk = true;
    it->tensor = t;
    it->begin = f->next_row;
    it->end = it->begin + t->chunk_rows < t->src.n_rows ? it->begin + t->chunk_rows : t->src.n_rows;
    MF__TRY(mf__stage_rows(f->stage, &t->src, it->begin, it->end, it->in, &used, &it->src[0], err));
    it->source_bytes = mf__source_bytes(&it->src[0]);
    f->next_row = it->end;
    if (it->end == t->src.n_rows) {
        mf__stage_count(f->stage, &t->src, it->used);
        f->next_row = 0;
        f->next_tensor++;
    }
    return MF_OK;
}

static mf_status load_expert(flow *f, item *it, int i, size_t *used, mf_error *err) {
    const mf__plan *p = f->plan;
    for (int part = 0; part < MF_PART_COUNT; part++) {
        mf__source src, *to = &it->src[i * MF_PART_COUNT + part];
        MF__TRY(mf__import_expert(&p->im, it->layer, it->first + i, (mf__expert_part)part, &src, err));
        MF__TRY(mf__stage_rows(f->stage, &src, 0, src.n_rows, it->in, used, to, err));
        it->source_bytes += mf__source_bytes(to);
        mf__stage_count(f->stage, &src, it->used);
        if (!p->layout.part[part].has_bias) continue;
        MF__TRY(mf__import_expert_bias(&p->im, it->layer, it->first + i, (mf__expert_part)part, &src, err));
        mf__stage_count(f->stage, &src, it->used);
        MF__TRY(mf__stage_rows(f->stage, &src, 0, src.n_rows, it->in, used, to + it->count * MF_PART_COUNT, err));
    }
    return MF_OK;
}

static mf_status load_experts(flow *f, item *it, mf_error *err) {
    int n = f->plan->bp.config.moe.n_experts, at_once = f->plan->experts_at_once;
    size_t used = 0;
    if (f->next_expert < 0) f->next_expert = f->had_experts[f->next_layer];
    it->is_trunk = false;
    it->layer = f->next_layer;
    it->first = f->next_expert;
    it->count = n - it->first < at_once ? n - it->first : at_once;
    it->source_bytes = 0;
    for (int i = 0; i < it->count; i++) MF__TRY(load_expert(f, it, i, &used, err));
    f->next_expert = it->first + it->count;
    if (f->next_expert >= n) {
        f->next_expert = -1;
        f->next_layer++;
    }
    return MF_OK;
}

/* The layer a tensor of the trunk belongs to; the embedding goes before all of them, the head after them. */
static int layer_of(const char *name) {
    int layer;
    if (sscanf(name, "model.layers.%d.", &layer) == 1) return layer;
    return strstr(name, "embed") ? -1 : INT_MAX;
}

static mf_status load(void *ctx, void *slot, bool *end, mf_error *err) {
    flow *f = ctx;
    const mf__plan *p = f->plan;
    item *it = slot;
    memset(it->used, 0, (size_t)f->n_files * sizeof *it->used);
    while (f->next_row == 0 && f->next_tensor < p->n_tensors && f->had_tensor[f->next_tensor]) f->next_tensor++;
    while (f->next_layer < p->bp.config.n_layers && !mf__plan_layer_has_experts(p, f->next_layer)) f->next_layer++;
    bool experts = f->next_layer < p->bp.config.n_layers, trunk = f->next_tensor < p->n_tensors;
    if (trunk && (!experts || layer_of(p->tensors[f->next_tensor].name) <= f->next_layer))
        return load_trunk(f, it, err);
    if (experts) return load_experts(f, it, err);
    *end = true;
    return MF_OK;
}

/* ---- work ---- */

static int64_t scales_size(const mf__tensor *t) {
    return mf__tensor_scale_rows(t) * mf__tensor_scale_bytes(t);
}

static mf_status work_trunk(flow *f, item *it, mf_error *err) {
    const mf__plan_tensor *t = it->tensor;
    char name[320];
    mf__tensor dst = t->dst;
    dst.n_rows = it->end - it->begin;
    int64_t data = dst.n_rows * mf__tensor_row_bytes(&dst), scales = scales_size(&dst);
    snprintf(name, sizeof name, "tensor %s", t->name);
    mf__encode e = {.name = name,
                    .src = &it->src[0],
                    .first_row = it->begin,
                    .dst = dst,
                    .data = it->out,
                    .scales = it->out + data,
                    .biases = it->out + data + scales,
                    .add_one = t->add_one,
                    .allow_nonfinite = f->plan->opt->allow_nonfinite,
                    .rows = f->rows,
                    .scratch = f->scratch};
    it->lossy = dst.type == MF_TYPE_AFFINE && !mf__same_form(&t->src.stored, &dst);
    return mf__encode_run(&e, f->pool, &it->loss[0][0], err);
}

/* A part's bias vector, as F32, into the blob. */
static mf_status put_bias(flow *f, const mf__expert_layout *layout, int part, const mf__source *src, const char *matrix,
                          uint8_t *blob, mf_error *err) {
    char name[112];
    snprintf(name, sizeof name, "%s.bias", matrix);
    mf__encode e = {.name = name,
                    .src = src,
                    .dst = {.type = MF_TYPE_F32, .n_planes = 1, .n_rows = src->n_rows, .n_cols = src->n_cols},
                    .data = blob + layout->part[part].bias_off,
                    .scales = blob,
                    .biases = blob, /* there are none */
                    .allow_nonfinite = f->plan->opt->allow_nonfinite,
                    .scratch = f->scratch};
    return mf__encode_run(&e, f->pool, NULL, err);
}

static mf_status work_expert(flow *f, item *it, int i, int set, uint8_t *blob, mf_error *err) {
    const mf__expert_layout *layout = set ? &f->plan->second : &f->plan->layout;
    if (layout->part[0].has_bias) memset(blob, 0, (size_t)layout->bytes); /* there are gaps before the biases */
    for (int part = 0; part < MF_PART_COUNT; part++) {
        const mf__source *src = &it->src[i * MF_PART_COUNT + part];
        mf__loss loss;
        char name[96];
        snprintf(name, sizeof name, "layer %d, expert %d, %s_proj", it->layer, it->first + i,
                 mf__expert_part_name((mf__expert_part)part));
        mf__encode e = {.name = name,
                        .src = src,
                        .expert = it->first + i,
                        .dst = mf__expert_view(layout, (mf__expert_part)part, blob),
                        .data = blob + layout->part[part].data_off,
                        .scales = blob + layout->part[part].scales_off,
                        .biases = blob + layout->part[part].biases_off,
                        .allow_nonfinite = f->plan->opt->allow_nonfinite,
                        .rows = f->rows,
                        .scratch = f->scratch,
                        .strips = f->strips};
        if (f->calibrator) mf__calibrator_part(f->calibrator, (mf__expert_part)part, layout, blob, &e);
        if (e.dst.type != MF_TYPE_AFFINE && !mf__same_form(&src->stored, &e.dst) &&
            !(e.dst.type == MF_TYPE_MXFP4 && src->stored.type == MF_TYPE_MXFP4_BLOCK))
            return mf__fail(err, MF_E_MISMATCH, "%s is of type %s, the first expert of %s", name,
                            mf__type_name(src->stored.type), mf__type_name(e.dst.type));
        it->lossy |= e.dst.type == MF_TYPE_AFFINE && !mf__same_form(&src->stored, &e.dst);
        MF__TRY(mf__encode_run(&e, f->pool, &loss, err));
        mf__loss_add(&it->loss[set][part], &loss);
        if (layout->part[part].has_bias)
            MF__TRY(put_bias(f, layout, part, src + it->count * MF_PART_COUNT, name, blob, err));
    }
    return MF_OK;
}

typedef struct hash_region {
    item *it;
    const mf__plan *plan;
} hash_region;

/* Checksums, and zeros in the space behind each expert. */
static void hash_experts(void *ctx, int64_t begin, int64_t end, int thread) {
    hash_region *h = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        bool second = i >= h->it->count;
        const mf__expert_layout *l = second ? &h->plan->second : &h->plan->layout;
        uint8_t *blob = second ? h->it->out + h->it->count * h->plan->layout.stride + (i - h->it->count) * l->stride
                               : h->it->out + i * l->stride;
        memset(blob + l->bytes, 0, (size_t)(l->stride - l->bytes));
        h->it->hashes[i] = mf__hash_bytes(blob, (size_t)l->bytes);
    }
}

static mf_status work_experts(flow *f, item *it, mf_error *err) {
    const mf__plan *p = f->plan;
    memset(it->loss, 0, sizeof it->loss);
    it->lossy = false;
    for (int i = 0; i < it->count; i++) {
        uint8_t *blob = it->out + i * p->layout.stride;
        const mf__source *src = it->src + i * MF_PART_COUNT;
        const mf__source *biases = p->layout.part[0].has_bias ? src + it->count * MF_PART_COUNT : NULL;
        if (f->calibrator) MF__TRY(mf__calibrator_expert(f->calibrator, it->layer, it->first + i, src, biases, err));
        MF__TRY(work_expert(f, it, i, 0, blob, err));
        if (p->opt->also_bits)
            MF__TRY(work_expert(f, it, i, 1, it->out + it->count * p->layout.stride + i * p->second.stride, err));
    }
    hash_region h = {it, p};
    mf__pool_run(f->pool, hash_experts, &h, it->count * (p->opt->also_bits ? 2 : 1));
    return MF_OK;
}

static mf_status report_progress(flow *f, mf_error *err) {
    const mf__convert_options *opt = f->plan->opt;
    if (opt->progress && opt->progress(opt->progress_user, atomic_load(&f->done), f->plan->source_bytes))
        return mf__fail(err, MF_E_CANCELLED, "stopped by the caller");
    return MF_OK;
}

static mf_status work(void *ctx, void *slot, mf_error *err) {
    flow *f = ctx;
    item *it = slot;
    MF__TRY(report_progress(f, err));
    return it->is_trunk ? work_trunk(f, it, err) : work_experts(f, it, err);
}

/* ---- put ---- */

static mf_status put_whole(flow *f, const char *name, const char *ending, mf__type type, const int64_t *dims,
                           const void *data, int64_t size, mf_error *err) {
    char full[300];
    snprintf(full, sizeof full, "%.*s%s", (int)(strlen(name) - strlen(".weight")), name, ending);
    mf__entry e = {.name = full, .type = type, .n_dims = 2, .dims = {dims[0], dims[1]}, .size = size};
    MF__TRY(f->sink->tensor_begin(f->sink->ctx, &e, 0, err));
    MF__TRY(f->sink->tensor_data(f->sink->ctx, data, size, err));
    return f->sink->tensor_end(f->sink->ctx, err);
}

static mf_status begin_tensor(flow *f, const mf__plan_tensor *t, mf_error *err) {
    mf__tensor dst = t->dst;
    mf__entry e = {.name = t->name, .type = dst.type, .n_dims = t->n_dims};
    int bits = 0;
    f->loss = (mf__loss){0};
    memcpy(e.dims, t->dims, sizeof t->dims);
    if (t->n_dims == 2) {
        e.dims[0] = dst.n_rows;
        e.dims[1] = dst.n_cols;
    }
    if (mf__type_has_scales(dst.type)) {
        bool f8 = dst.type == MF_TYPE_F8_BLOCK;
        e.type = f8 ? MF_TYPE_F8_E4M3 : MF_TYPE_U32;
        if (!f8) e.dims[1] = dst.n_cols * dst.bits / 32;
        bits = f8 ? 0 : dst.bits;
        int64_t side = scales_size(&dst);
        if (side > f->side_bytes) {
            free(f->scales);
            free(f->biases);
            f->scales = malloc((size_t)side);
            f->biases = malloc((size_t)side);
            f->side_bytes = side;
            if (!f->scales || !f->biases)
                return mf__fail(err, MF_E_NOMEM, "no memory for the %lld bytes of scales of %s", (long long)side,
                                t->name);
        }
    }
    e.size = dst.n_rows * mf__tensor_row_bytes(&dst);
    return f->sink->tensor_begin(f->sink->ctx, &e, bits, err);
}

static mf_status end_tensor(flow *f, const mf__plan_tensor *t, bool lossy, mf_error *err) {
    mf__tensor dst = t->dst;
    int64_t scale = scales_size(&dst), bias = dst.n_rows * mf__tensor_bias_bytes(&dst);
    int64_t dims[2] = {mf__tensor_scale_rows(&dst), dst.group ? (dst.n_cols + dst.group - 1) / dst.group : 0};
    const char *scales_name = dst.type == MF_TYPE_F8_BLOCK ? ".weight_scale_inv" : ".scales";
    MF__TRY(f->sink->tensor_end(f->sink->ctx, err));
    if (scale) MF__TRY(put_whole(f, t->name, scales_name, dst.scale_type, dims, f->scales, scale, err));
    if (bias) MF__TRY(put_whole(f, t->name, ".biases", dst.scale_type, dims, f->biases, bias, err));
    json_t *note = lossy ? mf__report_note_tensor(t->name, &t->src.stored, &dst, &f->loss) : NULL;
    return f->sink->part(f->sink->ctx, note, err);
}

static mf_status put_trunk(flow *f, item *it, mf_error *err) {
    const mf__plan_tensor *t = it->tensor;
    mf__tensor chunk = t->dst;
    chunk.n_rows = it->end - it->begin;
    int64_t rows = chunk.n_rows, data = rows * mf__tensor_row_bytes(&chunk), scales = scales_size(&chunk);
    int64_t scale = mf__tensor_scale_bytes(&chunk), bias = mf__tensor_bias_bytes(&chunk);
    if (it->begin == 0) MF__TRY(begin_tensor(f, t, err));
    MF__TRY(f->sink->tensor_data(f->sink->ctx, it->out, data, err));
    if (scale) memcpy(f->scales + mf__tensor_scale_row(&chunk, it->begin) * scale, it->out + data, (size_t)scales);
    if (bias) memcpy(f->biases + it->begin * bias, it->out + data + scales, (size_t)(rows * bias));
    mf__loss_add(&f->loss, &it->loss[0][0]);
    return it->end == t->src.n_rows ? end_tensor(f, t, it->lossy, err) : MF_OK;
}

static mf_status put_experts(flow *f, item *it, mf_error *err) {
    const mf__plan *p = f->plan;
    int n = p->bp.config.moe.n_experts;
    bool second = p->opt->also_bits > 0;
    if (it->first == f->sink->experts_done(f->sink->ctx, it->layer))
        MF__TRY(f->sink->experts_begin(f->sink->ctx, it->layer, &p->layout, n, err));
    mf__expert_run run = {.n = it->count,
                          .blobs = it->out,
                          .seconds = second ? it->out + it->count * p->layout.stride : NULL,
                          .hashes = it->hashes,
                          .second_hashes = it->hashes + it->count};
    if (it->count) MF__TRY(f->sink->experts(f->sink->ctx, &run, err));
    if (it->count)
        MF__TRY(f->sink->part(
            f->sink->ctx, it->lossy ? mf__report_note_experts(it->layer, (const mf__loss(*)[3])it->loss, second) : NULL,
            err));
    return it->first + it->count == n ? f->sink->experts_end(f->sink->ctx, err) : MF_OK;
}

/* Files whose last piece came with this item may go, once it is on the disk. */
static mf_status release_files(flow *f, const int *used, mf_error *err) {
    const mf__feed *feed = f->plan->opt->feed;
    bool committed = false;
    for (int i = 0; i < f->n_files; i++) {
        f->left[i] -= used[i];
        if (!used[i] || f->left[i]) continue;
        if (!committed) MF__TRY(f->sink->commit(f->sink->ctx, err));
        committed = true;
        MF__TRY(feed->done(feed->user, mf__catalog_file(f->plan->cat, i), err));
    }
    return MF_OK;
}

static mf_status put(void *ctx, void *slot, mf_error *err) {
    flow *f = ctx;
    item *it = slot;
    MF__TRY(it->is_trunk ? put_trunk(f, it, err) : put_experts(f, it, err));
    atomic_fetch_add(&f->done, it->source_bytes);
    return f->plan->opt->feed ? release_files(f, it->used, err) : MF_OK;
}

/* ---- run ---- */

/* What the sink has already, and its source bytes. */
static mf_status count_done(flow *f, int64_t *done, mf_error *err) {
    const mf__plan *p = f->plan;
    *done = 0;
    f->had_tensor = calloc((size_t)p->n_tensors + 1, sizeof *f->had_tensor);
    f->had_experts = calloc((size_t)p->bp.config.n_layers + 1, sizeof *f->had_experts);
    if (!f->had_tensor || !f->had_experts) return mf__fail(err, MF_E_NOMEM, "no memory for a conversion");
    for (int64_t i = 0; i < p->n_tensors; i++) {
        f->had_tensor[i] = f->sink->has_tensor(f->sink->ctx, p->tensors[i].name);
        if (f->had_tensor[i]) *done += mf__source_bytes(&p->tensors[i].src);
    }
    for (int l = 0; l < p->bp.config.n_layers; l++) {
        if (!mf__plan_layer_has_experts(p, l)) continue;
        f->had_experts[l] = f->sink->experts_done(f->sink->ctx, l);
        for (int e = 0; e < f->had_experts[l]; e++)
            for (int part = 0; part < MF_PART_COUNT; part++) {
                mf__source src;
                MF__TRY(mf__import_expert(&p->im, l, e, (mf__expert_part)part, &src, err));
                *done += mf__source_bytes(&src);
            }
    }
    return MF_OK;
}

static mf_status count_expert(flow *f, int layer, int expert, mf_error *err) {
    const mf__plan *p = f->plan;
    for (int part = 0; part < MF_PART_COUNT; part++) {
        mf__source src;
        MF__TRY(mf__import_expert(&p->im, layer, expert, (mf__expert_part)part, &src, err));
        mf__stage_count(f->stage, &src, f->left);
        if (!p->layout.part[part].has_bias) continue;
        MF__TRY(mf__import_expert_bias(&p->im, layer, expert, (mf__expert_part)part, &src, err));
        mf__stage_count(f->stage, &src, f->left);
    }
    return MF_OK;
}

/* With a feed: what is still to be read of each file. Those of which nothing is may go at once. */
static mf_status count_files(flow *f, mf_error *err) {
    const mf__plan *p = f->plan;
    const mf__feed *feed = p->opt->feed;
    f->left = calloc((size_t)f->n_files + 1, sizeof *f->left);
    if (!f->left) return mf__fail(err, MF_E_NOMEM, "no memory for a conversion");
    for (int64_t i = 0; i < p->n_tensors; i++)
        if (!f->had_tensor[i]) mf__stage_count(f->stage, &p->tensors[i].src, f->left);
    for (int l = 0; l < p->bp.config.n_layers; l++)
        for (int e = f->had_experts[l]; mf__plan_layer_has_experts(p, l) && e < p->bp.config.moe.n_experts; e++)
            MF__TRY(count_expert(f, l, e, err));
    for (int i = 0; i < f->n_files; i++)
        if (!f->left[i] && mf__catalog_is_file(p->cat, i))
            MF__TRY(feed->done(feed->user, mf__catalog_file(p->cat, i), err));
    return MF_OK;
}

static mf_status reserve(flow *f, mf_error *err) {
    const mf__plan *p = f->plan;
    int threads = p->opt->n_threads;
    if (!threads) {
        mf__cpu cpu;
        mf__cpu_probe(&cpu);
        threads = cpu.n_logical > 0 ? cpu.n_logical : 1;
    }
    MF__TRY(mf__pool_create(threads, &f->pool, err));
    f->rows = malloc((size_t)p->max_rows * sizeof *f->rows);
    f->scratch = malloc((size_t)mf__encode_scratch(p->max_cols) * (size_t)threads * sizeof *f->scratch);
    if (p->opt->sample && p->has_experts) {
        MF__TRY(mf__calibrator_open(p, f->pool, 0, &f->calibrator, err));
        f->strips = malloc((size_t)mf__encode_strip(p->max_cols) * (size_t)threads * sizeof *f->strips);
        if (!f->strips) return mf__fail(err, MF_E_NOMEM, "no memory for a conversion");
    }
    bool ok = f->rows && f->scratch;
    for (int i = 0; i < N_SLOTS; i++) {
        item *it = &f->items[i];
        it->in = mf__direct_alloc((size_t)p->max_in);
        it->out = mf__direct_alloc((size_t)p->max_out);
        it->src = calloc((size_t)p->experts_at_once * 2 * MF_PART_COUNT + 1, sizeof *it->src);
        it->hashes = malloc(((size_t)p->experts_at_once * 2 + 1) * sizeof *it->hashes);
        it->used = calloc((size_t)f->n_files + 1, sizeof *it->used);
        ok = ok && it->in && it->out && it->src && it->hashes && it->used;
    }
    if (ok) return MF_OK;
    return mf__fail(err, MF_E_NOMEM, "no memory for a conversion: it needs about %lld MB",
                    (long long)(N_SLOTS * (p->max_in + p->max_out) / 1000000 + 1));
}

static void release(flow *f) {
    for (int i = 0; i < N_SLOTS; i++) {
        mf__direct_free(f->items[i].in, (size_t)f->plan->max_in);
        mf__direct_free(f->items[i].out, (size_t)f->plan->max_out);
        free(f->items[i].src);
        free(f->items[i].hashes);
        free(f->items[i].used);
    }
    free(f->left);
    free(f->had_tensor);
    free(f->had_experts);
    free(f->rows);
    free(f->scratch);
    free(f->strips);
    mf__calibrator_close(f->calibrator);
    free(f->scales);
    free(f->biases);
    mf__pool_free(f->pool);
}

mf_status mf__flow_run(const mf__plan *plan, const mf__stage *stage, const mf__sink *sink, mf_error *err) {
    flow f = {.plan = plan, .stage = stage, .sink = sink, .next_expert = -1, .n_files = mf__catalog_n_files(plan->cat)};
    int64_t done = 0;
    mf_status st = count_done(&f, &done, err);
    if (st == MF_OK && plan->opt->feed) st = count_files(&f, err);
    atomic_init(&f.done, done);
    if (st == MF_OK) st = reserve(&f, err);
    if (st == MF_OK) st = report_progress(&f, err);
    if (st == MF_OK) {
        void *slots[N_SLOTS];
        for (int i = 0; i < N_SLOTS; i++) slots[i] = &f.items[i];
        mf__pipe pipe = {.ctx = &f, .n_slots = N_SLOTS, .slots = slots, .load = load, .work = work, .put = put};
        st = mf__pipe_run(&pipe, err);
    }
    if (st == MF_OK) st = report_progress(&f, err);
    release(&f);
    return st;
}
