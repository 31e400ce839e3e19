/* Lines that somebody types: with editing and history on a terminal (libedit, where it was there at build time),
 * plainly elsewhere. A line in quotes of three, or one that ends in a backslash, goes on; so does a paste of several
 * lines. */
#ifndef MOEFLUX_LINES_H
#define MOEFLUX_LINES_H

#include "app.h"

typedef struct lines lines;

typedef enum lines_result {
    LINES_TEXT,
    LINES_END,         /* Ctrl-D, or the end of the input */
    LINES_INTERRUPTED, /* Ctrl-C: what was typed is dropped */
    LINES_FAILED       /* said why */
} lines_result;

/* The i-th text that Tab may complete a line to; NULL: there are no more. */
typedef const char *lines_completions(int i);

/* terminal: standard input and output are one. history: a file, or NULL; made when it is missing. */
lines *lines_open(bool terminal, const char *history, lines_completions *completions); /* NULL: no memory */
void lines_close(lines *l);

/* One message, of one line or more, without the last end of line. */
lines_result lines_read(lines *l, const char *prompt, mf__strbuf *out);

#endif
