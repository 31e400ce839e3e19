/* Regular expressions as trees. */
#ifndef MF_TEXT_GRAMMAR_REGEX_H
#define MF_TEXT_GRAMMAR_REGEX_H

#include "text/unicode.h"

typedef enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,    /* one character of sets[a] */
    REGEX_THEN,   /* a, then b */
    REGEX_OR,     /* a or b */
    REGEX_REPEAT, /* a, min to max times; max < 0: no limit */
    REGEX_BEGIN,  /* ^ */
    REGEX_END,    /* $ */
    REGEX_AHEAD,  /* a follows; min: it does not */
    REGEX_BEHIND  /* a is before; min: it is not */
} regex_kind;

typedef struct regex_node {
    uint8_t kind;
    uint32_t a, b;
    int64_t min, max;
} regex_node;

typedef struct mf__regex {
    regex_node *nodes;
    uint32_t n_nodes, nodes_capacity, root;
    mf__uset *sets;
    uint32_t n_sets, sets_capacity;
    bool ambiguous; /* engines do not agree on all of its sets: narrow and wide differ */
} mf__regex;

mf_status mf__regex_parse(const char *pattern, size_t size, bool wide, mf__regex *out, mf_error *err);
void mf__regex_free(mf__regex *r);

#endif
