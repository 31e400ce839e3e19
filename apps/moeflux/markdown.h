/* Markdown shown while it comes: bold, italics, code, headings and lists with the terminal's means. A marker is held
 * back until the byte after it says what it is; everything else comes out at once. */
#ifndef MOEFLUX_MARKDOWN_H
#define MOEFLUX_MARKDOWN_H

#include <stdbool.h>
#include <stddef.h>

#define MARKDOWN_HELD 32

typedef struct markdown {
    void (*write)(void *user, const char *bytes, size_t n);
    void *user;
    char held[MARKDOWN_HELD]; /* a marker, or the beginning of a line, not yet decided */
    size_t n_held;
    bool line_start;            /* what is held is the beginning of a line */
    bool fence;                 /* inside ``` */
    bool skip_line;             /* the rest of the line after ``` */
    bool bold, italic, heading; /* until the end of the line at most */
    int code;                   /* length of the run of ` that opened a piece of code; 0: none */
    unsigned char before;       /* the byte before what is held */
} markdown;

void markdown_init(markdown *m, void (*write)(void *user, const char *bytes, size_t n), void *user);
void markdown_push(markdown *m, const char *text, size_t n);
void markdown_finish(markdown *m); /* gives out what is held and ends all styles; the next push begins a new text */

#endif
