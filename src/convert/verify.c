/* A model is a list of units: tensors of the trunk, experts, small files. Threads take units in turn and read them past
 * the page cache. All of it is read, whatever is found; the first bad unit in the order of the list is the one named.
 */
#include "convert/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/probe.h"
#include "convert/flow.h"

#define CHUNK ((int64_t)4 << 20)
#define MAX_THREADS 16

typedef enum unit_kind { UNIT_TENSOR, UNIT_EXPERT, UNIT_SECOND, UNIT_FILE } unit_kind;

typedef struct unit {
    unit_kind kind;
    const char *name;  /* of a tensor or file; borrowed */
    int layer, expert; /* of an expert */
    int file;
    int64_t offset, size;
    uint64_t hash;
} unit;

typedef struct job {
    const mf__verify_options *opt;
    mf__native native;
    char **paths;
    mf__infile *files;
    int n_files;
    unit *units;
    int64_t n_units, capacity, total;
    _Atomic int64_t next, done, n_bad;
    _Atomic bool stop;
    pthread_mutex_t lock;
    int64_t first_bad; /* index; INT64_MAX: none */
    mf_error bad;
} job;

/* ---- the list ---- */

static mf_status add_file(job *j, char *path, int *index, mf_error *err) {
    char **paths = realloc(j->paths, (size_t)(j->n_files + 1) * sizeof *paths);
    if (paths) j->paths = paths;
    mf__infile *files = realloc(j->files, (size_t)(j->n_files + 1) * sizeof *files);
    if (files) j->files = files;
    if (!path || !paths || !files) {
        free(path);
        return mf__fail(err, MF_E_NOMEM, "no memory to verify a model");
    }
    j->files[j->n_files] = (mf__infile){.fd = -1, .direct_fd = -1};
    j->paths[j->n_files] = path;
    *index = j->n_files++;
    return mf__infile_open(path, &j->files[*index], err);
}

static mf_status add_unit(job *j, const unit *u, mf_error *err) {
    if (j->n_units == j->capacity) {
        int64_t capacity = j->capacity ? 2 * j->capacity : 1024;
        unit *grown = realloc(j->units, (size_t)capacity * sizeof *grown);
        if (!grown) return mf__fail(err, MF_E_NOMEM, "no memory to verify a model");
        j->units = grown;
        j->capacity = capacity;
    }
    j->units[j->n_units++] = *u;
    j->total += u->size;
    return MF_OK;
}

static mf_status no_checksums(const job *j, mf_error *err) {
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s has no checksums: it was not written by this version of moeflux. Convert the model again",
                    j->native.dir);
}

static mf_status list_trunk(job *j, mf_error *err) {
    const mf__catalog *cat = j->native.catalog;
    const json_t *tensors = json_object_get(j->native.manifest, "tensors");
    int file;
    if (j->native.shard && !j->native.shard->trunk) return MF_OK;
    MF__TRY(add_file(j, strdup(mf__catalog_file(cat, 0)), &file, err));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)tensors, name, value) {
        const mf__entry *e = mf__catalog_find(cat, name);
        const char *text = json_string_value(json_object_get(value, "xxh64"));
        unit u = {.kind = UNIT_TENSOR, .name = name, .file = file, .offset = e->offset, .size = e->size};
        if (!text || !mf__hash_parse(text, &u.hash)) return no_checksums(j, err);
        MF__TRY(add_unit(j, &u, err));
    }
    return MF_OK;
}

