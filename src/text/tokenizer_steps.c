/* Normalizer, pre-tokenizer and decoder of a tokenizer.json: see tokenizer_steps.h. */
#include "text/tokenizer_steps.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 4

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct collector {
    const char *where;
    mf__split_step *steps;
    int n;
    bool byte_level; /* seen; nothing may follow */
    mf_error *err;
} collector;

static const char *type_of(const json_t *obj) {
    const char *type = json_string_value(json_object_get(obj, "type"));
    return type ? type : "";
}

mf_status mf__steps_read_normalizer(const char *where, const json_t *norm, int depth, bool *nfc, mf_error *err) {
    if (!norm || json_is_null(norm)) return MF_OK;
    const char *type = type_of(norm);
    if (strcmp(type, "NFC") == 0) {
        *nfc = true;
        return MF_OK;
    }
    if (strcmp(type, "Sequence") != 0 || depth == MAX_DEPTH)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: normalizer \"%.40s\"; this build knows none, NFC and a Sequence of "
                        "them",
                        where, type);
    const json_t *list = json_object_get(norm, "normalizers");
    if (!json_is_array(list))
        return mf__fail(err, MF_E_FORMAT, "%s: normalizers is %s, not an array", where, mf__json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        MF__TRY(mf__steps_read_normalizer(where, json_array_get(list, i), depth + 1, nfc, err));
    return MF_OK;
}

/* Adds a step with a copy of the pattern. */
static mf_status add_step(collector *c, const char *pattern, mf__split_step step) {
    if (c->n == MF__STEPS_MAX)
        return mf__fail(c->err, MF_E_LIMIT, "%s: more than %d pre-tokenizer steps", c->where, MF__STEPS_MAX);
    step.size = strlen(pattern);
    step.pattern = strdup(pattern);
    if (!step.pattern) return mf__fail(c->err, MF_E_NOMEM, "%s: no memory for the pre-tokenizer", c->where);
    c->steps[c->n++] = step;
    return MF_OK;
}

static mf_status read_split(collector *c, const json_t *obj) {
    static const char *const behaviors[] = {
        [MF__SPLIT_ISOLATED] = "Isolated",
        [MF__SPLIT_REMOVED] = "Removed",
        [MF__SPLIT_CONTIGUOUS] = "Contiguous",
        [MF__SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MF__SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    };
    const char *behavior;
    mf__split_step step = {0};
    MF__TRY(mf__json_get_string(obj, c->where, "behavior", &behavior, c->err));
    MF__TRY(mf__json_opt_bool(obj, c->where, "invert", false, &step.invert, c->err));
    size_t k = 0;
    while (k < MF__COUNT(behaviors) && strcmp(behavior, behaviors[k]) != 0) k++;
    if (k == MF__COUNT(behaviors))
        return mf__fail(c->err, MF_E_UNSUPPORTED, "%s: Split behavior \"%.40s\"", c->where, behavior);
    step.behavior = (mf__split_behavior)k;
    const json_t *pattern = json_object_get(obj, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *plain = json_string_value(json_object_get(pattern, "String"));
    step.literal = !regex;
    if (!regex && !plain)
        return mf__fail(c->err, MF_E_FORMAT, "%s: a Split pattern is neither {\"Regex\": ...} nor {\"String\": ...}",
                        c->where);
    return add_step(c, regex ? regex : plain, step);
}

static mf_status read_byte_level(collector *c, const json_t *obj) {
    bool prefix, regex;
    MF__TRY(mf__json_opt_bool(obj, c->where, "add_prefix_space", true, &prefix, c->err));
    MF__TRY(mf__json_opt_bool(obj, c->where, "use_regex", true, &regex, c->err));
    c->byte_level = true;
    if (!prefix && !regex) return MF_OK;
    return add_step(c, regex ? gpt2_pattern : "", (mf__split_step){.prefix = prefix});
}

static mf_status read_step(collector *c, const json_t *obj, int depth) {
    const char *type = type_of(obj);
    if (c->byte_level)
        return mf__fail(c->err, MF_E_UNSUPPORTED, "%s: pre-tokenizer \"%.40s\" behind ByteLevel", c->where, type);
    if (strcmp(type, "Split") == 0) return read_split(c, obj);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(c, obj);
    if (strcmp(type, "Digits") == 0) {
        bool single;
        MF__TRY(mf__json_opt_bool(obj, c->where, "individual_digits", false, &single, c->err));
        return add_step(c, "\\p{N}", (mf__split_step){.behavior = single ? MF__SPLIT_ISOLATED : MF__SPLIT_CONTIGUOUS});
    }
    const json_t *list = json_object_get(obj, "pretokenizers");
    if (strcmp(type, "Sequence") != 0 || depth == MAX_DEPTH || !json_is_array(list))
        return mf__fail(c->err, MF_E_UNSUPPORTED,
                        "%s: pre-tokenizer \"%.40s\"; this build knows Split, Digits, "
                        "ByteLevel and a Sequence of them",
                        c->where, type);
    for (size_t i = 0; i < json_array_size(list); i++) MF__TRY(read_step(c, json_array_get(list, i), depth + 1));
    return MF_OK;
}

mf_status mf__steps_read(const char *where, const json_t *pre, mf__split_step **steps, int *n, mf_error *err) {
    collector c = {.where = where, .err = err};
    c.steps = calloc(MF__STEPS_MAX, sizeof *c.steps);
    if (!c.steps) return mf__fail(err, MF_E_NOMEM, "%s: no memory for the pre-tokenizer", where);
    mf_status status = read_step(&c, pre, 0);
    *steps = c.steps; /* the caller frees them in any case */
    *n = c.n;
    if (status == MF_OK && !c.byte_level)
        status = mf__fail(err, MF_E_UNSUPPORTED,
                          "%s: the pre-tokenizer has no ByteLevel step: not a byte-level tokenizer", where);
    return status;
}

void mf__steps_free(mf__split_step *steps, int n) {
    for (int i = 0; i < n; i++) free((char *)steps[i].pattern);
    free(steps);
}

mf_status mf__steps_check_decoder(const char *where, const json_t *decoder, mf_error *err) {
    if (!decoder || json_is_null(decoder)) return MF_OK;
    const char *type = type_of(decoder);
    if (strcmp(type, "ByteLevel") == 0) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: decoder \"%.40s\"; this build knows ByteLevel", where, type);
}
