/* Charts: plain shapes, positions in pixels of a view box of 720. */
#include "charts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define WIDTH 720

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

void page_add(page *p, const char *fmt, ...) {
    char text[1024];
    va_list args;
    if (p->status != MF_OK) return;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->status = n < 0 || n >= (int)sizeof text ? MF_E_INTERNAL : mf__strbuf_append(&p->out, text, (size_t)n, NULL);
}

void page_text(page *p, const char *text) {
    for (; *text && p->status == MF_OK; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<' || c == '>' || c == '&' || c == '"')
            page_add(p, "&#%d;", c);
        else if (c >= 32 || c == '\n')
            p->status = mf__strbuf_append(&p->out, text, 1, NULL);
    }
}

static void begin(page *p, const char *label, int height) {
    page_add(p, "<svg role=\"img\" viewBox=\"0 0 %d %d\" aria-label=\"", WIDTH, height);
    page_text(p, label);
    page_add(p, "\">\n");
}

static void end(page *p) {
    page_add(p, "</svg>\n");
}

static void words(page *p, double x, double y, const char *anchor, const char *text) {
    page_add(p, "<text x=\"%.1f\" y=\"%.1f\"%s%s%s>", x, y, *anchor ? " text-anchor=\"" : "", anchor,
             *anchor ? "\"" : "");
    page_text(p, text);
    page_add(p, "</text>\n");
}

/* The first of 1, 2, 5, 10, ... times a power of ten that makes at most `most` steps up to `top`. */
static double step_for(double top, int most) {
    double step = pow(10, floor(log10(top > 0 ? top : 1)) - 1);
    static const double factors[] = {2, 2.5, 2};
    for (int i = 0; top / step > most; i++) step *= factors[i % 3];
    return step;
}

/* ---- bars --------------------------------------------------------------------------------------------------------------- */

void chart_bars(page *p, const char *label, const chart_bar *bars, int n) {
    enum { ROW = 24, LEFT = 190, RIGHT = 110 };
    double top = 0;
    for (int i = 0; i < n; i++) top = fmax(top, bars[i].value);
    begin(p, label, n * ROW + 4);
    for (int i = 0; i < n; i++) {
        double w = top > 0 ? bars[i].value / top * (WIDTH - LEFT - RIGHT) : 0, y = i * ROW;
        words(p, LEFT - 8, y + 16, "end", bars[i].name);
        page_add(p, "<rect class=\"k0\" x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n", LEFT, y + 4,
                 fmax(w, 1), ROW - 8);
        words(p, LEFT + fmax(w, 1) + 6, y + 16, "", bars[i].text);
    }
    end(p);
}

/* ---- stacks ------------------------------------------------------------------------------------------------------------- */

static void legend(page *p, const char *const *kinds, int n) {
    page_add(p, "<p class=\"legend\">");
    for (int k = 0; k < n; k++) {
        page_add(p, "<span><i class=\"k%d\"></i>", k < CHART_KINDS ? k : CHART_KINDS - 1);
        page_text(p, kinds[k]);
        page_add(p, "</span> ");
    }
    page_add(p, "</p>\n");
}

/* Lines and numbers of the y axis, from `bottom` upward over `height`. */
static void grid(page *p, double top, double left, double bottom, double height) {
    double step = step_for(top, 5);
    for (double v = 0; v <= top * 1.0001; v += step) {
        char text[32];
        double y = bottom - v / top * height;
        page_add(p, "<path class=\"grid\" d=\"M%.1f %.1fH%d\"/>\n", left, y, WIDTH - 8);
        snprintf(text, sizeof text, "%g", v);
        words(p, left - 6, y + 4, "end", text);
    }
}

void chart_stacks(page *p, const char *label, const double *values, int n_columns, const char *const *kinds,
                  int n_kinds, const char *unit) {
    enum { HEIGHT = 220, LEFT = 56, BOTTOM = 240 };
    double top = 0, w = (double)(WIDTH - LEFT - 8) / (n_columns > 0 ? n_columns : 1);
    for (int c = 0; c < n_columns; c++) {
        double sum = 0;
        for (int k = 0; k < n_kinds; k++) sum += values[c * n_kinds + k];
        top = fmax(top, sum);
    }
    if (!(top > 0)) top = 1;
    legend(p, kinds, n_kinds);
    begin(p, label, BOTTOM + 24);
    words(p, LEFT, 12, "", unit);
    grid(p, top, LEFT, BOTTOM, HEIGHT);
    for (int c = 0; c < n_columns; c++) {
        double y = BOTTOM, x = LEFT + c * w, gap = w > 6 ? 2 : w * 0.2;
        for (int k = 0; k < n_kinds; k++) {
            double v = values[c * n_kinds + k], h = v / top * HEIGHT;
            if (!(v > 0)) continue;
            y -= h;
            page_add(p, "<rect class=\"k%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>",
                     k < CHART_KINDS ? k : CHART_KINDS - 1, x + gap / 2, y, w - gap, h);
            page_add(p, "%d: ", c);
            page_text(p, kinds[k]);
            page_add(p, " %.4g %s</title></rect>\n", v, unit);
        }
    }
    for (int c = 0, every = n_columns > 16 ? 8 : 1; c < n_columns; c += every) {
        char text[16];
        snprintf(text, sizeof text, "%d", c);
        words(p, LEFT + (c + 0.5) * w, BOTTOM + 16, "middle", c == n_columns - 1 ? "outside" : text);
    }
    end(p);
}

