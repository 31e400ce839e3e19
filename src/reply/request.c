/* What clients send and what templates take are not quite the same:
 *
 *   content in parts          -> one text, where the template knows no parts
 *   arguments as JSON text    -> an object, where the template wants one, or the other way round
 *   "developer"               -> "system", where the template does not know it
 *   "system" after the first  -> part of the first, or of what the user says, where the template refuses it or drops it
 *   "reasoning_content"       -> "thinking" for gpt-oss
 *   tools                     -> described in the system message, where the template knows none; so are past calls
 *   switches for reasoning    -> the variables that templates have for them
 *
 * How a template takes things is found out by rendering a small conversation. */
#include "reply/request.h"

#include <stdlib.h>
#include <string.h>

#define NEEDLE "needle_7f3a"

typedef struct preparing {
    const mf__chat *chat;
    const mf_reply_options *opt;
    mf__request *r;
    mf_error *err;
} preparing;

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for the request");
}

static bool has_role(const json_t *message, const char *role) {
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && !strcmp(is, role);
}

static bool instructs(const json_t *message) {
    return has_role(message, "system") || has_role(message, "developer");
}

static json_t *messages_of(const mf__request *r) {
    return json_object_get(r->root, "messages");
}

/* ---- trying the template ------------------------------------------------------------------------------------------
 */

/* Renders the messages (stolen); whether the result has `word` in it. */
static bool renders(const mf__chat *chat, json_t *messages, const char *word) {
    mf__strbuf out = {0};
    json_t *request = messages ? json_pack("{s:o}", "messages", messages) : NULL;
    bool yes = request && mf__chat_render(chat, request, &out, NULL) == MF_OK && out.data && strstr(out.data, word);
    mf__strbuf_free(&out);
    json_decref(request);
    return yes;
}

static bool takes_text(const mf__chat *chat) {
    return renders(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", NEEDLE), NEEDLE);
}

static bool takes_system(const mf__chat *chat) {
    return renders(
        chat,
        json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", NEEDLE, "role", "user", "content", "Hi"),
        NEEDLE);
}

/* Behind another one, and in the course of a conversation. */
static bool takes_more_system(const mf__chat *chat) {
    return renders(chat,
                   json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "system", "content", "Hi", "role",
                             "system", "content", NEEDLE, "role", "user", "content", "Hi"),
                   NEEDLE) &&
           renders(chat,
                   json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "Hi", "role", "system",
                             "content", NEEDLE, "role", "user", "content", "Hi"),
                   NEEDLE);
}

