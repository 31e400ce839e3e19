/* The catalogue: an array of entries sorted by name, the mapped files they lie in, and an arena for the names. */
#include "weights/catalog.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/guard.h"
#include "weights/catalog_build.h"

typedef struct mapped_file {
    const char *path; /* in the arena */
    mf__map map;
    bool owned;   /* unmapped at close */
    bool on_disk; /* a file, not bytes in memory */
    int guard;    /* -1: none */
    void *bytes;  /* free()d at close */
} mapped_file;

struct mf__catalog {
    mf__entry *entries;
    int64_t n_entries, capacity;
    mapped_file *files;
    int n_files;
    mf__arena names;
};

mf_status mf__catalog_create(mf__catalog **out, mf_error *err) {
    *out = calloc(1, sizeof **out);
    return *out ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a table of tensors");
}

void mf__catalog_close(mf__catalog *cat) {
    if (!cat) return;
    for (int i = 0; i < cat->n_files; i++) {
        mf__guard_remove(cat->files[i].guard);
        if (cat->files[i].owned) mf__map_close(&cat->files[i].map);
        free(cat->files[i].bytes);
    }
    free(cat->files);
    free(cat->entries);
    mf__arena_free(&cat->names);
    free(cat);
}

static mf_status add_mapped(mf__catalog *cat, const char *path, mf__map map, bool owned, int *index, mf_error *err) {
    mapped_file *files = realloc(cat->files, (size_t)(cat->n_files + 1) * sizeof *files);
    if (files) cat->files = files;
    char *copy = mf__arena_strdup(&cat->names, path);
    if (!files || !copy) return mf__fail(err, MF_E_NOMEM, "no memory for the table of %s", path);
    *index = cat->n_files;
    files[cat->n_files++] = (mapped_file){.path = copy, .map = map, .owned = owned, .on_disk = owned, .guard = -1};
    return MF_OK;
}

mf_status mf__catalog_add_file(mf__catalog *cat, const char *path, int *index, mf_error *err) {
    mf__map map;
    MF__TRY(mf__map_open(path, &map, err));
    mf_status status = add_mapped(cat, path, map, true, index, err);
    if (status != MF_OK) mf__map_close(&map);
    return status;
}

mf_status mf__catalog_add_bytes(mf__catalog *cat, const char *name, const uint8_t *data, size_t size, int *index,
                                mf_error *err) {
    return add_mapped(cat, name, (mf__map){.data = data, .size = size}, false, index, err);
}

void mf__catalog_guard(mf__catalog *cat) {
    for (int i = 0; i < cat->n_files; i++)
        if (cat->files[i].on_disk && cat->files[i].guard < 0)
            cat->files[i].guard = mf__guard_add(cat->files[i].map.data, cat->files[i].map.size);
}

void mf__catalog_hold(mf__catalog *cat, int64_t least, const mf__reading *told) {
    for (int i = 0; i < cat->n_files; i++) {
        mapped_file *f = &cat->files[i];
        if (f->owned && (int64_t)f->map.size >= least) mf__map_hold(&f->map, f->path, told);
    }
}

const char *mf__catalog_cut(const mf__catalog *cat) {
    for (int i = 0; i < cat->n_files; i++)
        if (mf__guard_faults(cat->files[i].guard)) return cat->files[i].path;
    return NULL;
}

const mf__map *mf__catalog_map(const mf__catalog *cat, int file) {
    return &cat->files[file].map;
}

