/* JSON Schema to rules: what the files share. */
#ifndef MF_TEXT_GRAMMAR_SCHEMA_H
#define MF_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar/nfa.h"

typedef struct schema_memo {
    const json_t *schema;
    uint32_t rule;
} schema_memo;

typedef struct schema_ctx {
    mf__grammar *g;
    const json_t *root;
    schema_memo *memo; /* schemas that have a rule already */
    size_t n_memo;
    json_t *made; /* schemas made by merging, kept alive here */
    int depth;
    uint32_t space, string, number, integer, value, object, array; /* common rules */
    mf_error *err;
} schema_ctx;

mf_status schema_common(schema_ctx *c); /* makes the common rules */
/* A schema of its own (its $ref "#" is itself) as a rule; the common rules are there. */
mf_status schema_root(schema_ctx *c, const json_t *schema, uint32_t *rule);

/* The rule of a schema, made if need be. */
mf_status schema_rule(schema_ctx *c, const json_t *schema, uint32_t *rule);
/* The schema's texts from one state to another. */
mf_status schema_fill(schema_ctx *c, const json_t *schema, uint32_t from, uint32_t to);

mf_status schema_literal(schema_ctx *c, const json_t *value, uint32_t from, uint32_t to);
mf_status schema_string(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to);
mf_status schema_number(schema_ctx *c, const json_t *s, bool integer, uint32_t from, uint32_t to);
mf_status schema_array(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to);
mf_status schema_object(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to);

/* A count such as maxItems; *out is missing when there is none. */
mf_status schema_count(schema_ctx *c, const json_t *s, const char *key, int64_t missing, int64_t *out);

#endif
