/* Lines edited with libedit. Characters are read here, so that a paste is known as one (the terminal brackets it) and
 * Ctrl-C ends the line. */
#include "lines_int.h"

#ifdef MF_HAVE_LIBEDIT

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/file.h"

#define MAX_HISTORY 1000
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"

struct line_editor {
    EditLine *el;
    History *history;
    char *path; /* of the history; NULL: not kept */
    lines_completions *completions;
    const char *prompt;
    char ahead[16]; /* bytes read that turned out to be no paste mark */
    int n_ahead, at_ahead;
    bool pasting;
    bool more; /* the last end of line came in a paste */
    mbstate_t state;
};

static volatile sig_atomic_t resized, resumed;

static void on_signal(int number) {
    if (number == SIGWINCH)
        resized = 1;
    else
        resumed = 1;
}

static void watch_terminal(void) {
    struct sigaction act = {.sa_handler = on_signal};
    sigemptyset(&act.sa_mask);
    sigaction(SIGWINCH, &act, NULL);
    sigaction(SIGCONT, &act, NULL);
}

static char *prompt_of(EditLine *el) {
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return (char *)((line_editor *)e)->prompt;
}

/* Waits until there is something to read. -1 with EINTR when a signal came first, also one that came before the wait:
 * signals are blocked while the flags are looked at, and let in by pselect alone. */
static int wait_readable(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGCONT};
    sigset_t block, old;
    fd_set in;
    int ready = -1;
    sigemptyset(&block);
    for (size_t i = 0; i < MF__COUNT(numbers); i++) sigaddset(&block, numbers[i]);
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    sigprocmask(SIG_BLOCK, &block, &old);
    errno = EINTR;
    if (!app_interrupted(NULL) && !resized && !resumed) ready = pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &old);
    int why = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    errno = why;
    return ready;
}

/* How many columns the prompt and the line up to the cursor take. */
static int columns_to_cursor(line_editor *e) {
    const LineInfoW *line = el_wline(e->el);
    int n = (int)strlen(e->prompt);
    for (const wchar_t *p = line->buffer; p < line->cursor; p++) n += wcwidth(*p) > 0 ? wcwidth(*p) : 0;
    return n;
}

/* After a resize a line that took several rows lies elsewhere: back to where it begins now (terminals wrap their rows
 * anew), all of it cleared, and drawn again. */
static void draw_again(line_editor *e) {
    struct winsize size;
    int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    int up = columns_to_cursor(e) / columns;
    if (up) printf("\033[%dA", up);
    fputs("\r\033[J", stdout);
    fflush(stdout);
    el_resize(e->el);
    el_set(e->el, EL_REFRESH);
}

/* 1: a byte; 0: the end; -1: interrupted or failed */
static int next_byte(line_editor *e, char *c) {
    if (e->at_ahead < e->n_ahead) {
        *c = e->ahead[e->at_ahead++];
        return 1;
    }
    for (;;) {
        ssize_t n = wait_readable() < 0 ? -1 : read(STDIN_FILENO, c, 1);
        if (n >= 0) return (int)n;
        if (errno != EINTR || app_interrupted(NULL)) return -1;
        if (resized) draw_again(e);
        if (resumed) {
            el_set(e->el, EL_PREP_TERM, 1);
            el_set(e->el, EL_REFRESH);
        }
        resized = resumed = 0;
    }
}

/* After an ESC: swallows a paste mark; anything else is kept for later. */
static bool is_paste_mark(line_editor *e) {
    char seen[sizeof e->ahead];
    int n = 0;
    bool begin = true, end = true;
    while (n < (int)strlen(PASTE_BEGIN) - 1 && (begin || end)) {
        if (next_byte(e, &seen[n]) != 1) break;
        n++;
        begin = begin && seen[n - 1] == PASTE_BEGIN[n];
        end = end && seen[n - 1] == PASTE_END[n];
    }
    if (n == (int)strlen(PASTE_BEGIN) - 1 && (begin || end)) {
        e->pasting = begin;
        return true;
    }
    int left = e->n_ahead - e->at_ahead;
    memmove(e->ahead + n, e->ahead + e->at_ahead, (size_t)left);
    memcpy(e->ahead, seen, (size_t)n);
    e->at_ahead = 0;
    e->n_ahead = n + left;
    return false;
}

static int next_character(EditLine *el, wchar_t *out) {
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    line_editor *e = data;
    for (;;) {
        char c;
        int got = next_byte(e, &c);
        if (got <= 0) return got;
        if (c == '\0')
            c = '\004'; /* what a Ctrl-D becomes that was typed while the terminal still edited lines itself */
        if (c == '\033' && is_paste_mark(e)) continue;
        if (e->pasting && c == '\r') c = '\n';
        if (c == '\n') e->more = e->pasting;
        if (c == '\t' && e->pasting) c = ' '; /* no completion, and no tab in the middle of a line */
        size_t used = mbrtowc(out, &c, 1, &e->state);
        if (used == (size_t)-2) continue; /* more bytes of the character */
        if (used == (size_t)-1) {
            memset(&e->state, 0, sizeof e->state);
            continue;
        }
        return 1;
    }
}

/* Editing counts columns and characters, for which the C library must know that text is UTF-8. */
static bool use_utf8(void) {
    setlocale(LC_CTYPE, "");
    if (!strcmp(nl_langinfo(CODESET), "UTF-8")) return true;
    return setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8");
}

