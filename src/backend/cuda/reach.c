/* Experts in host memory. Kernels read it where it is, at the bus's pace: a token's experts, which nobody knows before
 * the router has spoken. Many rows want nearly all experts of a layer, several times over: those are copied to buffers
 * on the device, a piece of the layer after the other, by a stream of its own that is some pieces ahead of the compute.
 * Nothing waits on the host. Which experts lie where changes no bits: the same kernels get other addresses. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/host.h"

#define PIECE_EXPERTS 64
#define EXPERT_ALIGN 4096 /* as slots of a store: neighbours are copied at once */

#define CHECK(call, what) MF__TRY(mf__cu_check(call, what, err))

/* ---- slabs ------------------------------------------------------------------------------------------------------- */

/* The last slab that begins at p or before it; -1: there is none. The lock is held. */
static int slab_before(const mf__cu *cu, const void *p) {
    int lo = 0, hi = cu->n_slabs;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (cu->slabs[mid].at <= (const char *)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo - 1;
}

static mf_status remember(mf__cu *cu, const mf__cu_slab *slab, mf_error *err) {
    if (cu->n_slabs == cu->max_slabs) {
        int max = cu->max_slabs ? 2 * cu->max_slabs : 64;
        mf__cu_slab *grown = realloc(cu->slabs, (size_t)max * sizeof *grown);
        if (!grown) return mf__fail(err, MF_E_NOMEM, "cuda: no memory for a list of %d slabs", max);
        cu->slabs = grown;
        cu->max_slabs = max;
    }
    int at = slab_before(cu, slab->at) + 1;
    memmove(cu->slabs + at + 1, cu->slabs + at, (size_t)(cu->n_slabs - at) * sizeof *cu->slabs);
    cu->slabs[at] = *slab;
    cu->n_slabs++;
    cu->n_plain += !slab->pinned;
    return MF_OK;
}

static void give_up(const mf__cu_slab *slab) {
    if (slab->pinned)
        (void)cudaFreeHost(slab->at);
    else
        free(slab->at);
}

mf_status mf__cu_host_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    void *mem = NULL;
    bool pinned = cudaMallocHost(&mem, (size_t)bytes) == cudaSuccess;
    *out = NULL;
    if (!pinned) {
        (void)cudaGetLastError();
        if (posix_memalign(&mem, EXPERT_ALIGN, (size_t)bytes))
            return mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes of experts", (long long)bytes);
    }
    mf__cu_slab slab = {.at = mem, .bytes = bytes, .pinned = pinned};
    pthread_mutex_lock(&cu->slabs_lock);
    mf_status st = remember(cu, &slab, err);
    pthread_mutex_unlock(&cu->slabs_lock);
    if (st != MF_OK)
        give_up(&slab);
    else
        *out = mem;
    return st;
}

void mf__cu_host_release(mf__backend *be, void *mem) {
    mf__cu *cu = (mf__cu *)be;
    mf__cu_slab slab = {0};
    pthread_mutex_lock(&cu->slabs_lock);
    int at = mem ? slab_before(cu, mem) : -1;
    if (at >= 0 && cu->slabs[at].at == mem) {
        slab = cu->slabs[at];
        cu->n_slabs--;
        cu->n_plain -= !slab.pinned;
        memmove(cu->slabs + at, cu->slabs + at + 1, (size_t)(cu->n_slabs - at) * sizeof *cu->slabs);
    }
    pthread_mutex_unlock(&cu->slabs_lock);
    if (slab.at) give_up(&slab);
}

bool mf__cu_reads_host(mf__backend *be) {
    mf__cu *cu = (mf__cu *)be;
    pthread_mutex_lock(&cu->slabs_lock);
    bool all = !cu->n_plain;
    pthread_mutex_unlock(&cu->slabs_lock);
    return all;
}

