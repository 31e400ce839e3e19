/* Items, instructions and flat tools, brought into the form that chat templates take. */
#include <stdlib.h>
#include <string.h>

#include "responses.h"

#define MAX_REPEATED (1 << 20)

static const char *const known[] = {
    "model",
    "input",
    "instructions",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "max_output_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "store",
    "metadata",
    "user",
    "include",
    "truncation",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "background",
    "previous_response_id",
    "max_tool_calls",
    "top_logprobs",
    "conversation",
    "prompt",
    "context_management",
    "moderation",
    "prompt_cache_options",
    "client_metadata",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    NULL,
};

/* ---- input ------------------------------------------------------------------------------------------------------- */

static bool is_by(const json_t *message, const char *role) {
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && !strcmp(own, role);
}

/* Calls of one turn are items of their own; for templates they belong to the assistant's message. */
static bool call_item(gen *g, job *j, const json_t *item, const char *where) {
    const char *id = json_string_value(json_object_get(item, "call_id"));
    const char *name = json_string_value(json_object_get(item, "name"));
    if (!id || !name)
        return job_fail(j, 400, where, "missing_required_parameter", "Missing required parameter: '%s.%s'.", where,
                        id ? "name" : "call_id");
    if (!is_by(gen_last(g), "assistant") && !gen_message(g, j, "assistant", json_string(""))) return false;
    json_t *message = gen_last(g);
    if (!json_object_get(message, "tool_calls")) json_object_set_new(message, "tool_calls", json_array());
    json_array_append_new(json_object_get(message, "tool_calls"),
                          openai_call(id, name, json_object_get(item, "arguments")));
    return true;
}

static bool call_output(gen *g, job *j, const json_t *item, const char *where) {
    const char *id = json_string_value(json_object_get(item, "call_id"));
    char path[96];
    json_t *content = NULL;
    snprintf(path, sizeof path, "%s.output", where);
    if (!id)
        return job_fail(j, 400, where, "missing_required_parameter", "Missing required parameter: '%s.call_id'.",
                        where);
    if (!field_content(j, json_object_get(item, "output"), path, true, &content) || !gen_message(g, j, "tool", content))
        return false;
    json_object_set_new(gen_last(g), "tool_call_id", json_string(id));
    return true;
}

static bool message_item(gen *g, job *j, const json_t *item, const char *where) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    const char *role = "";
    char path[96];
    json_t *content = NULL;
    int i = 0;
    if (!field_text(j, item, where, "role", &role)) return false;
    while (roles[i] && strcmp(roles[i], role)) i++;
    snprintf(path, sizeof path, "%s.role", where);
    if (!roles[i])
        return job_fail(j, 400, path, "invalid_value",
                        "Invalid value: '%.40s'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
                        role);
    snprintf(path, sizeof path, "%s.content", where);
    return field_content(j, json_object_get(item, "content"), path, false, &content) &&
           gen_message(g, j, !strcmp(role, "developer") ? "system" : role, content);
}

static bool add_item(gen *g, job *j, const json_t *item, const char *where) {
    const char *type = "message";
    if (!json_is_object(item))
        return job_fail(j, 400, where, "invalid_type", "Invalid type for '%s': expected an object.", where);
    if (!field_text(j, item, where, "type", &type)) return false;
    if (!strcmp(type, "message")) return message_item(g, j, item, where);
    if (!strcmp(type, "function_call")) return call_item(g, j, item, where);
    if (!strcmp(type, "function_call_output")) return call_output(g, j, item, where);
    if (!strcmp(type, "reasoning")) return true; /* of earlier turns: templates leave it out as well */
    return job_fail(j, 400, where, "invalid_value", "Invalid '%s': items of type '%.40s' are not supported.", where,
                    type);
}

static bool read_input(gen *g, job *j, const json_t *body) {
    const json_t *input = json_object_get(body, "input"), *item;
    const char *instructions = NULL;
    char where[48];
    size_t i;
    if (!field_text(j, body, "", "instructions", &instructions)) return false;
    if (instructions && !gen_message(g, j, "system", json_string(instructions))) return false;
    if (json_is_string(input)) return gen_message(g, j, "user", json_incref((json_t *)(uintptr_t)input));
    if (!json_is_array(input) || !json_array_size(input))
        return job_fail(j, 400, "input", input ? "invalid_type" : "missing_required_parameter",
                        "'input' must be a string or an array of items with at least one.");
    json_array_foreach(input, i, item) {
        snprintf(where, sizeof where, "input[%zu]", i);
        if (!add_item(g, j, item, where)) return false;
    }
    return true;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* Tools that OpenAI runs (web_search, ...), or that only its models know (custom, namespace), are offers that this
 * model cannot take: they are left out, and the answer's list of tools is without them. */
static bool read_tools(gen *g, job *j, const json_t *body) {
    const json_t *tools = json_object_get(body, "tools"), *tool, *choice = json_object_get(body, "tool_choice");
    bool parallel = true;
    char where[48];
    size_t i;
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return job_fail(j, 400, "tools", "invalid_type", "Invalid type for 'tools': expected an array.");
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!type)
            return job_fail(j, 400, where, "missing_required_parameter", "Missing required parameter: '%s.type'.",
                            where);
        if (strcmp(type, "function")) continue;
        if (!gen_tool(g, j, json_object_get(tool, "name"), json_object_get(tool, "description"),
                      json_object_get(tool, "parameters"), where))
            return false;
    }
    if (!field_bool(j, body, "parallel_tool_calls", &parallel)) return false;
    g->opt.one_call = !parallel;
    const char *word = json_string_value(choice);
    bool left_out = json_array_size(tools) && !g->tools;
    return (left_out && word && !strcmp(word, "auto")) || openai_tool_choice(g, j, choice);
}

