/* /tokenize and /detokenize, as llama-server has them. */
#include <stdlib.h>
#include <string.h>

#include "api.h"

#define MAX_TEXT (8 << 20) /* a word of so many letters takes forty times as much while it is encoded */

static void tokenize(job *j, json_t *body) {
    const json_t *content = json_object_get(body, "content");
    bool special = false, pieces = false;
    mf_error err;
    size_t n = 0;
    if (!json_is_string(content)) {
        job_fail(j, 400, "content", "missing_required_parameter", "'content' must be a string.");
        return;
    }
    if (json_string_length(content) > MAX_TEXT) {
        job_fail(j, 400, "content", "string_above_max_length", "Invalid 'content': a text of %zu bytes; at most %d.",
                 json_string_length(content), MAX_TEXT);
        return;
    }
    if (!field_bool(j, body, "parse_special", &special) || !field_bool(j, body, "with_pieces", &pieces)) return;
    size_t max = json_string_length(content) + 16;
    int32_t *ids = malloc(max * sizeof *ids);
    mf_status st = ids ? mf_text_encode(job_options(j)->text, json_string_value(content), json_string_length(content),
                                        special, ids, max, &n, &err)
                       : MF_E_NOMEM;
    json_t *list = json_array();
    for (size_t i = 0; st == MF_OK && i < n && i < max; i++) {
        if (!pieces) {
            json_array_append_new(list, json_integer(ids[i]));
            continue;
        }
        size_t size = 0;
        const char *text = mf_text_token(job_options(j)->text, ids[i], &size);
        json_array_append_new(list, json_pack("{s:i,s:o}", "id", (int)ids[i], "piece", json_text(text, size)));
    }
    free(ids);
    if (st == MF_OK) {
        job_whole(j, json_pack("{s:o}", "tokens", list));
        return;
    }
    json_decref(list);
    if (st == MF_E_NOMEM)
        job_fail(j, 503, NULL, NULL, "no memory");
    else
        job_fail_from(j, "content", &err);
}

static void detokenize(job *j, json_t *body) {
    const json_t *tokens = json_object_get(body, "tokens"), *id;
    size_t i, n = 0;
    mf_error err;
    if (!json_is_array(tokens)) {
        job_fail(j, 400, "tokens", "missing_required_parameter", "'tokens' must be an array of token ids.");
        return;
    }
    mf_text_info about;
    mf_text_info_get(job_options(j)->text, &about);
    int32_t *ids = calloc(json_array_size(tokens) + 1, sizeof *ids);
    json_array_foreach(tokens, i, id) {
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= about.n_tokens) {
            job_fail(j, 400, "tokens", "invalid_value", "tokens[%zu] is not a token id below %d.", i, about.n_tokens);
            free(ids);
            return;
        }
        if (ids) ids[i] = (int32_t)v;
    }
    size_t n_ids = json_array_size(tokens);
    mf_status st = ids ? mf_text_decode(job_options(j)->text, NULL, ids, n_ids, NULL, 0, &n, &err) : MF_E_NOMEM;
    char *text = st == MF_OK ? malloc(n + 1) : NULL;
    if (text) st = mf_text_decode(job_options(j)->text, NULL, ids, n_ids, text, n, &n, &err);
    if (text && st == MF_OK)
        job_whole(j, json_pack("{s:o}", "content", json_text(text, n)));
    else if (st == MF_OK || st == MF_E_NOMEM)
        job_fail(j, 503, NULL, NULL, "no memory");
    else
        job_fail_from(j, "tokens", &err);
    free(text);
    free(ids);
}

const api api_tokenize = {"/tokenize", FAMILY_OPENAI, tokenize, NULL, NULL, NULL, NULL};
const api api_detokenize = {"/detokenize", FAMILY_OPENAI, detokenize, NULL, NULL, NULL, NULL};
