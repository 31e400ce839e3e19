/* Runs a program on a pseudo-terminal and plays the user.
 *
 *   on_terminal SCRIPT TRANSCRIPT COMMAND...
 *
 * A script has one step per line; \n \t \\ and \xHH mean what they do in C:
 *   send TEXT      types it
 *   expect TEXT    waits until the program has written it, after what was expected before
 *   resize COLUMNS the terminal has so many from now on
 *   hangup         the terminal goes away
 *   exit CODE      waits until the program has ended with that code
 * All that the program writes goes to TRANSCRIPT. Exit code 1, and a line that says which step, when one fails. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_S 180 /* for a machine with much else to do */

typedef struct terminal {
    int fd;
    pid_t pid;
    char *seen;        /* all output */
    size_t size, done; /* done: where the next expectation begins */
    FILE *transcript;
} terminal;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from != '\\') {
            *to++ = *from;
            continue;
        }
        from++;
        if (*from == 'x') {
            char hex[3] = {from[1], from[2], 0};
            *to++ = (char)strtol(hex, NULL, 16);
            from += 2;
        } else
            *to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : *from;
    }
    *to = '\0';
    return (size_t)(to - text);
}

/* Reads what is there, waiting up to ms; false at the end of the output. */
static int take(terminal *t, int ms) {
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    char block[4096];
    if (t->fd < 0) return 0;
    if (poll(&p, 1, ms) <= 0) return 1;
    ssize_t n = read(t->fd, block, sizeof block);
    if (n <= 0) return n < 0 && errno == EINTR;
    t->seen = realloc(t->seen, t->size + (size_t)n);
    if (!t->seen) exit(2);
    memcpy(t->seen + t->size, block, (size_t)n);
    t->size += (size_t)n;
    fwrite(block, 1, (size_t)n, t->transcript);
    fflush(t->transcript);
    return 1;
}

static int expect(terminal *t, const char *text, size_t n) {
    double end = now() + TIMEOUT_S;
    for (int open = 1;; open = take(t, 50)) {
        char *at = t->size > t->done ? memmem(t->seen + t->done, t->size - t->done, text, n) : NULL;
        if (at) {
            t->done = (size_t)(at - t->seen) + n;
            return 1;
        }
        if (!open || now() > end) return 0;
    }
}

static int type(terminal *t, const char *text, size_t n) {
    while (n) {
        ssize_t put = write(t->fd, text, n < 512 ? n : 512);
        if (put < 0) return 0;
        text += put;
        n -= (size_t)put;
        take(t, 1); /* the echo must not fill up */
    }
    return 1;
}

static int wait_exit(terminal *t, int wanted) {
    double end = now() + TIMEOUT_S;
    int status;
    pid_t got;
    while ((got = waitpid(t->pid, &status, WNOHANG)) == 0 && now() < end)
        if (!take(t, 20)) usleep(10000);
    if (got != t->pid) return 0;
    t->pid = 0;
    while (take(t, 10) && poll(&(struct pollfd){.fd = t->fd, .events = POLLIN}, 1, 10) > 0) {
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code != wanted) printf("exit code %d\n", code);
    return code == wanted;
}

static int resize(terminal *t, int columns) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    return ioctl(t->fd, TIOCSWINSZ, &size) == 0;
}

static int hang_up(terminal *t) {
    close(t->fd);
    t->fd = -1;
    return 1;
}

static int step(terminal *t, char *line) {
    char *text = strchr(line, ' ');
    if (text) *text++ = '\0';
    size_t n = text ? unescape(text) : 0;
    if (!strcmp(line, "hangup")) return hang_up(t);
    if (!text) return 0;
    if (!strcmp(line, "send")) return type(t, text, n);
    if (!strcmp(line, "expect")) return expect(t, text, n);
    if (!strcmp(line, "resize")) return resize(t, atoi(text));
    if (!strcmp(line, "exit")) return wait_exit(t, atoi(text));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    FILE *script = fopen(argv[1], "r");
    terminal t = {.transcript = fopen(argv[2], "w")};
    struct winsize size = {.ws_row = 24, .ws_col = 100};
    if (!script || !t.transcript) return 2;
    t.pid = forkpty(&t.fd, NULL, NULL, &size);
    if (t.pid < 0) return 2;
    if (t.pid == 0) {
        execvp(argv[3], argv + 3);
        _exit(127);
    }
    char *line = NULL;
    size_t capacity = 0;
    int number = 0, ok = 1;
    for (ssize_t n; ok && (n = getline(&line, &capacity, script)) > 0;) {
        number++;
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        if (!*line || *line == '#') continue;
        char *shown = strdup(line);
        ok = step(&t, line);
        if (!ok) printf("line %d failed: %s\n", number, shown ? shown : "");
        free(shown);
    }
    if (t.pid) {
        kill(t.pid, SIGKILL);
        waitpid(t.pid, NULL, 0);
        if (ok) printf("the script does not wait for the end\n");
        ok = 0;
    }
    free(line);
    free(t.seen);
    fclose(t.transcript);
    fclose(script);
    return !ok;
}
