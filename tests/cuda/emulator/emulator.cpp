/* Fibers, blocks, and the fake runtime. */
#undef _FORTIFY_SOURCE
#include "emulator.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

enum { MAX_THREADS = 1024, STACK = 128 << 10 };
enum state { READY, AT_BLOCK, AT_WARP, DONE };

struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool started;
    state now;
    emu_place place;
    unsigned phase;
};
struct warp_slots {
    alignas(16) char value[2][32][16];
};

emu_place *emu_here;
char *emu_shared;
static fiber fibers[MAX_THREADS];
static warp_slots warps[MAX_THREADS / 32];
static fiber *current;
static jmp_buf scheduler;
static const std::function<void()> *job;

static void leave(state why) {
    current->now = why;
    if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

static void fiber_main(void) {
    for (;;) {
        (*job)();
        leave(DONE);
    }
}

static void resume(fiber *f) {
    current = f;
    emu_here = &f->place;
    if (_setjmp(scheduler)) return;
    if (f->started) _longjmp(f->at, 1);
    f->started = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    setcontext(&f->context);
}

void emu_aligned(const void *p, size_t to) {
    if ((uintptr_t)p % to == 0) return;
    fprintf(stderr, "emulator: %p is no multiple of %zu\n", p, to);
    abort();
}

void emu_block_barrier(void) {
    leave(AT_BLOCK);
}

void emu_warp_barrier(void) {
    leave(AT_WARP);
}

const char *emu_exchange(const void *value, size_t bytes) {
    unsigned phase = current->phase++ & 1;
    size_t index = (size_t)(current - fibers);
    memcpy(warps[index / 32].value[phase][index % 32], value, bytes);
    emu_warp_barrier();
    return warps[index / 32].value[phase][0];
}

/* True when all threads [from, to) that are not done wait there. */
static bool all_at(int from, int to, state s) {
    bool some = false;
    for (int i = from; i < to; i++) {
        if (fibers[i].now == DONE) continue;
        if (fibers[i].now != s) return false;
        some = true;
    }
    return some;
}

static void release(int from, int to) {
    for (int i = from; i < to; i++)
        if (fibers[i].now != DONE) fibers[i].now = READY;
}

static void run_block(int n) {
    for (int i = 0; i < n; i++) {
        fibers[i].now = READY;
        fibers[i].phase = 0;
    }
    for (;;) {
        bool moved = false;
        for (int i = 0; i < n; i++)
            if (fibers[i].now == READY) {
                resume(&fibers[i]);
                moved = true;
            }
        for (int w = 0; w < n; w += 32) {
            int end = w + 32 < n ? w + 32 : n;
            if (all_at(w, end, AT_WARP)) {
                release(w, end);
                moved = true;
            }
        }
        if (all_at(0, n, AT_BLOCK)) {
            release(0, n);
            moved = true;
        }
        bool done = true;
        for (int i = 0; i < n; i++) done = done && fibers[i].now == DONE;
        if (done) return;
        if (!moved) {
            fprintf(stderr, "emulator: threads of a block wait at different barriers\n");
            abort();
        }
    }
}

struct emu_graph {
    std::vector<std::function<void()>> steps;
};
static emu_graph *recording; /* what happens in one stream; others go on, in other threads too */
static cudaStream_t recorded;
static thread_local bool records; /* this thread */

/* What a device refuses while a stream is recorded, and then has no recording: that somebody waits for the stream, or
 * that the thread which records takes or gives back memory. */
static void not_recorded(cudaStream_t s, const char *what) {
    if (!recording || s != recorded) return;
    fprintf(stderr, "emulator: %s of a stream that is being recorded\n", what);
    abort();
}
static void not_recording(const char *what) {
    if (!records) return;
    fprintf(stderr, "emulator: %s by a thread that records\n", what);
    abort();
}

static std::atomic<int64_t> n_waits, n_copies, n_copied, n_replays, n_launches;

static void run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body) {
    int n = (int)(block.x * block.y * block.z);
    n_launches++;
    static std::vector<char> memory;
    memory.assign(shared + 256, (char)0xff);
    emu_shared = (char *)(((uintptr_t)memory.data() + 127) / 128 * 128);
    job = &body;
    if (n > MAX_THREADS || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || shared > 227 << 10) {
        fprintf(stderr, "emulator: a launch that no device accepts: grid %u %u %u, block %d, shared %zu\n", grid.x,
                grid.y, grid.z, n, shared);
        abort();
    }
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                for (int i = 0; i < n; i++)
                    fibers[i].place = {dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y)), dim3(x, y, z),
                                       block, grid};
                run_block(n);
            }
}

/* Copies from pinned memory are as late as they may be: they happen when something else happens in their stream, or
 * somebody waits for it or for an event that was recorded behind them. */
