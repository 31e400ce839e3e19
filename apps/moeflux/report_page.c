/* The page of a report: what was collected, as charts with their numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "cache_hits.h"
#include "report.h"

static const char STYLE[] =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;background:var(--bg);"
    "color:var(--fg)}h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .25rem}p{margin:.25rem 0 .75rem}"
    "figure{margin:0}svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--fg)}"
    "table{border-collapse:collapse}td,th{padding:.1rem .9rem .1rem 0;text-align:left;font-weight:400}"
    "td{font-variant-numeric:tabular-nums}th,.muted{color:var(--soft)}.grid{stroke:var(--grid);fill:none}"
    ".line{fill:none;stroke-width:2}.legend span{margin-right:.9rem;white-space:nowrap}"
    ".legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.3rem}"
    "summary{cursor:pointer;color:var(--soft)}";
/* kinds: k0 to k7 and c0 to c7 for lines; heat: h0 to h7 */
static const char *const KINDS_LIGHT[CHART_KINDS] = {"#2a6fbb", "#c4581c", "#2e8b57", "#8a5bb0",
                                                     "#b8860b", "#c2477f", "#3d8f9b", "#7a7a7a"};
static const char *const KINDS_DARK[CHART_KINDS] = {"#6aa9e9", "#f0935a", "#6cc594", "#bf98e0",
                                                    "#e0b84d", "#ee86b4", "#74c3cf", "#a0a0a0"};
static const char *const HEAT_LIGHT[CHART_HEATS] = {"#eef1f4", "#d2e1f1", "#b2cdea", "#8db5e0",
                                                    "#679bd3", "#4280c2", "#2766a9", "#134a86"};
static const char *const HEAT_DARK[CHART_HEATS] = {"#20252b", "#1d3550", "#224a75", "#2a619b",
                                                   "#3a7abf", "#5a97da", "#8ab8ec", "#c3dcf8"};

static void variables(page *p, const char *base, const char *const *kinds, const char *const *heat) {
    page_add(p, ":root{%s", base);
    for (int i = 0; i < CHART_KINDS; i++) page_add(p, "--k%d:%s;", i, kinds[i]);
    for (int i = 0; i < CHART_HEATS; i++) page_add(p, "--h%d:%s;", i, heat[i]);
    page_add(p, "}");
}

static void head(page *p, const report *r) {
    page_add(
        p, "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
           "<meta name=\"viewport\" content=\"width=device-width\"/><title>");
    page_text(p, r->name);
    page_add(p, "</title>\n<style>");
    variables(p, "color-scheme:light dark;--bg:#fff;--fg:#1c2126;--soft:#5a646e;--grid:#dde2e7;", KINDS_LIGHT,
              HEAT_LIGHT);
    page_add(p, "@media(prefers-color-scheme:dark){");
    variables(p, "--bg:#14181c;--fg:#e4e8ec;--soft:#9aa5b0;--grid:#323a42;", KINDS_DARK, HEAT_DARK);
    page_add(p, "}");
    for (int i = 0; i < CHART_KINDS; i++)
        page_add(p, ".k%d{fill:var(--k%d);background:var(--k%d)}.c%d{stroke:var(--k%d)}", i, i, i, i, i);
    for (int i = 0; i < CHART_HEATS; i++) page_add(p, ".h%d{fill:var(--h%d)}", i, i);
    for (const char *s = STYLE; *s && p->status == MF_OK; s += strnlen(s, 900)) page_add(p, "%.900s", s);
    page_add(p, "</style></head>\n<body>\n");
}

