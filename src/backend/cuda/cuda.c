/* The cuda backend: memory, lists, replay.
 *
 * Everything happens in one stream, in the order of the calls; fill() has streams of its own. A list is launched op by
 * op; when an equal one comes again the launches are recorded, and from then on they are replayed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/host.h"

#define PINNED_BYTES ((int64_t)2 << 20) /* downloaded at a time */
#define FUSED_BYTES (16 << 20)
#define PARTS_BYTES (64 << 20) /* of attention, at least */
#define REPLAY_ROWS 64         /* lists of more rows are launched op by op: it does not pay */

mf_status mf__cu_check(cudaError_t e, const char *what, mf_error *err) {
    if (e == cudaSuccess) return MF_OK;
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return mf__fail(err, MF_E_NOMEM, "cuda: no memory left on the device (%s)", what);
    return mf__fail(err, MF_E_IO, "cuda: %s: %s", what, cudaGetErrorString(e));
}

#define CHECK(call, what) MF__TRY(mf__cu_check(call, what, err))

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static mf_status cu_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    (void)be;
    *out = NULL;
    if (bytes == 0) return MF_OK;
    cudaError_t e = bytes < 0 ? cudaErrorMemoryAllocation : cudaMalloc(out, (size_t)bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return mf__fail(err, MF_E_NOMEM, "cuda: no memory for a buffer of %lld bytes on the device", (long long)bytes);
    }
    return mf__cu_check(e, "allocating memory", err);
}

/* Also called by threads of the store: to wait for a stream that is being recorded would spoil the recording. */
static void cu_release(mf__backend *be, void *mem) {
    mf__cu *cu = (mf__cu *)be;
    if (!mem) return;
    pthread_mutex_lock(&cu->recording);
    (void)cudaStreamSynchronize(cu->stream);
    pthread_mutex_unlock(&cu->recording);
    (void)cudaFree(mem);
}

static mf_status cu_upload(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    if (!bytes) return MF_OK;
    /* from pageable memory: it has been read when the call returns */
    CHECK(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, cu->stream), "uploading");
    return MF_OK;
}

/* Through pinned memory: the driver's own way from pageable memory is several times slower. */
static mf_status cu_download(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    for (int64_t at = 0; at < bytes; at += PINNED_BYTES) {
        size_t n = (size_t)(bytes - at < PINNED_BYTES ? bytes - at : PINNED_BYTES);
        CHECK(cudaMemcpyAsync(cu->pinned, (const char *)from + at, n, cudaMemcpyDeviceToHost, cu->stream),
              "downloading");
        CHECK(cudaStreamSynchronize(cu->stream), "downloading");
        memcpy((char *)to + at, cu->pinned, n);
    }
    if (!bytes) CHECK(cudaStreamSynchronize(cu->stream), "downloading");
    return MF_OK;
}

static mf_status cu_zero(mf__backend *be, void *mem, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    if (bytes) CHECK(cudaMemsetAsync(mem, 0, (size_t)bytes, cu->stream), "zeroing memory");
    return MF_OK;
}

static mf_status cu_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    if (bytes)
        CHECK(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, cu->stream), "copying on the device");
    return MF_OK;
}

mf_status mf__cu_grow(mf__cu *cu, mf__cu_memory *mem, int64_t bytes, mf_error *err) {
    void *at;
    if (bytes <= mem->bytes) return MF_OK;
    MF__TRY(cu_alloc(&cu->base, bytes, &at, err));
    cu_release(&cu->base, mem->at);
    *mem = (mf__cu_memory){at, bytes};
    for (int i = 0; i < MF_CU_PLANS; i++) { /* they have the old address */
        if (cu->plans[i].exec) (void)cudaGraphExecDestroy(cu->plans[i].exec);
        cu->plans[i] = (mf__cu_plan){0};
    }
    return MF_OK;
}

static mf_status cu_reserve(mf__backend *be, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    return mf__cu_grow(cu, &cu->scratch, bytes, err);
}

