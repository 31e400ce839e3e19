/* A conversation: its messages, and the file it is kept in. */
#include "conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

#define VERSION 1
#define MAX_FILE ((size_t)64 << 20)

static const char *const think_names[] = {"auto", "on", "off"}; /* in the order of mf_switch */

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for the conversation");
}

mf_status conversation_init(conversation *c, mf_error *err) {
    *c = (conversation){.messages = json_array()};
    return c->messages ? MF_OK : no_memory(err);
}

void conversation_free(conversation *c) {
    json_decref(c->messages);
    *c = (conversation){0};
}

static bool has_role(const json_t *message, const char *role) {
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && !strcmp(is, role);
}

const char *conversation_system(const conversation *c) {
    const json_t *first = json_array_get(c->messages, 0);
    return has_role(first, "system") ? json_string_value(json_object_get(first, "content")) : NULL;
}

size_t conversation_turns(const conversation *c) {
    return json_array_size(c->messages) - (conversation_system(c) != NULL);
}

static json_t *message(const char *role, const char *text, size_t size) {
    json_t *content = json_stringn(text, size);
    return content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
}

mf_status conversation_set_system(conversation *c, const char *text, mf_error *err) {
    json_t *m = NULL;
    if (text && *text && !(m = message("system", text, strlen(text))))
        return mf__fail(err, MF_E_INVALID, "the text is not valid UTF-8");
    if (conversation_system(c)) json_array_remove(c->messages, 0);
    return m && json_array_insert_new(c->messages, 0, m) ? no_memory(err) : MF_OK;
}

mf_status conversation_ask(conversation *c, const char *text, size_t size, mf_error *err) {
    json_t *m = message("user", text, size);
    if (!m) return mf__fail(err, MF_E_INVALID, "the text is not valid UTF-8");
    return json_array_append_new(c->messages, m) ? no_memory(err) : MF_OK;
}

