/* What every API asks of a model, on its way from JSON to replies. gen_init, fill in, gen_start, gen_free. */
#ifndef MOEFLUX_GEN_H
#define MOEFLUX_GEN_H

#include "fields.h"

typedef struct gen {
    mf_reply_options opt;
    json_t *messages, *tools, *extra; /* of the request, as templates take it; NULL: none */
    mf_form *form;
    mf_logit_bias *bias;
    mf_reply_mark marks[MF_REPLY_MAX_MARKS];
    int64_t n; /* choices */
    bool has_seed, cache_prompt;
    int64_t seed;
} gen;

bool gen_init(gen *g, job *j);
void gen_free(gen *g);

/* Members with the same names in all APIs that have them. */
bool gen_sampling(gen *g, job *j, const json_t *body);
bool gen_logit_bias(gen *g, job *j, const json_t *body);
/* {"type": "text" | "json_object" | "json_schema", ...}; where: the schema's place in the body */
bool gen_form(gen *g, job *j, const json_t *format, const char *where);
const char *gen_effort_level(const char *word); /* of the three that templates know; NULL: there is no such word */
/* OpenAI's reasoning_effort. */
bool gen_effort(gen *g, job *j, const char *effort, const char *param);

/* Adds {"role", "content"}; content (field_content) is taken over, also when it fails. */
bool gen_message(gen *g, job *j, const char *role, json_t *content);
json_t *gen_last(const gen *g); /* the message added last; NULL: none */

#define MAX_TOOLS 128

/* One tool in OpenAI's form, {"type": "function", "function": {...}}; parts are borrowed. */
bool gen_tool(gen *g, job *j, const json_t *name, const json_t *description, const json_t *schema, const char *where);
bool gen_has_tool(const gen *g, const char *name);

/* Writes the request out and makes n replies for it. */
bool gen_start(gen *g, job *j);

#endif
