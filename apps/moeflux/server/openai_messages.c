/* Conversations and tools as OpenAI writes them, brought into the form that chat templates take. */
#include <stdlib.h>
#include <string.h>

#include "api.h"

json_t *openai_call(const char *id, const char *name, const json_t *arguments) {
    json_t *object = NULL;
    if (json_is_string(arguments) && json_string_length(arguments))
        object = json_loads(json_string_value(arguments), JSON_REJECT_DUPLICATES, NULL);
    else if (json_is_object(arguments))
        object = json_incref((json_t *)(uintptr_t)arguments);
    else
        object = json_object();
    if (!json_is_object(object)) { /* what the model once wrote need not have been JSON */
        json_decref(object);
        object = json_incref((json_t *)(uintptr_t)arguments);
    }
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                     object);
}

static bool add_calls(gen *g, job *j, const json_t *calls, json_t *message, const char *where) {
    size_t i;
    const json_t *call;
    json_t *list = json_array();
    (void)g;
    json_object_set_new(message, "tool_calls", list);
    if (!json_is_array(calls))
        return job_fail(j, 400, where, "invalid_type", "Invalid type for '%s.tool_calls': expected an array.", where);
    json_array_foreach(calls, i, call) {
        const json_t *f = json_object_get(call, "function");
        const char *id = json_string_value(json_object_get(call, "id")),
                   *name = json_string_value(json_object_get(f, "name"));
        if (!name)
            return job_fail(j, 400, where, "missing_required_parameter",
                            "Missing required parameter: '%s.tool_calls[%zu].function.name'.", where, i);
        json_array_append_new(list, openai_call(id ? id : "", name, json_object_get(f, "arguments")));
    }
    return true;
}

static bool add_message(gen *g, job *j, const json_t *m, const char *where) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    const char *role = "", *reasoning = NULL, *call_id = NULL;
    char path[96];
    json_t *content = NULL;
    int i = 0;
    if (!json_is_object(m))
        return job_fail(j, 400, where, "invalid_type", "Invalid type for '%s': expected an object.", where);
    if (!field_text(j, m, where, "role", &role) || !field_text(j, m, where, "reasoning_content", &reasoning) ||
        !field_text(j, m, where, "tool_call_id", &call_id))
        return false;
    while (roles[i] && strcmp(roles[i], role)) i++;
    snprintf(path, sizeof path, "%s.role", where);
    if (!roles[i])
        return job_fail(
            j, 400, path, "invalid_value",
            "Invalid value: '%.40s'. Supported values are: 'system', 'developer', 'user', 'assistant' and 'tool'.",
            role);
    const json_t *calls = json_object_get(m, "tool_calls");
    bool has_calls = calls && !json_is_null(calls);
    snprintf(path, sizeof path, "%s.content", where);
    const json_t *given = json_object_get(m, "content");
    if ((!given || json_is_null(given)) && !has_calls && strcmp(role, "assistant"))
        return job_fail(j, 400, path, "missing_required_parameter", "Missing required parameter: '%s'.", path);
    if (!field_content(j, given, path, !strcmp(role, "tool"), &content)) return false;
    if (!gen_message(g, j, !strcmp(role, "developer") ? "system" : role, content)) return false;
    json_t *message = gen_last(g);
    if (reasoning) json_object_set_new(message, "reasoning_content", json_string(reasoning));
    if (call_id) json_object_set_new(message, "tool_call_id", json_string(call_id));
    return !has_calls || add_calls(g, j, calls, message, where);
}

