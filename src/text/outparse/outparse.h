/* What a model says, taken apart while it is said: reasoning, answer, tool calls.
 *
 * Text goes in as it is decoded, in pieces of any size; events come out through a callback. Answer and reasoning flow
 * at once, except for a tail that may be the beginning of a marker: a marker, whole or partial, is never shown as text.
 * Tool calls come when they are complete. White space next to markers is dropped. A tool call that cannot be read is
 * given out as answer text with its markers, so that nothing is lost. */
#ifndef MF_TEXT_OUTPARSE_OUTPARSE_H
#define MF_TEXT_OUTPARSE_OUTPARSE_H

#include "base/json.h"
#include "base/strbuf.h"

typedef enum mf__out_format {
    MF__OUT_PLAIN,    /* <think> only */
    MF__OUT_TAGS,     /* <tool_call> with JSON (Qwen3), <function=..> (Qwen3-Coder, Qwen3.5) or <arg_key> (GLM) */
    MF__OUT_DEEPSEEK, /* <|tool_calls_begin|> and kin, V3 and V3.1 */
    MF__OUT_KIMI,     /* <|tool_calls_section_begin|> */
    MF__OUT_MINIMAX,  /* <minimax:tool_call> with <invoke name=..> */
    MF__OUT_HARMONY   /* gpt-oss: <|channel|>analysis<|message|> */
} mf__out_format;

typedef enum mf__out_kind { MF__OUT_TEXT, MF__OUT_REASONING, MF__OUT_TOOL_CALL } mf__out_kind;

typedef struct mf__out_event {
    mf__out_kind kind;
    const char *text; /* answer or reasoning; of a tool call: its arguments, a JSON object */
    size_t n_text;
    const char *name; /* of a tool call, NUL-terminated */
    int index;        /* of a tool call: 0, 1, ... in this answer */
} mf__out_event;

/* A status other than MF_OK stops the parser, which returns it. The event's memory is the parser's. */
typedef mf_status mf__out_fn(void *user, const mf__out_event *event);

typedef struct mf__out_options {
    mf__out_format format;
    bool in_reasoning;   /* the prompt already opened <think> */
    const json_t *tools; /* the request's tools, for the types of untyped arguments; borrowed; NULL: guess */
    mf__out_fn *fn;
    void *user;
} mf__out_options;

typedef struct mf__outparse mf__outparse;

mf_status mf__outparse_create(const mf__out_options *opt, mf__outparse **out, mf_error *err);
void mf__outparse_free(mf__outparse *p); /* NULL is fine */
mf_status mf__outparse_push(mf__outparse *p, const char *text, size_t n, mf_error *err);
mf_status mf__outparse_finish(mf__outparse *p, mf_error *err); /* the answer is over: gives out what was held back */

/* The format that a chat template's own markers speak of. */
mf__out_format mf__outparse_detect(const char *template_source);

#endif