void conversation_reset(conversation *c) {
    while (conversation_turns(c)) json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

bool conversation_forget(conversation *c) {
    size_t first = conversation_system(c) ? 1 : 0, n = 0;
    while (first < json_array_size(c->messages)) {
        const char *role = json_string_value(json_object_get(json_array_get(c->messages, first), "role"));
        if (n && role && !strcmp(role, "user")) break;
        json_array_remove(c->messages, first);
        n++;
    }
    return n > 0;
}

json_t *conversation_take(conversation *c, const char *role) {
    size_t n = json_array_size(c->messages);
    json_t *last = n ? json_array_get(c->messages, n - 1) : NULL;
    if (!has_role(last, role)) return NULL;
    json_incref(last);
    json_array_remove(c->messages, n - 1);
    return last;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* Zero bytes are left out: files and templates do not take them. */
static mf_status append_text(mf__strbuf *to, const char *text, size_t n, mf_error *err) {
    for (const char *zero; (zero = memchr(text, '\0', n));) {
        MF__TRY(mf__strbuf_append(to, text, (size_t)(zero - text), err));
        n -= (size_t)(zero - text) + 1;
        text = zero + 1;
    }
    return mf__strbuf_append(to, text, n, err);
}

static mf_status add_call(said *s, mf_error *err) {
    json_error_t why;
    const char *text = s->call_arguments.data ? s->call_arguments.data : "";
    json_t *arguments = json_loadb(text, s->call_arguments.size, JSON_ALLOW_NUL, &why);
    if (!arguments) arguments = json_stringn(text, s->call_arguments.size);
    json_t *call =
        json_pack("{s:s, s:{s:s, s:o}}", "type", "function", "function", "name",
                  s->call_name.data ? s->call_name.data : "", "arguments", arguments ? arguments : json_object());
    if (!s->calls) s->calls = json_array();
    return call && s->calls && !json_array_append_new(s->calls, call) ? MF_OK : no_memory(err);
}

mf_status said_event(said *s, const mf_event *e, mf_error *err) {
    switch (e->kind) {
    case MF_EVENT_TEXT: return append_text(&s->text, e->text, e->n_text, err);
    case MF_EVENT_REASONING: return append_text(&s->reasoning, e->text, e->n_text, err);
    case MF_EVENT_CALL:
        mf__strbuf_clear(&s->call_name);
        mf__strbuf_clear(&s->call_arguments);
        return mf__strbuf_append(&s->call_name, e->name, strlen(e->name), err);
    case MF_EVENT_ARGUMENTS: return mf__strbuf_append(&s->call_arguments, e->text, e->n_text, err);
    case MF_EVENT_CALL_END: return add_call(s, err);
    default: return MF_OK;
    }
}

bool said_nothing(const said *s) {
    return !s->text.size && !s->reasoning.size && !s->calls;
}

mf_status conversation_answer(conversation *c, const said *s, mf_error *err) {
    json_t *m = message("assistant", s->text.data ? s->text.data : "", s->text.size);
    if (!m) return no_memory(err);
    int bad = 0;
    if (s->reasoning.size)
        bad |= json_object_set_new(m, "reasoning_content", json_stringn(s->reasoning.data, s->reasoning.size));
    if (s->calls) bad |= json_object_set(m, "tool_calls", s->calls);
    bad |= json_array_append_new(c->messages, m);
    return bad ? no_memory(err) : MF_OK;
}

void said_clear(said *s) {
    mf__strbuf_clear(&s->text);
    mf__strbuf_clear(&s->reasoning);
    json_decref(s->calls);
    s->calls = NULL;
}

void said_free(said *s) {
    said_clear(s);
    mf__strbuf_free(&s->text);
    mf__strbuf_free(&s->reasoning);
    mf__strbuf_free(&s->call_name);
    mf__strbuf_free(&s->call_arguments);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

char *conversation_request(const conversation *c) {
    json_t *root = json_pack("{s:O}", "messages", c->messages);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

mf_status conversation_save(const conversation *c, const char *model, const char *path, mf_error *err) {
    json_t *root = json_pack("{s:i, s:s, s:s, s:O}", "moeflux_conversation", VERSION, "model", model, "think",
                             think_names[c->think], "messages", c->messages);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text) return no_memory(err);
    mf_status st = mf__file_replace(path, text, strlen(text), err);
    free(text);
    return st;
}

static mf_status check_messages(const json_t *messages, const char *path, mf_error *err) {
    size_t i;
    const json_t *m;
    if (!json_is_array(messages))
        return mf__fail(err, MF_E_FORMAT, "%s: messages is %s, expected an array", path, mf__json_type_name(messages));
    json_array_foreach((json_t *)messages, i, m) {
        bool role =
            (i == 0 && has_role(m, "system")) || has_role(m, "user") || has_role(m, "assistant") || has_role(m, "tool");
        if (!role || !json_is_string(json_object_get(m, "content")))
            return mf__fail(err, MF_E_FORMAT,
                            "%s: message %zu is not of the form {\"role\":\"user\" or \"assistant\", \"content\":TEXT}",
                            path, i + 1);
    }
    return MF_OK;
}

static mf_status read_root(conversation *c, const json_t *root, const char *path, mf_error *err) {
    int64_t version;
    json_t *messages = json_object_get(root, "messages");
    const char *think = json_string_value(json_object_get(root, "think"));
    MF__TRY(mf__json_get_int(root, path, "moeflux_conversation", VERSION, VERSION, &version, err));
    MF__TRY(check_messages(messages, path, err));
    json_decref(c->messages);
    c->messages = json_incref(messages);
    c->think = MF_SWITCH_AUTO;
    for (size_t i = 0; think && i < MF__COUNT(think_names); i++)
        if (!strcmp(think, think_names[i])) c->think = (mf_switch)i;
    return MF_OK;
}

mf_status conversation_load(conversation *c, const char *path, mf_error *err) {
    json_t *root;
    MF__TRY(mf__json_read(path, MAX_FILE, &root, err));
    mf_status st = read_root(c, root, path, err);
    json_decref(root);
    return st;
}
