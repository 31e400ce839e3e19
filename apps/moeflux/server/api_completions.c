/* OpenAI's /v1/completions: a text goes on. With echo and logprobs it is what evaluation harnesses use: the prompt's
 * own tokens are reported, and max_tokens may be 0. */
#include <stdlib.h>
#include <string.h>

#include "api.h"

static const char *const known[] = {
    "model",
    "prompt",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "n",
    "best_of",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "echo",
    "suffix",
    "user",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "ignore_eos",
    "response_format",
    "cache_prompt",
    NULL,
};

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

static int32_t *read_ids(job *j, const json_t *list, size_t *n) {
    int32_t n_vocab = mf_model_info_get(job_options(j)->model)->n_vocab;
    int32_t *ids = calloc(json_array_size(list) + 1, sizeof *ids);
    size_t i;
    const json_t *id;
    *n = json_array_size(list);
    if (!ids) job_fail(j, 500, NULL, NULL, "no memory");
    json_array_foreach(list, i, id) {
        json_int_t v = json_integer_value(id);
        if (!ids) break;
        if (!json_is_integer(id) || v < 0 || v >= n_vocab) {
            job_fail(j, 400, "prompt", "invalid_value", "Invalid 'prompt': entry %zu is not a token id below %d.", i,
                     n_vocab);
            free(ids);
            ids = NULL;
        } else {
            ids[i] = (int32_t)v;
        }
    }
    return ids;
}

static char *text_of(const job *j, const int32_t *ids, size_t n) {
    size_t need = 0;
    const mf_text *text = job_options(j)->text;
    if (mf_text_decode(text, NULL, ids, n, NULL, 0, &need, NULL) != MF_OK) return NULL;
    char *out = malloc(need + 1);
    if (out && mf_text_decode(text, NULL, ids, n, out, need, &need, NULL) == MF_OK) out[need] = 0;
    return out;
}

/* The n replies of one prompt. */
static bool start_prompt(gen *g, job *j, const json_t *prompt) {
    int32_t *ids = NULL;
    int first = j->n_choices;
    g->opt.text = NULL;
    g->opt.ids = NULL;
    if (json_is_string(prompt)) {
        g->opt.text = json_string_value(prompt);
        g->opt.text_size = json_string_length(prompt);
    } else {
        ids = read_ids(j, prompt, &g->opt.n_ids);
        if (!ids) return false;
        g->opt.ids = ids;
    }
    if (!(json_is_string(prompt) ? g->opt.text_size : g->opt.n_ids)) {
        free(ids);
        return job_fail(j, 400, "prompt", "invalid_value",
                        "Invalid 'prompt': it is empty, and there is nothing to go on from.");
    }
    bool fine = gen_start(g, j);
    for (int i = first; fine && i < j->n_choices && j->echo; i++) {
        j->echo_text[i] = ids ? text_of(j, ids, g->opt.n_ids) : strdup(g->opt.text);
        j->seqs[i]->prompt_logprobs = j->wants_logprobs;
        if (j->wants_logprobs) j->seqs[i]->fresh = true;
        j->seqs[i]->n_top = j->n_top;
    }
    free(ids);
    return fine;
}

static bool start_all(gen *g, job *j, const json_t *prompt) {
    size_t i;
    const json_t *one;
    bool list = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    if (!json_is_string(prompt) && !json_is_array(prompt))
        return job_fail(j, 400, "prompt", prompt ? "invalid_type" : "missing_required_parameter",
                        "'prompt' must be a string, an array of strings, of token ids, or of arrays of token ids.");
    if (!list) return start_prompt(g, j, prompt);
    if (json_array_size(prompt) * (size_t)g->n > JOB_MAX_CHOICES)
        return job_fail(j, 400, "prompt", "invalid_value", "More than %d answers in one request.", JOB_MAX_CHOICES);
    json_array_foreach(prompt, i, one) {
        if (!json_is_string(one) && !json_is_array(one))
            return job_fail(j, 400, "prompt", "invalid_type",
                            "Invalid type for 'prompt[%zu]': expected a string or token ids.", i);
        if (!start_prompt(g, j, one)) return false;
    }
    return true;
}

static bool read_request(gen *g, job *j, const json_t *body) {
    const json_t *options = json_object_get(body, "stream_options");
    int64_t most = 16, n_top = -1, best_of = 0;
    const char *suffix = NULL;
    bool fine = fields_known(j, body, known) && field_bool(j, body, "stream", &j->stream) &&
                field_bool(j, options, "include_usage", &j->include_usage) && gen_sampling(g, j, body) &&
                gen_logit_bias(g, j, body) && field_int(j, body, "max_tokens", 0, INT32_MAX, &most) &&
                field_int(j, body, "n", 1, JOB_MAX_CHOICES, &g->n) && field_int(j, body, "best_of", 1, 64, &best_of) &&
                field_stops(j, body, "stop") && field_int(j, body, "logprobs", 0, 20, &n_top) &&
                field_bool(j, body, "echo", &j->echo) && field_text(j, body, "", "suffix", &suffix) &&
                gen_form(g, j, json_object_get(body, "response_format"), "response_format") &&
                field_bool(j, body, "cache_prompt", &g->cache_prompt);
    if (!fine) return false;
    if (suffix && *suffix)
        return job_fail(j, 400, "suffix", "unsupported_parameter", "'suffix' is not supported by this model.");
    if (best_of && best_of != g->n)
        return job_fail(j, 400, "best_of", "unsupported_parameter", "'best_of' is not supported beyond 'n'.");
    g->opt.max_tokens = most;
    j->wants_logprobs = n_top >= 0;
    j->n_top = n_top > 0 ? (int)n_top : 0;
    return true;
}

