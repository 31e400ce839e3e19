/* Markdown on a terminal: what is shown, however the text is cut into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../apps/moeflux/markdown.h"
#include "../../apps/moeflux/wrap.h"

typedef struct sink {
    char text[4096];
    size_t n;
} sink;

/* Escape sequences become short words: {0} normal, {1} bold, {2} dim, {3} italic, {36} code. */
static void collect(void *user, const char *bytes, size_t n) {
    sink *s = user;
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        if (c == '\033') {
            s->text[s->n++] = '{';
            for (i += 2; i < n && bytes[i] != 'm'; i++) s->text[s->n++] = bytes[i];
            c = '}';
        }
        s->text[s->n++] = c;
    }
    s->text[s->n] = '\0';
}

static void shown(const char *text, const char *wanted) {
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        sink s = {.n = 0};
        markdown m;
        markdown_init(&m, collect, &s);
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t left = strlen(text) - at;
            markdown_push(&m, text + at, left < piece ? left : piece);
        }
        markdown_finish(&m);
        assert_string_equal(s.text, wanted);
    }
}

static void test_inline(void **state) {
    (void)state;
    shown("plain text", "plain text");
    shown("a **bold** word", "a {0}{1}bold{0} word");
    shown("an *italic* one", "an {0}{3}italic{0} one");
    shown("***both***", "{0}{1}{3}both{0}");
    shown("**bold *and* italic**", "{0}{1}bold {0}{1}{3}and{0}{1} italic{0}");
    shown("use `a*b*c` here", "use {0}{36}a*b*c{0} here");
    shown("``a`b``", "{0}{36}a`b{0}");
    shown("2 * 3 * 4", "2 * 3 * 4");
    shown("snake_case_name and _this_", "snake_case_name and {0}{3}this{0}");
    shown("\\*not\\* it", "*not* it");
    shown("a \\ b", "a \\ b");
    shown("gr\xC3\xBC\xC3\x9F **\xE6\x97\xA5**", "gr\xC3\xBC\xC3\x9F {0}{1}\xE6\x97\xA5{0}");
}

static void test_lines(void **state) {
    (void)state;
    shown("# Title\ntext", "{0}{1}Title{0}\ntext");
    shown("####### seven", "####### seven");
    shown("#hash", "#hash");
    shown("- one\n  * two\n+ three\n", "\xE2\x80\xA2 one\n  \xE2\x80\xA2 two\n\xE2\x80\xA2 three\n");
    shown("-1 is less", "-1 is less");
    shown("**bold** first", "{0}{1}bold{0} first");
    shown("> said", "{2}\xE2\x94\x82 {0}said");
    shown("open **bold\nnext", "open {0}{1}bold{0}\nnext");
    shown("a\n\n\nb", "a\n\n\nb");
    shown("                              far", "                              far");
}

static void test_code(void **state) {
    (void)state;
    shown("see:\n```c\nint *a = b * c;\n\n# no heading\n```\ndone **x**",
          "see:\n{0}{36}int *a = b * c;\n\n# no heading\n{0}done {0}{1}x{0}");
    shown("```\nnever closed", "{0}{36}never closed{0}");
    shown("``", "``");
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

/* As much of a terminal as a wrapped text needs: lines that are written over, back by columns, cleared to their end. */
typedef struct paper {
    char line[32][64];
    int row, column;
    char sequence[16];
    int n;
} paper;

static void on_paper(void *user, const char *bytes, size_t n) {
    paper *p = user;
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        if (c == '\033' || p->n) {
            p->sequence[p->n++] = c;
            if (c == 'D') p->column -= atoi(p->sequence + 2);
            if (c == 'K') p->line[p->row][p->column] = '\0';
            if (c == 'D' || c == 'K' || c == 'm') memset(p->sequence, 0, sizeof p->sequence), p->n = 0;
            assert_true(p->column >= 0);
        } else if (c == '\n') {
            p->row++;
            p->column = 0;
        } else {
            p->line[p->row][p->column++] = c;
        }
    }
}

static void wrapped(int columns, const char *text, const char *wanted) {
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        paper p = {0};
        wrap w;
        char all[1024] = "";
        wrap_init(&w, columns, on_paper, &p);
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t left = strlen(text) - at;
            wrap_push(&w, text + at, left < piece ? left : piece);
        }
        for (int i = 0; i <= p.row; i++) {
            for (size_t n = strlen(p.line[i]); n && p.line[i][n - 1] == ' '; n--) p.line[i][n - 1] = '\0';
            strcat(strcat(all, i ? "|" : ""), p.line[i]);
        }
        assert_string_equal(all, wanted);
    }
}

static void test_words(void **state) {
    (void)state;
    wrapped(13, "one two three four", "one two|three four");
    wrapped(13, "one two three  four five", "one two|three  four|five");
    wrapped(13, "one two thre! four", "one two|thre! four");
    wrapped(13, "123456789012 next", "123456789012|next");
    wrapped(13, "12345678901234567890 next", "123456789012|34567890|next");
    wrapped(13, "a 12345678901234567890", "a|123456789012|34567890");
    wrapped(13, "one\ntwo three four", "one|two three|four");
    wrapped(13, "a \033[1mbold\033[0m word here", "a bold word|here");
    wrapped(13, "one two \033[1mth\033[0mree", "one two|three");
    wrapped(0, "one two three four five", "one two three four five");
    wrapped(5, "one two three four five", "one two three four five"); /* too narrow to be of use */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inline), cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_code), cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
