/* OpenAI's /v1/chat/completions: what is asked, and how the answer is written. */
#include "api.h"

#include <string.h>

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

/* What OpenAI has, and what servers of open models have besides. Those that change nothing here are about billing,
 * storage and abuse. */
static const char *const known[] = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "modalities",
    "verbosity",
    "prediction",
    "moderation",
    "prompt_cache_options",
    "audio",
    "functions",
    "function_call",
    "web_search_options",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "ignore_eos",
    "chat_template_kwargs",
    "cache_prompt",
    "enable_thinking",
    NULL,
};

static const char *const of_old[] = {"functions", "function_call", NULL};
static const char *const hosted[] = {"audio", "web_search_options", NULL};

static bool read_tools(gen *g, job *j, const json_t *body) {
    const json_t *tools = json_object_get(body, "tools"), *tool;
    bool parallel = true;
    size_t i;
    char where[48];
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return job_fail(j, 400, "tools", "invalid_type", "Invalid type for 'tools': expected an array.");
    json_array_foreach(tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *type = "";
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!field_text(j, tool, where, "type", &type)) return false;
        if (strcmp(type, "function") || !json_is_object(f))
            return job_fail(j, 400, where, "invalid_value",
                            "Invalid '%s': only tools of type 'function' are supported.", where);
        if (!gen_tool(g, j, json_object_get(f, "name"), json_object_get(f, "description"),
                      json_object_get(f, "parameters"), where))
            return false;
    }
    if (!field_bool(j, body, "parallel_tool_calls", &parallel)) return false;
    g->opt.one_call = !parallel;
    return openai_tool_choice(g, j, json_object_get(body, "tool_choice"));
}

static bool read_logprobs(job *j, const json_t *body) {
    int64_t n_top = 0;
    if (!field_bool(j, body, "logprobs", &j->wants_logprobs) || !field_int(j, body, "top_logprobs", 0, 20, &n_top))
        return false;
    if (n_top && !j->wants_logprobs)
        return job_fail(j, 400, "top_logprobs", "invalid_value",
                        "'top_logprobs' is only allowed when 'logprobs' is true.");
    j->n_top = (int)n_top;
    return true;
}

static bool read_stream(job *j, const json_t *body) {
    const json_t *options = NULL;
    if (!field_bool(j, body, "stream", &j->stream) || !field_object(j, body, "stream_options", &options)) return false;
    if (!options) return true;
    if (!j->stream)
        return job_fail(j, 400, "stream_options", NULL,
                        "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    return field_bool(j, options, "include_usage", &j->include_usage);
}

/* chat_template_kwargs are variables of the template; enable_thinking among them is ours to understand. */
static bool read_template_values(gen *g, job *j, const json_t *body) {
    json_t *extra = json_object_get(body, "chat_template_kwargs");
    bool thinking = false;
    const json_t *from = json_object_get(body, "enable_thinking") ? body : extra;
    if (extra && !json_is_null(extra) && !json_is_object(extra))
        return job_fail(j, 400, "chat_template_kwargs", "invalid_type",
                        "Invalid type for 'chat_template_kwargs': expected an object.");
    if (!field_bool(j, from, "enable_thinking", &thinking)) return false;
    if (json_is_boolean(json_object_get(from, "enable_thinking")))
        g->opt.reasoning = thinking ? MF_SWITCH_ON : MF_SWITCH_OFF;
    if (json_is_object(extra)) g->extra = json_incref(extra);
    return true;
}

/* ["text"] is what there is. */
static bool read_modalities(job *j, const json_t *body) {
    const json_t *list = json_object_get(body, "modalities"), *one;
    size_t i;
    json_array_foreach(list, i, one) {
        const char *name = json_string_value(one);
        if (!name || strcmp(name, "text"))
            return job_fail(j, 400, "modalities", "invalid_value",
                            "Invalid 'modalities': this model writes text only.");
    }
    return true;
}

static bool read_request(gen *g, job *j, const json_t *body) {
    const char *effort = NULL;
    int64_t most = -1;
    return fields_known(j, body, known) && fields_unset(j, body, of_old, "Use 'tools' and 'tool_choice' instead.") &&
           fields_unset(j, body, hosted, "This server writes text and runs no tools of its own.") &&
           read_stream(j, body) && read_modalities(j, body) &&
           openai_messages(g, j, json_object_get(body, "messages")) && read_tools(g, j, body) &&
           read_logprobs(j, body) && gen_sampling(g, j, body) && gen_logit_bias(g, j, body) &&
           field_int(j, body, "max_tokens", 1, INT32_MAX, &most) &&
           field_int(j, body, "max_completion_tokens", 1, INT32_MAX, &most) &&
           field_int(j, body, "n", 1, JOB_MAX_CHOICES, &g->n) && field_stops(j, body, "stop") &&
           gen_form(g, j, json_object_get(body, "response_format"), "response_format") &&
           field_text(j, body, "", "reasoning_effort", &effort) && gen_effort(g, j, effort, "reasoning_effort") &&
           read_template_values(g, j, body) && field_bool(j, body, "cache_prompt", &g->cache_prompt) &&
           ((g->opt.max_tokens = most), true);
}

static void prepare(job *j, json_t *body) {
    gen g;
    if (gen_init(&g, j) && read_request(&g, j, body)) gen_start(&g, j);
    gen_free(&g);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

json_t *openai_usage(const job *j) {
    int64_t prompt = 0, made = 0, reasoning = 0, cached = 0;
    for (int i = 0; i < j->n_choices; i++) {
        const out_choice *c = &j->out[i];
        if (i % j->n_per_prompt == 0) { /* choices of one prompt share it */
            prompt += c->n_prompt;
            cached += c->n_reused;
        }
        made += c->result.n_made;
        reasoning += c->result.n_reasoning;
    }
    return json_pack("{s:I,s:I,s:I,s:{s:I,s:i},s:{s:I,s:i,s:i,s:i}}", "prompt_tokens", (json_int_t)prompt,
                     "completion_tokens", (json_int_t)made, "total_tokens", (json_int_t)(prompt + made),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)cached, "audio_tokens", 0,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)reasoning, "audio_tokens", 0,
                     "accepted_prediction_tokens", 0, "rejected_prediction_tokens", 0);
}