/* Experts of one set: "xxh64": {"LAYER": "16 digits for each expert"}. */
static mf_status list_experts(job *j, unit_kind kind, const char *key, const char *dir, mf_error *err) {
    const json_t *set = json_object_get(json_object_get(j->native.manifest, "moeflux"), key), *hashes;
    mf__expert_layout layout;
    int n;
    if (!set || (j->native.shard && kind == UNIT_SECOND)) return MF_OK; /* shards have no second set */
    MF__TRY(mf__native_experts_parse(set, &layout, &n, err));
    hashes = json_object_get(set, "xxh64");
    for (int l = 0; l < j->native.n_layers; l++) {
        char digits[16], name[300];
        snprintf(digits, sizeof digits, "%d", l);
        const json_t *text = json_object_get(hashes, digits);
        if (!text && kind == UNIT_EXPERT && j->native.expert_files[l]) return no_checksums(j, err);
        if (!text) continue;
        if (json_string_length(text) != (size_t)n * 16)
            return mf__fail(err, MF_E_FORMAT, "%s: the manifest has %zu digits of checksums for layer %d, expected %d",
                            j->native.dir, json_string_length(text), l, n * 16);
        snprintf(name, sizeof name, "%s/layer_%02d.bin", dir, l);
        unit u = {.kind = kind, .layer = l, .size = layout.bytes};
        MF__TRY(add_file(j, mf__path_join(j->native.dir, name), &u.file, err));
        for (u.expert = 0; u.expert < n; u.expert++) {
            if (j->native.shard && !mf__shard_has(j->native.shard, l, u.expert)) continue;
            u.offset = u.expert * layout.stride;
            if (!mf__hash_parse(json_string_value(text) + 16 * u.expert, &u.hash)) return no_checksums(j, err);
            MF__TRY(add_unit(j, &u, err));
        }
    }
    return MF_OK;
}

static mf_status list_files(job *j, mf_error *err) {
    const json_t *files = json_object_get(json_object_get(j->native.manifest, "moeflux"), "files");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)files, name, value) {
        unit u = {.kind = UNIT_FILE, .name = name, .size = json_integer_value(json_object_get(value, "size"))};
        const char *text = json_string_value(json_object_get(value, "xxh64"));
        if (!text || !mf__hash_parse(text, &u.hash) || strchr(name, '/') || u.size < 0)
            return mf__fail(err, MF_E_FORMAT, "%s: the manifest's entry for the file %.60s cannot be read",
                            j->native.dir, name);
        MF__TRY(add_file(j, mf__path_join(j->native.dir, name), &u.file, err));
        MF__TRY(add_unit(j, &u, err));
    }
    return MF_OK;
}

/* ---- reading ---- */

static void unit_text(const unit *u, char text[320]) {
    if (u->kind == UNIT_EXPERT || u->kind == UNIT_SECOND)
        snprintf(text, 320, "layer %d, expert %d%s", u->layer, u->expert,
                 u->kind == UNIT_SECOND ? " (small copy)" : "");
    else
        snprintf(text, 320, "%s %s", u->kind == UNIT_TENSOR ? "tensor" : "file", u->name);
}

static void note_bad(job *j, int64_t index, mf_status status, const char *text) {
    atomic_fetch_add(&j->n_bad, 1);
    pthread_mutex_lock(&j->lock);
    if (index < j->first_bad) {
        j->first_bad = index;
        mf__fail(&j->bad, status, "%s", text);
    }
    pthread_mutex_unlock(&j->lock);
}

static void check_unit(job *j, int64_t index, uint8_t *buf) {
    const unit *u = &j->units[index];
    const mf__infile *f = &j->files[u->file];
    char what[320], text[2 * MF_ERROR_TEXT];
    mf_error err = {0};
    mf__hash h;
    mf__hash_init(&h, 0);
    if (u->kind == UNIT_FILE && f->size > u->size) mf__hash_update(&h, "", 1); /* longer than it was: another file */
    for (int64_t at = 0; at < u->size && !atomic_load(&j->stop); at += CHUNK) {
        const uint8_t *data;
        int64_t n = u->size - at < CHUNK ? u->size - at : CHUNK;
        if (mf__infile_read(f, u->offset + at, n, buf, &data, &err) != MF_OK) {
            unit_text(u, what);
            snprintf(text, sizeof text, "%s: %s", what, err.text);
            note_bad(j, index, err.status, text);
            return;
        }
        mf__hash_update(&h, data, (size_t)n);
        atomic_fetch_add(&j->done, n);
    }
    if (atomic_load(&j->stop) || mf__hash_digest(&h) == u->hash) return;
    char want[17], got[17];
    mf__hash_text(u->hash, want);
    mf__hash_text(mf__hash_digest(&h), got);
    unit_text(u, what);
    snprintf(text, sizeof text,
             "%s is damaged: the %" PRId64 " bytes at %" PRId64 " of %s have the checksum %s, written was %s", what,
             u->size, u->offset, f->path, got, want);
    note_bad(j, index, MF_E_FORMAT, text);
}

