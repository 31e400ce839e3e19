/* Progress on standard error. */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR 24
#define BAR_EVERY 0.1  /* seconds between redraws of the bar */
#define LINE_EVERY 5.0 /* and between plain lines */

void progress_start(progress *p, const char *what, const char *unit) {
    double now = app_seconds();
    *p = (progress){.what = what, .unit = unit, .bytes = !unit, .start = now, .shown = now};
    p->terminal = isatty(STDERR_FILENO);
}

static void amount(const progress *p, double n, char text[APP_BYTES_TEXT]) {
    if (p->bytes)
        app_bytes(n, text);
    else
        snprintf(text, APP_BYTES_TEXT, "%.0f", n);
}

static void time_left(double seconds, char text[40]) {
    long s = seconds < 0 ? 0 : seconds > 359999 ? 359999 : (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, 40, "%ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, 40, "%ld:%02ld left", s / 60, s % 60);
}

void progress_show(progress *p, int64_t done, int64_t total) {
    double now = app_seconds(), spent = now - p->start;
    if (app_quiet) return;
    if (now - p->shown < (p->terminal ? BAR_EVERY : LINE_EVERY) || total <= 0) return;
    p->shown = now;
    double share = (double)done / (double)total, rate = spent > 0 ? (double)(done - p->base) / spent : 0;
    char have[APP_BYTES_TEXT], all[APP_BYTES_TEXT], speed[APP_BYTES_TEXT], left[40] = "";
    amount(p, (double)done, have);
    amount(p, (double)total, all);
    amount(p, rate, speed);
    if (rate > 0) time_left((double)(total - done) / rate, left);
    char bar[BAR + 1];
    int filled = (int)(share * BAR);
    for (int i = 0; i < BAR; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR] = '\0';
    if (p->terminal)
        fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s%s%s  %s/s  %s", p->what, bar, share * 100, have, all,
                p->unit ? " " : "", p->unit ? p->unit : "", speed, left);
    else
        fprintf(stderr, "%s: %.0f%%, %s of %s%s%s, %s/s, %s\n", p->what, share * 100, have, all, p->unit ? " " : "",
                p->unit ? p->unit : "", speed, left);
    p->on_screen = p->terminal;
    fflush(stderr);
}

void progress_end(progress *p) {
    if (p->on_screen) fputs("\r\033[K", stderr);
    p->on_screen = false;
}
