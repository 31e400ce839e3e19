/* Text for a terminal, broken between words. What has come of a word is shown at once; when it turns out to reach the
 * right edge, that part is taken back and written again on the next line. */
#ifndef MOEFLUX_WRAP_H
#define MOEFLUX_WRAP_H

#include <stdbool.h>
#include <stddef.h>

#define WRAP_WORD 256 /* bytes of a word that can be moved */

typedef struct wrap {
    void (*write)(void *user, const char *bytes, size_t n);
    void *user;
    int columns; /* the last one is left free; 0: not broken */
    bool off;    /* not for now: code stays as it is */
    int column;
    char word[WRAP_WORD]; /* since the last space, with the styles in it */
    size_t n_word;        /* more than WRAP_WORD: it is too long to be moved */
    int word_columns;
    char part[4]; /* bytes of a character that is not complete */
    int n_part;
    bool escape; /* within a sequence of the terminal's */
} wrap;

void wrap_init(wrap *w, int columns, void (*write)(void *user, const char *bytes, size_t n), void *user);
void wrap_push(wrap *w, const char *bytes, size_t n);

#endif
