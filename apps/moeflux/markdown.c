/* Markdown shown while it comes. Works on bytes: all markers are ASCII. */
#include "markdown.h"

#include <stdio.h>
#include <string.h>

#define BOLD "\033[1m"
#define DIM "\033[2m"
#define ITALIC "\033[3m"
#define COLOUR "\033[36m"
#define NORMAL "\033[0m"

void markdown_init(markdown *m, void (*write)(void *user, const char *bytes, size_t n), void *user) {
    *m = (markdown){.write = write, .user = user, .line_start = true, .before = ' '};
}

static void put(markdown *m, const char *text) {
    m->write(m->user, text, strlen(text));
}

static void put_byte(markdown *m, char c) {
    m->write(m->user, &c, 1);
    m->before = (unsigned char)c;
}

/* The styles that hold now, from a clean start. */
static void set_styles(markdown *m) {
    put(m, NORMAL);
    if (m->bold || m->heading) put(m, BOLD);
    if (m->italic) put(m, ITALIC);
    if (m->code || m->fence) put(m, COLOUR);
}

static bool is_space(unsigned char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(unsigned char c) {
    return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static void put_held(markdown *m) {
    if (!m->n_held) return;
    m->write(m->user, m->held, m->n_held);
    m->before = (unsigned char)m->held[m->n_held - 1];
    m->n_held = 0;
}

/* ---- inside a line ---------------------------------------------------------------------------------------------- */

static void code_marker(markdown *m, unsigned char next) {
    int n = (int)m->n_held;
    if (m->code ? m->code != n : next == '\n') {
        put_held(m);
        return;
    }
    m->code = m->code ? 0 : n;
    m->n_held = 0;
    m->before = '`';
    set_styles(m);
}

/* A run of * or _ with `next` behind it: opens before a word, closes behind one, else it is what it is. */
static void emphasis_marker(markdown *m, unsigned char next) {
    size_t n = m->n_held;
    char c = m->held[0];
    bool wants_bold = n >= 2, wants_italic = n != 2;
    bool on = (!wants_bold || m->bold) && (!wants_italic || m->italic);
    bool inside_word = c == '_' && is_word(m->before) && is_word(next);
    bool fits = on ? !is_space(m->before) : !is_space(next) && (c == '*' || !is_word(m->before));
    if (n > 3 || m->code || inside_word || !fits) {
        put_held(m);
        return;
    }
    if (wants_bold) m->bold = !on;
    if (wants_italic) m->italic = !on;
    m->n_held = 0;
    set_styles(m);
}

static void end_marker(markdown *m, unsigned char next) {
    if (!m->n_held) return;
    if (m->held[0] == '`')
        code_marker(m, next);
    else if (m->held[0] == '\\') {
        if (!strchr("*_`#\\", next) || !next) put_held(m); /* else the backslash only protects what follows */
        m->n_held = 0;
    } else
        emphasis_marker(m, next);
}

static void end_line(markdown *m) {
    bool styled = m->bold || m->italic || m->heading || m->code;
    m->bold = m->italic = m->heading = false;
    m->code = 0;
    if (styled) set_styles(m);
    put_byte(m, '\n');
    m->line_start = true;
}

static void inline_byte(markdown *m, char c) {
    bool escaped = m->n_held && m->held[0] == '\\';
    if (m->n_held && (c != m->held[0] || escaped || m->n_held == MARKDOWN_HELD)) {
        end_marker(m, (unsigned char)c);
        if (escaped && c != '\n') {
            put_byte(m, c);
            return;
        }
    }
    if (c == '\n')
        end_line(m);
    else if (c == '*' || c == '_' || c == '`' || (c == '\\' && !m->code))
        m->held[m->n_held++] = c;
    else
        put_byte(m, c);
}

static void inline_bytes(markdown *m, const char *bytes, size_t n) {
    m->line_start = false;
    for (size_t i = 0; i < n; i++) inline_byte(m, bytes[i]);
}

/* ---- at the beginning of a line --------------------------------------------------------------------------------- */

/* What has been held is no special beginning after all. */
static void plain_line(markdown *m) {
    char bytes[MARKDOWN_HELD];
    size_t n = m->n_held;
    memcpy(bytes, m->held, n);
    m->n_held = 0;
    if (m->fence) {
        m->line_start = false;
        m->write(m->user, bytes, n);
        return;
    }
    inline_bytes(m, bytes, n);
}

static void toggle_fence(markdown *m) {
    m->n_held = 0;
    m->fence = !m->fence;
    m->line_start = false;
    m->skip_line = true;
    set_styles(m);
}

/* Decides by the bytes held, the last of which has just come. False: not decided yet. */
static bool decide(markdown *m) {
    size_t indent = strspn(m->held, " "), n = m->n_held - indent;
    const char *s = m->held + indent;
    if (n == 0) return m->n_held + 8 > MARKDOWN_HELD ? (plain_line(m), true) : false;
    if (s[0] == '`') {
        if (n == strspn(s, "`") && n < 3) return false;
        if (n >= 3 && strspn(s, "`") >= 3) return (toggle_fence(m), true);
    } else if (m->fence) {
        /* code */
    } else if (s[0] == '#') {
        size_t level = strspn(s, "#");
        if (n == level && level <= 6) return false;
        if (s[level] == ' ' && level <= 6) {
            m->n_held = 0;
            m->line_start = false;
            m->heading = true;
            m->before = ' ';
            return (set_styles(m), true);
        }
    } else if (strchr("-*+>", s[0])) {
        if (n == 1) return false;
        if (s[1] == ' ') {
            m->n_held = 0;
            m->line_start = false;
            m->before = ' ';
            for (size_t i = 0; i < indent; i++) put(m, " ");
            put(m, s[0] == '>' ? DIM "\xE2\x94\x82 " NORMAL : "\xE2\x80\xA2 ");
            return true;
        }
    }
    return (plain_line(m), true);
}

static void line_start_byte(markdown *m, char c) {
    if (c == '\n') {
        plain_line(m);
        if (m->fence)
            put_byte(m, '\n');
        else
            inline_byte(m, '\n');
        m->line_start = true;
        return;
    }
    m->held[m->n_held++] = c;
    m->held[m->n_held] = '\0'; /* there is always room: decide() sees to it */
    decide(m);
}

void markdown_push(markdown *m, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (m->line_start)
            line_start_byte(m, c);
        else if (m->skip_line || m->fence) {
            if (c == '\n') m->line_start = true;
            if (!m->skip_line) put_byte(m, c);
            if (c == '\n') m->skip_line = false;
        } else
            inline_byte(m, c);
    }
}

void markdown_finish(markdown *m) {
    if (m->line_start) plain_line(m);
    end_marker(m, '\n');
    bool styled = m->bold || m->italic || m->heading || m->code || m->fence;
    markdown_init(m, m->write, m->user);
    if (styled) put(m, NORMAL);
}