static void bracket_pastes(bool on) {
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

static void open_history(line_editor *e, const char *path) {
    HistEvent event;
    e->history = history_init();
    if (!e->history) return;
    history(e->history, &event, H_SETSIZE, MAX_HISTORY);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_HIST, history, e->history);
    e->path = path ? strdup(path) : NULL;
    if (e->path) history(e->history, &event, H_LOAD, e->path);
}

/* Tab: as much of the line as all completions agree on, and a space behind the only one. */
static unsigned char complete(EditLine *el, wint_t ch) {
    void *data = NULL;
    char common[64] = "";
    int found = 0;
    (void)ch;
    el_get(el, EL_CLIENTDATA, &data);
    const line_editor *e = data;
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    for (int i = 0; n && e->completions(i); i++) {
        const char *text = e->completions(i);
        if (strlen(text) < n || strncmp(text, line->buffer, n)) continue;
        if (!found++) snprintf(common, sizeof common, "%s", text);
        size_t same = 0;
        while (common[same] && common[same] == text[same]) same++;
        common[same] = '\0';
    }
    if (found == 1) strncat(common, " ", sizeof common - strlen(common) - 1);
    if (!found || strlen(common) <= n || el_insertstr(el, common + n)) return CC_ERROR;
    return CC_REFRESH;
}

/* What libedit leaves out of what people are used to; and the spellings of keys that the terminal's description does
 * not have: Home and End of consoles and multiplexers, arrows with Ctrl and Alt. */
static const char *const keys[][2] = {
    {"^R", "em-inc-search-prev"},      {"^W", "ed-delete-prev-word"}, {"\\e[1~", "ed-move-to-beg"},
    {"\\e[7~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"},  {"\\e[8~", "ed-move-to-end"},
    {"\\e[3~", "ed-delete-next-char"}, {"\\e[1;5D", "ed-prev-word"},  {"\\e[1;3D", "ed-prev-word"},
    {"\\e[1;5C", "em-next-word"},      {"\\e[1;3C", "em-next-word"},
};

line_editor *line_editor_open(const char *history_path, lines_completions *completions) {
    line_editor *e = use_utf8() ? calloc(1, sizeof *e) : NULL;
    if (!e) return NULL;
    e->prompt = "";
    e->el = el_init("moeflux", stdin, stdout, stderr);
    if (!e->el) {
        free(e);
        return NULL;
    }
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_GETCFN, next_character);
    open_history(e, history_path);
    e->completions = completions;
    el_wset(e->el, EL_ADDFN, L"complete-line", L"Complete the line",
            complete); /* the narrow form keeps copies for ever */
    el_set(e->el, EL_BIND, "^I", "complete-line", NULL);
    for (size_t i = 0; i < MF__COUNT(keys); i++) el_set(e->el, EL_BIND, keys[i][0], keys[i][1], NULL);
    el_source(e->el, NULL);
    watch_terminal();
    return e;
}

void line_editor_close(line_editor *e) {
    HistEvent event;
    if (!e) return;
    if (e->history && e->path) {
        mode_t before = umask(077); /* what somebody wrote is theirs */
        history(e->history, &event, H_SAVE, e->path);
        umask(before);
    }
    if (e->history) history_end(e->history);
    el_end(e->el);
    free(e->path);
    free(e);
}

void line_editor_remember(line_editor *e, const char *message) {
    HistEvent event;
    mf__strbuf line = {0};
    if (e->history && message[strspn(message, " \t\r\n")] &&
        mf__strbuf_printf(&line, NULL, "%s\n", message) == MF_OK) /* with its end, as libedit keeps lines */
        history(e->history, &event, H_ENTER, line.data);
    mf__strbuf_free(&line);
}

lines_result line_editor_read(line_editor *e, const char *prompt, mf__strbuf *out, bool *more) {
    mf_error err;
    int n = 0;
    e->prompt = prompt;
    e->more = false;
    el_set(e->el, EL_PREP_TERM, 1); /* before the prompt is seen, not at the first character as libedit would */
    bracket_pastes(true);
    errno = 0;
    const char *line = el_gets(e->el, &n);
    int why = errno;
    bracket_pastes(false);
    if (app_interrupted(NULL)) {
        e->pasting = false;
        e->n_ahead = e->at_ahead = 0;
        fputc('\n', stdout);
        return LINES_INTERRUPTED;
    }
    if (!line || n <= 0) {
        if (!line && n < 0 && why) {
            mf__fail_errno(&err, why, "standard input");
            app_say("%s", err.text);
            return LINES_FAILED;
        }
        return LINES_END;
    }
    *more = e->more;
    if (line[n - 1] == '\n') n--;
    if (mf__strbuf_append(out, line, (size_t)n, &err) == MF_OK) return LINES_TEXT;
    app_say("%s", err.text);
    return LINES_FAILED;
}

#else

#include <stddef.h>

line_editor *line_editor_open(const char *history, lines_completions *completions) {
    (void)history, (void)completions;
    return NULL;
}

void line_editor_close(line_editor *e) {
    (void)e;
}

void line_editor_remember(line_editor *e, const char *message) {
    (void)e, (void)message;
}

lines_result line_editor_read(line_editor *e, const char *prompt, mf__strbuf *out, bool *more) {
    (void)e, (void)prompt, (void)out, (void)more;
    return LINES_END;
}

#endif
