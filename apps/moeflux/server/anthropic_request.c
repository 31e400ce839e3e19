/* Anthropic's messages, blocks and tools, brought into the form that chat templates take; cache_control becomes marks.
 */
#include <stdlib.h>
#include <string.h>

#include "anthropic.h"

static const char *const known[] = {
    "model",         "messages",        "max_tokens",  "system",
    "stream",        "stop_sequences",  "temperature", "top_p",
    "top_k",         "tools",           "tool_choice", "thinking",
    "metadata",      "service_tier",    "container",   "context_management",
    "output_config", "output_format",   "mcp_servers", "inference_geo",
    "cache_control", "betas",           "speed",       "diagnostics",
    "fallbacks",     "thread",          "compaction",  "fallback_credit_token",
    "workspace_id",  "user_profile_id", NULL,
};

#define MAX_BREAKPOINTS 4

static bool missing(job *j, const char *where) {
    return job_fail(j, 400, where, NULL, "%s: Field required", where);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* One message on its way: its texts and reasoning, its calls; tool results become messages of their own. */
typedef struct turn {
    const char *role;
    json_t *texts;
    buf reasoning;
    json_t *calls;
    bool any;
} turn;

/* A place that is worth keeping. */
static void put_mark(gen *g, size_t message, int32_t part) {
    if (g->opt.n_marks == MF_REPLY_MAX_MARKS) return;
    g->marks[g->opt.n_marks++] = (mf_reply_mark){(int32_t)message, part};
    g->opt.marks = g->marks;
}

/* Does the block have a breakpoint? */
static bool see_mark(job *j, const json_t *block, bool *out) {
    const json_t *control = json_object_get(block, "cache_control");
    *out = false;
    if (!control || json_is_null(control)) return true;
    const char *type = json_string_value(json_object_get(control, "type"));
    const char *ttl = json_string_value(json_object_get(control, "ttl"));
    if (!json_is_object(control) || !type || strcmp(type, "ephemeral"))
        return job_fail(j, 400, "cache_control", NULL,
                        "cache_control: Input should be an object with type 'ephemeral'");
    if (ttl && strcmp(ttl, "5m") && strcmp(ttl, "1h"))
        return job_fail(j, 400, "cache_control", NULL, "cache_control.ttl: Input should be '5m' or '1h'");
    if (++j->n_breakpoints > MAX_BREAKPOINTS)
        return job_fail(j, 400, "cache_control", NULL,
                        "A maximum of %d blocks with cache_control may be provided. Found %d.", MAX_BREAKPOINTS,
                        j->n_breakpoints);
    j->cache_1h = ttl && !strcmp(ttl, "1h");
    return (*out = true);
}

/* Behind the block that was added last: a part of the message at hand, or the message before, where the block is no
 * text. */
static void mark_here(gen *g, const turn *t) {
    size_t n = json_array_size(g->messages), n_texts = json_array_size(t->texts);
    if (n_texts)
        put_mark(g, n, (int32_t)n_texts - 1);
    else if (n)
        put_mark(g, n - 1, MF_MARK_AFTER);
}

static bool flush_turn(gen *g, job *j, turn *t) {
    if (!t->any) return true;
    if (!gen_message(g, j, t->role, content_of_parts(t->texts))) return false;
    json_t *message = gen_last(g);
    if (t->reasoning.size)
        json_object_set_new(message, "reasoning_content", json_text(t->reasoning.data, t->reasoning.size));
    if (t->calls) json_object_set(message, "tool_calls", t->calls);
    json_decref(t->calls);
    t->calls = NULL;
    json_array_clear(t->texts);
    buf_free(&t->reasoning);
    t->any = false;
    return true;
}

static void free_turn(turn *t) {
    json_decref(t->texts);
    buf_free(&t->reasoning);
    json_decref(t->calls);
}

static bool add_texts(job *j, json_t *texts, const json_t *content, const char *where, bool by_tool);

static bool not_text(job *j, const char *where, const char *type) {
    return job_fail(j, 400, where, NULL,
                    "%s: blocks of type '%.40s' are not supported here, as the model reads text only", where, type);
}

/* A document of text, or a search result: title and context are lines before it. by_tool: one that is no text is
 * replaced. */
static bool add_document(job *j, json_t *texts, const json_t *block, const char *where, bool by_tool) {
    static const char *const heads[] = {"title", "context"};
    const json_t *source = json_object_get(block, "source");
    const json_t *content = json_object_get(json_is_object(source) ? source : block, "content");
    const char *type = json_string_value(json_object_get(source, "type")), *line;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        line = NULL;
        if (!field_text(j, block, where, heads[i], &line)) return false;
        if (line && *line) json_array_append(texts, json_object_get(block, heads[i]));
    }
    if (type && !strcmp(type, "text") && json_is_string(json_object_get(source, "data")))
        return !json_array_append(texts, json_object_get(source, "data"));
    if (content) return add_texts(j, texts, content, where, by_tool);
    if (by_tool && type) return !json_array_append_new(texts, left_out("document"));
    return job_fail(j, 400, where, NULL,
                    "%s: documents of source '%.40s' are not supported here, as the model reads text only", where,
                    type ? type : "none");
}