/* A call in a conversation; arguments are stolen. Escaped quotes say that a text was written as a string of JSON. */
static bool takes_arguments(const mf__chat *chat, json_t *arguments) {
    json_t *m = json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}]", "role", "user", "content", "Hi",
                          "role", "assistant", "content", "", "tool_calls", "id", "call_1", "type", "function",
                          "function", "name", "f", "arguments", arguments);
    json_t *again = json_deep_copy(m);
    bool there = renders(chat, m, NEEDLE), escaped = renders(chat, again, "\\\"" NEEDLE);
    return there && !escaped;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static mf_status check_shape(const preparing *p) {
    const json_t *messages = messages_of(p->r), *tools = json_object_get(p->r->root, "tools"), *m;
    size_t i;
    if (!json_is_object(p->r->root)) return mf__fail(p->err, MF_E_FORMAT, "a request is a JSON object");
    if (!json_is_array(messages))
        return mf__fail(p->err, MF_E_FORMAT, "\"messages\" is %s, expected an array", mf__json_type_name(messages));
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return mf__fail(p->err, MF_E_FORMAT, "\"tools\" is %s, expected an array", mf__json_type_name(tools));
    json_array_foreach((json_t *)messages, i, m) {
        if (!json_is_object(m))
            return mf__fail(p->err, MF_E_FORMAT, "messages[%zu] is %s, expected an object", i, mf__json_type_name(m));
        if (!json_is_string(json_object_get(m, "role")))
            return mf__fail(p->err, MF_E_FORMAT, "messages[%zu].role is %s, expected a string", i,
                            mf__json_type_name(json_object_get(m, "role")));
    }
    return MF_OK;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* A place goes inside the white space around the text, which templates may trim. An empty text has none. */
static json_t *with_place(const json_t *text, const char *place, bool in_front) {
    const char *s = json_string_value(text);
    size_t n = json_string_length(text), at = in_front ? 0 : n;
    mf__strbuf out = {0};
    while (in_front && at < n && is_space(s[at])) at++;
    while (!in_front && at && is_space(s[at - 1])) at--;
    if (at == (in_front ? n : 0)) return json_incref((json_t *)text);
    mf_status st = mf__strbuf_append(&out, s, at, NULL);
    if (st == MF_OK) st = mf__strbuf_append(&out, place, MF__FENCE_BYTES, NULL);
    if (st == MF_OK) st = mf__strbuf_append(&out, s + at, n - at, NULL);
    json_t *placed = st == MF_OK ? json_stringn(out.data, out.size) : NULL;
    mf__strbuf_free(&out);
    return placed;
}

/* A message that is continued has none: it is the prompt's end. */
static mf_status put_place(const preparing *p, int i) {
    const mf_reply_mark *mark = &p->opt->marks[i];
    if (p->opt->continue_last && mark->message >= 0 && (size_t)mark->message + 1 == json_array_size(messages_of(p->r)))
        return MF_OK;
    json_t *m = mark->message >= 0 ? json_array_get(messages_of(p->r), (size_t)mark->message) : NULL;
    json_t *content = json_object_get(m, "content"), *holder = m;
    const char *key = "content";
    bool in_front = mark->part == MF_MARK_BEFORE;
    if (json_is_array(content)) {
        size_t n = json_array_size(content);
        size_t part = in_front ? 0 : mark->part < 0 ? n - 1 : (size_t)mark->part;
        holder = n ? json_array_get(content, part) : NULL;
        key = "text";
    }
    const json_t *text = json_object_get(holder, key);
    if (!json_is_string(text)) return MF_OK;
    return json_object_set_new(holder, key, with_place(text, p->r->fence.places[i], in_front)) ? no_memory(p->err)
                                                                                               : MF_OK;
}

static bool is_text_part(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return json_is_string(part) || ((!type || strstr(type, "text")) && json_is_string(json_object_get(part, "text")));
}

/* Parts that are all text, as one. */
static mf_status join_parts(const preparing *p, json_t *m) {
    json_t *content = json_object_get(m, "content"), *part;
    mf__strbuf all = {0};
    size_t i;
    mf_status st = MF_OK;
    json_array_foreach(content, i, part) {
        const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (!is_text_part(part)) {
            mf__strbuf_free(&all);
            return MF_OK; /* a picture: the template's business */
        }
        if (st == MF_OK && i) st = mf__strbuf_append(&all, "\n", 1, p->err);
        if (st == MF_OK) st = mf__strbuf_append(&all, json_string_value(text), json_string_length(text), p->err);
    }
    if (st == MF_OK && json_object_set_new(m, "content", json_stringn(all.data ? all.data : "", all.size)))
        st = no_memory(p->err);
    mf__strbuf_free(&all);
    return st;
}

static mf_status split_text(const preparing *p, json_t *m) {
    json_t *content = json_object_get(m, "content");
    if (!json_is_string(content)) return MF_OK;
    json_t *parts = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
    return parts && !json_object_set_new(m, "content", parts) ? MF_OK : no_memory(p->err);
}

static mf_status fit_contents(const preparing *p) {
    json_t *m;
    size_t i;
    bool parts = false;
    json_array_foreach(messages_of(p->r), i, m) parts = parts || json_is_array(json_object_get(m, "content"));
    if (!parts) return MF_OK;
    bool text = takes_text(p->chat);
    json_array_foreach(messages_of(p->r), i, m) {
        if (text && json_is_array(json_object_get(m, "content"))) MF__TRY(join_parts(p, m));
        if (!text) MF__TRY(split_text(p, m));
    }
    return MF_OK;
}

/* The content of m as parts; a new reference. */
static json_t *parts_of(const json_t *m) {
    json_t *content = json_object_get(m, "content");
    if (json_is_array(content)) return json_copy(content);
    return json_is_string(content) ? json_pack("[{s:s, s:O}]", "type", "text", "text", content) : json_array();
}

/* What m says, behind what `to` says. */
static mf_status say_there(const preparing *p, json_t *to, const json_t *m) {
    json_t *parts = parts_of(to), *more = parts_of(m);
    int bad = !parts || !more || json_array_extend(parts, more) || json_object_set(to, "content", parts);
    json_decref(parts);
    json_decref(more);
    return bad ? no_memory(p->err) : MF_OK;
}

/* Agents send instructions in several messages, and between those of others. */
static mf_status fit_systems(const preparing *p) {
    json_t *messages = messages_of(p->r), *m, *before;
    bool any = false;
    size_t i;
    json_array_foreach(messages, i, m) {
        if (!p->chat->has_developer && has_role(m, "developer")) json_object_set_new(m, "role", json_string("system"));
        any = any || (i && instructs(m));
    }
    if (!any || takes_more_system(p->chat)) return MF_OK;
    for (i = 1; i < json_array_size(messages);) {
        m = json_array_get(messages, i);
        before = json_array_get(messages, i - 1);
        bool system = instructs(m), there = has_role(before, "user") || (i == 1 && instructs(before));
        if (system && there) {
            MF__TRY(say_there(p, before, m));
            json_array_remove(messages, i);
            continue;
        }
        if (system && json_object_set_new(m, "role", json_string("user"))) return no_memory(p->err);
        i++;
    }
    return MF_OK;
}

/* Arguments of past calls. A text that is no object stays as it is. */
static void fit_call(json_t *call, bool as_object) {
    json_t *f = json_object_get(call, "function"), *args = json_object_get(f ? f : call, "arguments");
    if (!f) f = call;
    if (as_object && json_is_string(args)) {
        json_t *object = json_loadb(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, NULL);
        if (json_is_object(object)) json_object_set(f, "arguments", object);
        json_decref(object);
    } else if (!as_object && json_is_object(args)) {
        char *text = json_dumps(args, 0);
        if (text) json_object_set_new(f, "arguments", json_string(text));
        free(text);
    }
}

static void fit_calls(const preparing *p) {
    json_t *m, *call;
    size_t i, k;
    int as_object = -1; /* not known yet */
    json_array_foreach(messages_of(p->r), i, m) {
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) {
            if (as_object < 0)
                as_object = takes_arguments(p->chat, json_pack("{s:s}", NEEDLE, "x")) ||
                            !takes_arguments(p->chat, json_string("{\"" NEEDLE "\": \"x\"}"));
            fit_call(call, as_object);
        }
    }
}