static bool refuse_stored(job *j, const json_t *body) {
    static const char *const stored[] = {"previous_response_id", "conversation", "prompt", NULL};
    const char *truncation = NULL; /* "auto" is a leave to cut, which nobody has to take */
    bool background = false;
    if (!fields_unset(j, body, stored, "Nothing is stored here: send the whole conversation in 'input'.") ||
        !field_bool(j, body, "background", &background) || !field_text(j, body, "", "truncation", &truncation))
        return false;
    if (truncation && strcmp(truncation, "disabled") && strcmp(truncation, "auto"))
        return job_fail(j, 400, "truncation", "invalid_value",
                        "Invalid value: '%.40s'. Supported values are: 'auto' and 'disabled'.", truncation);
    return !background || job_fail(j, 400, "background", "unsupported_parameter", "'background' is not supported.");
}

/* The tools that were offered to the model. */
static json_t *functions_of(const json_t *tools) {
    json_t *list = json_array(), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) if (!strcmp(json_string_value(json_object_get(tool, "type")), "function"))
        json_array_append(list, tool);
    return list;
}

/* Logprobs are not written here: who asks for them hears of it. */
static bool refuse_logprobs(job *j, const json_t *body) {
    const json_t *include = json_object_get(body, "include"), *one;
    int64_t n_top = 0;
    size_t i;
    if (!field_int(j, body, "top_logprobs", 0, 20, &n_top)) return false;
    bool asked = n_top > 0;
    json_array_foreach(include, i, one) {
        const char *name = json_string_value(one);
        asked = asked || (name && !strcmp(name, "message.output_text.logprobs"));
    }
    return !asked || job_fail(j, 400, n_top ? "top_logprobs" : "include", "unsupported_parameter",
                              "Logprobs are not given here; /v1/chat/completions gives them.");
}

/* Parts of the request that every answer repeats. */
static bool repeat(const gen *g, job *j, const json_t *body) {
    static const char *const names[] = {"instructions", "max_output_tokens", "metadata", "user", "max_tool_calls"};
    json_t *about = json_object(), *value;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_set_new(about, names[i],
                            (value = json_object_get(body, names[i])) ? json_incref(value) : json_null());
    if (json_is_null(json_object_get(about, "metadata"))) json_object_set_new(about, "metadata", json_object());
    json_object_set_new(about, "tools", functions_of(json_object_get(body, "tools")));
    value = json_object_get(body, "tool_choice");
    json_object_set_new(about, "tool_choice", value ? json_incref(value) : json_string("auto"));
    value = json_object_get(body, "text");
    json_object_set_new(about, "text",
                        json_object_get(value, "format") ? json_incref(value)
                                                         : json_pack("{s:{s:s}}", "format", "type", "text"));
    value = json_object_get(body, "reasoning");
    json_object_set_new(about, "reasoning",
                        json_is_object(value) ? json_incref(value) : json_pack("{s:n,s:n}", "effort", "summary"));
    json_object_set_new(about, "parallel_tool_calls", json_boolean(!g->opt.one_call));
    json_object_set_new(about, "temperature", json_real(g->opt.sampling.temperature));
    json_object_set_new(about, "top_p", json_real(g->opt.sampling.top_p));
    j->about = about;
    size_t size = json_dumpb(about, NULL, 0, JSON_COMPACT);
    return size <= MAX_REPEATED ||
           job_fail(j, 400, NULL, NULL,
                    "Instructions, tools and metadata, which every answer repeats, are %zu bytes; at most %d.", size,
                    MAX_REPEATED);
}

bool responses_request(gen *g, job *j, const json_t *body) {
    const json_t *text = NULL, *reasoning = NULL;
    const char *effort = NULL;
    bool fine = fields_known(j, body, known) && field_object(j, body, "text", &text) &&
                field_object(j, body, "reasoning", &reasoning) && refuse_stored(j, body) && refuse_logprobs(j, body) &&
                field_bool(j, body, "stream", &j->stream) && read_input(g, j, body) && read_tools(g, j, body) &&
                gen_sampling(g, j, body) && field_int(j, body, "max_output_tokens", 1, INT32_MAX, &g->opt.max_tokens) &&
                gen_form(g, j, json_object_get(text, "format"), "text.format") &&
                field_text(j, reasoning, "reasoning", "effort", &effort) &&
                gen_effort(g, j, effort, "reasoning.effort");
    return fine && repeat(g, j, body);
}
