/* What reads single lines: libedit or nothing but the file. */
#ifndef MOEFLUX_LINES_INT_H
#define MOEFLUX_LINES_INT_H

#include "lines.h"

typedef struct line_editor line_editor;

/* NULL when there is none, or it cannot work with this terminal. */
line_editor *line_editor_open(const char *history, lines_completions *completions);
void line_editor_close(line_editor *e);

/* Appends one line without its end; *more when it was pasted and the paste goes on. */
lines_result line_editor_read(line_editor *e, const char *prompt, mf__strbuf *out, bool *more);
/* Keeps a message in the history, one entry however many lines it has. */
void line_editor_remember(line_editor *e, const char *message);

#endif
