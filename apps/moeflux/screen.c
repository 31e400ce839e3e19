/* Where answers are shown. */
#include "screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool screen_has_styles(void) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") && !(no_color && *no_color);
}

static void write_out(void *user, const char *bytes, size_t n) {
    screen *s = user;
    if (!n) return;
    fwrite(bytes, 1, n, stdout);
    if (bytes[0] != '\033') s->ended = bytes[n - 1] == '\n';
}

void screen_init(screen *s, bool styled) {
    *s = (screen){.styled = styled, .shown = -1, .ended = true};
}

/* From one kind of text to another. */
static void turn_to(screen *s, mf__out_kind kind) {
    if (s->shown == (int)kind) return;
    if (s->shown < 0) markdown_init(&s->md, write_out, s);
    if (s->shown == MF__OUT_TEXT && s->styled) markdown_finish(&s->md);
    if (s->shown == MF__OUT_REASONING) {
        if (s->styled)
            fputs("\033[0m\n\n", stdout);
        else if (isatty(STDOUT_FILENO))
            fputs("\n\n", stdout);
        else
            fputc('\n', stderr);
    } else if (s->shown >= 0 && !s->ended)
        write_out(s, "\n", 1);
    if (kind == MF__OUT_REASONING && s->styled) fputs("\033[2m", stdout);
    s->shown = (int)kind;
}

static void show_call(screen *s, const mf__out_event *e) {
    if (!s->ended) write_out(s, "\n", 1);
    printf("[tool call] %s %.*s\n", e->name, (int)e->n_text, e->text);
    s->ended = true;
}

mf_status screen_event(void *user, const mf__out_event *e) {
    screen *s = user;
    turn_to(s, e->kind);
    if (e->kind == MF__OUT_TOOL_CALL)
        show_call(s, e);
    else if (e->kind == MF__OUT_REASONING)
        fwrite(e->text, 1, e->n_text, isatty(STDOUT_FILENO) ? stdout : stderr);
    else if (s->styled)
        markdown_push(&s->md, e->text, e->n_text);
    else
        write_out(s, e->text, e->n_text);
    fflush(stdout);
    return MF_OK;
}

void screen_finish(screen *s) {
    if (s->shown == MF__OUT_TEXT && s->styled) markdown_finish(&s->md);
    if (s->shown == MF__OUT_REASONING) {
        if (s->styled) fputs("\033[0m", stdout);
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
    } else if (!s->ended || s->shown < 0)
        fputc('\n', stdout);
    fflush(stdout);
    s->shown = -1;
    s->ended = true;
}