/* *known: the block's type is one of text, or an image that a tool returned; its texts have been added then. */
static bool text_block(job *j, json_t *texts, const json_t *block, const char *where, bool by_tool,
                       bool *known_type) {
    const char *type = "", *text = NULL;
    if (!json_is_object(block)) return job_fail(j, 400, where, NULL, "%s: Input should be an object", where);
    if (!field_text(j, block, where, "type", &type)) return false;
    bool document = !strcmp(type, "document") || !strcmp(type, "search_result");
    bool image = by_tool && !strcmp(type, "image");
    *known_type = document || image || !strcmp(type, "text");
    if (!*known_type) return true;
    if (image) return !json_array_append_new(texts, left_out("image"));
    if (document) return add_document(j, texts, block, where, by_tool);
    if (!field_text(j, block, where, "text", &text)) return false;
    if (!text) return missing(j, where);
    json_array_append(texts, json_object_get(block, "text"));
    return true;
}

/* A string, or blocks of text. */
static bool add_texts(job *j, json_t *texts, const json_t *content, const char *where, bool by_tool) {
    size_t i;
    const json_t *block;
    char path[96];
    bool known_type;
    if (json_is_string(content)) return !json_array_append(texts, (json_t *)(uintptr_t)content);
    if (!json_is_array(content))
        return job_fail(j, 400, where, NULL, "%s: Input should be a string or a list of blocks", where);
    json_array_foreach(content, i, block) {
        snprintf(path, sizeof path, "%.64s.content.%zu", where, i);
        if (!text_block(j, texts, block, path, by_tool, &known_type)) return false;
        if (!known_type) return not_text(j, path, json_string_value(json_object_get(block, "type")));
    }
    return true;
}

static bool tool_result(gen *g, job *j, turn *t, const json_t *block, const char *where) {
    const char *id = json_string_value(json_object_get(block, "tool_use_id"));
    const json_t *content = json_object_get(block, "content");
    char path[160];
    bool failed = false;
    snprintf(path, sizeof path, "%s.tool_use_id", where);
    if (!id) return missing(j, path);
    if (!field_bool(j, block, "is_error", &failed)) return false;
    json_t *texts = json_array();
    if (failed) json_array_append_new(texts, json_string("The tool failed."));
    bool fine = flush_turn(g, j, t) &&
                (!content || json_is_null(content) || add_texts(j, texts, content, where, true)) &&
                gen_message(g, j, "tool", content_of_parts(texts));
    json_decref(texts);
    if (fine) json_object_set_new(gen_last(g), "tool_call_id", json_string(id));
    return fine;
}