const char *openai_finish(const out_choice *c) {
    if (c->result.end == MF_END_LENGTH || c->result.end == MF_END_CONTEXT) return "length";
    return c->result.n_calls ? "tool_calls" : "stop";
}

static json_t *head(const job *j, const char *object) {
    char id[64];
    snprintf(id, sizeof id, "chatcmpl-%s", j->id);
    return json_pack("{s:s,s:s,s:I,s:s,s:s}", "id", id, "object", object, "created", (json_int_t)j->created, "model",
                     j->model, "system_fingerprint", "moeflux");
}

/* The text's tokens that the stream has not had yet. */
static json_t *new_logprobs(job *j, out_choice *c) {
    if (!j->wants_logprobs) return json_null();
    json_t *list = json_array();
    for (; c->n_sent < json_array_size(c->logprobs); c->n_sent++)
        json_array_append(list, json_array_get(c->logprobs, c->n_sent));
    job_logprobs_sent(j, c);
    return json_pack("{s:o,s:n}", "content", list, "refusal");
}

static void chunk(job *j, out_choice *c, json_t *delta, const char *finish) {
    json_t *line = head(j, "chat.completion.chunk");
    json_t *choice = json_pack("{s:i,s:o,s:o,s:o}", "index", (int)(c - j->out), "delta", delta, "logprobs",
                               new_logprobs(j, c), "finish_reason", finish ? json_string(finish) : json_null());
    json_object_set_new(line, "choices", json_pack("[o]", choice));
    if (j->include_usage) json_object_set_new(line, "usage", json_null());
    job_sse(j, NULL, line);
}

static void begin(job *j) {
    for (int i = 0; i < j->n_choices; i++)
        chunk(j, &j->out[i], json_pack("{s:s,s:s,s:n}", "role", "assistant", "content", "", "refusal"), NULL);
}

static void event(job *j, out_choice *c, const sched_event *e) {
    if (e->kind == SCHED_ENDED) {
        chunk(j, c, json_object(), openai_finish(c));
        return;
    }
    const mf_event *m = e->kind == SCHED_REPLY ? e->reply : NULL;
    if (!m) return;
    if (m->kind == MF_EVENT_TEXT) {
        chunk(j, c, json_pack("{s:o}", "content", json_text(m->text, m->n_text)), NULL);
    } else if (m->kind == MF_EVENT_REASONING) {
        chunk(j, c, json_pack("{s:o}", "reasoning_content", json_text(m->text, m->n_text)), NULL);
    } else if (m->kind == MF_EVENT_CALL) {
        const out_call *call = &c->calls[m->call];
        chunk(j, c,
              json_pack("{s:[{s:i,s:s,s:s,s:{s:s,s:s}}]}", "tool_calls", "index", m->call, "id", call->id, "type",
                        "function", "function", "name", call->name, "arguments", ""),
              NULL);
    } else if (m->kind == MF_EVENT_ARGUMENTS) {
        chunk(j, c,
              json_pack("{s:[{s:i,s:{s:o}}]}", "tool_calls", "index", m->call, "function", "arguments",
                        json_text(m->text, m->n_text)),
              NULL);
    }
}

static json_t *message(const out_choice *c) {
    bool silent = !c->text.size && c->n_calls;
    json_t *m = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content",
                          silent ? json_null() : json_text(c->text.data, c->text.size), "refusal");
    if (c->reasoning.size) json_object_set_new(m, "reasoning_content", json_text(c->reasoning.data, c->reasoning.size));
    if (!c->n_calls) return m;
    json_t *calls = json_array();
    for (int i = 0; i < c->n_calls; i++)
        json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", c->calls[i].id, "type", "function",
                                               "function", "name", c->calls[i].name, "arguments",
                                               json_text(c->calls[i].arguments.data, c->calls[i].arguments.size)));
    json_object_set_new(m, "tool_calls", calls);
    return m;
}

static void end(job *j) {
    if (j->stream) {
        if (j->include_usage) {
            json_t *line = head(j, "chat.completion.chunk");
            json_object_set_new(line, "choices", json_array());
            json_object_set_new(line, "usage", openai_usage(j));
            job_sse(j, NULL, line);
        }
        job_send(j, "data: [DONE]\n\n", 14);
        return;
    }
    json_t *answer = head(j, "chat.completion"), *choices = json_array();
    for (int i = 0; i < j->n_choices; i++) {
        out_choice *c = &j->out[i];
        json_array_append_new(choices, json_pack("{s:i,s:o,s:o,s:s}", "index", i, "message", message(c), "logprobs",
                                                 new_logprobs(j, c), "finish_reason", openai_finish(c)));
    }
    json_object_set_new(answer, "choices", choices);
    json_object_set_new(answer, "usage", openai_usage(j));
    json_object_set_new(answer, "service_tier", json_string("default"));
    job_respond(j, answer);
}

const api api_chat = {"/v1/chat/completions", FAMILY_OPENAI, prepare, begin, event, end, NULL};