static void section(page *p, const char *title, const char *fmt, ...) MF__PRINTF(3, 4);
static void section(page *p, const char *title, const char *fmt, ...) {
    char text[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    page_add(p, "<h2>%s</h2>\n<p>", title);
    page_text(p, text);
    page_add(p, "</p>\n");
}

/* ---- the parts ---------------------------------------------------------------------------------------------------------- */

static void summary(page *p, const report *r) {
    char a[APP_BYTES_TEXT], b[APP_BYTES_TEXT], c[APP_BYTES_TEXT], ram[APP_BYTES_TEXT], day[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(day, sizeof day, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    page_add(p, "<h1>");
    page_text(p, r->name);
    page_add(p,
             "</h1>\n<p>%s, %d layers, %d experts in each, of which a token wants %d. On disk %s, of which experts %s; "
             "a token reads %s. Backend %s%s%s; %s.</p>\n",
             r->survey.bp.config.family->name, r->survey.bp.config.n_layers, r->survey.bp.config.moe.n_experts,
             r->survey.bp.config.moe.top_k, app_bytes((double)(r->survey.trunk_bytes + r->survey.expert_bytes), a),
             app_bytes((double)r->survey.expert_bytes, b), app_bytes((double)r->survey.resident_bytes, c), r->backend,
             r->ram ? ", --ram " : "", r->ram ? app_bytes((double)r->ram, ram) : "", day);
    if (!r->n_speeds) return;
    page_add(p, "<table>");
    for (int i = 0; i < r->n_speeds; i++) {
        const report_speed *s = &r->speeds[i];
        page_add(p, "<tr><th>%s</th><td>%.2f tokens/s</td><td class=\"muted\">%.2f to %.2f</td></tr>", s->name,
                 s->median, s->least, s->most);
    }
    page_add(p, "</table>\n");
}

static int add_bar(chart_bar *bars, int n, const char *name, int64_t bytes) {
    if (bytes <= 0) return n;
    bars[n] = (chart_bar){.name = name, .value = (double)bytes};
    app_bytes((double)bytes, bars[n].text);
    return n + 1;
}

static void memory(page *p, const report *r) {
    chart_bar bars[MF_SURVEY_PARTS + 6];
    char least[APP_BYTES_TEXT];
    int n = 0;
    for (int i = 0; i < MF_SURVEY_PARTS; i++)
        n = add_bar(bars, n, mf__survey_part_name((mf__survey_part)i), r->survey.part_bytes[i]);
    n = add_bar(bars, n, "experts, all", r->survey.expert_bytes);
    n = add_bar(bars, n, "experts, the fewest", r->needs.experts);
    n = add_bar(bars, n, "rows of a pass", r->needs.workspace);
    n = add_bar(bars, n, "keys and values", r->needs.kv);
    n = add_bar(bars, n, "state of a session", r->needs.state);
    n = add_bar(bars, n, "the program", r->needs.program);
    section(p, "Memory by part",
            "With a session of 4096 tokens at most. The trunk is always in memory, of the experts at least the fewest: "
            "%s in all.",
            app_bytes((double)r->needs.total, least));
    page_add(p, "<figure>");
    chart_bars(p, "Memory by part", bars, n);
    page_add(p, "</figure>\n");
}

static mf_status heat(page *p, const report *r, mf_error *err) {
    const routes *t = &r->routes;
    size_t n = (size_t)t->n_layers * (size_t)t->n_experts, used = 0;
    int64_t wanted = t->n_tokens * t->n_layers * t->top_k;
    uint32_t *counts = calloc(n + 1, sizeof *counts), most = 0;
    if (!counts) return mf__fail(err, MF_E_NOMEM, "no memory to count experts");
    for (int64_t i = 0; i < wanted; i++) counts[(i / t->top_k % t->n_layers) * t->n_experts + t->ids[i]]++;
    for (size_t i = 0; i < n; i++) {
        used += counts[i] > 0;
        most = counts[i] > most ? counts[i] : most;
    }
    section(p, "Experts by layer",
            "%lld tokens%s wanted experts %lld times: %zu of %zu were used, one of them %u times. A row is a layer "
            "that has "
            "experts, a column an expert; the darker (on dark pages the lighter), the more often.",
            (long long)t->n_tokens, r->recorded ? " (recorded)" : "", (long long)wanted, used, n, most);
    page_add(p, "<figure>");
    chart_heat(p, "Use of experts by layer", counts, t->n_layers, t->n_experts);
    page_add(p, "</figure>\n");
    free(counts);
    return MF_OK;
}

static const char *per_cent(double x, char text[32]) {
    snprintf(text, 32, "%g %%", x);
    return text;
}

static mf_status hits(page *p, const report *r, mf_error *err) {
    static const double shares[] = {2, 5, 10, 15, 25, 35, 50, 65, 75, 90, 100};
    enum { N = MF__COUNT(shares) };
    double found[N];
    routes t = r->routes;
    int64_t all = (int64_t)t.n_layers * t.n_experts, most = 1024; /* tokens: enough, and bounded in time */
    if (t.n_tokens > most) t.n_tokens = most;
    for (int i = 0; i < N; i++) {
        MF__TRY(cache_hits(&t, (int64_t)(shares[i] / 100 * (double)all + 0.5), &found[i], err));
        found[i] *= 100;
    }
    section(
        p, "Hits against cache size",
        "The same routes through a cache that holds so much of all experts, with the usual policy, nothing read ahead: "
        "wanted experts that are there, after half of the tokens have filled it.");
    page_add(p, "<figure>");
    chart_lines(p, "Hits against cache size", &(chart_line){"hits", shares, found, N, false}, 1, "experts in memory",
                "hits, %", per_cent);
    page_add(p, "</figure>\n<details><summary>numbers</summary><table>");
    for (int i = 0; i < N; i++)
        page_add(p, "<tr><th>%g %% of the experts</th><td>%.1f %%</td></tr>", shares[i], found[i]);
    page_add(p, "</table></details>\n");
    return MF_OK;
}

/* Ops by their time, the last of the colours for what is beyond them. */
static void ops(page *p, const report *r) {
    int order[REPORT_MAX_OPS], n = r->n_ops, shown = n < CHART_KINDS ? n : CHART_KINDS;
    double sums[REPORT_MAX_OPS] = {0}, total = 0;
    const char *names[CHART_KINDS];
    for (int c = 0; c < r->n_columns; c++)
        for (int k = 0; k < n; k++) sums[k] += r->op_us[c * n + k];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sums[order[at - 1]] < sums[i]; at--) order[at] = order[at - 1];
        order[at] = i;
        total += sums[i];
    }
    for (int k = 0; k < shown; k++) names[k] = k == CHART_KINDS - 1 && n > CHART_KINDS ? "others" : r->ops[order[k]];
    double *values = calloc((size_t)(r->n_columns * shown) + 1, sizeof *values);
    if (!values) p->status = MF_E_NOMEM;
    for (int c = 0; values && c < r->n_columns; c++)
        for (int i = 0; i < n; i++) values[c * shown + (i < shown ? i : shown - 1)] += r->op_us[c * n + order[i]];
    section(
        p, "Time by op and layer",
        "Microseconds of a decoded token: a column per layer, the last for what is outside of layers. %.0f us in ops, "
        "measured one by one over %lld tokens, at %.2f tokens/s with the measuring.",
        total, (long long)(r->n_run - r->n_run / 2), r->decode);
    page_add(p, "<figure>");
    if (values) chart_stacks(p, "Time by op and layer", values, r->n_columns, names, shown, "us");
    page_add(p, "</figure>\n<details><summary>numbers</summary><table>");
    for (int i = 0; i < n; i++)
        page_add(p, "<tr><th>%s</th><td>%.1f us</td><td>%.1f %%</td></tr>", r->ops[order[i]], sums[order[i]],
                 total > 0 ? 100 * sums[order[i]] / total : 0);
    page_add(p, "</table></details>\n");
    free(values);
}

static const char *gigabytes(double x, char text[32]) {
    return app_bytes(x, text);
}

static void speed(page *p, const report *r) {
    double x[REPORT_POINTS], y[REPORT_POINTS], at, measured = r->decode;
    verdict v;
    char memory_text[APP_BYTES_TEXT], drive[APP_BYTES_TEXT];
    if (!r->measured) {
        section(p, "Tokens/s against --ram", "Not estimated: the budget leaves no room to measure memory and drive.");
        return;
    }
    for (int i = 0; i < r->n_speeds; i++)
        if (!strcmp(r->speeds[i].name, "decode")) measured = r->speeds[i].median;
    verdict_make(&r->sizes, &r->at, 0, &v);
    double least = (double)v.least, best = (double)v.best * 1.1;
    for (int i = 0; i < REPORT_POINTS; i++) {
        x[i] = least + (best - least) * i / (REPORT_POINTS - 1);
        verdict_make(&r->sizes, &r->at, (int64_t)x[i], &v);
        y[i] = v.decode;
    }
    at = r->ram ? (double)r->ram : (double)r->at.usable;
    if (at > best) at = best;
    const chart_line lines[] = {{"estimate", x, y, REPORT_POINTS, false}, {"this run", &at, &measured, 1, true}};
    section(p, "Tokens/s against --ram",
            "Decoding, as moeflux inspect estimates it for this machine (memory %s/s, drive %s/s), and what this run "
            "reached.",
            app_bytes(r->at.memory_bytes_s, memory_text), app_bytes(r->at.drive_bytes_s, drive));
    page_add(p, "<figure>");
    chart_lines(p, "Tokens per second against memory", lines, 2, "--ram", "tokens/s", gigabytes);
    page_add(p, "</figure>\n");
}

mf_status report_write(const report *r, const char *path, mf_error *err) {
    page p = {.status = MF_OK};
    mf_status st = MF_OK;
    head(&p, r);
    summary(&p, r);
    memory(&p, r);
    if (r->routes.n_tokens > 0 && r->routes.n_layers > 0) {
        st = heat(&p, r, err);
        if (st == MF_OK) st = hits(&p, r, err);
    }
    if (r->n_ops) ops(&p, r);
    speed(&p, r);
    page_add(&p, "<p class=\"muted\">moeflux %d.%d.%d</p>\n</body></html>\n", MF_VERSION_MAJOR, MF_VERSION_MINOR,
             MF_VERSION_PATCH);
    if (st == MF_OK && p.status != MF_OK) st = mf__fail(err, p.status, "no memory for the page");
    if (st == MF_OK) st = mf__file_replace(path, p.out.data, p.out.size, err);
    mf__strbuf_free(&p.out);
    return st;
}