bool mf__cu_is_pinned(mf__cu *cu, const void *p) {
    pthread_mutex_lock(&cu->slabs_lock);
    int at = slab_before(cu, p);
    bool is = at >= 0 && (const char *)p < cu->slabs[at].at + cu->slabs[at].bytes && cu->slabs[at].pinned;
    pthread_mutex_unlock(&cu->slabs_lock);
    return is;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static int64_t step_of(int64_t expert_bytes) {
    return (expert_bytes + EXPERT_ALIGN - 1) / EXPERT_ALIGN * EXPERT_ALIGN;
}

int64_t mf__cu_staging_bytes(const mf__backend *be, int64_t expert_bytes, int32_t n_experts) {
    int64_t n = (n_experts + MF_CU_PIECES) / (MF_CU_PIECES + 1);
    (void)be;
    return MF_CU_PIECES * (n < PIECE_EXPERTS ? n : PIECE_EXPERTS) * step_of(expert_bytes);
}

mf_status mf__cu_stage(mf__backend *be, int64_t bytes, mf_error *err) {
    mf__cu *cu = (mf__cu *)be;
    if (cu->on_way.at) {
        CHECK(cudaStreamSynchronize(cu->stream), "waiting");
        CHECK(cudaStreamSynchronize(cu->copier), "waiting");
        (void)cudaFree(cu->on_way.at);
        cu->on_way = (mf__cu_memory){0};
    }
    if (!bytes) return MF_OK;
    CHECK(cudaMalloc(&cu->on_way.at, (size_t)bytes), "memory for experts on their way");
    cu->on_way.bytes = bytes;
    return MF_OK;
}

mf_status mf__cu_reach_init(mf__cu *cu, mf_error *err) {
    CHECK(cudaStreamCreateWithFlags(&cu->copier, cudaStreamNonBlocking), "making a stream");
    for (int i = 0; i < MF_CU_PIECES; i++) {
        CHECK(cudaEventCreateWithFlags(&cu->there[i], cudaEventDisableTiming), "making an event");
        CHECK(cudaEventCreateWithFlags(&cu->unused[i], cudaEventDisableTiming), "making an event");
    }
    return MF_OK;
}

void mf__cu_reach_deinit(mf__cu *cu) {
    if (cu->copier) (void)cudaStreamSynchronize(cu->copier);
    (void)cudaFree(cu->on_way.at);
    for (int i = 0; i < MF_CU_PIECES; i++) {
        if (cu->there[i]) (void)cudaEventDestroy(cu->there[i]);
        if (cu->unused[i]) (void)cudaEventDestroy(cu->unused[i]);
    }
    if (cu->copier) (void)cudaStreamDestroy(cu->copier);
    for (int i = 0; i < cu->n_slabs; i++) give_up(&cu->slabs[i]);
    free(cu->slabs);
    pthread_mutex_destroy(&cu->slabs_lock);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* From two fifths of the experts on: tiles read them in small steps, which the bus does at a fraction of its pace. */
bool mf__cu_wants_all(int64_t n_rows, int32_t top_k, int32_t n_experts) {
    return n_rows > MF_CU_FEW && 2 * n_rows * top_k >= n_experts;
}

static int32_t top_k_of(const mf__graph *g) {
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == MF_OP_EXPERTS) return g->ops[i].p.moe.top_k;
    return 0;
}

/* Rows of a run that go to the kernels for many. */
static int64_t many_rows(const mf__binding *b) {
    int64_t n = 0;
    if (!b->n_segs) return b->n_rows;
    for (int32_t i = 0; i < b->n_segs; i++)
        if (b->segs[i].n_rows > MF_CU_FEW) n += b->segs[i].n_rows;
    return n;
}

/* Of one buffer: experts begin where kernels can load sixteen bytes at once, however much memory there is. */
static int64_t buffer_bytes(const mf__cu *cu) {
    return cu->on_way.bytes / MF_CU_PIECES / EXPERT_ALIGN * EXPERT_ALIGN;
}

/* Experts of a buffer. */
static int64_t room(const mf__cu *cu, const mf__bank *bank) {
    return buffer_bytes(cu) / step_of(bank->layout->bytes);
}

int mf__cu_most_pieces(mf__cu *cu, const mf__run *run) {
    const mf__bank *bank = run->b.bank;
    if (!bank || !bank->whole || !mf__cu_wants_all(many_rows(&run->b), top_k_of(run->g), bank->n_experts)) return 0;
    int64_t n = room(cu, bank), far = 0;
    for (int32_t e = 0; n && e < bank->n_experts; e++) far += mf__cu_is_pinned(cu, bank->blobs[e]);
    return far ? (int)((far + n - 1) / n) + 1 : 0;
}

int mf__cu_find_pieces(mf__cu *cu, const mf__run *run, char *host, char *device, mf__cu_piece *out) {
    const mf__bank *bank = run->b.bank;
    int64_t step = step_of(bank->layout->bytes), most = room(cu, bank),
            table = bank->n_experts * (int64_t)sizeof(void *);
    int64_t in_piece = 0;
    int n = 1;
    memset(host, 0, (size_t)table);
    out[0] = (mf__cu_piece){.buffer = -1, .table = (const char *const *)(void *)device};
    for (int32_t e = 0; e < bank->n_experts; e++) {
        if (!mf__cu_is_pinned(cu, bank->blobs[e])) {
            memcpy(host + e * (int64_t)sizeof(void *), &bank->blobs[e], sizeof(void *));
            out[0].end = e + 1;
            continue;
        }
        if (n == 1 || in_piece == most) { /* the next one begins */
            int buffer = cu->next_piece++ % MF_CU_PIECES;
            out[n] = (mf__cu_piece){.first = e,
                                    .buffer = buffer,
                                    .to = (char *)cu->on_way.at + buffer * buffer_bytes(cu),
                                    .table = (const char *const *)(void *)(device + n * table)};
            memset(host + n * table, 0, (size_t)table);
            n++;
            in_piece = 0;
        }
        char *at = out[n - 1].to + in_piece++ * step;
        memcpy(host + (n - 1) * table + e * (int64_t)sizeof(void *), &at, sizeof at);
        out[n - 1].end = e + 1;
    }
    return n;
}

void mf__cu_piece_begin(mf__cu *cu, const mf__bank *bank, const mf__cu_piece *piece) {
    int64_t bytes = bank->layout->bytes, step = step_of(bytes);
    char *to = piece->to;
    int32_t n;
    if (piece->buffer < 0) return;
    (void)cudaStreamWaitEvent(cu->copier, cu->unused[piece->buffer], 0);
    for (int32_t e = piece->first; e < piece->end; e += n) {
        const char *from = bank->blobs[e];
        n = 1;
        if (!mf__cu_is_pinned(cu, from)) continue;
        while (e + n < piece->end && (const char *)bank->blobs[e + n] == from + n * step) n++;
        (void)cudaMemcpyAsync(to, from, (size_t)((n - 1) * step + bytes), cudaMemcpyHostToDevice, cu->copier);
        to += n * step;
    }
    (void)cudaEventRecord(cu->there[piece->buffer], cu->copier);
    (void)cudaStreamWaitEvent(cu->stream, cu->there[piece->buffer], 0);
}

void mf__cu_piece_end(mf__cu *cu, const mf__cu_piece *piece) {
    if (piece->buffer >= 0) (void)cudaEventRecord(cu->unused[piece->buffer], cu->stream);
}
