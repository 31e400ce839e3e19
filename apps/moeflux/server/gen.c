#include "gen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool gen_init(gen *g, job *j) {
    *g = (gen){.n = 1, .cache_prompt = true};
    mf_reply_options_init(&g->opt);
    g->opt.sampling = *job_sampling(j);
    g->opt.max_tokens = -1;
    g->opt.n_logprobs = -1;
    g->opt.n_ctx = job_options(j)->n_ctx;
    g->messages = json_array();
    return g->messages || job_fail(j, 500, NULL, NULL, "no memory");
}

void gen_free(gen *g) {
    json_decref(g->messages);
    json_decref(g->tools);
    json_decref(g->extra);
    mf_form_free(g->form);
    free(g->bias);
    *g = (gen){0};
}

bool gen_sampling(gen *g, job *j, const json_t *body) {
    mf_sampler_options *s = &g->opt.sampling;
    int64_t top_k = s->top_k;
    double top_temperature = j->api->family == FAMILY_ANTHROPIC ? 1 : 2;
    bool fine = field_float(j, body, "temperature", 0, top_temperature, &s->temperature) &&
                field_float(j, body, "top_p", 0, 1, &s->top_p) && field_int(j, body, "top_k", 0, INT32_MAX, &top_k) &&
                field_float(j, body, "min_p", 0, 1, &s->min_p) &&
                field_float(j, body, "typical_p", 0, 1, &s->typical_p) &&
                field_float(j, body, "repetition_penalty", 0.01, 10, &s->repetition_penalty) &&
                field_float(j, body, "presence_penalty", -2, 2, &s->presence_penalty) &&
                field_float(j, body, "frequency_penalty", -2, 2, &s->frequency_penalty) &&
                field_bool(j, body, "ignore_eos", &g->opt.ignore_eos);
    s->top_k = (int)top_k;
    const json_t *seed = json_object_get(body, "seed");
    g->has_seed = json_is_integer(seed);
    return fine && field_int(j, body, "seed", INT64_MIN, INT64_MAX, &g->seed);
}

bool gen_logit_bias(gen *g, job *j, const json_t *body) {
    json_t *map = json_object_get(body, "logit_bias"), *value;
    const char *key;
    int n = 0;
    if (!map || json_is_null(map)) return true;
    if (!json_is_object(map))
        return job_fail(j, 400, "logit_bias", "invalid_type", "Invalid type for 'logit_bias': expected an object.");
    if (json_object_size(map) > 1024)
        return job_fail(j, 400, "logit_bias", "invalid_value", "Invalid 'logit_bias': more than 1024 tokens.");
    g->bias = calloc(json_object_size(map) + 1, sizeof *g->bias);
    if (!g->bias) return job_fail(j, 500, NULL, NULL, "no memory");
    int32_t n_vocab = mf_model_info_get(job_options(j)->model)->n_vocab;
    json_object_foreach(map, key, value) {
        long id = strtol(key, NULL, 10);
        double bias = json_number_value(value);
        bool plain = *key && strspn(key, "0123456789") == strlen(key) && (*key != '0' || !key[1]);
        if (!plain || id >= n_vocab)
            return job_fail(j, 400, "logit_bias", "invalid_value",
                            "Invalid 'logit_bias': '%.32s' is not a token id below %d.", key, n_vocab);
        if (!json_is_number(value) || bias < -100 || bias > 100)
            return job_fail(j, 400, "logit_bias", "invalid_value",
                            "Invalid 'logit_bias': the bias of token %ld is not a number between -100 and 100.", id);
        g->bias[n++] = (mf_logit_bias){(int32_t)id, bias == -100 ? -INFINITY : (float)bias};
    }
    g->opt.sampling.bias = g->bias;
    g->opt.sampling.n_bias = n;
    return true;
}

bool gen_form(gen *g, job *j, const json_t *format, const char *where) {
    const char *type = "";
    mf_error err;
    mf_status st = MF_OK;
    if (!format || json_is_null(format)) return true;
    if (!json_is_object(format))
        return job_fail(j, 400, where, "invalid_type", "Invalid type for '%s': expected an object.", where);
    if (!field_text(j, format, where, "type", &type)) return false;
    if (!strcmp(type, "text")) return true;
    if (!strcmp(type, "json_object")) {
        st = mf_form_create(MF_FORM_JSON_OBJECT, NULL, 0, &g->form, &err);
    } else if (!strcmp(type, "json_schema")) {
        const json_t *inner = json_object_get(format, "json_schema");
        const json_t *schema = json_object_get(inner ? inner : format, "schema");
        if (!json_is_object(schema) && !json_is_boolean(schema))
            return job_fail(j, 400, where, "missing_required_parameter", "Missing required parameter: '%s%s.schema'.",
                            where, inner ? ".json_schema" : "");
        char *source = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
        if (!source) return job_fail(j, 500, NULL, NULL, "no memory");
        st = mf_form_create(MF_FORM_SCHEMA, source, strlen(source), &g->form, &err);
        free(source);
    } else {
        return job_fail(j, 400, where, "invalid_value",
                        "Invalid value for '%s.type': '%.40s' is not text, json_object or json_schema.", where, type);
    }
    if (st != MF_OK)
        return job_fail(j, 400, where, "invalid_json_schema", "Invalid schema for '%s': %s", where, err.text);
    g->opt.form = g->form;
    return true;
}