static void *reader(void *arg) {
    job *j = arg;
    uint8_t *buf = mf__direct_alloc(mf__infile_room(CHUNK));
    for (int64_t i; !atomic_load(&j->stop) && (i = atomic_fetch_add(&j->next, 1)) < j->n_units;) {
        if (buf)
            check_unit(j, i, buf);
        else
            note_bad(j, i, MF_E_NOMEM, "no memory to read a model");
    }
    mf__direct_free(buf, mf__infile_room(CHUNK));
    return NULL;
}

static void wait_a_little(void) {
    struct timespec t = {.tv_nsec = 20000000};
    nanosleep(&t, NULL);
}

/* More threads than processors: most of the time they wait for the disk. The caller's thread reports. */
static mf_status read_all(job *j, mf_error *err) {
    pthread_t threads[MAX_THREADS];
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    int wanted = j->opt->n_threads ? j->opt->n_threads : 2 * cpu.n_logical < 4 ? 4 : 2 * cpu.n_logical, n = 0;
    if (wanted > MAX_THREADS) wanted = MAX_THREADS;
    while (n < wanted && pthread_create(&threads[n], NULL, reader, j) == 0) n++;
    if (!n) return mf__fail(err, MF_E_NOMEM, "cannot start a thread");
    while (atomic_load(&j->next) < j->n_units + n && !atomic_load(&j->stop)) {
        if (j->opt->progress && j->opt->progress(j->opt->progress_user, atomic_load(&j->done), j->total))
            atomic_store(&j->stop, true);
        wait_a_little();
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    if (atomic_load(&j->stop)) return mf__fail(err, MF_E_CANCELLED, "stopped by the caller");
    if (j->opt->progress) j->opt->progress(j->opt->progress_user, atomic_load(&j->done), j->total);
    return MF_OK;
}

static mf_status verdict(job *j, mf__verify_result *result, mf_error *err) {
    int64_t bad = atomic_load(&j->n_bad);
    if (result) {
        *result = (mf__verify_result){.bytes = atomic_load(&j->done), .n_bad = bad};
        for (int64_t i = 0; i < j->n_units; i++) {
            unit_kind k = j->units[i].kind;
            *(k == UNIT_TENSOR ? &result->n_tensors : k == UNIT_FILE ? &result->n_files : &result->n_experts) += 1;
        }
    }
    if (!bad) return MF_OK;
    if (bad == 1) return mf__fail(err, j->bad.status, "%s", j->bad.text);
    return mf__fail(err, j->bad.status, "%s. It is the first of %" PRId64, j->bad.text, bad);
}

mf_status mf__verify(const char *dir, const mf__verify_options *opt, mf__verify_result *result, mf_error *err) {
    job j = {.opt = opt, .first_bad = INT64_MAX};
    pthread_mutex_init(&j.lock, NULL);
    mf_status st = mf__native_open(dir, &j.native, err);
    if (st == MF_OK) st = list_trunk(&j, err);
    if (st == MF_OK) st = list_experts(&j, UNIT_EXPERT, "experts", "packed_experts", err);
    if (st == MF_OK) st = list_experts(&j, UNIT_SECOND, "experts_2bit", "packed_experts_2bit", err);
    if (st == MF_OK) st = list_files(&j, err);
    if (st == MF_OK) st = read_all(&j, err);
    if (st == MF_OK) st = verdict(&j, result, err);
    for (int i = 0; i < j.n_files; i++) {
        mf__infile_close(&j.files[i]);
        free(j.paths[i]);
    }
    free(j.files);
    free(j.paths);
    free(j.units);
    mf__native_close(&j.native);
    pthread_mutex_destroy(&j.lock);
    return st;
}