static bool tool_call(job *j, turn *t, const json_t *block, const char *where) {
    const char *id = json_string_value(json_object_get(block, "id"));
    const char *name = json_string_value(json_object_get(block, "name"));
    char path[160];
    snprintf(path, sizeof path, "%s.%s", where, id ? "name" : "id");
    if (!id || !name) return missing(j, path);
    if (!t->calls) t->calls = json_array();
    json_array_append_new(t->calls, openai_call(id, name, json_object_get(block, "input")));
    t->any = true;
    return true;
}

static bool read_block(gen *g, job *j, turn *t, const json_t *block, const char *where) {
    const char *text = NULL;
    bool by_model = !strcmp(t->role, "assistant"), by_user = !strcmp(t->role, "user"), known_type;
    if (!text_block(j, t->texts, block, where, false, &known_type)) return false;
    if (known_type) {
        t->any = true;
        return true;
    }
    const char *type = json_string_value(json_object_get(block, "type"));
    if (!type) return missing(j, where);
    if (!strcmp(type, "thinking") && by_model) {
        if (!field_text(j, block, where, "thinking", &text)) return false;
        buf_adds(&t->reasoning, text ? text : "");
        t->any = true;
        return true;
    }
    if (!strcmp(type, "redacted_thinking") && by_model) return true;
    if (!strcmp(type, "tool_use") && by_model) return tool_call(j, t, block, where);
    if (!strcmp(type, "tool_result") && by_user) return tool_result(g, j, t, block, where);
    return not_text(j, where, type);
}

static bool add_block(gen *g, job *j, turn *t, const json_t *block, const char *where) {
    bool marked;
    if (!read_block(g, j, t, block, where) || !see_mark(j, block, &marked)) return false;
    if (marked) mark_here(g, t);
    return true;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool add_content(gen *g, job *j, turn *t, const json_t *content, const char *where) {
    size_t i;
    const json_t *block;
    char path[96];
    if (json_is_string(content)) {
        json_array_append(t->texts, (json_t *)(uintptr_t)content);
        t->any = true;
    } else if (json_is_array(content)) {
        json_array_foreach(content, i, block) {
            snprintf(path, sizeof path, "%s.%zu", where, i);
            if (!add_block(g, j, t, block, path)) return false;
        }
    } else {
        return content ? job_fail(j, 400, where, NULL, "%s: Input should be a string or a list of blocks", where)
                       : missing(j, where);
    }
    return flush_turn(g, j, t);
}

static bool add_turn(gen *g, job *j, const char *role, const json_t *content, const char *where) {
    turn t = {.role = role, .texts = json_array()};
    bool fine = add_content(g, j, &t, content, where);
    free_turn(&t);
    return fine;
}

/* A system message that is for the turn before it alone, when that is over; or one that only sets options. */
static bool is_over(const json_t *m, bool user_follows) {
    const json_t *content = json_object_get(m, "content");
    const char *until = json_string_value(json_object_get(m, "clear_at"));
    if ((!content || json_is_null(content)) && json_is_object(json_object_get(m, "output_config"))) return true;
    return user_follows && until && !strcmp(until, "next_user_message");
}

static size_t last_of_user(const json_t *messages) {
    size_t i = json_array_size(messages);
    while (i-- > 0) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && !strcmp(role, "user")) return i;
    }
    return 0;
}