/* gpt-oss. */
static void fit_reasoning(const preparing *p) {
    json_t *m;
    size_t i;
    bool harmony = p->chat->notation == MF__NOTATION_HARMONY;
    json_array_foreach(messages_of(p->r), i, m) {
        json_t *reasoning = json_object_get(m, "reasoning_content");
        bool talks =
            json_array_size(json_object_get(m, "tool_calls")) && json_string_length(json_object_get(m, "content"));
        if (harmony && json_is_string(reasoning) && !json_object_get(m, "thinking") && !talks)
            json_object_set(m, "thinking", reasoning);
    }
}

/* ---- tools, where the template knows none -------------------------------------------------------------------------
 */

static mf_status describe(const json_t *tools, mf__strbuf *out, mf_error *err) {
    const json_t *tool;
    size_t i;
    MF__TRY(mf__strbuf_printf(
        out, err,
        "You can use tools. To call one, write <tool_call>, a JSON object {\"name\": the tool's name, \"arguments\": "
        "its "
        "arguments}, and </tool_call>, and end your answer there; several calls are several such blocks. The results "
        "come in <tool_response>. The tools are:\n"));
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *inner = json_object_get(tool, "function");
        char *text = json_dumps(inner ? inner : tool, JSON_COMPACT);
        mf_status st = text ? mf__strbuf_printf(out, err, "%s\n", text) : no_memory(err);
        free(text);
        MF__TRY(st);
    }
    return MF_OK;
}

/* Puts text before the content of a message, or into a new one of that role. */
static mf_status put_before(const preparing *p, size_t at, const char *role, const mf__strbuf *text) {
    json_t *messages = messages_of(p->r), *m = json_array_get(messages, at);
    const char *old = has_role(m, role) ? json_string_value(json_object_get(m, "content")) : NULL;
    mf__strbuf all = {0};
    mf_status st = mf__strbuf_append(&all, text->data, text->size, p->err);
    if (st == MF_OK && old && *old) st = mf__strbuf_printf(&all, p->err, "\n%s", old);
    json_t *content = st == MF_OK ? json_stringn(all.data, all.size) : NULL;
    mf__strbuf_free(&all);
    if (!content) return st == MF_OK ? no_memory(p->err) : st;
    if (old) return json_object_set_new(m, "content", content) ? no_memory(p->err) : MF_OK;
    m = json_pack("{s:s, s:o}", "role", role, "content", content);
    return m && !json_array_insert_new(messages, at, m) ? MF_OK : no_memory(p->err);
}

