/* Where answers are shown. On a terminal: Markdown with its styles, lines broken between words, reasoning dimmed, all
 * on standard output. Elsewhere: the answer untouched on standard output, reasoning on standard error. Tool calls are
 * shown as text. */
#ifndef MOEFLUX_SCREEN_H
#define MOEFLUX_SCREEN_H

#include "app.h"
#include "markdown.h"
#include "wrap.h"

typedef struct screen {
    bool styled;
    markdown md;
    wrap wrap;
    int shown;  /* kind of the last event; -1: none yet in this answer */
    bool ended; /* the last byte of standard output was the end of a line */
} screen;

bool screen_has_styles(void); /* standard output is a terminal that can show them */
void screen_init(screen *s, bool styled);
mf_status screen_event(void *screen, const mf_event *event); /* an mf_event_fn; never fails */
void screen_finish(screen *s);                               /* ends the line; ready for the next answer */

#endif
