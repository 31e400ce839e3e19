/* JSON Schema to rules: what the files share.
 *
 *   schema_refs.c    $id, $anchor, $ref: what a reference means
 *   schema_expand.c  a goal (schemas that must hold, and that must not) --> alternatives, each a conjunction
 *   schema_apart.c   alternatives that exclude each other, or themselves
 *   schema_value.c   is this value valid? For enum and const beside other keywords
 *   schema.c         alternatives --> rules; listed values
 *   schema_string.c, schema_number.c, schema_array.c, schema_object.c   the types
 *
 * A goal is a set of literals: schema objects with a sign. allOf, $ref, keywords beside each other only add literals;
 * anyOf, oneOf, if and dependencies split a goal into alternatives; not turns the sign. What a property or an item must
 * be is a goal again, kept as literals, not expanded: each goal has one rule, so that schemas may be recursive. */
#ifndef MF_TEXT_GRAMMAR_SCHEMA_H
#define MF_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar/lang.h"

typedef struct literal {
    const json_t *node;
    uint32_t base; /* the resource its references begin at */
    bool negated;
} literal;

typedef struct goal {
    literal *items;
    uint32_t n, capacity;
} goal;

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, /* numbers that are not integers */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};

typedef enum fact_kind {
    FACT_GROUP,    /* the keywords of a schema object that are about one type each */
    FACT_NOT,      /* one such keyword of it does not hold */
    FACT_REQUIRE,  /* key is there */
    FACT_ABSENT,   /* key is not there */
    FACT_PROPERTY, /* the value of key, if there, is valid by the literal */
    FACT_CONTAINS, /* some item is valid by the literal */
    FACT_ITEMS     /* all items are valid by the literal */
} fact_kind;

typedef struct fact {
    fact_kind kind;
    literal of;      /* the schema object, or the literal */
    const char *key; /* the keyword or the property */
    uint32_t scope;  /* where it was said: see unevaluatedProperties */
} fact;

/* One alternative: everything in it holds together. */
typedef struct conjunction {
    uint32_t types;
    json_t *values;   /* the only values, an array; NULL: not listed */
    json_t *excluded; /* values that it is not, an array or NULL */
    fact *facts;
    uint32_t n_facts, facts_capacity;
    literal *pending; /* literals still to be looked at, with their scopes */
    uint32_t *pending_scope;
    uint32_t n_pending, pending_capacity;
    struct branch *branches; /* alternatives still to be split */
    uint32_t n_branches, branches_capacity;
    literal *seen;
    uint32_t n_seen, seen_capacity;
} conjunction;

typedef struct conjunctions {
    conjunction *items;
    uint32_t n, capacity;
} conjunctions;

typedef struct resource {
    char *uri; /* absolute where there is a base, without fragment */
    const json_t *node;
    uint32_t parent;
} resource;

typedef struct anchor {
    const char *name;
    uint32_t base;
    const json_t *node;
    bool dynamic;
} anchor;

typedef struct schema_scope {
    uint32_t parent;
    const json_t *node;
    bool negated;
} schema_scope;

typedef struct goal_rule {
    goal g;
    uint32_t rule;
    uint64_t hash;
} goal_rule;

typedef struct mf__schema_options {
    bool strict; /* formats that are not enforced are refused */
} mf__schema_options;

/* A pattern that values are compared with: see mf__lang_options for the lengths. */
typedef struct mf__pattern_set {
    char *text; /* NULL: none */
    size_t size;
    bool search;
    mf__lang lang;
    int64_t min, max;
} mf__pattern_set;
void mf__pattern_set_free(mf__pattern_set *s); /* the parts */

typedef struct mf__schemas {
    mf__nfa *n;
    mf__schema_options options;
    const json_t *root;
    bool legacy; /* up to draft 7: keywords beside $ref are ignored */
    resource *resources;
    uint32_t n_resources, resources_capacity;
    anchor *anchors;
    uint32_t n_anchors, anchors_capacity;
    schema_scope *scopes;
    uint32_t n_scopes, scopes_capacity;
    goal_rule *goals; /* those from n_done on are still to be made */
    uint32_t n_goals, goals_capacity, n_done;
    uint32_t *goal_slots, goal_mask;
    uint64_t work;                                                  /* alternatives looked at so far */
    uint64_t compared;                                              /* values and names, see mf__schema_pay */
    int probing;                                                    /* inside a question whether alternatives overlap */
    uint32_t indent, string, number, integer, value, object, array; /* common rules */
    uint32_t never;                                                 /* a rule without texts */
    json_t *strings; /* rules of strings that were made, by what they ask for */
    mf__pattern_set patterns[4];
    uint32_t next_pattern;
    mf__strbuf notes;
    mf_error *err;
} mf__schemas;