const char *gen_effort_level(const char *word) {
    static const char *const known[] = {"low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], word)) return known[i < 2 ? i : 2];
    return NULL;
}

bool gen_effort(gen *g, job *j, const char *effort, const char *param) {
    if (!effort) return true;
    if (!strcmp(effort, "none")) {
        g->opt.reasoning = MF_SWITCH_OFF;
        return true;
    }
    g->opt.reasoning = MF_SWITCH_ON;
    g->opt.effort = !strcmp(effort, "minimal") ? "low" : gen_effort_level(effort);
    return g->opt.effort || job_fail(j, 400, param, "invalid_value",
                                     "Invalid value: '%.40s'. Supported values are: 'none', 'minimal', 'low', "
                                     "'medium', 'high', 'xhigh' and 'max'.",
                                     effort);
}

bool gen_message(gen *g, job *j, const char *role, json_t *content) {
    json_t *message = content ? json_pack("{s:s,s:o}", "role", role, "content", content) : NULL;
    return (message && !json_array_append_new(g->messages, message)) || job_fail(j, 500, NULL, NULL, "no memory");
}

json_t *gen_last(const gen *g) {
    size_t n = json_array_size(g->messages);
    return n ? json_array_get(g->messages, n - 1) : NULL;
}

static bool is_tool_name(const char *name) {
    size_t n = strlen(name);
    return n >= 1 && n <= 128 && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

bool gen_has_tool(const gen *g, const char *name) {
    size_t i;
    const json_t *tool;
    json_array_foreach(g->tools, i, tool) {
        const char *own = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (own && !strcmp(own, name)) return true;
    }
    return false;
}

bool gen_tool(gen *g, job *j, const json_t *name, const json_t *description, const json_t *schema, const char *where) {
    if (!g->tools) g->tools = json_array();
    if (!json_is_string(name) || !is_tool_name(json_string_value(name)))
        return job_fail(j, 400, where, "invalid_value",
                        "Invalid '%s': a tool needs a name of 1 to 128 letters, digits, '_', '-' or '.'.", where);
    if (gen_has_tool(g, json_string_value(name)))
        return job_fail(j, 400, where, "invalid_value", "Invalid '%s': there are two tools named '%s'.", where,
                        json_string_value(name));
    if (json_array_size(g->tools) >= MAX_TOOLS)
        return job_fail(j, 400, "tools", "invalid_value", "More than %d tools.", MAX_TOOLS);
    if (schema && !json_is_null(schema) && !json_is_object(schema))
        return job_fail(j, 400, where, "invalid_type", "Invalid '%s': the schema of the tool's input is not an object.",
                        where);
    json_t *function = json_pack("{s:O}", "name", name);
    if (json_is_string(description)) json_object_set(function, "description", (json_t *)(uintptr_t)description);
    if (json_is_object(schema))
        json_object_set(function, "parameters", (json_t *)(uintptr_t)schema);
    else
        json_object_set_new(function, "parameters", json_pack("{s:s,s:{}}", "type", "object", "properties"));
    return !json_array_append_new(g->tools, json_pack("{s:s,s:o}", "type", "function", "function", function)) ||
           job_fail(j, 500, NULL, NULL, "no memory");
}

bool gen_start(gen *g, job *j) {
    mf_reply_options *o = &g->opt;
    char *text = NULL;
    bool fine = true;
    o->stops = (const char *const *)j->stops;
    o->n_stops = j->n_stops;
    if (j->wants_logprobs) {
        o->tokens = true;
        o->n_logprobs = j->n_top;
    }
    if (!o->text && !o->ids) {
        json_t *request = json_pack("{s:O}", "messages", g->messages);
        if (request && g->tools) json_object_set(request, "tools", g->tools);
        if (request && g->extra) json_object_set(request, "extra", g->extra);
        text = request ? json_dumps(request, JSON_COMPACT) : NULL;
        json_decref(request);
        if (!text) return job_fail(j, 500, NULL, NULL, "no memory");
        o->request = text;
        o->request_size = strlen(text);
    }
    if (g->has_seed)
        o->sampling.seed = (uint64_t)g->seed;
    else if (getrandom(&o->sampling.seed, sizeof o->sampling.seed, GRND_NONBLOCK) < 0)
        o->sampling.seed = 0;
    o->like = NULL;
    j->n_per_prompt = (int)g->n;
    for (int64_t i = 0; i < g->n && fine; i++) {
        seq *q = job_add_reply(j, o);
        fine = q != NULL;
        if (q) q->fresh = !g->cache_prompt;
        if (q && !o->like) o->like = q->reply; /* the prompt is rendered and encoded once */
        o->sampling.seed++;
    }
    free(text);
    return fine;
}
