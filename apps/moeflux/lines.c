/* Messages from lines. */
#include "lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lines_int.h"

#define QUOTES "\"\"\""

struct lines {
    bool terminal;
    line_editor *editor; /* NULL: plain */
};

lines *lines_open(bool terminal, const char *history, lines_completions *completions) {
    lines *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->terminal = terminal;
    if (terminal) l->editor = line_editor_open(history, completions);
    return l;
}

void lines_close(lines *l) {
    if (!l) return;
    line_editor_close(l->editor);
    free(l);
}

static lines_result failed(const mf_error *err) {
    app_say("%s", err->text);
    return LINES_FAILED;
}

static lines_result too_long(void) {
    app_say("a message of more than %zu bytes is not taken", APP_MAX_TEXT);
    return LINES_FAILED;
}

static lines_result plain_line(lines *l, const char *prompt, mf__strbuf *out) {
    mf_error err;
    if (l->terminal) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    size_t from = out->size;
    int c;
    errno = 0;
    while ((c = getc(stdin)) != EOF && c != '\n') {
        char byte = (char)c;
        if (out->size == APP_MAX_TEXT) return too_long();
        if (mf__strbuf_append(out, &byte, 1, &err) != MF_OK) return failed(&err);
    }
    if (c == EOF && (out->size == from || ferror(stdin))) {
        int why = errno;
        out->size = from;
        clearerr(stdin);
        if (why == EINTR || app_interrupted(NULL)) return LINES_INTERRUPTED;
        if (!why) return LINES_END;
        mf__fail_errno(&err, why, "standard input");
        return failed(&err);
    }
    if (out->size > from && out->data[out->size - 1] == '\r') out->size--;
    return LINES_TEXT;
}

static lines_result one_line(lines *l, const char *prompt, mf__strbuf *out, bool *more) {
    *more = false;
    return l->editor ? line_editor_read(l->editor, prompt, out, more) : plain_line(l, prompt, out);
}

static bool starts(const mf__strbuf *b, size_t from, const char *text) {
    size_t n = strlen(text);
    return b->size - from >= n && !memcmp(b->data + from, text, n);
}

static bool ends(const mf__strbuf *b, size_t from, const char *text) {
    size_t n = strlen(text);
    return b->size - from >= n && !memcmp(b->data + b->size - n, text, n);
}

/* Does the message go on after the line that begins at `from`? Takes the marks off that say so. */
static bool goes_on(mf__strbuf *b, size_t from, bool *quoted) {
    if (*quoted) {
        if (!ends(b, from, QUOTES)) return true;
        b->size -= strlen(QUOTES);
        *quoted = false;
        return false;
    }
    if (from == 0 && starts(b, 0, QUOTES)) {
        size_t n = strlen(QUOTES);
        memmove(b->data, b->data + n, b->size - n);
        b->size -= n;
        if (ends(b, 0, QUOTES)) {
            b->size -= n;
            return false;
        }
        *quoted = true;
        return true;
    }
    if (!ends(b, from, "\\")) return false;
    b->size--;
    return true;
}

lines_result lines_read(lines *l, const char *prompt, mf__strbuf *out) {
    bool quoted = false, more, on;
    mf_error err;
    mf__strbuf_clear(out);
    if (mf__strbuf_append(out, "", 0, &err) != MF_OK) return failed(&err);
    do {
        size_t from = out->size;
        lines_result r = one_line(l, from || quoted ? "... " : prompt, out, &more);
        if (r == LINES_END && from) break; /* the end of the input ends the message, too */
        if (r != LINES_TEXT) return r;
        on = goes_on(out, from, &quoted) || more;
        if (out->size >= APP_MAX_TEXT) return too_long();
        if (on && !(quoted && from == 0 && out->size == 0) && mf__strbuf_append(out, "\n", 1, &err) != MF_OK)
            return failed(&err);
    } while (on);
    while (out->size && out->data[out->size - 1] == '\n') out->size--;
    if (out->data) out->data[out->size] = '\0';
    if (l->editor && out->data) line_editor_remember(l->editor, out->data);
    return LINES_TEXT;
}
