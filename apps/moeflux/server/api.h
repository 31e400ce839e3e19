/* The APIs: one table entry per path, each in its own file. */
#ifndef MOEFLUX_API_H
#define MOEFLUX_API_H

#include "gen.h"

extern const api api_chat, api_completions, api_responses, api_messages, api_count_tokens, api_tokenize, api_detokenize;

/* OpenAI's usage and finish_reason, which chat and completions share. */
json_t *openai_usage(const job *j);
const char *openai_finish(const out_choice *c);

/* Messages, tools and tool_choice in the forms of chat/completions; responses has the same tools, but flat. */
bool openai_messages(gen *g, job *j, const json_t *messages);
bool openai_tool_choice(gen *g, job *j, const json_t *choice);

/* A tool call of an earlier turn: {"id", "type", "function": {"name", "arguments"}}, arguments as an object. */
json_t *openai_call(const char *id, const char *name, const json_t *arguments);

#endif
