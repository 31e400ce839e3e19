/* KV pages as numbers in a pool of the backend's memory. What runs read are two tables in that memory: the pool's, from
 * number to address, and each session's, from position to number. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define FIRST_CAPACITY 64

static const mf__layer_kind *kind_of(const mf_model *m, int layer) {
    return &m->bp.kinds[m->bp.kind_of[layer]];
}

static int64_t block_bytes(const mf_model *m, int layer) {
    const mf__layer_kind *k = kind_of(m, layer);
    return MF_KV_BLOCK * mf__kv_row_bytes(m->kv_type, k->k_cols) +
           MF_KV_BLOCK / k->v_step * mf__kv_row_bytes(m->kv_type, k->v_cols);
}

void mf__kv_pool_deinit(mf_model *m) {
    mf__kv_pool *p = &m->kv;
    mf__model_release(m, p->capacity * (int64_t)sizeof *p->table, p->table);
    free(p->mem);
    free(p->free_numbers);
    p->table = p->mem = NULL;
    p->free_numbers = NULL;
    p->capacity = p->n_free = 0;
}

/* Twice as many numbers. Runs that were submitted have the old table, which the backend keeps until they are done. */
static mf_status grow(mf_model *m, mf_error *err) {
    mf__kv_pool *p = &m->kv;
    int32_t capacity = p->capacity ? 2 * p->capacity : FIRST_CAPACITY;
    char **mem = realloc(p->mem, (size_t)capacity * sizeof *mem);
    if (mem) p->mem = mem;
    int32_t *numbers = realloc(p->free_numbers, (size_t)capacity * sizeof *numbers);
    if (numbers) p->free_numbers = numbers;
    if (!mem || !numbers) return mf__fail(err, MF_E_NOMEM, "no memory for %d KV pages", capacity);
    memset(mem + p->capacity, 0, (size_t)(capacity - p->capacity) * sizeof *mem);
    void *table;
    int64_t bytes = capacity * (int64_t)sizeof *mem;
    MF__TRY(mf__model_alloc(m, bytes, &table, err));
    mf_status st = m->be->upload(m->be, table, mem, bytes, err);
    if (st != MF_OK) {
        mf__model_release(m, bytes, table);
        return st;
    }
    mf__model_release(m, p->capacity * (int64_t)sizeof *mem, p->table);
    p->table = table;
    for (int32_t i = capacity - 1; i >= p->capacity; i--) numbers[p->n_free++] = i;
    p->capacity = capacity;
    return MF_OK;
}

mf_status mf__kv_pool_plan(mf_model *m, mf_error *err) {
    mf__kv_pool *p = &m->kv;
    int32_t n = m->bp.config.n_layers;
    p->layer_off = mf__arena_array(&m->arena, (size_t)n, sizeof *p->layer_off);
    if (!p->layer_off) return mf__fail(err, MF_E_NOMEM, "no memory for %d layers", n);
    for (int32_t l = 0; l < n; l++) {
        int64_t bytes = block_bytes(m, l);
        p->layer_off[l] = bytes ? p->page_bytes : -1;
        p->page_bytes += (bytes + 63) / 64 * 64;
    }
    return MF_OK;
}

mf_status mf__kv_pool_init(mf_model *m, mf_error *err) {
    return grow(m, err);
}

int64_t mf__kv_pool_first_bytes(const mf_model *m) {
    return FIRST_CAPACITY * (int64_t)sizeof *m->kv.table;
}

char *mf__page_block(const mf_model *m, const mf__page *page, int layer) {
    return m->kv.layer_off[layer] < 0 ? NULL : m->kv.mem[page->number] + m->kv.layer_off[layer];
}

static mf_status place(mf_model *m, mf__page *page, mf_error *err) {
    mf__kv_pool *p = &m->kv;
    void *mem = NULL;
    if (!p->n_free) MF__TRY(grow(m, err));
    if (p->page_bytes) MF__TRY(mf__model_alloc(m, p->page_bytes, &mem, err));
    page->number = p->free_numbers[p->n_free - 1];
    p->mem[page->number] = mem;
    mf_status st = m->be->upload(m->be, &p->table[page->number], &p->mem[page->number], sizeof mem, err);
    if (st == MF_OK)
        p->n_free--;
    else
        mf__model_release(m, p->page_bytes, mem);
    return st;
}

mf_status mf__page_create(mf_model *m, mf__page **out, mf_error *err) {
    mf__page *page = calloc(1, sizeof *page);
    if (!page) return mf__fail(err, MF_E_NOMEM, "no memory for a KV page");
    page->refs = 1;
    mf_status st = place(m, page, err);
    if (st != MF_OK) {
        free(page);
        return st;
    }
    *out = page;
    return MF_OK;
}

void mf__page_release(mf_model *m, mf__page *page) {
    if (!page || --page->refs > 0) return;
    mf__kv_pool *p = &m->kv;
    mf__model_release(m, p->page_bytes, p->mem[page->number]);
    p->mem[page->number] = NULL;
    p->free_numbers[p->n_free++] = page->number;
    free(page);
}

mf_status mf__page_copy(mf_model *m, const mf__page *from, mf__page **out, mf_error *err) {
    mf__kv_pool *p = &m->kv;
    MF__TRY(mf__page_create(m, out, err));
    mf_status st =
        p->page_bytes ? m->be->copy(m->be, p->mem[(*out)->number], p->mem[from->number], p->page_bytes, err) : MF_OK;
    if (st != MF_OK) mf__page_release(m, *out);
    return st;
}

mf__kv mf__kv_bind(const mf_model *m, const int32_t *page_table, int layer) {
    const mf__layer_kind *k = kind_of(m, layer);
    mf__kv kv =
        mf__kv_make(m->kv.table, page_table, m->kv.layer_off[layer], MF_KV_BLOCK, m->kv_type, k->k_cols, k->v_cols);
    kv.v_step = k->v_step;
    return kv;
}