/* Through two halves of pinned memory: one is filled while the other is on its way. */
static mf_status fill_lane(mf__cu_lane *lane, char *to, const char *from, int64_t bytes, mf_error *err) {
    int64_t half = MF_CU_LANE_BYTES / 2;
    for (int64_t at = 0, i = 0; at < bytes; at += half, i++) {
        char *pinned = lane->pinned + (i & 1) * half;
        size_t n = (size_t)(bytes - at < half ? bytes - at : half);
        if (i >= 2) CHECK(cudaEventSynchronize(lane->done[i & 1]), "copying an expert");
        memcpy(pinned, from + at, n);
        CHECK(cudaMemcpyAsync(to + at, pinned, n, cudaMemcpyHostToDevice, lane->stream), "copying an expert");
        CHECK(cudaEventRecord(lane->done[i & 1], lane->stream), "copying an expert");
    }
    CHECK(cudaStreamSynchronize(lane->stream), "copying an expert");
    return MF_OK;
}

/* From memory that the device reads by itself. */
static mf_status fill_pinned(mf__cu_lane *lane, char *to, const char *from, int64_t bytes, mf_error *err) {
    CHECK(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, lane->stream), "copying an expert");
    CHECK(cudaStreamSynchronize(lane->stream), "copying an expert");
    return MF_OK;
}