mf_status mf__schemas_create(mf__nfa *n, const mf__schema_options *o, mf__schemas **out, mf_error *err);
void mf__schemas_free(mf__schemas *c);
/* The rule of a schema of its own: "#" is the schema itself. */
mf_status mf__schemas_rule(mf__schemas *c, const json_t *schema, uint32_t *rule);
mf_status mf__schemas_finish(mf__schemas *c, mf__grammar **out);

/* Errors that name the place: "JSON Schema: #/properties/a: ...". */
mf_status mf__schema_fail(mf__schemas *c, mf_status status, const json_t *node, const char *key, const char *what);
mf_status mf__schema_note(mf__schemas *c, const json_t *node, const char *key, const char *what);

/* Before a by b comparisons: MF_E_LIMIT where all together take too long. value: what they are about, NULL if that need
 * not be said. */
mf_status mf__schema_pay(mf__schemas *c, const json_t *value, uint64_t a, uint64_t b);

/* References. */
mf_status mf__schema_resources(mf__schemas *c, const json_t *root);
uint32_t mf__schema_base_of(const mf__schemas *c, const json_t *node, uint32_t base);
mf_status mf__schema_resolve(mf__schemas *c, literal from, const char *key, literal *out);

/* Goals. */
mf_status mf__goal_add(mf__schemas *c, goal *g, literal l);
void mf__goal_free(goal *g);
mf_status mf__goal_rule(mf__schemas *c, goal *g, uint32_t *rule); /* takes g */
mf_status mf__goal_expand(mf__schemas *c, const goal *g, conjunctions *out);
void mf__conjunctions_free(conjunctions *list);
/* Certainly nothing satisfies it; depth: how many levels of required properties are looked at. */
bool mf__goal_is_empty(mf__schemas *c, const goal *g, int depth);
literal mf__literal_child(const mf__schemas *c, literal parent, const json_t *node);

/* schema_apart.c. No value satisfies both, which shows without taking them apart: they list values and share none, or
 * require a property of which that is true. */
bool mf__schemas_differ(mf__schemas *c, const json_t *a, const json_t *b);
/* A key is there and is not, or nothing satisfies a required property. */
bool mf__conjunction_contradicts(mf__schemas *c, const conjunction *j, int depth);

/* Was `scope` entered from `top`, or is it the same? */
bool mf__scope_below(const mf__schemas *c, uint32_t scope, uint32_t top);

/* Values. */
mf_status mf__schema_accepts(mf__schemas *c, literal l, const json_t *value, bool *out);
mf_status mf__fact_accepts(mf__schemas *c, const fact *f, const json_t *value, bool *out);
bool mf__json_same(const json_t *a, const json_t *b); /* 1 and 1.0 are the same */
uint32_t mf__json_types(const json_t *value);
mf_status mf__schema_type_mask(mf__schemas *c, const json_t *schema, uint32_t *mask);

/* Keywords. */
mf_status mf__schema_count(mf__schemas *c, const json_t *schema, const char *key, int64_t missing, int64_t *out);
uint32_t mf__schema_keyword_type(const char *key);  /* the type a keyword is about; 0: none */
const char *mf__format_pattern(const char *format); /* schema_format.c; NULL: not enforced */

/* Types: the texts of a conjunction that are of the type, from one state to another. */
mf_status mf__schema_string(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to);
mf_status mf__schema_string_lang(mf__schemas *c, const conjunction *j, bool lengths, mf__lang *out, int64_t *min,
                                 int64_t *max);
mf_status mf__schema_number(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to);
mf_status mf__schema_array(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to);
mf_status mf__schema_object(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to);
mf_status mf__schema_literal(mf__schemas *c, const json_t *value, uint32_t from, uint32_t to);

/* White space as it is allowed between tokens of JSON, from *at to a new state. */
mf_status mf__schema_space(mf__schemas *c, uint32_t *at);
mf_status mf__schema_regex(mf__schemas *c, const char *pattern, uint32_t from, uint32_t to);

#endif
