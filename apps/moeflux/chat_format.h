/* How a model wants a conversation written: its own chat template, or the usual <|im_start|> one where it has none.
 *
 *   messages -> template -> text -> token ids, with the places where states are worth keeping
 *
 * Markers such as <|im_end|> in what people write are ordinary text: they cannot end a message early. */
#ifndef MOEFLUX_CHAT_FORMAT_H
#define MOEFLUX_CHAT_FORMAT_H

#include "base/json.h"
#include "text/jinja/jinja.h"
#include "text/outparse/outparse.h"
#include "text/tokenizer.h"

typedef struct chat_format {
    mf__jinja *jinja;   /* NULL: the model has no chat format */
    json_t *variables;  /* bos_token, eos_token, ... of tokenizer_config.json */
    mf__out_format out; /* the notation of reasoning and tool calls in answers */
} chat_format;

/* path: a template (.jinja), or a model directory with chat_template.jinja or a chat_template in tokenizer_config.json.
 * tok may be NULL; with it a directory without a template gets the usual format if the tokenizer has its markers. */
mf_status chat_format_open(const char *path, const mf__tokenizer *tok, chat_format *out, mf_error *err);
void chat_format_close(chat_format *f);

typedef struct chat_request {
    const json_t *messages; /* [{"role", "content", ...}] */
    const json_t *tools;    /* NULL: none */
    mf_switch think;        /* AUTO: as the template does when it is not told */
    bool open_answer;       /* end with the beginning of the assistant's turn */
} chat_request;

/* Appends to out. */
mf_status chat_format_render(const chat_format *f, const chat_request *r, mf__strbuf *out, mf_error *err);

#define CHAT_MAX_MARKS 8

typedef struct chat_prompt {
    int32_t *ids;
    size_t n_ids;
    int64_t marks[CHAT_MAX_MARKS]; /* ends of the system prompt and of the latest turns, and the end; rising */
    size_t n_marks;
    bool in_reasoning; /* the text ends inside <think> */
} chat_prompt;

/* known: the tokens of an earlier prompt with the model's answer. Where their text is the beginning of this one they
 * are taken as they are, since a model may spell a text with other tokens than the tokenizer does. May be NULL. */
mf_status chat_format_prompt(const chat_format *f, const mf__tokenizer *tok, const chat_request *r,
                             const int32_t *known, size_t n_known, chat_prompt *out, mf_error *err);
void chat_prompt_free(chat_prompt *p);

#endif
