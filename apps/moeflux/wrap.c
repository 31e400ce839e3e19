/* Breaking lines between words while they come. */
#include "wrap.h"

#include <stdio.h>
#include <string.h>
#include <wchar.h>

void wrap_init(wrap *w, int columns, void (*write)(void *user, const char *bytes, size_t n), void *user) {
    *w = (wrap){.write = write, .user = user, .columns = columns > 8 ? columns - 1 : 0};
}

static void end_word(wrap *w) {
    w->n_word = 0;
    w->word_columns = 0;
}

static void add_to_word(wrap *w, const char *bytes, size_t n, int columns) {
    if (w->n_word + n <= WRAP_WORD) memcpy(w->word + w->n_word, bytes, n);
    w->n_word += n;
    w->word_columns += columns;
}

/* The next line begins with the word at hand, or where that cannot be moved, here. */
static void break_line(wrap *w) {
    char back[32];
    bool moves = w->n_word > 0 && w->n_word <= WRAP_WORD && w->word_columns < w->column;
    if (moves && w->word_columns) {
        int n = snprintf(back, sizeof back, "\033[%dD\033[K", w->word_columns);
        w->write(w->user, back, (size_t)n);
    }
    w->write(w->user, "\n", 1);
    w->column = 0;
    if (moves) {
        w->write(w->user, w->word, w->n_word);
        w->column = w->word_columns;
    } else {
        end_word(w);
    }
}

static int width_of(const char *c, int n) {
    unsigned code = n == 1 ? (unsigned char)c[0] : (unsigned char)c[0] & (0xFFu >> (n + 1));
    for (int i = 1; i < n; i++) code = code << 6 | ((unsigned char)c[i] & 0x3F);
    int width = code < 128 ? 1 : wcwidth((wchar_t)code);
    return width < 0 ? 1 : width;
}

static void character(wrap *w, const char *c, int n) {
    if (*c == '\n' || *c == '\r') {
        w->write(w->user, c, 1);
        w->column = 0;
        end_word(w);
        return;
    }
    int width = *c == '\t' ? 8 - w->column % 8 : width_of(c, n);
    bool breaks = w->columns && !w->off && w->column + width > w->columns, space = *c == ' ' || *c == '\t';
    if (breaks && space) {
        end_word(w);
        break_line(w);
        return;
    }
    if (breaks) break_line(w);
    w->write(w->user, c, (size_t)n);
    w->column += width;
    if (space)
        end_word(w);
    else
        add_to_word(w, c, (size_t)n, width);
}

void wrap_push(wrap *w, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\033' || w->escape) { /* styles end with a letter */
            w->write(w->user, bytes + i, 1);
            add_to_word(w, bytes + i, 1, 0);
            w->escape = c == '\033' || !((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
            continue;
        }
        w->part[w->n_part++] = (char)c;
        unsigned char first = (unsigned char)w->part[0];
        int length = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        if (w->n_part < length) continue;
        w->n_part = 0;
        character(w, w->part, length);
    }
}