static void prepare(job *j, json_t *body) {
    gen g;
    if (gen_init(&g, j) && read_request(&g, j, body)) start_all(&g, j, json_object_get(body, "prompt"));
    gen_free(&g);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static json_t *head(const job *j) {
    char id[64];
    snprintf(id, sizeof id, "cmpl-%s", j->id);
    return json_pack("{s:s,s:s,s:I,s:s,s:s}", "id", id, "object", "text_completion", "created", (json_int_t)j->created,
                     "model", j->model, "system_fingerprint", "moeflux");
}

/* The old form: four lists of the same length. The tokens are those of c->logprobs from `first` on. */
static json_t *lists(job *j, out_choice *c, size_t first) {
    if (!j->wants_logprobs) return json_null();
    json_t *tokens = json_array(), *own = json_array(), *tops = json_array(), *offsets = json_array();
    for (size_t i = first; i < json_array_size(c->logprobs); i++) {
        const json_t *e = json_array_get(c->logprobs, i), *top = json_object_get(e, "top_logprobs"), *t;
        json_t *map = json_object();
        size_t k;
        json_array_append(tokens, json_object_get(e, "token"));
        json_array_append(own, json_object_get(e, "logprob"));
        json_array_append(offsets, json_object_get(e, "offset"));
        json_array_foreach(top, k, t) /* likeliest first; of tokens that are written alike the likeliest counts */
            if (!json_object_get(map, json_string_value(json_object_get(t, "token"))))
                json_object_set(map, json_string_value(json_object_get(t, "token")), json_object_get(t, "logprob"));
        json_array_append_new(tops, json_is_null(json_object_get(e, "logprob")) ? json_null() : json_incref(map));
        json_decref(map);
    }
    c->n_sent = json_array_size(c->logprobs);
    job_logprobs_sent(j, c);
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", own, "top_logprobs", tops, "text_offset",
                     offsets);
}

static json_t *choice(job *j, out_choice *c, json_t *text, const char *finish) {
    size_t first = c->n_sent;
    return json_pack("{s:i,s:o,s:o,s:o}", "index", (int)(c - j->out), "text", text, "logprobs", lists(j, c, first),
                     "finish_reason", finish ? json_string(finish) : json_null());
}

static const char *finish(const out_choice *c) {
    return c->result.end == MF_END_LENGTH || c->result.end == MF_END_CONTEXT ? "length" : "stop";
}

static void chunk(job *j, out_choice *c, json_t *text, const char *why) {
    json_t *line = head(j);
    json_object_set_new(line, "choices", json_pack("[o]", choice(j, c, text, why)));
    if (j->include_usage) json_object_set_new(line, "usage", json_null());
    job_sse(j, NULL, line);
}

static void begin(job *j) {
    for (int i = 0; i < j->n_choices; i++)
        if (j->echo_text[i]) chunk(j, &j->out[i], json_text(j->echo_text[i], strlen(j->echo_text[i])), NULL);
}

static void event(job *j, out_choice *c, const sched_event *e) {
    if (e->kind == SCHED_ENDED)
        chunk(j, c, json_string(""), finish(c));
    else if (e->kind == SCHED_REPLY && e->reply->kind == MF_EVENT_TEXT)
        chunk(j, c, json_text(e->reply->text, e->reply->n_text), NULL);
}

static void end(job *j) {
    if (j->stream) {
        if (j->include_usage) {
            json_t *line = head(j);
            json_object_set_new(line, "choices", json_array());
            json_object_set_new(line, "usage", openai_usage(j));
            job_sse(j, NULL, line);
        }
        job_send(j, "data: [DONE]\n\n", 14);
        return;
    }
    json_t *answer = head(j), *choices = json_array();
    for (int i = 0; i < j->n_choices; i++) {
        out_choice *c = &j->out[i];
        buf text = {0};
        if (j->echo_text[i]) buf_adds(&text, j->echo_text[i]);
        buf_add(&text, c->text.data, c->text.size);
        json_array_append_new(choices, choice(j, c, json_text(text.data, text.size), finish(c)));
        buf_free(&text);
    }
    json_object_set_new(answer, "choices", choices);
    json_object_set_new(answer, "usage", openai_usage(j));
    job_respond(j, answer);
}

const api api_completions = {"/v1/completions", FAMILY_OPENAI, prepare, begin, event, end, NULL};
