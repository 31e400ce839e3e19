/* Chat templates: an interpreter for the part of Jinja that models' templates use.
 *
 *   source --lexer--> tokens --parser--> tree --render(variables)--> text
 *
 * The environment is that of Hugging Face transformers: trim_blocks, lstrip_blocks, one trailing newline of the source
 * dropped, loop controls, no autoescape, raise_exception, strftime_now, tojson without HTML escapes. Values behave as
 * Python's do, down to their printed forms. A template cannot reach anything but the variables it is given; steps,
 * depth, memory and output are limited. Errors say the template's name and line. */
#ifndef MF_TEXT_JINJA_JINJA_H
#define MF_TEXT_JINJA_JINJA_H

#include "base/json.h"
#include "base/strbuf.h"

typedef struct mf__jinja mf__jinja;

typedef struct mf__jinja_options {
    const char *strftime_now; /* what strftime_now(format) returns; NULL: the time `now`, formatted */
    int64_t now;              /* seconds since 1970; 0: the clock */
    int64_t max_steps;        /* 0: 20 million */
    size_t max_memory;        /* bytes of values; 0: 256 MB */
    size_t max_output;        /* bytes; 0: 64 MB */
} mf__jinja_options;

/* name is for errors. A parsed template is immutable: render it from several threads. Syntax errors are MF_E_FORMAT,
 * tags that are not known MF_E_UNSUPPORTED. */
mf_status mf__jinja_parse(const char *name, const char *source, size_t size, mf__jinja **out, mf_error *err);
void mf__jinja_free(mf__jinja *t); /* NULL is fine */

/* variables: an object; its members are the template's variables. opt may be NULL. Appends to out; after an error out
 * may hold the beginning. raise_exception and wrong types are MF_E_INVALID, exceeded limits MF_E_LIMIT. */
mf_status mf__jinja_render(const mf__jinja *t, const json_t *variables, const mf__jinja_options *opt, mf__strbuf *out,
                           mf_error *err);

#endif