static bool add_messages(gen *g, job *j, const json_t *messages) {
    size_t i, last_user = last_of_user(messages);
    const json_t *m;
    char where[64];
    const char *role = NULL;
    if (!messages) return missing(j, "messages");
    if (!json_is_array(messages)) return job_fail(j, 400, "messages", NULL, "messages: Input should be a valid list");
    if (!json_array_size(messages))
        return job_fail(j, 400, "messages", NULL, "messages: at least one message is required");
    json_array_foreach(messages, i, m) {
        role = json_string_value(json_object_get(m, "role"));
        snprintf(where, sizeof where, "messages.%zu.role", i);
        bool system = role && i && !strcmp(role, "system"); /* in the course of a conversation, not before it */
        if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && !system))
            return job_fail(j, 400, where, NULL,
                            "%s: Input should be 'user' or 'assistant'; what the system says first belongs in 'system'",
                            where);
        if (system && is_over(m, i < last_user)) continue;
        snprintf(where, sizeof where, "messages.%zu.content", i);
        if (!add_turn(g, j, role, json_object_get(m, "content"), where)) return false;
    }
    const json_t *last = gen_last(g);
    g->opt.continue_last = !strcmp(role, "assistant") && !json_object_get(last, "tool_calls");
    return true;
}

/* ---- tools and the rest ------------------------------------------------------------------------------------------ */

/* *marked: one of them has a breakpoint. */
static bool add_tools(gen *g, job *j, const json_t *tools, bool *marked) {
    size_t i;
    bool here;
    const json_t *tool;
    char where[48];
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return job_fail(j, 400, "tools", NULL, "tools: Input should be a valid list");
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        snprintf(where, sizeof where, "tools.%zu", i);
        if (type && strcmp(type, "custom"))
            return job_fail(
                j, 400, where, NULL,
                "%s: tools of type '%.40s' are Anthropic's own, which this model does not know; only custom "
                "tools are supported, each with its input_schema",
                where, type);
        if (!json_is_object(json_object_get(tool, "input_schema"))) {
            snprintf(where, sizeof where, "tools.%zu.input_schema", i);
            return missing(j, where);
        }
        if (!gen_tool(g, j, json_object_get(tool, "name"), json_object_get(tool, "description"),
                      json_object_get(tool, "input_schema"), where) ||
            !see_mark(j, tool, &here))
            return false;
        *marked = *marked || here;
    }
    return true;
}

static bool tool_choice(gen *g, job *j, const json_t *choice) {
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!choice || json_is_null(choice)) return true;
    if (!type) return missing(j, "tool_choice.type");
    if (!field_bool(j, choice, "disable_parallel_tool_use", &g->opt.one_call)) return false;
    if (!g->tools)
        return job_fail(j, 400, "tool_choice", NULL, "tool_choice may only be specified while providing tools");
    if (!strcmp(type, "auto")) {
        g->opt.tool_choice = MF_TOOLS_AUTO;
    } else if (!strcmp(type, "none")) {
        g->opt.tool_choice = MF_TOOLS_NONE;
    } else if (!strcmp(type, "any")) {
        g->opt.tool_choice = MF_TOOLS_REQUIRED;
    } else if (!strcmp(type, "tool")) {
        const char *name = json_string_value(json_object_get(choice, "name"));
        if (!name) return missing(j, "tool_choice.tool.name");
        if (!gen_has_tool(g, name))
            return job_fail(j, 400, "tool_choice", NULL, "Tool '%.64s' not found in provided tools", name);
        g->opt.tool_choice = MF_TOOLS_NAMED;
        g->opt.tool_name = name;
    } else {
        return job_fail(j, 400, "tool_choice", NULL, "tool_choice: Input should be 'auto', 'any', 'tool' or 'none'");
    }
    return true;
}

static bool thinking(gen *g, job *j, const json_t *t, int64_t max_tokens) {
    const char *type = json_string_value(json_object_get(t, "type"));
    if (!t || json_is_null(t)) return true;
    if (!type) return missing(j, "thinking.type");
    if (!strcmp(type, "disabled")) {
        g->opt.reasoning = MF_SWITCH_OFF;
        return true;
    }
    if (strcmp(type, "enabled") && strcmp(type, "adaptive"))
        return job_fail(j, 400, "thinking", NULL, "thinking: Input should be 'enabled', 'disabled' or 'adaptive'");
    g->opt.reasoning = MF_SWITCH_ON;
    if (!strcmp(type, "adaptive")) return true;
    if (!json_object_get(t, "budget_tokens")) return missing(j, "thinking.enabled.budget_tokens");
    if (!field_int(j, t, "budget_tokens", 1, INT32_MAX, &g->opt.max_reasoning)) return false;
    if (max_tokens >= 0 && g->opt.max_reasoning >= max_tokens)
        return job_fail(j, 400, "max_tokens", NULL, "`max_tokens` must be greater than `thinking.budget_tokens`");
    return true;
}

