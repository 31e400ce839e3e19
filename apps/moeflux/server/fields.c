#include "fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *json_kind(const json_t *value) {
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "a boolean";
    }
}

static bool absent(const json_t *value) {
    return !value || json_is_null(value);
}

static bool wrong_type(job *j, const char *name, const char *wanted, const json_t *got) {
    return job_fail(j, 400, name, "invalid_type", "Invalid type for '%s': expected %s, but got %s instead.", name,
                    wanted, json_kind(got));
}

bool field_number(job *j, const json_t *obj, const char *name, double min, double max, double *out) {
    const json_t *value = json_object_get(obj, name);
    if (absent(value)) return true;
    if (!json_is_number(value)) return wrong_type(j, name, "a number", value);
    double x = json_number_value(value);
    if (!(x >= min && x <= max))
        return job_fail(j, 400, name, "invalid_value", "Invalid value for '%s': %g is not between %g and %g.", name, x,
                        min, max);
    *out = x;
    return true;
}

bool field_float(job *j, const json_t *obj, const char *name, double min, double max, float *out) {
    double x = *out;
    if (!field_number(j, obj, name, min, max, &x)) return false;
    *out = (float)x;
    return true;
}

bool field_int(job *j, const json_t *obj, const char *name, int64_t min, int64_t max, int64_t *out) {
    const json_t *value = json_object_get(obj, name);
    if (absent(value)) return true;
    if (!json_is_integer(value)) return wrong_type(j, name, "an integer", value);
    json_int_t x = json_integer_value(value);
    if (x < min || x > max)
        return job_fail(j, 400, name, x < min ? "integer_below_min_value" : "integer_above_max_value",
                        "Invalid value for '%s': %lld is not between %lld and %lld.", name, (long long)x,
                        (long long)min, (long long)max);
    *out = x;
    return true;
}

bool field_bool(job *j, const json_t *obj, const char *name, bool *out) {
    const json_t *value = json_object_get(obj, name);
    if (absent(value)) return true;
    if (!json_is_boolean(value)) return wrong_type(j, name, "a boolean", value);
    *out = json_is_true(value);
    return true;
}

bool field_object(job *j, const json_t *obj, const char *name, const json_t **out) {
    const json_t *value = json_object_get(obj, name);
    if (absent(value)) return true;
    if (!json_is_object(value)) return wrong_type(j, name, "an object", value);
    *out = value;
    return true;
}

bool field_text(job *j, const json_t *obj, const char *where, const char *name, const char **out) {
    const json_t *value = json_object_get(obj, name);
    char path[160]; /* `where` is of 96 at most */
    if (absent(value)) return true;
    snprintf(path, sizeof path, "%s%s%s", where, *where ? "." : "", name);
    if (!json_is_string(value)) return wrong_type(j, path, "a string", value);
    *out = json_string_value(value);
    return true;
}

bool fields_known(job *j, const json_t *obj, const char *const *names) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)obj, key, value) {
        int i = 0;
        while (names[i] && strcmp(names[i], key)) i++;
        if (names[i]) continue;
        if (j->api->family == FAMILY_ANTHROPIC)
            return job_fail(j, 400, key, NULL, "%.64s: Extra inputs are not permitted", key);
        return job_fail(j, 400, key, "unknown_parameter", "Unknown parameter: '%.64s'.", key);
    }
    return true;
}

bool fields_unset(job *j, const json_t *body, const char *const *names, const char *why) {
    for (; *names; names++) {
        const json_t *value = json_object_get(body, *names);
        bool none = absent(value) || (json_is_array(value) && !json_array_size(value));
        if (none) continue;
        if (j->api->family == FAMILY_ANTHROPIC) return job_fail(j, 400, *names, NULL, "%s: %s", *names, why);
        return job_fail(j, 400, *names, "unsupported_parameter", "Unsupported parameter: '%s'. %s", *names, why);
    }
    return true;
}

json_t *left_out(const char *what) {
    return json_sprintf("[%s left out: this model reads text only]", what);
}

/* What a part is called that a tool may return and a model of text cannot read, or NULL. */
static const char *not_text(const char *type) {
    if (!strcmp(type, "input_image") || !strcmp(type, "image_url")) return "image";
    return !strcmp(type, "input_file") || !strcmp(type, "file") ? "file" : NULL;
}

/* Adds a part's text. */
static bool part_text(job *j, const json_t *part, const char *where, bool by_tool, json_t *texts) {
    const char *type = "", *text = NULL;
    if (!json_is_object(part)) return wrong_type(j, where, "an object", part);
    if (!field_text(j, part, where, "type", &type)) return false;
    if (by_tool && not_text(type)) return !json_array_append_new(texts, left_out(not_text(type)));
    const char *key = !strcmp(type, "refusal") ? "refusal" : "text";
    if (!field_text(j, part, where, key, &text)) return false;
    bool is_text = !strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text") ||
                   !strcmp(type, "refusal");
    if (!is_text || !text)
        return job_fail(j, 400, where, "invalid_value",
                        "Invalid value at '%s': parts of type '%.40s' are not supported, as the model reads text only.",
                        where, type);
    return !json_array_append(texts, json_object_get(part, key));
}

json_t *content_of_parts(json_t *texts) {
    size_t i;
    json_t *text;
    if (json_array_size(texts) == 1) return json_incref(json_array_get(texts, 0));
    if (!json_array_size(texts)) return json_string("");
    json_t *parts = json_array();
    json_array_foreach(texts, i, text)
        json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
    return parts;
}

bool field_content(job *j, const json_t *content, const char *where, bool by_tool, json_t **out) {
    char path[96];
    size_t i;
    const json_t *part;
    json_t *texts = json_array();
    bool fine = true;
    if (json_is_string(content)) {
        json_array_append(texts, (json_t *)(uintptr_t)content);
    } else if (json_is_array(content)) {
        json_array_foreach(content, i, part) {
            snprintf(path, sizeof path, "%s[%zu]", where, i);
            if (!(fine = part_text(j, part, path, by_tool, texts))) break;
        }
    } else if (!absent(content)) {
        fine = wrong_type(j, where, "a string or an array of parts", content);
    }
    *out = fine ? content_of_parts(texts) : NULL;
    json_decref(texts);
    return fine;
}

bool field_stops(job *j, const json_t *obj, const char *name) {
    const json_t *value = json_object_get(obj, name), *item;
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    if (absent(value)) return true;
    if (!json_is_string(value) && !json_is_array(value)) return wrong_type(j, name, "a string or an array", value);
    if (n > MF_REPLY_MAX_STOPS)
        return job_fail(j, 400, name, "array_above_max_length", "Invalid '%s': %zu are more than %d stop sequences.",
                        name, n, MF_REPLY_MAX_STOPS);
    j->stops = calloc(n ? n : 1, sizeof *j->stops);
    if (!j->stops) return job_fail(j, 500, NULL, NULL, "no memory");
    for (size_t i = 0; i < n; i++) {
        item = json_is_string(value) ? value : json_array_get(value, i);
        if (!json_is_string(item)) return wrong_type(j, name, "an array of strings", item);
        if (!json_string_length(item))
            return job_fail(j, 400, name, "invalid_value", "Invalid '%s': a stop sequence is empty.", name);
        if (!(j->stops[j->n_stops] = strdup(json_string_value(item)))) return job_fail(j, 500, NULL, NULL, "no memory");
        j->n_stops++;
    }
    return true;
}
