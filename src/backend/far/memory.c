/* Memory that is shut. First fit in address order: tests are small. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/far/far.h"

#define ALIGN 64
#define GROW ((int64_t)1 << 20)

mf_status mf__far_memory_init(mf__far_memory *mem, int64_t size, mf_error *err) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    *mem = (mf__far_memory){.size = size};
    void *base = mmap(NULL, (size_t)size, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED) return mf__fail(err, MF_E_NOMEM, "no room for %lld bytes of far memory", (long long)size);
    mem->base = base;
    return MF_OK;
}

void mf__far_memory_deinit(mf__far_memory *mem) {
    if (mem->base) munmap(mem->base, (size_t)mem->size);
    free(mem->blocks);
    *mem = (mf__far_memory){0};
}

static mf_status protect(mf__far_memory *mem, int64_t bytes, int how, mf_error *err) {
    if (bytes && mprotect(mem->base, (size_t)bytes, how))
        return mf__fail(err, MF_E_NOMEM, "far memory cannot be %s", how == PROT_NONE ? "shut" : "opened");
    return MF_OK;
}

mf_status mf__far_memory_open(mf__far_memory *mem, mf_error *err) {
    if (!mem->n_open) MF__TRY(protect(mem, mem->top, PROT_READ | PROT_WRITE, err));
    mem->n_open++;
    return MF_OK;
}

void mf__far_memory_shut(mf__far_memory *mem) {
    if (--mem->n_open == 0) protect(mem, mem->top, PROT_NONE, NULL);
}

static mf_status insert(mf__far_memory *mem, int i, mf__far_block block, mf_error *err) {
    if (mem->n_blocks == mem->max_blocks) {
        int max = mem->max_blocks ? 2 * mem->max_blocks : 64;
        mf__far_block *grown = realloc(mem->blocks, (size_t)max * sizeof *grown);
        if (!grown) return mf__fail(err, MF_E_NOMEM, "no memory for the table of far memory");
        mem->blocks = grown;
        mem->max_blocks = max;
    }
    memmove(&mem->blocks[i + 1], &mem->blocks[i], (size_t)(mem->n_blocks - i) * sizeof *mem->blocks);
    mem->blocks[i] = block;
    mem->n_blocks++;
    return MF_OK;
}

mf_status mf__far_memory_alloc(mf__far_memory *mem, int64_t bytes, void **out, mf_error *err) {
    int64_t want = bytes <= mem->size ? (bytes + ALIGN - 1) / ALIGN * ALIGN : mem->size + 1, at = 0;
    int i = 0;
    *out = NULL;
    if (bytes < 0) return mf__fail(err, MF_E_INVALID, "%lld bytes of far memory", (long long)bytes);
    if (!bytes) return MF_OK;
    for (; i < mem->n_blocks && mem->blocks[i].at - at < want; i++) at = mem->blocks[i].at + mem->blocks[i].bytes;
    if (mem->size - at < want)
        return mf__fail(err, MF_E_NOMEM, "far memory is full: %lld of %lld bytes are used, %lld more wanted",
                        (long long)mem->used, (long long)mem->size, (long long)bytes);
    if (at + want > mem->top) {
        int64_t top = (at + want + GROW - 1) / GROW * GROW;
        top = top < mem->size ? top : mem->size;
        if (mem->n_open) MF__TRY(protect(mem, top, PROT_READ | PROT_WRITE, err));
        mem->top = top;
    }
    MF__TRY(insert(mem, i, (mf__far_block){at, want}, err));
    mem->used += want;
    *out = mem->base + at;
    return MF_OK;
}

void mf__far_memory_free(mf__far_memory *mem, void *p) {
    for (int i = 0; i < mem->n_blocks; i++) {
        if (mem->base + mem->blocks[i].at != (char *)p) continue;
        mem->used -= mem->blocks[i].bytes;
        mem->n_blocks--;
        memmove(&mem->blocks[i], &mem->blocks[i + 1], (size_t)(mem->n_blocks - i) * sizeof *mem->blocks);
        return;
    }
}
