/* Small SVG charts for a page of HTML that is also well-formed XML. Colours are classes; the page's style says what
 * they are in light and in dark. Every chart has its numbers beside it, as text or as titles. */
#ifndef MOEFLUX_CHARTS_H
#define MOEFLUX_CHARTS_H

#include "base/strbuf.h"

/* What is written; the first failure stays, and everything after it is left out. */
typedef struct page {
    mf__strbuf out;
    mf_status status;
} page;

void page_add(page *p, const char *fmt, ...) MF__PRINTF(2, 3);
void page_text(page *p, const char *text); /* escaped */

typedef struct chart_bar {
    const char *name;
    double value;
    char text[48]; /* the value, as it is shown */
} chart_bar;

#define CHART_KINDS 8 /* colours of kinds: the last is for all others */
#define CHART_HEATS 8 /* levels of a heat map: 0 is for nothing */

void chart_bars(page *p, const char *label, const chart_bar *bars, int n);
/* Columns of kinds above each other: values is [n_columns][n_kinds]; unit of the values. */
void chart_stacks(page *p, const char *label, const double *values, int n_columns, const char *const *kinds,
                  int n_kinds, const char *unit);
/* counts is [n_rows][n_columns]; levels are shares of the largest. */
void chart_heat(page *p, const char *label, const uint32_t *counts, int n_rows, int n_columns);

typedef struct chart_line {
    const char *name;
    const double *x, *y;
    int n;
    bool points; /* marks instead of a line */
} chart_line;
/* From 0 on in both directions. x_text writes a value of x. */
void chart_lines(page *p, const char *label, const chart_line *lines, int n, const char *x_name, const char *y_name,
                 const char *(*x_text)(double x, char text[32]));

#endif
