/* Where answers are shown. */
#include "screen.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool screen_has_styles(void) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") && !(no_color && *no_color);
}

static void write_bytes(void *user, const char *bytes, size_t n) {
    (void)user;
    fwrite(bytes, 1, n, stdout);
}

static void write_out(void *user, const char *bytes, size_t n) {
    screen *s = user;
    if (!n) return;
    s->wrap.off = s->md.fence;
    if (s->styled)
        wrap_push(&s->wrap, bytes, n);
    else
        fwrite(bytes, 1, n, stdout);
    if (bytes[0] != '\033') s->ended = bytes[n - 1] == '\n';
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void screen_init(screen *s, bool styled) {
    *s = (screen){.styled = styled, .shown = -1, .ended = true};
    if (styled && strcmp(nl_langinfo(CODESET), "UTF-8") && setlocale(LC_CTYPE, "") &&
        strcmp(nl_langinfo(CODESET), "UTF-8"))
        setlocale(LC_CTYPE, "C.UTF-8"); /* how wide characters are */
}

/* From one kind of text to another. */
static void turn_to(screen *s, mf_event_kind kind) {
    if (s->shown == (int)kind) return;
    if (s->shown < 0) {
        markdown_init(&s->md, write_out, s);
        wrap_init(&s->wrap, columns(), write_bytes, NULL);
    }
    if (s->shown == MF_EVENT_TEXT && s->styled) markdown_finish(&s->md);
    if (s->shown == MF_EVENT_REASONING) {
        if (s->styled)
            wrap_push(&s->wrap, "\033[0m\n\n", 6);
        else if (isatty(STDOUT_FILENO))
            fputs("\n\n", stdout);
        else
            fputc('\n', stderr);
    } else if (s->shown >= 0 && !s->ended)
        write_out(s, "\n", 1);
    if (kind == MF_EVENT_REASONING && s->styled) wrap_push(&s->wrap, "\033[2m", 4);
    s->shown = (int)kind;
}

/* "[tool call] NAME ARGUMENTS", as it comes. */
static void show_call(screen *s, const mf_event *e) {
    if (e->kind == MF_EVENT_CALL) {
        if (!s->ended) write_out(s, "\n", 1);
        printf("[tool call] %s ", e->name);
    } else if (e->kind == MF_EVENT_ARGUMENTS) {
        fwrite(e->text, 1, e->n_text, stdout);
    } else {
        fputc('\n', stdout);
    }
    s->ended = e->kind == MF_EVENT_CALL_END;
}

mf_status screen_event(void *user, const mf_event *e) {
    screen *s = user;
    bool call = e->kind == MF_EVENT_CALL || e->kind == MF_EVENT_ARGUMENTS || e->kind == MF_EVENT_CALL_END;
    turn_to(s, call ? MF_EVENT_CALL : e->kind);
    if (call)
        show_call(s, e);
    else if (e->kind == MF_EVENT_REASONING && s->styled)
        wrap_push(&s->wrap, e->text, e->n_text);
    else if (e->kind == MF_EVENT_REASONING)
        fwrite(e->text, 1, e->n_text, isatty(STDOUT_FILENO) ? stdout : stderr);
    else if (s->styled)
        markdown_push(&s->md, e->text, e->n_text);
    else
        write_out(s, e->text, e->n_text);
    fflush(stdout);
    return MF_OK;
}

void screen_finish(screen *s) {
    if (s->shown == MF_EVENT_TEXT && s->styled) markdown_finish(&s->md);
    if (s->shown == MF_EVENT_REASONING) {
        if (s->styled) fputs("\033[0m", stdout);
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
    } else if (!s->ended || s->shown < 0)
        fputc('\n', stdout);
    fflush(stdout);
    s->shown = -1;
    s->ended = true;
}
