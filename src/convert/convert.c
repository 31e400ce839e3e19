/* Conversion: every trunk tensor and every expert of a checkpoint, kept or quantized, into a native directory.
 *
 *   plan     what is needed, where it is, which form it gets; nothing is written before all of it is found
 *   writer   a new directory, or what an interrupted run left
 *   flow     read, encode, write, in step
 *   finish   companions, report, manifest, rename
 *
 * What the model does not use is left behind. */
#include "convert/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "convert/flow.h"
#include "convert/report.h"
#include "quant/affine.h"

/* Files that travel with the weights when the checkpoint has them. */
static const char *const COMPANIONS[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "LICENSE"};

/* ---- the writer as a sink ---- */

static bool has_tensor(const void *w, const char *name) {
    return mf__native_writer_has_tensor(w, name);
}

static int experts_done(const void *w, int layer) {
    return mf__native_writer_experts_done(w, layer);
}

static mf_status tensor_begin(void *w, const mf__entry *entry, int bits, mf_error *err) {
    return mf__native_writer_tensor_begin(w, entry, bits, err);
}

static mf_status tensor_data(void *w, const void *data, int64_t size, mf_error *err) {
    return mf__native_writer_tensor_data(w, data, size, err);
}

static mf_status tensor_end(void *w, mf_error *err) {
    return mf__native_writer_tensor_end(w, err);
}

static mf_status experts_begin(void *w, int layer, const mf__expert_layout *layout, int n, mf_error *err) {
    return mf__native_writer_experts_begin(w, layer, layout, n, err);
}

static mf_status experts(void *w, const mf__expert_run *run, mf_error *err) {
    return mf__native_writer_expert_run(w, run, err);
}

static mf_status experts_end(void *w, mf_error *err) {
    return mf__native_writer_experts_end(w, err);
}

static mf_status part(void *w, json_t *note, mf_error *err) {
    return mf__native_writer_part(w, note, err);
}

static mf_status commit(void *w, mf_error *err) {
    return mf__native_writer_commit(w, err);
}

mf__sink mf__sink_writer(mf__native_writer *w) {
    return (mf__sink){w,       has_tensor,  experts_done, tensor_begin, tensor_data, tensor_end, experts_begin,
                      experts, experts_end, part,         commit};
}

/* ---- before ---- */

/* The folder dst will lie in, malloc'd; NULL when out of memory. Slashes at its end do not count. */
static char *folder_of(const char *dst) {
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/') n--;
    while (n > 0 && dst[n - 1] != '/') n--;
    return n ? strndup(dst, n) : strdup(".");
}

static bool is_inside(const char *folder, const char *dir) {
    char *inner = folder ? realpath(folder, NULL) : NULL, *outer = realpath(dir, NULL);
    size_t n = outer ? strlen(outer) : 0;
    bool inside = inner && outer && !strncmp(inner, outer, n) && (inner[n] == '/' || !inner[n]);
    free(inner);
    free(outer);
    return inside;
}

static mf_status check_target(const char *src, const char *dst, mf_error *err) {
    if (!*dst) return mf__fail(err, MF_E_INVALID, "the new directory has an empty name");
    if (mf__path_exists(dst))
        return mf__fail(err, MF_E_EXISTS, "%s exists already; remove it or choose another name", dst);
    char *folder = folder_of(dst);
    bool inside = mf__path_is_dir(src) && is_inside(folder, src);
    free(folder);
    if (!inside) return MF_OK;
    return mf__fail(err, MF_E_INVALID,
                    "%s would lie inside the checkpoint %s, where nothing is ever written; choose a place outside", dst,
                    src);
}

/* A disk that is too small is said at once, not after hours. What an interrupted run wrote already is free. */
static mf_status check_space(const mf__plan *plan, const char *dst, bool resuming, mf_error *err) {
    struct statvfs fs;
    char *folder = folder_of(dst);
    int failed = folder ? statvfs(folder, &fs) : -1;
    free(folder);
    if (failed || resuming) return MF_OK; /* making the directory will tell */
    double have = (double)fs.f_bavail * (double)fs.f_frsize;
    if ((double)plan->target_bytes <= have) return MF_OK;
    return mf__fail(err, MF_E_NO_SPACE, "No space left for %s: it needs %.3f GB, and %.3f GB are free there", dst,
                    (double)plan->target_bytes * 1e-9, have * 1e-9);
}

static bool is_there(const char *dst) {
    size_t n = strlen(dst);
    char *partial = malloc(n + sizeof ".partial");
    if (!partial) return false;
    memcpy(partial, dst, n);
    while (n > 1 && dst[n - 1] == '/') n--;
    strcpy(partial + n, ".partial");
    bool found = mf__path_exists(partial);
    free(partial);
    return found;
}

/* The source's identity covers the config too: it decides what the tensors mean. */
static void identify(const mf__plan *plan, const mf__stage *stage, char text[64]) {
    char files[32], config[17];
    char *dump = json_dumps(plan->config, JSON_SORT_KEYS | JSON_COMPACT);
    if (plan->opt->feed) /* times and sizes of files that are still coming say nothing */
        mf__hash_text(mf__hash_bytes(plan->opt->feed->identity, strlen(plan->opt->feed->identity)), files);
    else
        mf__stage_identity(stage, files);
    mf__hash_text(dump ? mf__hash_bytes(dump, strlen(dump)) : 0, config);
    free(dump);
    snprintf(text, 64, "%s-%s", files, config);
}