bool openai_messages(gen *g, job *j, const json_t *messages) {
    size_t i;
    const json_t *m;
    char where[48];
    if (!messages)
        return job_fail(j, 400, "messages", "missing_required_parameter", "Missing required parameter: 'messages'.");
    if (!json_is_array(messages))
        return job_fail(j, 400, "messages", "invalid_type",
                        "Invalid type for 'messages': expected an array, but got %s instead.", json_kind(messages));
    if (!json_array_size(messages))
        return job_fail(j, 400, "messages", "empty_array",
                        "Invalid 'messages': empty array. Expected an array with minimum length 1.");
    json_array_foreach(messages, i, m) {
        snprintf(where, sizeof where, "messages[%zu]", i);
        if (!add_message(g, j, m, where)) return false;
    }
    const json_t *last = gen_last(g);
    const char *role = json_string_value(json_object_get(last, "role"));
    g->opt.continue_last = !strcmp(role, "assistant") && !json_object_get(last, "tool_calls");
    return true;
}

/* A tool's name, in both of OpenAI's forms. */
static const char *name_in(const json_t *tool) {
    const json_t *f = json_object_get(tool, "function");
    return json_string_value(json_object_get(f ? f : tool, "name"));
}

static bool is_listed(const json_t *list, const char *name) {
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one) {
        const char *own = name_in(one);
        if (own && !strcmp(own, name)) return true;
    }
    return false;
}

/* {"type": "allowed_tools", "mode", "tools"}, in chats one level deeper: the others are as if they were not there. */
static bool allowed_tools(gen *g, job *j, const json_t *choice) {
    const json_t *inner = json_object_get(choice, "allowed_tools");
    const json_t *list = json_object_get(inner ? inner : choice, "tools");
    const char *mode = json_string_value(json_object_get(inner ? inner : choice, "mode"));
    if (!mode || (strcmp(mode, "auto") && strcmp(mode, "required")) || !json_is_array(list) ||
        json_array_size(list) > MAX_TOOLS)
        return job_fail(j, 400, "tool_choice", "invalid_value",
                        "Invalid 'tool_choice': allowed tools are a 'mode' of 'auto' or 'required' and a list of "
                        "'tools', at most %d.",
                        MAX_TOOLS);
    for (size_t i = json_array_size(g->tools); i-- > 0;)
        if (!is_listed(list, name_in(json_array_get(g->tools, i)))) json_array_remove(g->tools, i);
    if (!json_array_size(g->tools))
        return job_fail(j, 400, "tool_choice", "invalid_value",
                        "Invalid 'tool_choice': none of the allowed tools is in 'tools'.");
    g->opt.tool_choice = !strcmp(mode, "auto") ? MF_TOOLS_AUTO : MF_TOOLS_REQUIRED;
    return true;
}

bool openai_tool_choice(gen *g, job *j, const json_t *choice) {
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    if (!choice || json_is_null(choice)) return true;
    if (!g->tools || !json_array_size(g->tools)) {
        if (word && !strcmp(word, "none")) return true;
        return job_fail(j, 400, "tool_choice", NULL,
                        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.");
    }
    if (word) {
        if (!strcmp(word, "auto"))
            g->opt.tool_choice = MF_TOOLS_AUTO;
        else if (!strcmp(word, "none"))
            g->opt.tool_choice = MF_TOOLS_NONE;
        else if (!strcmp(word, "required"))
            g->opt.tool_choice = MF_TOOLS_REQUIRED;
        else
            return job_fail(j, 400, "tool_choice", "invalid_value",
                            "Invalid value: '%.40s'. Supported values are: 'none', 'auto', and 'required'.", word);
        return true;
    }
    if (type && !strcmp(type, "allowed_tools")) return allowed_tools(g, j, choice);
    const char *name = name_in(choice);
    if (!name)
        return job_fail(j, 400, "tool_choice", "invalid_type",
                        "Invalid type for 'tool_choice': expected one of 'none', 'auto', 'required' or an object that "
                        "names a function.");
    if (!gen_has_tool(g, name))
        return job_fail(j, 400, "tool_choice", NULL, "Tool choice '%.64s' not found in 'tools' parameter.", name);
    g->opt.tool_choice = MF_TOOLS_NAMED;
    g->opt.tool_name = name;
    return true;
}
