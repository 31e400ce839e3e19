/* Chat templates: an interpreter for Jinja as models' templates use it.
 *
 *   source --lexer--> tokens --parser--> tree --render(variables)--> text
 *
 *   ast.h            tokens, the tree, the parser's own functions
 *   lexer.c          source to tokens, with the rules for white space around tags
 *   parse.c          statements; parse_expr.c: expressions
 *   budget.h, .c     one render and what it may spend: steps, depth, memory; errors with the line
 *   value.h, .c      values as Python's: making, comparing, ordering, iterating; dict.c: dictionaries
 *   text_form.c      str, repr and JSON of values
 *   run.h            what the files below share; functions and their parameters
 *   exec.c           statements, scopes, macros; the render itself
 *   eval.c           expressions: names, attributes, calls; operators.c: + == in [:] and the like
 *   calls.c          finds filters, tests, methods and globals by name, binds their arguments
 *   strings.c, string_search.c, format.c, casing.c    methods of strings
 *   methods.c        methods of lists, dicts and loops; global functions
 *   filters_text.c, filters_list.c, filters_more.c, tests.c
 *
 * The environment is that of Hugging Face transformers: trim_blocks, lstrip_blocks, one trailing newline of the source
 * dropped, loop controls, no autoescape, raise_exception, strftime_now, tojson without HTML escapes; and from_json,
 * which some models' templates expect. Values behave as Python's do, down to their printed forms; an integer has 64
 * bits, and what needs more is an error. A template cannot reach anything but the variables it is given. It comes from
 * strangers: whatever it does is paid for out of a budget of steps, depth, memory and output (budget.h), and a template
 * that cannot pay ends with MF_E_LIMIT. Errors say the template's name and line. */
#ifndef MF_TEXT_JINJA_JINJA_H
#define MF_TEXT_JINJA_JINJA_H

#include "base/json.h"
#include "base/strbuf.h"

typedef struct mf__jinja mf__jinja;

typedef struct mf__jinja_options {
    const char *strftime_now;   /* what strftime_now(format) returns; NULL: the time `now`, formatted */
    int64_t now;                /* seconds since 1970; 0: the clock */
    int64_t max_steps;          /* 0: 20 million, less than a second's work */
    size_t max_memory;          /* bytes of values and texts; 0: 160 MB */
    size_t max_output;          /* bytes; 0: 32 MB */
    bool (*cancel)(void *data); /* asked every few milliseconds; true stops with MF_E_CANCELLED; may be NULL */
    void *cancel_data;
} mf__jinja_options;

/* How white space around tags is read; zero is what models expect, jinja2's own default has all three set but the
 * last. */
typedef struct mf__jinja_syntax {
    bool keep_newline;      /* the one behind a block tag: trim_blocks off */
    bool keep_indent;       /* spaces before a block tag: lstrip_blocks off */
    bool keep_last_newline; /* of the source: keep_trailing_newline */
} mf__jinja_syntax;

/* name is for errors. A parsed template is immutable: render it from several threads. Syntax errors are MF_E_FORMAT,
 * tags that are not known MF_E_UNSUPPORTED, what is too large or too deep MF_E_LIMIT. */
mf_status mf__jinja_parse(const char *name, const char *source, size_t size, mf__jinja **out, mf_error *err);
mf_status mf__jinja_parse_as(const char *name, const char *source, size_t size, const mf__jinja_syntax *syntax,
                             mf__jinja **out, mf_error *err); /* syntax may be NULL */
void mf__jinja_free(mf__jinja *t);                            /* NULL is fine */

/* variables: an object; its members are the template's variables. opt may be NULL. Appends to out; after an error out
 * may hold the beginning. raise_exception and wrong types are MF_E_INVALID, filters and tests that are not known
 * MF_E_UNSUPPORTED, exceeded limits MF_E_LIMIT. */
mf_status mf__jinja_render(const mf__jinja *t, const json_t *variables, const mf__jinja_options *opt, mf__strbuf *out,
                           mf_error *err);

#endif