static mf_status put_text(mf__native_writer *w, const char *name, const char *text, mf_error *err) {
    char *path = mf__native_writer_path(w, name);
    mf_status st = path && text ? mf__file_replace(path, text, strlen(text), err)
                                : mf__fail(err, MF_E_NOMEM, "no memory for %s", name);
    free(path);
    return st;
}

static mf_status put_json(mf__native_writer *w, const char *name, const json_t *root, mf_error *err) {
    char *text = json_dumps(root, JSON_INDENT(1));
    mf_status st = put_text(w, name, text, err);
    free(text);
    return st;
}

/* A GGUF file's metadata, as the files a checkpoint has. */
static mf_status write_companions(const mf__plan *plan, mf__native_writer *w, mf_error *err) {
    const mf__gguf_model *m = &plan->gguf;
    MF__TRY(put_json(w, "config.json", m->config, err));
    if (m->chat_template) MF__TRY(put_text(w, "chat_template.jinja", m->chat_template, err));
    if (!m->tokenizer) {
        mf__log(&plan->opt->log, MF_LOG_WARN,
                "the tokenizer of %s is not known (%s): copy the model's tokenizer.json into the new directory",
                plan->src, m->no_tokenizer);
        return MF_OK;
    }
    MF__TRY(put_json(w, "tokenizer.json", m->tokenizer, err));
    return put_json(w, "tokenizer_config.json", m->tokenizer_config, err);
}

static mf_status copy_companions(const char *src, mf__native_writer *w, mf_error *err) {
    for (size_t i = 0; i < MF__COUNT(COMPANIONS); i++) {
        char *from = mf__path_join(src, COMPANIONS[i]), *to = NULL;
        mf_status st = from ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
        if (st == MF_OK && mf__path_exists(from)) {
            to = mf__native_writer_path(w, COMPANIONS[i]);
            st = to ? mf__file_copy(from, to, err)
                    : mf__fail(err, MF_E_NO_SPACE, "cannot note %s in the unfinished directory", COMPANIONS[i]);
        }
        free(from);
        free(to);
        MF__TRY(st);
    }
    return MF_OK;
}

/* ---- after ---- */

static mf_status write_report(const mf__plan *plan, mf__native_writer *w, mf_error *err) {
    json_t *report = mf__report_make(plan, mf__native_writer_notes(w));
    mf_status st = report ? put_json(w, MF_REPORT_NAME, report, err) : mf__fail(err, MF_E_NOMEM, "no memory");
    json_decref(report);
    return st;
}

/* Interrupted from outside: the same call may well succeed later. Everything else would fail again. */
static bool may_resume(mf_status st) {
    return st == MF_E_CANCELLED || st == MF_E_NO_SPACE || st == MF_E_IO || st == MF_E_NOMEM;
}

static mf_status stop(mf__native_writer *w, const char *dst, mf_status st, mf_error *err) {
    if (!may_resume(st))
        mf__native_writer_abort(w);
    else if (mf__native_writer_suspend(w) && err) {
        size_t n = strlen(err->text);
        snprintf(err->text + n, sizeof err->text - n,
                 ". What is finished is in %s.partial: the same command goes on from there", dst);
    }
    return st;
}

static mf_status write_all(const mf__plan *plan, const mf__stage *stage, const char *dst, mf_error *err) {
    char source[64], options[MF_OPTIONS_TEXT];
    mf__native_writer *w;
    bool resuming = !plan->opt->restart && is_there(dst);
    identify(plan, stage, source);
    mf__plan_options_text(plan->opt, options);
    MF__TRY(check_space(plan, dst, resuming, err));
    mf__native_work work = {
        .source = source, .options = options, .encoder = MF__ENCODER_VERSION, .restart = plan->opt->restart};
    MF__TRY(mf__native_writer_resume(dst, &work, &w, err));
    mf__sink sink = mf__sink_writer(w);
    mf_status st = plan->gguf.catalog ? write_companions(plan, w, err) : copy_companions(plan->src, w, err);
    if (st == MF_OK && plan->opt->also_bits && plan->has_experts)
        st = mf__native_writer_second_set(w, &plan->second, err);
    if (st == MF_OK) st = mf__flow_run(plan, stage, &sink, err);
    if (st == MF_OK && !plan->opt->feed) st = mf__stage_unchanged(stage, err);
    if (st == MF_OK) st = write_report(plan, w, err);
    if (st != MF_OK) return stop(w, dst, st, err);
    json_t *about = mf__plan_options_json(plan->opt);
    st = mf__native_writer_finish_about(w, plan->bp.config.family->name, plan->config, about, err);
    json_decref(about);
    return st;
}

mf_status mf__convert(const char *src, const char *dst, const mf__convert_options *opt, mf_error *err) {
    mf__plan plan = {0};
    mf__stage *stage = NULL;
    MF__TRY(check_target(src, dst, err));
    mf_status st = mf__plan_make(src, opt, &plan, err);
    if (st == MF_OK) st = mf__stage_open(plan.cat, opt->feed, &stage, err);
    if (st == MF_OK) st = write_all(&plan, stage, dst, err);
    mf__stage_close(stage);
    mf__plan_close(&plan);
    return st;
}