/* ---- heat --------------------------------------------------------------------------------------------------------------- */

/* One path for all cells of a level: a cell is a few bytes. */
void chart_heat(page *p, const char *label, const uint32_t *counts, int n_rows, int n_columns) {
    enum { LEFT = 40 };
    uint32_t top = 1;
    double w = (double)(WIDTH - LEFT - 8) / n_columns, h = n_rows > 32 ? 6 : n_rows > 16 ? 10 : 14;
    for (int i = 0; i < n_rows * n_columns; i++) top = counts[i] > top ? counts[i] : top;
    begin(p, label, (int)(n_rows * h) + 24);
    page_add(p, "<g transform=\"translate(%d 4) scale(%.4f %.1f)\">\n", LEFT, w, h);
    page_add(p, "<path class=\"h0\" d=\"M0 0h%dv%dh%dz\"/>\n", n_columns, n_rows, -n_columns);
    for (int level = 1; level < CHART_HEATS; level++) {
        page_add(p, "<path class=\"h%d\" d=\"", level);
        for (int i = 0; i < n_rows * n_columns; i++) {
            int of = counts[i] ? 1 + (int)((double)(counts[i] - 1) * (CHART_HEATS - 1) / top) : 0;
            if (of == level) page_add(p, "M%d %dh1v1h-1z", i % n_columns, i / n_columns);
        }
        page_add(p, "\"/>\n");
    }
    page_add(p, "</g>\n");
    for (int r = 0, every = n_rows > 16 ? 8 : 1; r < n_rows; r += every) {
        char text[16];
        snprintf(text, sizeof text, "%d", r);
        words(p, LEFT - 6, 4 + (r + 0.5) * h + 4, "end", text);
    }
    words(p, LEFT, n_rows * h + 20, "", "expert 0");
    char last[32];
    snprintf(last, sizeof last, "%d", n_columns - 1);
    words(p, WIDTH - 8, n_rows * h + 20, "end", last);
    end(p);
}

/* ---- lines -------------------------------------------------------------------------------------------------------------- */

static void one_line(page *p, const chart_line *l, int kind, double x_scale, double y_scale, double left, double bottom,
                     const char *(*x_text)(double x, char text[32])) {
    char text[32];
    if (!l->points) {
        page_add(p, "<path class=\"line c%d\" d=\"", kind);
        for (int i = 0; i < l->n; i++)
            page_add(p, "%c%.1f %.1f", i ? 'L' : 'M', left + l->x[i] * x_scale, bottom - l->y[i] * y_scale);
        page_add(p, "\"/>\n");
    }
    for (int i = 0; i < l->n; i++) {
        page_add(p, "<circle class=\"k%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"><title>", kind, left + l->x[i] * x_scale,
                 bottom - l->y[i] * y_scale, l->points ? "5" : "2.5");
        page_text(p, l->name);
        page_add(p, ": %s, %.4g</title></circle>\n", x_text(l->x[i], text), l->y[i]);
    }
}

void chart_lines(page *p, const char *label, const chart_line *lines, int n, const char *x_name, const char *y_name,
                 const char *(*x_text)(double x, char text[32])) {
    enum { HEIGHT = 200, LEFT = 56, BOTTOM = 222 };
    const char *names[CHART_KINDS];
    double x_top = 0, y_top = 0;
    char text[32];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < lines[i].n; k++) x_top = fmax(x_top, lines[i].x[k]), y_top = fmax(y_top, lines[i].y[k]);
    if (!(x_top > 0)) x_top = 1;
    if (!(y_top > 0)) y_top = 1;
    for (int i = 0; i < n && i < CHART_KINDS; i++) names[i] = lines[i].name;
    if (n > 1) legend(p, names, n < CHART_KINDS ? n : CHART_KINDS);
    begin(p, label, BOTTOM + 38);
    words(p, LEFT, 12, "", y_name);
    grid(p, y_top, LEFT, BOTTOM, HEIGHT);
    double step = step_for(x_top, 8), x_scale = (WIDTH - LEFT - 24) / x_top;
    for (double v = 0; v <= x_top * 1.0001; v += step)
        words(p, LEFT + v * x_scale, BOTTOM + 16, "middle", x_text(v, text));
    words(p, WIDTH - 8, BOTTOM + 33, "end", x_name);
    for (int i = 0; i < n; i++) one_line(p, &lines[i], i, x_scale, HEIGHT / y_top, LEFT, BOTTOM, x_text);
    end(p);
}
