#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Jansson parses and frees by recursion and allows 2,048 levels. Nothing we read has more than ten; refusing early
 * keeps a hostile file from using the stack. */
#define MAX_DEPTH 64

/* Counts brackets outside strings. On text that is not JSON the count means nothing, but then the parser refuses. */
static mf_status check_depth(const char *name, const char *bytes, size_t size, mf_error *err) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = bytes[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > MAX_DEPTH)
                return mf__fail(err, MF_E_LIMIT, "%s: JSON nested deeper than %d levels at byte %zu", name, MAX_DEPTH,
                                i);
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return MF_OK;
}

mf_status mf__json_parse(const char *name, const char *bytes, size_t size, json_t **out, mf_error *err) {
    *out = NULL;
    MF__TRY(check_depth(name, bytes, size, err));
    json_error_t why;
    json_t *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory)
        return mf__fail(err, MF_E_NOMEM, "%s: no memory for %zu bytes of JSON", name, size);
    if (!root) return mf__fail(err, MF_E_FORMAT, "%s: line %d column %d: %s", name, why.line, why.column, why.text);
    *out = root;
    return MF_OK;
}

mf_status mf__json_read(const char *path, size_t max_size, json_t **out, mf_error *err) {
    char *bytes;
    size_t size;
    *out = NULL;
    MF__TRY(mf__file_read(path, max_size, &bytes, &size, err));
    mf_status status = mf__json_parse(path, bytes, size, out, err);
    free(bytes);
    return status;
}

const char *mf__json_type_name(const json_t *value) {
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "something unknown";
}

static mf_status wrong_type(const char *where, const char *key, const json_t *value, const char *expected,
                            mf_error *err) {
    if (json_is_string(value))
        return mf__fail(err, MF_E_FORMAT, "%s: %s is the string \"%.80s\", expected %s", where, key,
                        json_string_value(value), expected);
    return mf__fail(err, MF_E_FORMAT, "%s: %s is %s, expected %s", where, key, mf__json_type_name(value), expected);
}

/* The member, or NULL in *value when it is missing or null and may be. */
static mf_status member(const json_t *obj, const char *where, const char *key, bool required, const char *expected,
                        const json_t **value, mf_error *err) {
    *value = NULL;
    if (!json_is_object(obj))
        return mf__fail(err, MF_E_FORMAT, "%s: found %s, expected an object with %s", where, mf__json_type_name(obj),
                        key);
    const json_t *found = json_object_get(obj, key);
    if (required && !found) return mf__fail(err, MF_E_FORMAT, "%s: %s is missing, expected %s", where, key, expected);
    if (!required && json_is_null(found)) return MF_OK;
    *value = found;
    return MF_OK;
}

static mf_status int_value(const json_t *value, const char *where, const char *key, int64_t min, int64_t max,
                           int64_t *out, mf_error *err) {
    if (!json_is_integer(value)) return wrong_type(where, key, value, "an integer", err);
    int64_t v = json_integer_value(value);
    if (v < min || v > max)
        return mf__fail(err, MF_E_FORMAT, "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, where, key, v, min,
                        max);
    *out = v;
    return MF_OK;
}

mf_status mf__json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                           int64_t *out, mf_error *err) {
    const json_t *value;
    MF__TRY(member(obj, where, key, true, "an integer", &value, err));
    return int_value(value, where, key, min, max, out, err);
}

mf_status mf__json_opt_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max, int64_t def,
                           int64_t *out, mf_error *err) {
    const json_t *value;
    MF__TRY(member(obj, where, key, false, "an integer", &value, err));
    if (value) return int_value(value, where, key, min, max, out, err);
    *out = def;
    return MF_OK;
}

mf_status mf__json_opt_double(const json_t *obj, const char *where, const char *key, double min, double max, double def,
                              double *out, mf_error *err) {
    const json_t *value;
    MF__TRY(member(obj, where, key, false, "a number", &value, err));
    if (!value) {
        *out = def;
        return MF_OK;
    }
    if (!json_is_number(value)) return wrong_type(where, key, value, "a number", err);
    double v = json_number_value(value);
    if (!(v >= min && v <= max))
        return mf__fail(err, MF_E_FORMAT, "%s: %s is %g, expected %g to %g", where, key, v, min, max);
    *out = v;
    return MF_OK;
}

mf_status mf__json_opt_bool(const json_t *obj, const char *where, const char *key, bool def, bool *out, mf_error *err) {
    const json_t *value;
    MF__TRY(member(obj, where, key, false, "true or false", &value, err));
    if (value && !json_is_boolean(value)) return wrong_type(where, key, value, "true or false", err);
    *out = value ? json_is_true(value) : def;
    return MF_OK;
}

mf_status mf__json_get_string(const json_t *obj, const char *where, const char *key, const char **out, mf_error *err) {
    const json_t *value;
    MF__TRY(member(obj, where, key, true, "a string", &value, err));
    if (!json_is_string(value)) return wrong_type(where, key, value, "a string", err);
    *out = json_string_value(value);
    return MF_OK;
}