/* output_config.format or output_format: {"type": "json_schema", "schema": ...} */
static bool output_form(gen *g, job *j, const json_t *body) {
    const json_t *format = json_object_get(body, "output_format");
    if (!format) format = json_object_get(json_object_get(body, "output_config"), "format");
    return gen_form(g, j, format, "output_config.format");
}

/* output_config.effort: how much, if it thinks. */
static bool effort(gen *g, job *j, const json_t *body) {
    const json_t *config = NULL;
    const char *word = NULL;
    if (!field_object(j, body, "output_config", &config) || !field_text(j, config, "output_config", "effort", &word))
        return false;
    const char *level = word ? gen_effort_level(word) : NULL;
    if (word && !level)
        return job_fail(j, 400, "output_config.effort", NULL,
                        "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'");
    if (level && g->opt.reasoning != MF_SWITCH_OFF) g->opt.effort = level;
    return true;
}

/* System prompt and messages. A breakpoint in the tools, or at the end of the system prompt, is before the first
 * message: templates have the tools before the system prompt, behind it, or in its place. */
static bool add_conversation(gen *g, job *j, const json_t *body, bool tools_marked) {
    const json_t *system = json_object_get(body, "system");
    bool has_system = system && !json_is_null(system);
    if (has_system && !add_turn(g, j, "system", system, "system")) return false;
    int n_before = j->n_breakpoints;
    const json_t *last = json_array_get(system, json_array_size(system) - 1);
    bool marked = tools_marked || (n_before && json_is_object(json_object_get(last, "cache_control")));
    size_t first = json_array_size(g->messages);
    if (!add_messages(g, j, json_object_get(body, "messages"))) return false;
    if (marked) put_mark(g, first, MF_MARK_BEFORE);
    return true;
}

/* What would run elsewhere cannot be left out without a word. */
static bool refuse_hosted(job *j, const json_t *body) {
    static const char *const names[] = {"mcp_servers", "container", "compaction", NULL};
    const json_t *thread = json_object_get(body, "thread");
    if (thread && !json_is_null(thread))
        return job_fail(j, 400, "thread", NO_THREADS,
                        "thread: conversations are not stored here, send all of it in 'messages'");
    return fields_unset(j, body, names, "is not supported here");
}

bool anthropic_request(gen *g, job *j, const json_t *body, bool answers) {
    bool tools_marked = false, all_marked;
    if (!fields_known(j, body, known) || !refuse_hosted(j, body)) return false;
    if (answers && !json_object_get(body, "max_tokens")) return missing(j, "max_tokens");
    bool fine = field_bool(j, body, "stream", &j->stream) &&
                field_int(j, body, "max_tokens", 1, INT32_MAX, &g->opt.max_tokens) && gen_sampling(g, j, body) &&
                field_stops(j, body, "stop_sequences") &&
                add_tools(g, j, json_object_get(body, "tools"), &tools_marked) &&
                tool_choice(g, j, json_object_get(body, "tool_choice")) &&
                thinking(g, j, json_object_get(body, "thinking"), g->opt.max_tokens) && output_form(g, j, body) &&
                effort(g, j, body) && add_conversation(g, j, body, tools_marked) && see_mark(j, body, &all_marked);
    if (fine && all_marked) put_mark(g, json_array_size(g->messages) - 1, MF_MARK_AFTER); /* the whole request */
    return fine;
}
