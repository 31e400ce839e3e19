/* The journal of a conversion: which parts are finished, so that a killed run is continued and not repeated.
 *
 *   {"moeflux_journal": 1, "source": "...", "options": "...", "encoder": 1}
 *   {"trunk": {"model.norm.weight": {"offset": ..., "size": ..., "xxh64": ...}}, "note": ...}
 *   {"layer": 3, "first": 16, "hashes": ["(16 digits per expert)"], "note": ...}
 *
 * One line per part. Invariant: a line is written only after the bytes it stands for are on the disk. Lines are
 * collected and committed together now and then, because each commit waits for the disk. A line that is not whole (the
 * machine stopped in the middle of it) ends the journal; it and the bytes behind what it describes are cut off. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "weights/native_writer.h"

#define JOURNAL_MAX ((size_t)256 << 20)
#define COMMIT_BYTES ((int64_t)512 << 20)
#define COMMIT_SECONDS 0.25

int mf__native_writer_experts_done(const mf__native_writer *w, int layer) {
    return w->layers && layer >= 0 && layer < MF__LAYERS_MAX ? w->layers[layer].n : 0;
}

const json_t *mf__native_writer_notes(const mf__native_writer *w) {
    return w->notes;
}

/* ---- writing ---- */

/* All of it is behind the end of the last commit, so an interrupted append is cut off by the next load. */
static mf_status append(mf__native_writer *w, const char *text, size_t size, mf_error *err) {
    while (size > 0) {
        ssize_t n = write(w->journal_fd, text, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return mf__fail_errno(err, n < 0 ? errno : EIO, "cannot write %s", w->journal_path);
        text += n, size -= (size_t)n;
    }
    if (fdatasync(w->journal_fd) != 0) return mf__fail_errno(err, errno, "cannot sync %s", w->journal_path);
    return MF_OK;
}

mf_status mf__journal_commit(mf__native_writer *w, mf_error *err) {
    if (!w->n_pending) return MF_OK;
    MF__TRY(mf__outfile_sync(&w->trunk, err));
    for (int i = 0; i < 2; i++)
        if (w->sets[i].file.path) MF__TRY(mf__outfile_sync(&w->sets[i].file, err));
    MF__TRY(append(w, w->pending.data, w->pending.size, err));
    mf__strbuf_clear(&w->pending);
    w->n_committed += w->n_pending;
    w->n_pending = 0;
    w->pending_bytes = 0;
    w->committed_at = mf__clock_seconds();
    return MF_OK;
}

/* Experts part_first ... next_expert - 1 of the layer being written. */
static json_t *expert_line(mf__native_writer *w) {
    json_t *hashes = json_array();
    for (int i = 0; i < 2 && w->sets[i].used; i++)
        json_array_append_new(hashes, json_stringn(w->sets[i].layer_hashes.data + (size_t)w->part_first * 16,
                                                   (size_t)(w->next_expert - w->part_first) * 16));
    return json_pack("{s:i, s:i, s:o}", "layer", w->layer, "first", w->part_first, "hashes", hashes);
}

static mf_status add_line(mf__native_writer *w, json_t *line, mf_error *err) {
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    if (!text) return mf__writer_no_memory(err);
    mf_status status = mf__strbuf_printf(&w->pending, err, "%s\n", text);
    free(text);
    return status;
}

mf_status mf__native_writer_part(mf__native_writer *w, json_t *note, mf_error *err) {
    if (note && json_array_append_new(w->notes, note) != 0) return mf__writer_no_memory(err);
    bool experts = w->in_layer && w->next_expert > w->part_first;
    mf_status status = MF_OK;
    if (w->journal_fd >= 0) {
        json_t *line = experts ? expert_line(w) : json_object();
        if (line && json_object_size(w->part_tensors)) json_object_set(line, "trunk", w->part_tensors);
        if (line && note) json_object_set(line, "note", note);
        status = add_line(w, line, err);
        w->n_pending++;
    }
    json_object_clear(w->part_tensors);
    w->part_first = w->next_expert;
    if (status == MF_OK &&
        (w->pending_bytes >= COMMIT_BYTES || mf__clock_seconds() - w->committed_at >= COMMIT_SECONDS))
        status = mf__journal_commit(w, err);
    if (status != MF_OK) w->failed = true;
    return status;
}

mf_status mf__native_writer_commit(mf__native_writer *w, mf_error *err) {
    mf_status status = w->journal_fd >= 0 ? mf__journal_commit(w, err) : MF_OK;
    if (status != MF_OK) w->failed = true;
    return status;
}

/* ---- loading ---- */

static bool hex(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", text[i]) || !text[i]) return false;
    return true;
}

static bool load_experts(mf__native_writer *w, const json_t *line) {
    json_int_t layer, first;
    const json_t *hashes;
    if (json_unpack((json_t *)line, "{s:I, s:I, s:o}", "layer", &layer, "first", &first, "hashes", &hashes) != 0)
        return false;
    if (layer < 0 || layer >= MF__LAYERS_MAX || first != w->layers[layer].n) return false;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(hashes) && i < 2; i++) {
        const json_t *text = json_array_get(hashes, i);
        size_t length = json_string_length(text);
        if (!json_is_string(text) || length % 16 || !hex(json_string_value(text), length) || (i && length / 16 != n))
            return false;
        n = length / 16;
        char **old = &w->layers[layer].hashes[i], *grown = realloc(*old, ((size_t)first + n) * 16 + 1);
        if (!grown || n > MF__EXPERTS_MAX) return false;
        *old = grown;
        memcpy(grown + first * 16, json_string_value(text), length + 1);
    }
    w->layers[layer].n += (int)n;
    return n > 0;
}