static mf_status cu_fill(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    bool pinned = mf__cu_is_pinned(cu, from);
    int i = 0;
    while (i < MF_CU_LANES - 1 && pthread_mutex_trylock(&cu->lanes[i].lock)) i++;
    if (i == MF_CU_LANES - 1) pthread_mutex_lock(&cu->lanes[i].lock);
    mf_status st = (pinned ? fill_pinned : fill_lane)(&cu->lanes[i], to, from, bytes, err);
    pthread_mutex_unlock(&cu->lanes[i].lock);
    return st;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static mf_status remember(mf__cu *cu, void *mem, mf_error *err) {
    if (cu->n_adopted == cu->max_adopted) {
        int max = cu->max_adopted ? 2 * cu->max_adopted : 256;
        void **grown = realloc(cu->adopted, (size_t)max * sizeof *grown);
        if (!grown) return mf__fail(err, MF_E_NOMEM, "cuda: no memory for a list of %d weights", max);
        cu->adopted = grown;
        cu->max_adopted = max;
    }
    cu->adopted[cu->n_adopted++] = mem;
    return MF_OK;
}

/* Data, scales and biases in one piece of memory, each at a multiple of 256 bytes. */
static mf_status cu_adopt(mf__backend *be, const mf__tensor *host, mf__tensor *out, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    int64_t data = host->n_planes * host->n_rows * mf__tensor_row_bytes(host);
    int64_t scales = host->n_planes * mf__tensor_scale_rows(host) * mf__tensor_scale_bytes(host);
    int64_t biases = host->biases ? host->n_planes * host->n_rows * mf__tensor_bias_bytes(host) : 0;
    char *mem;
    *out = *host;
    MF__TRY(cu_alloc(be, round_up(data) + round_up(scales) + round_up(biases), (void **)&mem, err));
    mf_status st = remember(cu, mem, err);
    if (st != MF_OK) {
        cu_release(be, mem);
        return st;
    }
    out->data = mem;
    MF__TRY(cu_upload(be, mem, host->data, data, err));
    if (scales) {
        out->scales = mem + round_up(data);
        MF__TRY(cu_upload(be, mem + round_up(data), host->scales, scales, err));
    }
    if (biases) {
        out->biases = mem + round_up(data) + round_up(scales);
        MF__TRY(cu_upload(be, mem + round_up(data) + round_up(scales), host->biases, biases, err));
    }
    return MF_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static mf__cu_type kv_type(mf__type type) {
    return type == MF_TYPE_F16 ? MF_CU_F16 : type == MF_TYPE_I8 ? MF_CU_I8 : MF_CU_F32;
}

static mf__cu_segment segment(const mf__segment *s) {
    mf__cu_segment d = {.row0 = s->row0, .n_rows = s->n_rows, .pos = s->pos};
    if (!s->state) return d;
    const mf__kv *kv = &s->state->kv;
    d.pool = kv->pool, d.pages = kv->pages, d.off = kv->off;
    d.k_bytes = kv->k_bytes, d.v_bytes = kv->v_bytes;
    d.block_rows = kv->block_rows, d.k_cols = kv->k_cols, d.v_cols = kv->v_cols;
    d.kv_type = kv_type(kv->type);
    d.conv_in = s->state->conv_in, d.conv_out = s->state->conv_out;
    d.delta_in = s->state->delta_in, d.delta_out = s->state->delta_out;
    return d;
}

/* What a run's segments and rows take of the table; tables of experts follow. */
static int64_t rows_bytes(const mf__run *run) {
    return run->b.n_segs * (int64_t)sizeof(mf__cu_segment) + round_up(run->b.n_rows * 4);
}

static int64_t table_bytes(const mf__run *run, int n_pieces) {
    int n_tables = run->b.bank && !run->b.bank->whole ? 1 : n_pieces;
    return round_up(rows_bytes(run) + (n_tables ? n_tables * run->b.bank->n_experts * (int64_t)sizeof(void *) : 0));
}

/* Which kernels a segment gets. */
static mf__cu_rows kind_of(const mf__segment *s) {
    return s->n_rows > MF_CU_FEW ? MF_CU_MANY : s->n_rows > 1 ? MF_CU_SEVERAL : MF_CU_ONE;
}

/* Whether the state of a convolution is written where it is read. */
static bool in_place(const mf__segment *s) {
    return s->state && s->state->conv_in && s->state->conv_in == s->state->conv_out;
}

/* Keys of the longest row in shares; a power of two, so that lists with a few more rows behind them are equal. */
static int32_t splits(const mf__segment *segs, int32_t n_segs) {
    int64_t most = 0;
    int32_t n = 1;
    for (int i = 0; i < n_segs; i++)
        if (segs[i].pos + segs[i].n_rows > most) most = segs[i].pos + segs[i].n_rows;
    while ((int64_t)n * MF_CU_SPLIT < most) n *= 2;
    return n;
}

/* The ranges of a run; a run without segments is one sequence. Returns how many. */
static int find_ranges(const mf__binding *b, mf__cu_range *ranges) {
    int n = 0;
    if (!b->n_segs) {
        mf__cu_rows kind = kind_of(&(mf__segment){.n_rows = b->n_rows});
        ranges[0] = (mf__cu_range){.n = b->n_rows, .kind = kind, .n_splits = 1};
        return 1;
    }
    for (int32_t i = 0; i < b->n_segs; i++) {
        const mf__segment *s = &b->segs[i];
        mf__cu_range *last = n ? &ranges[n - 1] : NULL;
        mf__cu_rows kind = kind_of(s);
        if (last && last->kind == kind && (kind == MF_CU_MANY || last->n + s->n_rows <= MF_CU_MOST_FEW)) {
            last->n += s->n_rows;
            last->n_segs++;
        } else {
            ranges[n++] = (mf__cu_range){.first = s->row0, .n = s->n_rows, .kind = kind, .first_seg = i, .n_segs = 1};
        }
    }
    for (int i = 0; i < n; i++) {
        const mf__segment *segs = b->segs + ranges[i].first_seg;
        ranges[i].n_splits = splits(segs, ranges[i].n_segs);
        for (int32_t k = 0; k < ranges[i].n_segs; k++) ranges[i].in_place |= in_place(&segs[k]);
    }
    return n;
}

/* Writes what a run needs to `host`, which becomes `device`. */
static void write_run(const mf__run *run, char *host, char *device, mf__cu_range *ranges, int n,
                      const char *const **table) {
    const mf__binding *b = &run->b;
    int64_t rows_at = b->n_segs * (int64_t)sizeof(mf__cu_segment), bank_at = rows_bytes(run);
    for (int i = 0; i < n; i++) {
        mf__cu_range *r = &ranges[i];
        mf__cu_segment *segs = (mf__cu_segment *)(void *)host + r->first_seg;
        int32_t *of_row = (int32_t *)(void *)(host + rows_at) + r->first;
        r->segs = (mf__cu_segments){.at = (const mf__cu_segment *)(void *)device + r->first_seg,
                                    .of_row = (const int32_t *)(void *)(device + rows_at) + r->first,
                                    .n = r->n_segs};
        for (int32_t k = 0; k < r->n_segs; k++) {
            segs[k] = segment(&b->segs[r->first_seg + k]);
            segs[k].row0 -= r->first;
            for (int32_t t = 0; t < segs[k].n_rows; t++) of_row[segs[k].row0 + t] = k;
            if (segs[k].n_rows > r->segs.most_rows) r->segs.most_rows = segs[k].n_rows;
        }
    }
    if (!b->bank || b->bank->whole) return;
    memcpy(host + bank_at, b->bank->blobs, (size_t)b->bank->n_experts * sizeof(void *));
    *table = (const char *const *)(void *)(device + bank_at);
}

/* A whole bank's table, uploaded when it is new. */
static mf_status bank_table(mf__cu *cu, const mf__bank *bank, const char *const **out, mf_error *err) {
    mf__cu_table *t = NULL;
    for (int i = 0; i < cu->n_banks && !t; i++)
        if (cu->banks[i].host == bank->blobs && cu->banks[i].n_experts == bank->n_experts) t = &cu->banks[i];
    if (!t) {
        if (cu->n_banks == cu->max_banks) {
            int max = cu->max_banks ? 2 * cu->max_banks : 64;
            mf__cu_table *grown = realloc(cu->banks, (size_t)max * sizeof *grown);
            if (!grown) return mf__fail(err, MF_E_NOMEM, "cuda: no memory for %d banks", max);
            cu->banks = grown;
            cu->max_banks = max;
        }
        t = &cu->banks[cu->n_banks];
        *t = (mf__cu_table){.host = bank->blobs, .n_experts = bank->n_experts, .version = ~bank->version};
        MF__TRY(cu_alloc(&cu->base, bank->n_experts * (int64_t)sizeof(void *), &t->at, err));
        cu->n_banks++;
    }
    *out = t->at;
    if (t->version == bank->version) return MF_OK;
    t->version = bank->version;
    return cu_upload(&cu->base, t->at, bank->blobs, bank->n_experts * (int64_t)sizeof(void *), err);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void mix_in(uint64_t *h, uint64_t v) {
    *h = (*h ^ v) * 0x9E3779B97F4A7C15u;
    *h ^= *h >> 29;
}

/* Equal for lists whose launches are equal. */
static uint64_t list_key(const mf__cu_list *list) {
    uint64_t h = 1;
    for (int i = 0; i < list->n_runs; i++) {
        const mf__run *r = &list->runs[i];
        mix_in(&h, (uint64_t)(uintptr_t)r->g);
        mix_in(&h, (uint64_t)r->b.n_rows << 32 | (uint32_t)r->b.n_segs);
        mix_in(&h, (uint64_t)(uintptr_t)list->tables[i]);
        for (int k = list->first_range[i]; k < list->first_range[i + 1]; k++) {
            const mf__cu_range *rows = &list->ranges[k];
            mix_in(&h,
                   (uint64_t)rows->n << 32 | (uint32_t)rows->n_segs << 3 | (uint32_t)rows->in_place << 2 | rows->kind);
            mix_in(&h, (uint64_t)rows->segs.most_rows << 32 | (uint32_t)rows->n_splits);
        }
        for (int k = 0; k < r->g->n_bufs; k++) mix_in(&h, (uint64_t)(uintptr_t)r->b.bufs[k]);
        for (int k = 0; k < r->g->n_weights; k++) mix_in(&h, (uint64_t)(uintptr_t)r->b.weights[k].data);
    }
    return h | 1;
}

/* The plan of that key, or the oldest one, emptied. */
static mf__cu_plan *find_plan(mf__cu *cu, uint64_t key) {
    mf__cu_plan *oldest = &cu->plans[0];
    for (int i = 0; i < MF_CU_PLANS; i++) {
        if (cu->plans[i].key == key) return &cu->plans[i];
        if (cu->plans[i].used < oldest->used) oldest = &cu->plans[i];
    }
    if (oldest->exec) (void)cudaGraphExecDestroy(oldest->exec);
    *oldest = (mf__cu_plan){0};
    return oldest;
}

static mf_status record(const mf__cu_list *list, mf__cu_plan *plan, mf_error *err) {
    mf__cu *cu = list->cu;
    cudaGraph_t graph = NULL;
    pthread_mutex_lock(&cu->recording);
    cudaError_t e = cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal);
    mf_status st = mf__cu_check(e, "recording a pass", err);
    if (st == MF_OK) {
        st = mf__cu_emit(list, err);
        e = cudaStreamEndCapture(cu->stream, &graph);
    }
    pthread_mutex_unlock(&cu->recording);
    if (st == MF_OK) st = mf__cu_check(e, "recording a pass", err);
    if (st == MF_OK) st = mf__cu_check(cudaGraphInstantiate(&plan->exec, graph, 0), "recording a pass", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return st;
}

static mf_status launch(const mf__cu_list *list, mf_error *err) {
    mf__cu *cu = list->cu;
    int32_t most = 0;
    for (int i = 0; i < list->n_runs; i++)
        if (list->runs[i].b.n_rows > most) most = list->runs[i].b.n_rows;
    bool pieces = list->first_piece[list->n_runs] > 0; /* two streams */
    if (most > REPLAY_ROWS || list->n_runs < 2 || cu->base.watch.fn || pieces) return mf__cu_emit(list, err);
    uint64_t key = list_key(list);
    mf__cu_plan *plan = find_plan(cu, key);
    plan->used = ++cu->clock;
    if (plan->key != key) { /* seen for the first time */
        plan->key = key;
        return mf__cu_emit(list, err);
    }
    if (!plan->exec) MF__TRY(record(list, plan, err));
    return mf__cu_check(cudaGraphLaunch(plan->exec, cu->stream), "replaying a pass", err);
}

/* Pinned memory for a table that is as large; the copy that used it last is done. */
static mf_status take_staging(mf__cu *cu, int64_t bytes, int *out, mf_error *err) {
    if (bytes > cu->staging_bytes) {
        CHECK(cudaStreamSynchronize(cu->stream), "waiting");
        for (int i = 0; i < MF_CU_RING; i++) {
            if (cu->staging[i]) (void)cudaFreeHost(cu->staging[i]);
            cu->staging[i] = NULL;
        }
        cu->staging_bytes = 0;
        for (int i = 0; i < MF_CU_RING; i++)
            CHECK(cudaMallocHost((void **)&cu->staging[i], (size_t)(2 * bytes)), "allocating pinned memory");
        cu->staging_bytes = 2 * bytes;
    }
    *out = cu->next_staging;
    cu->next_staging = (cu->next_staging + 1) % MF_CU_RING;
    CHECK(cudaEventSynchronize(cu->staged[*out]), "waiting");
    return MF_OK;
}

/* What attention needs between its two kernels: a row of it at least. */
static mf_status reserve_parts(mf__cu *cu, const mf__cu_list *list, mf_error *err) {
    int64_t most = PARTS_BYTES;
    for (int i = 0; i < list->n_runs; i++)
        for (int k = 0; k < list->runs[i].g->n_ops; k++) {
            const mf__op *op = &list->runs[i].g->ops[k];
            int64_t bytes = 0;
            int32_t n_splits = splits(list->runs[i].b.segs, list->runs[i].b.n_segs);
            if (op->kind == MF_OP_ATTENTION)
                bytes = mf__cu_attention_bytes(1, op->p.attn.n_heads, op->p.attn.head_dim, n_splits);
            if (op->kind == MF_OP_MLA_ATTENTION)
                bytes = mf__cu_attention_bytes(1, op->p.mla.n_heads, op->p.mla.n_latent, n_splits);
            if (bytes > most) most = bytes;
        }
    return mf__cu_grow(cu, &cu->parts, most, err);
}

static mf_status submit_list(mf__cu *cu, mf__cu_list *list, mf_error *err) {
    int64_t bytes = 0, at = 0;
    int slot;
    for (int i = 0; i < list->n_runs; i++)
        bytes += table_bytes(&list->runs[i], list->first_piece[i + 1] - list->first_piece[i]);
    MF__TRY(mf__cu_grow(cu, &cu->table, bytes, err));
    MF__TRY(take_staging(cu, bytes, &slot, err));
    for (int i = 0; i < list->n_runs; i++) {
        const mf__run *run = &list->runs[i];
        mf__cu_range *ranges = &list->ranges[list->first_range[i]];
        int n = find_ranges(&run->b, ranges), n_pieces = list->first_piece[i + 1] - list->first_piece[i];
        list->first_range[i + 1] = list->first_range[i] + n;
        write_run(run, cu->staging[slot] + at, (char *)cu->table.at + at, ranges, n, &list->tables[i]);
        if (run->b.bank && run->b.bank->whole) MF__TRY(bank_table(cu, run->b.bank, &list->tables[i], err));
        if (n_pieces)
            mf__cu_find_pieces(cu, run, cu->staging[slot] + at + rows_bytes(run),
                               (char *)cu->table.at + at + rows_bytes(run), &list->pieces[list->first_piece[i]]);
        at += table_bytes(run, n_pieces);
    }
    MF__TRY(reserve_parts(cu, list, err));
    MF__TRY(mf__cu_grow(cu, &cu->fused, FUSED_BYTES, err));
    CHECK(cudaMemcpyAsync(cu->table.at, cu->staging[slot], (size_t)bytes, cudaMemcpyHostToDevice, cu->stream),
          "uploading");
    CHECK(cudaEventRecord(cu->staged[slot], cu->stream), "uploading");
    return launch(list, err);
}

static mf_status cu_submit(mf__backend *be, const mf__run *runs, int n_runs, mf__fence *out, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    *out = ++cu->fence;
    if (n_runs < 1) return MF_OK;
    mf__cu_list list = {.cu = cu, .runs = runs, .n_runs = n_runs};
    size_t n_ranges = 0;
    for (int i = 0; i < n_runs; i++) n_ranges += runs[i].b.n_segs ? (size_t)runs[i].b.n_segs : 1;
    list.tables = calloc((size_t)n_runs, sizeof *list.tables);
    list.ranges = calloc(n_ranges, sizeof *list.ranges);
    list.first_range = calloc((size_t)n_runs + 1, sizeof *list.first_range);
    list.first_piece = calloc((size_t)n_runs + 1, sizeof *list.first_piece);
    for (int i = 0; list.first_piece && i < n_runs; i++)
        list.first_piece[i + 1] = list.first_piece[i] + mf__cu_most_pieces(cu, &runs[i]);
    if (list.first_piece && list.first_piece[n_runs])
        list.pieces = calloc((size_t)list.first_piece[n_runs], sizeof *list.pieces);
    bool there = list.first_piece && (list.pieces || !list.first_piece[n_runs]);
    mf_status st = list.tables && list.ranges && list.first_range && there
                       ? submit_list(cu, &list, err)
                       : mf__fail(err, MF_E_NOMEM, "cuda: no memory for a list of %d runs", n_runs);
    free((void *)list.tables);
    free(list.ranges);
    free(list.first_range);
    free(list.first_piece);
    free(list.pieces);
    return st;
}

static mf_status cu_wait(mf__backend *be, mf__fence fence, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    (void)fence;
    CHECK(cudaStreamSynchronize(cu->stream), "a pass failed on the device");
    return MF_OK;
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

static void cu_free(mf__backend *be) {
    mf__cu *cu = (mf__cu *)be;
    if (!cu) return;
    if (cu->stream) (void)cudaStreamSynchronize(cu->stream);
    for (int i = 0; i < MF_CU_PLANS; i++)
        if (cu->plans[i].exec) (void)cudaGraphExecDestroy(cu->plans[i].exec);
    for (int i = 0; i < cu->n_adopted; i++) (void)cudaFree(cu->adopted[i]);
    for (int i = 0; i < cu->n_banks; i++) (void)cudaFree(cu->banks[i].at);
    (void)cudaFree(cu->scratch.at);
    (void)cudaFree(cu->parts.at);
    (void)cudaFree(cu->fused.at);
    (void)cudaFree(cu->table.at);
    if (cu->pinned) (void)cudaFreeHost(cu->pinned);
    for (int i = 0; i < 2; i++)
        if (cu->watch[i]) (void)cudaEventDestroy(cu->watch[i]);
    for (int i = 0; i < MF_CU_RING; i++) {
        if (cu->staging[i]) (void)cudaFreeHost(cu->staging[i]);
        if (cu->staged[i]) (void)cudaEventDestroy(cu->staged[i]);
    }
    for (int i = 0; i < MF_CU_LANES; i++) {
        mf__cu_lane *lane = &cu->lanes[i];
        for (int k = 0; k < 2; k++)
            if (lane->done[k]) (void)cudaEventDestroy(lane->done[k]);
        if (lane->pinned) (void)cudaFreeHost(lane->pinned);
        if (lane->stream) (void)cudaStreamDestroy(lane->stream);
        pthread_mutex_destroy(&lane->lock);
    }
    mf__cu_reach_deinit(cu);
    if (cu->stream) (void)cudaStreamDestroy(cu->stream);
    pthread_mutex_destroy(&cu->recording);
    free(cu->adopted);
    free(cu->banks);
    free(cu);
}

static mf_status set_up(mf__cu *cu, mf_error *err) {
    struct cudaDeviceProp prop;
    size_t free_bytes, total;
    CHECK(cudaSetDevice(0), "taking device 0");
    CHECK(cudaGetDeviceProperties(&prop, 0), "asking device 0 what it is");
    CHECK(cudaMemGetInfo(&free_bytes, &total), "asking for free memory");
    cu->n_sms = prop.multiProcessorCount;
    cu->base.memory_bytes = (int64_t)free_bytes;
    CHECK(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), "making a stream");
    MF__TRY(mf__cu_reach_init(cu, err));
    CHECK(cudaMallocHost((void **)&cu->pinned, (size_t)PINNED_BYTES), "allocating pinned memory");
    for (int i = 0; i < MF_CU_RING; i++)
        CHECK(cudaEventCreateWithFlags(&cu->staged[i], cudaEventDisableTiming), "making an event");
    for (int i = 0; i < 2; i++) CHECK(cudaEventCreateWithFlags(&cu->watch[i], 0), "making an event");
    for (int i = 0; i < MF_CU_LANES; i++) {
        mf__cu_lane *lane = &cu->lanes[i];
        CHECK(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking), "making a stream");
        CHECK(cudaMallocHost((void **)&lane->pinned, MF_CU_LANE_BYTES), "allocating pinned memory");
        for (int k = 0; k < 2; k++)
            CHECK(cudaEventCreateWithFlags(&lane->done[k], cudaEventDisableTiming), "making an event");
    }
    return MF_OK;
}

static mf_status create(const mf__backend_config *config, mf__backend **out, mf_error *err) {
    mf__cu *cu = calloc(1, sizeof *cu);
    if (!cu) return mf__fail(err, MF_E_NOMEM, "no memory for the cuda backend");
    cu->exact = config->exact;
    cu->base = (mf__backend){.name = "cuda",
                             .numerics = config->exact ? "f32" : "int8x2",
                             .free = cu_free,
                             .alloc = cu_alloc,
                             .release = cu_release,
                             .upload = cu_upload,
                             .download = cu_download,
                             .zero = cu_zero,
                             .copy = cu_copy,
                             .fill = cu_fill,
                             .host_alloc = mf__cu_host_alloc,
                             .host_release = mf__cu_host_release,
                             .reads_host = mf__cu_reads_host,
                             .staging_bytes = mf__cu_staging_bytes,
                             .stage = mf__cu_stage,
                             .adopt = cu_adopt,
                             .supports = mf__cu_supports,
                             .scratch = mf__cu_scratch,
                             .reserve = cu_reserve,
                             .submit = cu_submit,
                             .wait = cu_wait};
    for (int i = 0; i < MF_CU_LANES; i++) pthread_mutex_init(&cu->lanes[i].lock, NULL);
    pthread_mutex_init(&cu->slabs_lock, NULL);
    pthread_mutex_init(&cu->recording, NULL);
    mf_status st = set_up(cu, err);
    if (st != MF_OK) {
        cu_free(&cu->base);
        return st;
    }
    *out = &cu->base;
    return MF_OK;
}

static bool available(char *why, size_t size) {
    int n = 0, driver = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    struct cudaDeviceProp prop;
    size_t free_bytes, total;
    if (e == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        (void)cudaDriverGetVersion(&driver);
        if (driver)
            snprintf(why, size, "the driver is for CUDA %d.%d, this program needs that of 13.0 or newer", driver / 1000,
                     driver % 1000 / 10);
        else
            snprintf(why, size, "no NVIDIA driver was found (libcuda.so.1)");
        return false;
    }
    if (e == cudaSuccess && n > 0) e = cudaGetDeviceProperties(&prop, 0);
    if (e == cudaSuccess && n > 0) e = cudaMemGetInfo(&free_bytes, &total);
    if (e != cudaSuccess || n < 1) {
        (void)cudaGetLastError();
        snprintf(why, size, "%s", e == cudaSuccess ? "there is no device" : cudaGetErrorString(e));
        return false;
    }
    snprintf(why, size, "%s, compute capability %d.%d, %.1f of %.1f GB free", prop.name, prop.major, prop.minor,
             (double)free_bytes / 1e9, (double)total / 1e9);
    if (prop.major >= 8) return true;
    snprintf(why, size, "%s has compute capability %d.%d, 8.0 or newer is needed", prop.name, prop.major, prop.minor);
    return false;
}

const mf__backend_kind mf__backend_kind_cuda = {.name = "cuda",
                                                .summary = "one NVIDIA GPU, compute capability 8.0 or newer",
                                                .automatic = true,
                                                .available = available,
                                                .create = create};