/* A past call as the description has it. */
static mf_status write_calls(json_t *m, mf_error *err) {
    const char *content = json_string_value(json_object_get(m, "content"));
    mf__strbuf all = {0};
    json_t *call;
    size_t i;
    mf_status st = mf__strbuf_printf(&all, err, "%s", content ? content : "");
    json_array_foreach(json_object_get(m, "tool_calls"), i, call) {
        const json_t *f = json_object_get(call, "function"), *args;
        if (!f) f = call;
        args = json_object_get(f, "arguments");
        json_t *plain = json_pack("{s:O?, s:O?}", "name", json_object_get(f, "name"), "arguments", args);
        char *text = plain ? json_dumps(plain, 0) : NULL;
        if (st == MF_OK)
            st = text ? mf__strbuf_printf(&all, err, "%s<tool_call>\n%s\n</tool_call>", all.size ? "\n" : "", text)
                      : no_memory(err);
        free(text);
        json_decref(plain);
    }
    if (st == MF_OK && json_object_set_new(m, "content", json_stringn(all.data ? all.data : "", all.size)))
        st = no_memory(err);
    json_object_del(m, "tool_calls");
    mf__strbuf_free(&all);
    return st;
}

/* Results become what the user says; several in a row are one message. */
static mf_status write_result(json_t *messages, size_t *i, bool follows, mf_error *err) {
    json_t *m = json_array_get(messages, *i), *before = *i ? json_array_get(messages, *i - 1) : NULL;
    const char *content = json_string_value(json_object_get(m, "content"));
    const char *said = follows ? json_string_value(json_object_get(before, "content")) : NULL;
    mf__strbuf all = {0};
    mf_status st = mf__strbuf_printf(&all, err, "%s%s<tool_response>\n%s\n</tool_response>", said ? said : "",
                                     said ? "\n" : "", content ? content : "");
    json_t *text = st == MF_OK ? json_stringn(all.data, all.size) : NULL;
    mf__strbuf_free(&all);
    if (!text) return st == MF_OK ? no_memory(err) : st;
    if (said) {
        json_object_set_new(before, "content", text);
        json_array_remove(messages, (*i)--);
        return MF_OK;
    }
    json_object_set_new(m, "content", text);
    return json_object_set_new(m, "role", json_string("user")) ? no_memory(err) : MF_OK;
}

static mf_status describe_tools(const preparing *p) {
    json_t *messages = messages_of(p->r), *m;
    mf__strbuf text = {0};
    bool system = takes_system(p->chat), follows = false;
    fit_calls(p);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        m = json_array_get(messages, i);
        bool result = has_role(m, "tool");
        if (result) MF__TRY(write_result(messages, &i, follows, p->err));
        if (!result && json_array_size(json_object_get(m, "tool_calls"))) MF__TRY(write_calls(m, p->err));
        follows = result;
    }
    if (!p->r->tools) return MF_OK;
    mf_status st = describe(p->r->tools, &text, p->err);
    if (st == MF_OK) st = put_before(p, 0, system ? "system" : "user", &text);
    mf__strbuf_free(&text);
    p->r->own_tools = json_incref((json_t *)p->r->tools);
    json_object_set_new(p->r->root, "tools", json_null());
    p->r->notation = MF__NOTATION_TAGS;
    p->r->style = MF__CALL_JSON;
    return st;
}

/* {"name", "description", "input_schema"} becomes {"type": "function", "function": {...}}. */
static mf_status fit_tools(const preparing *p) {
    json_t *tools = json_object_get(p->r->root, "tools"), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (json_object_get(tool, "function") || !json_object_get(tool, "name")) continue;
        json_t *f = json_copy(tool), *schema = json_object_get(f, "input_schema");
        int bad = !f || (schema && !json_object_get(f, "parameters") && json_object_set(f, "parameters", schema));
        json_object_del(f, "input_schema");
        json_t *whole = bad ? NULL : json_pack("{s:s, s:O}", "type", "function", "function", f);
        json_decref(f);
        if (!whole || json_array_set_new(tools, i, whole)) return no_memory(p->err);
    }
    json_array_foreach(tools, i, tool) { /* some templates cannot do without these */
        json_t *f = json_object_get(tool, "function");
        if (!json_is_object(f)) continue;
        if (!json_object_get(f, "description")) json_object_set_new(f, "description", json_string(""));
        if (!json_object_get(f, "parameters"))
            json_object_set_new(f, "parameters", json_pack("{s:s, s:{}}", "type", "object", "properties"));
    }
    p->r->tools = json_array_size(tools) ? tools : NULL;
    return MF_OK;
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

