/* How a model wants a conversation written: its own chat template, or the usual <|im_start|> one where it has none.
 *
 *   messages -> template -> text */
#ifndef MF_TEXT_CHAT_H
#define MF_TEXT_CHAT_H

#include "base/json.h"
#include "text/jinja/jinja.h"
#include "text/outparse/outparse.h"
#include "text/tokenizer.h"

typedef struct mf__chat {
    mf__jinja *jinja;   /* NULL: the model has no chat format */
    json_t *variables;  /* bos_token, eos_token, ... of tokenizer_config.json */
    mf__out_format out; /* the notation of reasoning and tool calls in answers */
} mf__chat;

/* path: a template (.jinja), or a model directory with chat_template.jinja or a chat_template in tokenizer_config.json.
 * tok may be NULL; with it a directory without a template gets the usual format if the tokenizer has its markers. */
mf_status mf__chat_open(const char *path, const mf__tokenizer *tok, mf__chat *out, mf_error *err);
void mf__chat_close(mf__chat *f);

typedef struct mf__chat_request {
    const json_t *messages; /* [{"role", "content", ...}] */
    const json_t *tools;    /* NULL: none */
    mf_switch think;        /* AUTO: as the template does when it is not told */
    bool open_answer;       /* end with the beginning of the assistant's turn */
} mf__chat_request;

/* Appends to out. */
mf_status mf__chat_render(const mf__chat *f, const mf__chat_request *r, mf__strbuf *out, mf_error *err);

/* The same for a request in JSON: "messages", and perhaps "tools", "add_generation_prompt" and "extra" (more
 * variables). What is no such request is MF_E_FORMAT. */
mf_status mf__chat_render_json(const mf__chat *f, const char *json, size_t size, mf__strbuf *out, mf_error *err);

#endif
