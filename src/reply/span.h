/* Stretches of text, and JSON in them. Numbers keep their digits, however many: nothing is converted. */
#ifndef MF_REPLY_SPAN_H
#define MF_REPLY_SPAN_H

#include "base/strbuf.h"

typedef struct mf__span {
    const char *s;
    size_t n;
} mf__span;

#define MF__SPAN(literal) ((mf__span){literal, sizeof literal - 1})

bool mf__is_space(char c); /* of JSON */
mf__span mf__span_trim(mf__span s);
bool mf__span_begins(mf__span s, const char *mark);
bool mf__span_is(mf__span s, const char *text);
void mf__span_skip(mf__span *s, size_t n);
/* Splits s at the first `mark`: *head before it, the rest behind it stays in s. False (s untouched) without it. */
bool mf__span_cut(mf__span *s, const char *mark, mf__span *head);

typedef enum mf__json_verdict {
    MF__JSON_WHOLE, /* a value, *n bytes long */
    MF__JSON_CUT,   /* the beginning of one */
    MF__JSON_BAD    /* neither */
} mf__json_verdict;

/* The JSON value that s begins with. in_string: a value that is cut is cut inside a string. A number that nothing
 * follows is whole. */
mf__json_verdict mf__json_scan(mf__span s, size_t *n, bool *in_string);

/* s as a whole, but for white space around it, is one value. */
bool mf__json_is_value(mf__span s);

/* The members of an object that is known to be valid: begin with at = *object; false after the last one. key is
 * without its quotes, escapes as they are. */
bool mf__json_next_member(mf__span *at, mf__span *key, mf__span *value);
bool mf__json_member(mf__span object, const char *key, mf__span *value);

/* What the string s (with quotes) says; appended. s as a JSON string; appended. */
mf_status mf__json_unquote(mf__strbuf *out, mf__span s, mf_error *err);
mf_status mf__json_quote(mf__strbuf *out, mf__span s, mf_error *err);

#endif
