/* How far a long command is: a bar on a terminal, now and then a plain line elsewhere. Standard error. */
#ifndef MOEFLUX_PROGRESS_H
#define MOEFLUX_PROGRESS_H

#include "app.h"

typedef struct progress {
    const char *what; /* "converting" */
    bool bytes;       /* amounts are bytes; otherwise plain counts of `unit` */
    const char *unit;
    bool terminal;
    double start, shown; /* seconds */
    int64_t base;        /* done before the start, by an earlier run; the rate leaves it out */
    bool on_screen;      /* a bar is on the terminal's line */
} progress;

void progress_start(progress *p, const char *what, const char *unit); /* unit NULL: bytes */
void progress_show(progress *p, int64_t done, int64_t total);         /* cheap: shows only now and then */
void progress_end(progress *p);                                       /* removes the bar */

#endif