mf_status mf__catalog_add(mf__catalog *cat, const mf__entry *entry, mf_error *err) {
    const mapped_file *file = &cat->files[entry->file];
    if (entry->offset < 0 || entry->size < 0 || (uint64_t)entry->offset > file->map.size ||
        (uint64_t)entry->size > file->map.size - (uint64_t)entry->offset)
        return mf__fail(err, MF_E_INTERNAL, "tensor %s lies outside %s", entry->name, file->path);
    if (cat->n_entries == cat->capacity) {
        int64_t capacity = cat->capacity ? 2 * cat->capacity : 64;
        mf__entry *grown = realloc(cat->entries, (size_t)capacity * sizeof *grown);
        if (!grown) return mf__fail(err, MF_E_NOMEM, "no memory for the table of %s", file->path);
        cat->entries = grown;
        cat->capacity = capacity;
    }
    mf__entry *e = &cat->entries[cat->n_entries];
    *e = *entry;
    e->name = mf__arena_strdup(&cat->names, entry->name);
    if (!e->name) return mf__fail(err, MF_E_NOMEM, "no memory for the table of %s", file->path);
    e->data = file->map.data ? file->map.data + entry->offset : NULL;
    cat->n_entries++;
    return MF_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const mf__entry *)a)->name, ((const mf__entry *)b)->name);
}

mf_status mf__catalog_seal(mf__catalog *cat, mf_error *err) {
    if (cat->n_entries > 0) qsort(cat->entries, (size_t)cat->n_entries, sizeof *cat->entries, compare_names);
    for (int64_t i = 1; i < cat->n_entries; i++) {
        const mf__entry *a = &cat->entries[i - 1], *b = &cat->entries[i];
        if (strcmp(a->name, b->name) == 0)
            return mf__fail(err, MF_E_FORMAT, "tensor %s is there twice: in %s and in %s", a->name,
                            cat->files[a->file].path, cat->files[b->file].path);
    }
    return MF_OK;
}

int64_t mf__catalog_count(const mf__catalog *cat) {
    return cat->n_entries;
}

const mf__entry *mf__catalog_at(const mf__catalog *cat, int64_t i) {
    return i >= 0 && i < cat->n_entries ? &cat->entries[i] : NULL;
}

const mf__entry *mf__catalog_find(const mf__catalog *cat, const char *name) {
    if (cat->n_entries == 0) return NULL;
    mf__entry key = {.name = name};
    return bsearch(&key, cat->entries, (size_t)cat->n_entries, sizeof *cat->entries, compare_names);
}

const char *mf__catalog_file(const mf__catalog *cat, int file) {
    return file >= 0 && file < cat->n_files ? cat->files[file].path : NULL;
}

int mf__catalog_n_files(const mf__catalog *cat) {
    return cat->n_files;
}

bool mf__catalog_is_file(const mf__catalog *cat, int file) {
    return file >= 0 && file < cat->n_files && cat->files[file].on_disk;
}

int mf__catalog_where(const mf__catalog *cat, const void *p, int64_t *offset) {
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < cat->n_files; i++) {
        uintptr_t start = (uintptr_t)cat->files[i].map.data;
        if (!cat->files[i].on_disk || at < start || at - start >= cat->files[i].map.size) continue;
        *offset = (int64_t)(at - start);
        return i;
    }
    return -1;
}

mf_status mf__catalog_derive(const mf__catalog *base, mf__catalog **out, mf_error *err) {
    mf_status status = mf__catalog_create(out, err);
    for (int i = 0; i < base->n_files && status == MF_OK; i++) {
        int index = 0;
        status = add_mapped(*out, base->files[i].path, base->files[i].map, false, &index, err);
        if (status == MF_OK) (*out)->files[index].on_disk = base->files[i].on_disk;
    }
    if (status != MF_OK) {
        mf__catalog_close(*out);
        *out = NULL;
    }
    return status;
}

mf_status mf__catalog_put(mf__catalog *cat, const mf__entry *entry, mf_error *err) {
    return mf__catalog_add(cat, entry, err);
}

mf_status mf__catalog_put_bytes(mf__catalog *cat, const mf__entry *entry, void *data, mf_error *err) {
    mf__entry e = *entry;
    mf_status status = mf__catalog_add_bytes(cat, entry->name, data, (size_t)entry->size, &e.file, err);
    if (status != MF_OK) {
        free(data);
        return status;
    }
    cat->files[e.file].bytes = data;
    e.offset = 0;
    return mf__catalog_add(cat, &e, err);
}