/* Offsets must go up: they say how much of the trunk is finished. */
static bool load_trunk(mf__native_writer *w, const json_t *tensors) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)tensors, name, value) {
        json_int_t offset, size;
        if (json_unpack(value, "{s:I, s:I}", "offset", &offset, "size", &size) != 0 || size < 0 ||
            offset < mf__journal_trunk_size(w) || json_object_set(w->tensors, name, value) != 0)
            return false;
        w->trunk.size = offset + size;
    }
    return true;
}

int64_t mf__journal_trunk_size(const mf__native_writer *w) {
    return w->trunk.size;
}

static bool load_line(mf__native_writer *w, const char *text, size_t size) {
    json_t *line = NULL;
    if (mf__json_parse("", text, size, &line, NULL) != MF_OK) return false;
    const json_t *trunk = json_object_get(line, "trunk");
    json_t *note = json_object_get(line, "note");
    bool ok = json_is_object(line) && (!json_object_get(line, "layer") || load_experts(w, line)) &&
              (!trunk || load_trunk(w, trunk)) && (!note || json_array_append(w->notes, note) == 0);
    json_decref(line);
    if (ok) w->n_committed++;
    return ok;
}

static bool same(const json_t *header, const char *key, const char *want) {
    const char *have = json_string_value(json_object_get(header, key));
    return have && strcmp(have, want) == 0;
}

/* MF_OK: goes on. *none: there is no usable journal. */
static mf_status check_header(mf__native_writer *w, const mf__native_work *work, const char *text, size_t size,
                              bool *none, mf_error *err) {
    json_t *header = NULL;
    *none = mf__json_parse("", text, size, &header, NULL) != MF_OK ||
            json_integer_value(json_object_get(header, "moeflux_journal")) != 1;
    mf_status status = MF_OK;
    static const char way_out[] = "Convert as before to go on, start over with --restart, or choose another name";
    if (!*none && !same(header, "source", work->source))
        status = mf__fail(err, MF_E_EXISTS, "%s is left from a conversion of another source, or the source changed. %s",
                          w->partial, way_out);
    else if (!*none && !same(header, "options", work->options))
        status = mf__fail(err, MF_E_EXISTS, "%s is left from a conversion with other options (%s; this time %s). %s",
                          w->partial, json_string_value(json_object_get(header, "options")), work->options, way_out);
    else if (!*none && json_integer_value(json_object_get(header, "encoder")) != work->encoder)
        status = mf__fail(err, MF_E_EXISTS,
                          "%s is left from another version of moeflux, whose encoder gives other bytes (version %lld; "
                          "this one is %d). Start over with --restart, go on with that version, or choose another name",
                          w->partial, (long long)json_integer_value(json_object_get(header, "encoder")), work->encoder);
    json_decref(header);
    return status;
}

static mf_status load(mf__native_writer *w, const mf__native_work *work, bool *none, mf_error *err) {
    char *text;
    size_t size;
    *none = false;
    MF__TRY(mf__file_read(w->journal_path, JOURNAL_MAX, &text, &size, err));
    char *line = text, *end = memchr(text, '\n', size);
    mf_status status = MF_OK;
    if (!end)
        *none = true;
    else
        status = check_header(w, work, line, (size_t)(end - line), none, err);
    if (status == MF_OK && !*none) {
        for (line = end + 1; (end = memchr(line, '\n', (size_t)(text + size - line))); line = end + 1)
            if (!load_line(w, line, (size_t)(end - line))) break;
        if (ftruncate(w->journal_fd, (off_t)(line - text)) != 0)
            status = mf__fail_errno(err, errno, "cannot set the length of %s", w->journal_path);
    }
    free(text);
    return status;
}

static mf_status start(mf__native_writer *w, const mf__native_work *work, mf_error *err) {
    MF__TRY(add_line(w,
                     json_pack("{s:i, s:s, s:s, s:i}", "moeflux_journal", 1, "source", work->source, "options",
                               work->options, "encoder", work->encoder),
                     err));
    mf_status status = append(w, w->pending.data, w->pending.size, err);
    mf__strbuf_clear(&w->pending);
    return status == MF_OK ? mf__dir_sync(w->partial, err) : status;
}

mf_status mf__journal_open(mf__native_writer *w, const mf__native_work *work, bool *fresh, mf_error *err) {
    bool existed = !*fresh;
    w->journal_path = mf__path_join(w->partial, MF__JOURNAL_NAME);
    w->layers = calloc(MF__LAYERS_MAX, sizeof *w->layers);
    if (!w->journal_path || !w->layers) return mf__writer_no_memory(err);
    w->journal_fd =
        open(w->journal_path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | (existed ? 0 : O_CREAT | O_EXCL), 0666);
    w->committed_at = mf__clock_seconds();
    if (existed && w->journal_fd < 0 && errno == ENOENT) {
        *fresh = true;
        return MF_OK;
    }
    if (w->journal_fd < 0) return mf__fail_errno(err, errno, "cannot open %s", w->journal_path);
    return existed ? load(w, work, fresh, err) : start(w, work, err);
}
