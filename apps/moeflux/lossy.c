/* Settings of mf_lossy as text and as JSON. One table has their names. */
#include "lossy.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

typedef struct knob {
    const char *name;
    size_t at;
    bool whole; /* an int */
} knob;

static const knob KNOBS[] = {
    {"bonus", offsetof(mf_lossy, bonus), false},     {"sure", offsetof(mf_lossy, sure), false},
    {"skip", offsetof(mf_lossy, skip), false},       {"small", offsetof(mf_lossy, small), false},
    {"promote", offsetof(mf_lossy, promote), false}, {"small-ram", offsetof(mf_lossy, small_ram), false},
    {"protect", offsetof(mf_lossy, protect), true},  {"most", offsetof(mf_lossy, most), true},
    {"tail", offsetof(mf_lossy, tail), false}};

static double get(const mf_lossy *l, const knob *k) {
    const char *at = (const char *)l + k->at;
    return k->whole ? *(const int *)(const void *)at : *(const double *)(const void *)at;
}

static void set(mf_lossy *l, const knob *k, double value) {
    char *at = (char *)l + k->at;
    if (k->whole)
        *(int *)(void *)at = (int)value;
    else
        *(double *)(void *)at = value;
}

static const knob *find(const char *name, size_t n) {
    for (size_t i = 0; i < MF__COUNT(KNOBS); i++)
        if (strlen(KNOBS[i].name) == n && !memcmp(KNOBS[i].name, name, n)) return &KNOBS[i];
    return NULL;
}

bool lossy_any(const mf_lossy *l) {
    return l->bonus > 0 || l->skip > 0 || l->small > 0;
}

mf_status lossy_parse(const char *text, mf_lossy *out, mf_error *err) {
    *out = (mf_lossy){0};
    if (!*text) return mf__fail(err, MF_E_INVALID, "--lossy is \"\"; expected settings as bonus=0.5,protect=2");
    while (*text) {
        size_t n = strcspn(text, "=,");
        const knob *k = find(text, n);
        char *end;
        if (!k)
            return mf__fail(err, MF_E_INVALID,
                            "--lossy has \"%.*s\"; known are bonus, sure, tail, skip, small, promote, small-ram, "
                            "protect and most",
                            (int)(n < 40 ? n : 40), text);
        if (text[n] != '=') return mf__fail(err, MF_E_INVALID, "--lossy: %s has no value, as %s=1", k->name, k->name);
        double value = strtod(text + n + 1, &end);
        if (end == text + n + 1 || (*end && *end != ',') || !isfinite(value) || value < 0 || value > 1e6 ||
            (k->whole && value != floor(value)))
            return mf__fail(err, MF_E_INVALID, "--lossy: %s is \"%.20s\"; expected %s", k->name, text + n + 1,
                            k->whole ? "a whole number" : "a number from 0 on");
        set(out, k, value);
        text = *end ? end + 1 : end;
    }
    return MF_OK;
}

const char *lossy_text(const mf_lossy *l, char text[LOSSY_TEXT]) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < MF__COUNT(KNOBS); i++)
        if (get(l, &KNOBS[i]) > 0 && used < LOSSY_TEXT)
            used += (size_t)snprintf(text + used, LOSSY_TEXT - used, "%s%s=%.4g", used ? "," : "", KNOBS[i].name,
                                     get(l, &KNOBS[i]));
    if (!used) snprintf(text, LOSSY_TEXT, "exact");
    return text;
}

/* ---- tuned.json --------------------------------------------------------------------------------------------------- */

#define MAX_TUNED (1 << 20)

const char *tuned_model(const mf_model_info *info, char text[TUNED_MODEL]) {
    snprintf(text, TUNED_MODEL, "%d layers, %d experts, %lld and %lld bytes", info->n_layers, info->n_experts,
             (long long)info->trunk_bytes, (long long)info->expert_bytes);
    return text;
}

mf_status tuned_write(const char *dir, const tuned *t, mf_error *err) {
    char *path = mf__path_join(dir, TUNED_NAME), *text = NULL;
    json_t *knobs = json_object();
    for (size_t i = 0; i < MF__COUNT(KNOBS); i++)
        json_object_set_new(knobs, KNOBS[i].name, json_real(get(&t->lossy, &KNOBS[i])));
    json_t *root =
        json_pack("{s:i, s:o, s:f, s:f, s:f, s:f, s:I, s:I, s:s, s:s}", "moeflux_tuned", 1, "lossy", knobs, "loss",
                  t->loss, "standard_error", t->error, "bytes_per_token", t->bytes, "exact_bytes_per_token", t->exact,
                  "tokens", (json_int_t)t->n_tokens, "ram", (json_int_t)t->ram, "text", t->text, "model", t->model);
    if (root) text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    mf_status st = path && text ? mf__file_replace(path, text, strlen(text), err)
                                : mf__fail(err, MF_E_NOMEM, "no memory for " TUNED_NAME);
    json_decref(root);
    free(text);
    free(path);
    return st;
}

static mf_status read_from(const json_t *root, const char *path, tuned *out, mf_error *err) {
    const json_t *knobs = json_object_get(root, "lossy"), *value;
    const char *name, *text = json_string_value(json_object_get(root, "text"));
    const char *model = json_string_value(json_object_get(root, "model"));
    if (json_integer_value(json_object_get(root, "moeflux_tuned")) != 1 || !json_is_object(knobs))
        return mf__fail(err, MF_E_FORMAT, "%s is not what moeflux tune writes; run tune again", path);
    json_object_foreach((json_t *)knobs, name, value) {
        const knob *k = find(name, strlen(name));
        double v = json_number_value(value);
        if (!k || !json_is_number(value) || !(v >= 0 && v <= 1e6))
            return mf__fail(err, MF_E_FORMAT, "%s: setting \"%.40s\" is not known or not a number; run tune again",
                            path, name);
        set(&out->lossy, k, v);
    }
    out->loss = json_number_value(json_object_get(root, "loss"));
    out->error = json_number_value(json_object_get(root, "standard_error"));
    out->bytes = json_number_value(json_object_get(root, "bytes_per_token"));
    out->exact = json_number_value(json_object_get(root, "exact_bytes_per_token"));
    out->n_tokens = json_integer_value(json_object_get(root, "tokens"));
    out->ram = json_integer_value(json_object_get(root, "ram"));
    snprintf(out->text, sizeof out->text, "%s", text ? text : "?");
    snprintf(out->model, sizeof out->model, "%s", model ? model : "");
    return MF_OK;
}

mf_status tuned_read(const char *dir, tuned *out, mf_error *err) {
    char *path = mf__path_join(dir, TUNED_NAME);
    json_t *root = NULL;
    *out = (tuned){0};
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = mf__path_exists(path)
                       ? mf__json_read(path, MAX_TUNED, &root, err)
                       : mf__fail(err, MF_E_NOT_FOUND,
                                  "--tuned: there is no %s; `moeflux tune %s TEXT --loss 0.01` makes it", path, dir);
    if (st == MF_OK) st = read_from(root, path, out, err);
    json_decref(root);
    free(path);
    return st;
}
