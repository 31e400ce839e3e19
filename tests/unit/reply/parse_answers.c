/* For tools/chat_answers.py: lines {"template": FILE, "text", "tools", "thinking"} on standard input, lines {"content",
 * "reasoning", "calls": [[NAME, ARGUMENTS]], "notation", "in_reasoning"} on standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reply/answer.h"

typedef struct parts {
    mf__strbuf content, reasoning, arguments;
    char name[256];
    json_t *calls;
} parts;

static mf_status take(void *user, const mf_event *e) {
    parts *p = user;
    switch (e->kind) {
    case MF_EVENT_TEXT: return mf__strbuf_append(&p->content, e->text, e->n_text, NULL);
    case MF_EVENT_REASONING: return mf__strbuf_append(&p->reasoning, e->text, e->n_text, NULL);
    case MF_EVENT_CALL:
        snprintf(p->name, sizeof p->name, "%s", e->name);
        mf__strbuf_clear(&p->arguments);
        return MF_OK;
    case MF_EVENT_ARGUMENTS: return mf__strbuf_append(&p->arguments, e->text, e->n_text, NULL);
    case MF_EVENT_CALL_END:
        json_array_append_new(p->calls, json_pack("[s, s%]", p->name, p->arguments.data, p->arguments.size));
        return MF_OK;
    default: return MF_OK;
    }
}

/* Whether the template opens the reasoning in the prompt. One that cannot write the tools is asked without them. */
static bool opens_reasoning(const mf__chat *chat, const json_t *request) {
    const json_t *thinking = json_object_get(request, "thinking");
    mf__strbuf out = {0};
    mf_error err;
    json_t *r = json_pack("{s:[{s:s, s:s}], s:O, s:b, s:{s:O, s:O}}", "messages", "role", "user", "content", "Hi",
                          "tools", json_object_get(request, "tools"), "add_generation_prompt", 1, "extra",
                          "enable_thinking", thinking, "thinking", thinking);
    mf_status st = mf__chat_render(chat, r, &out, &err);
    if (st != MF_OK) {
        mf__strbuf_clear(&out);
        json_object_set_new(r, "tools", json_null());
        st = mf__chat_render(chat, r, &out, &err);
    }
    bool opens = st == MF_OK && mf__text_opens_reasoning(out.data, out.size);
    mf__strbuf_free(&out);
    json_decref(r);
    return opens;
}

static void answer(const json_t *request) {
    static const char *const names[] = {"plain",   "tags", "deepseek", "kimi",    "minimax", "dsml",
                                        "harmony", "hy3",  "minimax3", "mistral", "gemma"};
    mf__chat chat;
    mf_error err;
    mf_answer *a;
    parts p = {.calls = json_array()};
    const json_t *text = json_object_get(request, "text");
    if (mf__chat_open(json_string_value(json_object_get(request, "template")), NULL, &chat, &err) != MF_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    mf__answer_setup setup = {.notation = chat.notation,
                              .wrap = chat.wrap,
                              .in_reasoning = opens_reasoning(&chat, request),
                              .tools = json_object_get(request, "tools"),
                              .fn = take,
                              .user = &p};
    if (mf__answer_create(&setup, &a, &err) != MF_OK ||
        mf_answer_push(a, json_string_value(text), json_string_length(text), &err) != MF_OK ||
        mf_answer_finish(a, &err) != MF_OK)
        fprintf(stderr, "%s\n", err.text);
    json_t *out = json_pack(
        "{s:s%, s:s%, s:o, s:s, s:b}", "content", p.content.data ? p.content.data : "", p.content.size, "reasoning",
        p.reasoning.data ? p.reasoning.data : "", p.reasoning.size, "calls", p.calls, "notation",
        (size_t)chat.notation < MF__COUNT(names) ? names[chat.notation] : "?", "in_reasoning", (int)setup.in_reasoning);
    char *line = json_dumps(out, JSON_COMPACT);
    puts(line ? line : "{}");
    free(line);
    json_decref(out);
    mf_answer_free(a);
    mf__strbuf_free(&p.content);
    mf__strbuf_free(&p.reasoning);
    mf__strbuf_free(&p.arguments);
    mf__chat_close(&chat);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) >= 0) {
        json_t *request = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!request) return 1;
        answer(request);
        json_decref(request);
    }
    free(line);
    return 0;
}
