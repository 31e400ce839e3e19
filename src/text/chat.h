/* How a model wants a conversation written: its own chat template, or the usual <|im_start|> one where it has none.
 *
 *   messages -> template -> text */
#ifndef MF_TEXT_CHAT_H
#define MF_TEXT_CHAT_H

#include "base/json.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer.h"

/* How a model writes reasoning and tool calls into its answers. */
typedef enum mf__notation {
    MF__NOTATION_PLAIN,    /* <think> only */
    MF__NOTATION_TAGS,     /* <tool_call> with JSON (Qwen3), <function=..> (Qwen3-Coder, Qwen3.5) or <arg_key> (GLM) */
    MF__NOTATION_DEEPSEEK, /* <|tool_calls_begin|> and kin, V3 and V3.1 */
    MF__NOTATION_KIMI,     /* <|tool_calls_section_begin|> */
    MF__NOTATION_MINIMAX,  /* <minimax:tool_call> with <invoke name=..> */
    MF__NOTATION_DSML,     /* <|DSML|function_calls> or <|DSML|tool_calls>: DeepSeek-V3.2 and V4 */
    MF__NOTATION_HARMONY,  /* gpt-oss: <|channel|>analysis<|message|> */
    MF__NOTATION_HY3,      /* <tool_calls:opensource> */
    MF__NOTATION_MINIMAX3, /* ]<]minimax[>[<tool_call> */
    MF__NOTATION_MISTRAL,  /* [TOOL_CALLS]; [THINK] */
    MF__NOTATION_GEMMA,    /* <|tool_call>call:N{..}; <|channel>thought */
    MF__NOTATIONS
} mf__notation;

/* How exactly it writes calls. */
typedef enum mf__call_style {
    MF__CALL_JSON,      /* {"name": N, "arguments": {...}} in <tool_call> */
    MF__CALL_FUNCTION,  /* <function=N> in <tool_call> */
    MF__CALL_GLM,       /* <arg_key> in <tool_call>, on lines of their own */
    MF__CALL_GLM_DENSE, /* ... without line ends: GLM-4.7 */
    MF__CALL_MINIMAX,
    MF__CALL_DSML,   /* function_calls: DeepSeek-V3.2 */
    MF__CALL_DSML_4, /* tool_calls: V4 */
    MF__CALL_DEEPSEEK,
    MF__CALL_DEEPSEEK_FENCED, /* ```json: V3, R1 */
    MF__CALL_KIMI,
    MF__CALL_HARMONY,
    MF__CALL_HY3,
    MF__CALL_MINIMAX3,
    MF__CALL_MISTRAL,
    MF__CALL_GEMMA,
    MF__CALL_STYLES
} mf__call_style;

/* What reasoning stands between, and how it is ended by somebody else. harmony has none. */
typedef struct mf__think {
    const char *open, *close, *end;
} mf__think;
const mf__think *mf__think_of(mf__notation notation);

/* The notation that a chat template's own markers speak of. */
mf__notation mf__notation_detect(const char *template_source);
mf__call_style mf__call_style_detect(const char *template_source);
const char *const *mf__wrap_detect(const char *template_source);

typedef struct mf__chat {
    mf__jinja *jinja;  /* NULL: the model has no chat format */
    json_t *variables; /* bos_token, eos_token, ... of tokenizer_config.json */
    mf__notation notation;
    mf__call_style style;
    bool has_tools, has_reasoning, has_developer; /* the template knows tools; a switch for reasoning; that role */
    bool splits_reasoning;                        /* it looks for </think> in what the assistant said */
    const char *const *wrap;                      /* tags that answers stand in, opening and closing; NULL: none */
    bool has_no_think;                            /* it wants reasoning_effort "no_think" where there is to be none */
} mf__chat;

/* path: a template (.jinja), or a model directory with chat_template.jinja or a chat_template in tokenizer_config.json.
 * tok may be NULL; with it a directory without a template gets the usual format if the tokenizer has its markers. */
mf_status mf__chat_open(const char *path, const mf__tokenizer *tok, mf__chat *out, mf_error *err);
void mf__chat_close(mf__chat *f);

/* A request: "messages", and perhaps "tools", "add_generation_prompt" and "extra" (more variables). Appends to out.
 * What is no such request is MF_E_FORMAT. */
mf_status mf__chat_render(const mf__chat *f, const json_t *request, mf__strbuf *out, mf_error *err);
/* The same with limits and a way to cancel; options may be NULL. */
mf_status mf__chat_render_with(const mf__chat *f, const json_t *request, const mf__jinja_options *options,
                               mf__strbuf *out, mf_error *err);
mf_status mf__chat_render_json(const mf__chat *f, const char *json, size_t size, mf__strbuf *out, mf_error *err);

/* Whether a prompt ends where the model has begun to reason, in <think> or its kin; or where it is not to. */
bool mf__text_opens_reasoning(const char *prompt, size_t size);
bool mf__text_closes_reasoning(const char *prompt, size_t size);

/* Parses a request from outside; MF_E_FORMAT where it is none. */
mf_status mf__chat_parse(const char *json, size_t size, json_t **out, mf_error *err);

#endif