struct late_copies {
    std::deque<std::function<void()>> copies;
    int64_t done;
};
struct emu_event {
    cudaStream_t stream;
    int64_t upto;
};
static std::map<cudaStream_t, late_copies> late;
static std::map<const char *, size_t> pinned;
static std::mutex late_lock;

static void catch_up(cudaStream_t s, int64_t upto) {
    std::lock_guard<std::mutex> hold(late_lock);
    late_copies &l = late[s];
    for (; !l.copies.empty() && l.done < upto; l.done++) {
        l.copies.front()();
        l.copies.pop_front();
    }
}
static bool is_pinned(const void *p) {
    std::lock_guard<std::mutex> hold(late_lock);
    auto at = pinned.upper_bound((const char *)p);
    if (at == pinned.begin()) return false;
    --at;
    return (const char *)p < at->first + at->second;
}

static void now_or_later(cudaStream_t s, const std::function<void()> &what) {
    if (recording && s == recorded) {
        recording->steps.push_back(what);
    } else {
        catch_up(s, INT64_MAX);
        what();
    }
}

void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s, const std::function<void()> &body) {
    now_or_later(s, [=] { run_grid(grid, block, shared, body); });
}

/* ---- the runtime ------------------------------------------------------------------------------------------------ */

static std::map<void *, std::pair<void *, size_t>> blocks; /* address -> mapping */
static std::mutex blocks_lock;

extern "C" {
cudaError_t cudaGetDeviceCount(int *n) {
    return *n = 1, cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    *p = {"emulated", 9, 0, 4, 227 << 10};
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
    return *v = 13000, cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) {
    return *f = *t = (size_t)1 << 30, cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : "an emulated error";
}
cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

/* The end lies at an inaccessible page, up to the alignment. */
cudaError_t cudaMalloc(void **p, size_t bytes) {
    not_recording("cudaMalloc");
    size_t page = (size_t)sysconf(_SC_PAGESIZE), need = (bytes + 63) / 64 * 64;
    size_t all = (need + page - 1) / page * page + page;
    if (bytes > (size_t)1 << 34) return cudaErrorMemoryAllocation;
    char *m = (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(m + all - page, page, PROT_NONE);
    *p = m + all - page - need;
    if (need < 64 << 20) memset(*p, 0xff, need);
    std::lock_guard<std::mutex> hold(blocks_lock);
    blocks[*p] = {m, all};
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    not_recording("cudaFree");
    if (!p) return cudaSuccess;
    std::lock_guard<std::mutex> hold(blocks_lock);
    auto at = blocks.find(p);
    if (at == blocks.end()) return cudaErrorInvalidValue;
    munmap(at->second.first, at->second.second);
    blocks.erase(at);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    not_recording("cudaMallocHost");
    *p = malloc(bytes);
    if (!*p) return cudaErrorMemoryAllocation;
    std::lock_guard<std::mutex> hold(late_lock);
    pinned[(const char *)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    not_recording("cudaFreeHost");
    std::lock_guard<std::mutex> hold(late_lock);
    pinned.erase((const char *)p);
    return free(p), cudaSuccess;
}
emu_counters emu_count(void) {
    return {n_waits, n_copies, n_copied, n_replays, n_launches};
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
    if (kind == cudaMemcpyHostToDevice) {
        n_copies++, n_copied += (int64_t)n;
        if (!is_pinned(from)) not_recorded(s, "a copy from memory that is not pinned,");
        if (is_pinned(from) && !(recording && s == recorded)) {
            std::lock_guard<std::mutex> hold(late_lock);
            late[s].copies.push_back([=] { memcpy(to, from, n); });
            return cudaSuccess;
        }
    }
    now_or_later(s, [=] { memcpy(to, from, n); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
    now_or_later(s, [=] { memset(p, v, n); });
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    static intptr_t n;
    return *s = (cudaStream_t)++n, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    return catch_up(s, INT64_MAX), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    not_recorded(s, "a wait");
    n_waits++;
    return catch_up(s, INT64_MAX), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    return *e = new emu_event(), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    return delete e, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    std::lock_guard<std::mutex> hold(late_lock);
    e->stream = s;
    e->upto = late[s].done + (int64_t)late[s].copies.size();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t e, unsigned) {
    if (e->stream) catch_up(e->stream, e->upto);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (e->stream) catch_up(e->stream, e->upto);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) {
    return *ms = 1, cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    recorded = s;
    recording = new emu_graph;
    records = true;
    usleep(1000); /* takes its time: what others do meanwhile shows */
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g) {
    *g = recording;
    recording = NULL;
    records = false;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long) {
    *e = new emu_graph(*g);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    n_replays++;
    catch_up(s, INT64_MAX);
    for (auto &step : e->steps) step();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    return delete g, cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
    return delete e, cudaSuccess;
}
}