/* The names that templates give the switch for thinking. */
static int set_reasoning(json_t *extra, const mf__chat *chat, const mf_reply_options *o) {
    int bad = 0;
    if (o->reasoning != MF_SWITCH_AUTO) {
        bool on = o->reasoning == MF_SWITCH_ON;
        bad |= json_object_set_new(extra, "enable_thinking", json_boolean(on));
        bad |= json_object_set_new(extra, "thinking", json_boolean(on));
        if (chat->notation == MF__NOTATION_MINIMAX3)
            bad |= json_object_set_new(extra, "thinking_mode", json_string(on ? "enabled" : "disabled"));
        const char *effort = !on ? (chat->has_no_think ? "no_think" : "low") : chat->has_no_think ? "high" : NULL;
        if (effort) bad |= json_object_set_new(extra, "reasoning_effort", json_string(effort));
    }
    if (o->effort) bad |= json_object_set_new(extra, "reasoning_effort", json_string(o->effort));
    return bad;
}

static mf_status set_variables(const preparing *p) {
    json_t *root = p->r->root, *given = json_object_get(root, "extra");
    if (given && !json_is_object(given) && !json_is_null(given))
        return mf__fail(p->err, MF_E_FORMAT, "\"extra\" is %s, expected an object", mf__json_type_name(given));
    json_t *extra = json_is_object(given) ? json_incref(given) : json_object();
    int bad = !extra || set_reasoning(extra, p->chat, p->opt) || json_object_set(root, "extra", extra) ||
              json_object_set_new(root, "add_generation_prompt", json_true());
    json_decref(extra);
    return bad ? no_memory(p->err) : MF_OK;
}

static mf_status take_last(const preparing *p) {
    json_t *messages = messages_of(p->r);
    size_t n = json_array_size(messages);
    json_t *m = n ? json_array_get(messages, n - 1) : NULL;
    if (!has_role(m, "assistant"))
        return mf__fail(p->err, MF_E_INVALID, "the last message is to be continued, but it is not the assistant's");
    if (json_is_array(json_object_get(m, "content"))) MF__TRY(join_parts(p, m));
    if (!json_is_string(json_object_get(m, "content")))
        return mf__fail(p->err, MF_E_INVALID, "the last message is to be continued, but its content is %s",
                        mf__json_type_name(json_object_get(m, "content")));
    p->r->last = json_incref(m);
    json_array_remove(messages, n - 1);
    return MF_OK;
}

static mf_status prepare(const preparing *p) {
    MF__TRY(check_shape(p));
    MF__TRY(mf__fence_choose(p->r->root, p->opt->n_marks, &p->r->fence, p->err));
    for (int i = 0; i < p->opt->n_marks; i++) MF__TRY(put_place(p, i));
    MF__TRY(set_variables(p));
    MF__TRY(fit_tools(p));
    MF__TRY(fit_systems(p));
    MF__TRY(fit_contents(p));
    fit_reasoning(p);
    if (p->opt->continue_last) MF__TRY(take_last(p));
    if (!p->chat->has_tools) return describe_tools(p);
    fit_calls(p);
    return MF_OK;
}

mf_status mf__request_prepare(const mf_text *text, const mf_reply_options *opt, json_t *root, mf__request *out,
                              mf_error *err) {
    *out = (mf__request){.root = root, .notation = text->chat.notation, .style = text->chat.style};
    preparing p = {&text->chat, opt, out, err};
    mf_status st = text->chat.jinja
                       ? prepare(&p)
                       : mf__fail(err, MF_E_NOT_FOUND,
                                  "the model has no chat template: neither chat_template.jinja nor chat_template in "
                                  "tokenizer_config.json");
    if (st != MF_OK) mf__request_free(out);
    return st;
}

void mf__request_free(mf__request *r) {
    json_decref(r->root);
    json_decref(r->own_tools);
    json_decref(r->last);
    *r = (mf__request){0};
}
