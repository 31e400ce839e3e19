/* moeflux tune: how much less can be read for a loss that one chooses.
 *
 * Every measurement decodes the same text token by token through the real cache, from an empty one. The first part of
 * the text fills the cache, the second compares settings; the third and longest is decoded with the best of them only,
 * and says what the chosen one costs: the best of many measurements looks better than it is.
 *
 * Settings come in families, each with one strength from 0 (exact) to 1; the strength at which a family costs what is
 * allowed is found by halving. What was measured on the way is the frontier that is printed. */
#include "tune.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "models.h"
#include "options.h"
#include "text/utf8.h"

#define MAX_POINTS 128
#define MAX_FINALISTS 6 /* settings that are tried on the whole text */

typedef struct tune_options {
    app_model_options model;
    double loss;
    int64_t n_tokens, per_doc, steps;
    const char *report;
    bool json, dry;
} tune_options;

typedef struct tune {
    const tune_options *opt;
    const char *dir;
    tune_text text;
    tune_parts parts;
    tune_point exact, points[MAX_POINTS];
    int n_points;
} tune;

/* ---- families ----------------------------------------------------------------------------------------------------- */

typedef struct family {
    bool copies;   /* needs small ones */
    mf_lossy full; /* at strength 1; what is in `fixed` does not grow with it */
    mf_lossy fixed;
} family;

static const family FAMILIES[] = {
    {.full = {.bonus = 3}, .fixed = {.protect = 2}},
    {.full = {.bonus = 3}, .fixed = {.protect = 4}},
    {.full = {.tail = 3}, .fixed = {.bonus = 3}},
    {.copies = true, .full = {.small = 0.5}, .fixed = {.small_ram = 0.3}},
    {.copies = true, .full = {.small_ram = 0.9}, .fixed = {.small = 2}},
    {.copies = true, .full = {.tail = 3}, .fixed = {.bonus = 3, .small = 2, .small_ram = 0.85}},
    {.copies = true, .full = {.bonus = 3}, .fixed = {.sure = 0.2, .small = 2, .small_ram = 0.85}},
};

static mf_lossy setting(const family *f, double strength) {
    mf_lossy l = f->fixed;
    l.bonus += f->full.bonus * strength;
    l.tail += f->full.tail * strength;
    l.skip += f->full.skip * strength;
    l.small += f->full.small * strength;
    l.small_ram += f->full.small_ram * strength;
    return l;
}

static bool has_copies(const char *dir) {
    char *path = mf__path_join(dir, "packed_experts_2bit");
    bool found = path && mf__path_is_dir(path);
    free(path);
    return found;
}

/* ---- measuring ---------------------------------------------------------------------------------------------------- */

/* Up to the token `end`, from `first` on, against exact. */
static estimate against(const tune *t, const tune_point *p, int64_t first, int64_t end) {
    losses a = p->nll, b = t->exact.nll;
    a.n = b.n = end;
    return losses_paired(&a, &b, first);
}

static mf_status measure(tune *t, mf_lossy lossy, tune_point **out, mf_error *err) {
    if (t->n_points == MAX_POINTS) return mf__fail(err, MF_E_INTERNAL, "more than %d measurements", MAX_POINTS);
    tune_point *p = &t->points[t->n_points];
    char text[LOSSY_TEXT];
    *p = (tune_point){.lossy = lossy};
    if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "stopped");
    mf_status st = tune_measure(t->dir, &t->opt->model, &t->text, &t->parts, false, p, err);
    if (st != MF_OK) {
        losses_free(&p->nll);
        return st;
    }
    t->n_points++;
    p->loss = against(t, p, t->parts.n_warm, t->parts.n_choose);
    app_note("%-48s loss %+.4f (%.4f)  %.3f MB a token, %.2f times less  %.1f tokens/s", lossy_text(&lossy, text),
             p->loss.mean, p->loss.error, p->bytes * 1e-6, t->exact.bytes / p->bytes, p->tokens_s);
    *out = p;
    return MF_OK;
}

/* The strength at which the family costs what is allowed, by halving; it may never come to that. */
static mf_status search(tune *t, const family *f, mf_error *err) {
    double low = 0, high = 1, at = 0.25;
    for (int64_t i = 0; i < t->opt->steps; i++) {
        tune_point *p = NULL;
        MF__TRY(measure(t, setting(f, at), &p, err));
        if (p->loss.mean > t->opt->loss)
            high = at;
        else
            low = at;
        if (low > 0.99) return MF_OK;
        at = high == 1 ? (low < 0.5 ? 2 * low : 1) : (low + high) / 2; /* upward in doubles, until it is too much */
    }
    return MF_OK;
}

static mf_status measure_all(tune *t, mf_error *err) {
    bool copies = has_copies(t->dir);
    MF__TRY(tune_measure(t->dir, &t->opt->model, &t->text, &t->parts, true, &t->exact, err));
    app_note("%-48s %.3f MB a token  %.1f tokens/s", "exact", t->exact.bytes * 1e-6, t->exact.tokens_s);
    if (t->exact.bytes <= 0 || !t->exact.evictions) /* what is read may be the rest of all experts, once and for all */
        return mf__fail(err, MF_E_INVALID,
                        "nothing is read: all experts fit in memory, and there is nothing to gain; --ram says how much "
                        "memory there will be");
    for (size_t i = 0; i < MF__COUNT(FAMILIES); i++)
        if (copies || !FAMILIES[i].copies) MF__TRY(search(t, &FAMILIES[i], err));
    return MF_OK;
}

/* ---- choosing ----------------------------------------------------------------------------------------------------- */

/* The fewest bytes within what is allowed, by the tokens that compare; NULL: none that is not out. */
static tune_point *best_of(tune *t, const bool *out) {
    tune_point *best = NULL;
    for (int i = 0; i < t->n_points; i++) {
        tune_point *p = &t->points[i];
        if (out[i] || p->loss.mean > t->opt->loss || p->bytes >= t->exact.bytes) continue;
        if (!best || p->bytes < best->bytes) best = p;
    }
    return best;
}

/* The best that is also within what is allowed on the rest of the text; *out NULL: exact. */
static mf_status choose(tune *t, tune_point **chosen, estimate *stated, mf_error *err) {
    bool out[MAX_POINTS] = {false};
    *chosen = NULL;
    for (int i = 0; i < MAX_FINALISTS; i++) {
        tune_point *p = best_of(t, out);
        char text[LOSSY_TEXT];
        if (!p) return MF_OK;
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "stopped");
        tune_point whole = {.lossy = p->lossy, .loss = p->loss};
        mf_status st = tune_measure(t->dir, &t->opt->model, &t->text, &t->parts, true, &whole, err);
        losses_free(&p->nll);
        *p = whole;
        MF__TRY(st);
        *stated = against(t, p, t->parts.n_choose, p->nll.n);
        app_note("on the rest of the text: %-48s loss %+.4f (%.4f)  %.2f times less", lossy_text(&p->lossy, text),
                 stated->mean, stated->error, t->exact.rest_bytes / p->rest_bytes);
        if (stated->mean <= t->opt->loss) {
            *chosen = p;
            return MF_OK;
        }
        out[p - t->points] = true;
    }
    return MF_OK;
}

static bool beaten(const tune *t, const tune_point *p) {
    for (int i = 0; i < t->n_points; i++) {
        const tune_point *q = &t->points[i];
        if (q != p && q->bytes <= p->bytes && q->loss.mean <= p->loss.mean &&
            (q->bytes < p->bytes || q->loss.mean < p->loss.mean || q < p))
            return true;
    }
    return false;
}

static int by_loss(const void *a, const void *b) {
    const tune_point *x = *(const tune_point *const *)a, *y = *(const tune_point *const *)b;
    return (x->loss.mean > y->loss.mean) - (x->loss.mean < y->loss.mean);
}

static int frontier(const tune *t, const tune_point *list[MAX_POINTS]) {
    int n = 0;
    for (int i = 0; i < t->n_points; i++)
        if (!beaten(t, &t->points[i]) && t->points[i].bytes < t->exact.bytes) list[n++] = &t->points[i];
    qsort(list, (size_t)n, sizeof *list, by_loss);
    return n;
}

static void show_table(const tune *t) {
    const tune_point *list[MAX_POINTS];
    int n = frontier(t, list);
    char text[LOSSY_TEXT];
    printf("| loss, nats a token | standard error | MB read a token | times less | tokens/s | setting |\n"
           "|---|---|---|---|---|---|\n| 0 | | %.3f | 1.00 | %.1f | exact |\n",
           t->exact.bytes * 1e-6, t->exact.tokens_s);
    for (int i = 0; i < n; i++)
        printf("| %+.4f | %.4f | %.3f | %.2f | %.1f | %s |\n", list[i]->loss.mean, list[i]->loss.error,
               list[i]->bytes * 1e-6, t->exact.bytes / list[i]->bytes, list[i]->tokens_s,
               lossy_text(&list[i]->lossy, text));
}

/* ---- the report --------------------------------------------------------------------------------------------------- */

/* All measurements as dots, loss to the right and bytes upward; the frontier as a line. */
static mf_status write_report(const tune *t, const char *path, mf_error *err) {
    const tune_point *list[MAX_POINTS];
    int n = frontier(t, list);
    double most = t->opt->loss * 3;
    char text[LOSSY_TEXT];
    FILE *f = fopen(path, "w");
    if (!f) return mf__fail_errno(err, errno, "%s", path);
    fprintf(f,
            "<!doctype html><meta charset=\"utf-8\"><title>moeflux tune</title>\n<h1>Bytes read for a loss</h1>\n"
            "<svg width=\"720\" height=\"420\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<path d=\"M60 20V370H700\" fill=\"none\" stroke=\"black\"/>\n"
            "<text x=\"300\" y=\"405\">loss, nats a token (to %.3f)</text><text x=\"5\" y=\"15\">MB a token (to "
            "%.2f)</text>\n",
            most, t->exact.bytes * 1e-6);
#define X(p) (60 + 640 * ((p)->loss.mean < 0 ? 0 : (p)->loss.mean > most ? most : (p)->loss.mean) / most)
#define Y(p) (370 - 350 * (p)->bytes / t->exact.bytes)
    fprintf(f, "<polyline fill=\"none\" stroke=\"steelblue\" points=\"60,20");
    for (int i = 0; i < n; i++) fprintf(f, " %.1f,%.1f", X(list[i]), Y(list[i]));
    fprintf(f, "\"/>\n");
    for (int i = 0; i < t->n_points; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s: %+.4f nats</title></circle>\n",
                X(&t->points[i]), Y(&t->points[i]), beaten(t, &t->points[i]) ? "silver" : "steelblue",
                lossy_text(&t->points[i].lossy, text), t->points[i].loss.mean);
#undef X
#undef Y
    fprintf(f, "</svg>\n");
    return fclose(f) ? mf__fail_errno(err, errno, "%s", path) : MF_OK;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static void show_choice(const tune *t, const tune_point *p, estimate stated) {
    char text[LOSSY_TEXT];
    double times = p ? t->exact.rest_bytes / p->rest_bytes : 1;
    if (t->opt->json)
        printf("{\"setting\": \"%s\", \"loss\": %.6f, \"standard_error\": %.6f, \"bytes_per_token\": %.1f, "
               "\"exact_bytes_per_token\": %.1f, \"tokens_s\": %.3f, \"exact_tokens_s\": %.3f, \"tokens\": %lld}\n",
               p ? lossy_text(&p->lossy, text) : "exact", stated.mean, stated.error,
               p ? p->rest_bytes : t->exact.rest_bytes, t->exact.rest_bytes, p ? p->tokens_s : t->exact.tokens_s,
               t->exact.tokens_s, (long long)(t->exact.nll.n - t->parts.n_choose));
    else
        show_table(t);
    if (p)
        app_note(
            "chosen: %s; on tokens that had no part in the choice it costs %+.4f nats (standard error %.4f) and reads "
            "%.2f times less",
            lossy_text(&p->lossy, text), stated.mean, stated.error, times);
    else
        app_note("nothing that reads less stays within a loss of %g: exact it is", t->opt->loss);
}

static mf_status keep(const tune *t, const tune_point *p, estimate stated, const char *file, mf_error *err) {
    const char *slash = strrchr(file, '/');
    tuned found = {.loss = stated.mean,
                   .error = stated.error,
                   .bytes = p ? p->rest_bytes : t->exact.rest_bytes,
                   .exact = t->exact.rest_bytes,
                   .n_tokens = t->exact.nll.n - t->parts.n_choose,
                   .ram = t->opt->model.ram};
    if (p) found.lossy = p->lossy;
    mf__utf8_clean(slash ? slash + 1 : file, found.text, sizeof found.text);
    memcpy(found.model, t->exact.model, sizeof found.model);
    if (t->opt->dry) return MF_OK;
    MF__TRY(tuned_write(t->dir, &found, err));
    app_note("written to %s/" TUNED_NAME ": run, chat and serve use it with --tuned", t->dir);
    return MF_OK;
}

static mf_status run(tune *t, const char *file, mf_error *err) {
    if (!t->opt->dry && access(t->dir, W_OK)) /* now, not when all has been measured */
        return mf__fail(err, MF_E_IO, "%s/" TUNED_NAME " cannot be written: %s; --dry-run measures all the same",
                        t->dir, strerror(errno));
    MF__TRY(tune_text_read(t->dir, file, t->opt->n_tokens, t->opt->per_doc, &t->text, err));
    t->parts.n_warm = t->text.n_scored / 20;
    t->parts.n_choose = t->text.n_scored / 4;
    if (t->parts.n_warm < 1)
        return mf__fail(err, MF_E_INVALID, "%s has %lld tokens to predict, too few to measure by", file,
                        (long long)t->text.n_scored);
    MF__TRY(measure_all(t, err));
    estimate stated = {0};
    tune_point *p;
    MF__TRY(choose(t, &p, &stated, err));
    if (!p) stated = (estimate){0};
    show_choice(t, p, stated);
    mf_status st = keep(t, p, stated, file, err);
    mf_error why;
    if (t->opt->report && write_report(t, t->opt->report, &why) != MF_OK && st == MF_OK) {
        if (err) *err = why;
        st = why.status;
    }
    return st;
}

int cmd_tune(int argc, char **argv) {
    tune_options opt = {.loss = 0.01, .n_tokens = 24000, .per_doc = 256, .steps = 5, .model.no_prompts = true};
    const opt_def defs[] = {
        {.name = "loss",
         .kind = OPT_REAL,
         .value = &opt.loss,
         .arg = "NATS",
         .help = "most that may be lost, in nats a token (default 0.01)",
         .min = 0.0001,
         .max = 10},
        {.name = "tokens",
         .kind = OPT_COUNT,
         .value = &opt.n_tokens,
         .arg = "N",
         .help = "tokens of the text at most; a quarter of them compare settings (default 24000)",
         .min = 20,
         .max = 1 << 24},
        {.name = "per-document",
         .kind = OPT_INT,
         .value = &opt.per_doc,
         .arg = "N",
         .help = "... the first N of each document (default 256)",
         .min = 2,
         .max = 1 << 20},
        {.name = "steps",
         .kind = OPT_INT,
         .value = &opt.steps,
         .arg = "N",
         .help = "measurements of each kind of setting (default 5)",
         .min = 1,
         .max = 12},
        {.name = "report",
         .kind = OPT_STRING,
         .value = &opt.report,
         .arg = "FILE",
         .help = "write a chart there, as HTML"},
        {.name = "dry-run", .kind = OPT_FLAG, .value = &opt.dry, .help = "measure, and leave nothing beside the model"},
        {.name = "json", .kind = OPT_FLAG, .value = &opt.json, .help = "print the choice as one JSON object"},
        OPT_FIND_ROWS(opt.model.find),
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "tune MODEL TEXT [options]",
        .about =
            "Finds out how much less can be read for a loss of --loss: decodes TEXT token by token with as much "
            "memory\n"
            "as --ram says, exact and with settings of --lossy, and compares loss and bytes. Prints what was found,\n"
            "and leaves the best setting within the loss beside the model, for --tuned. TEXT should be like what the\n"
            "model will be used for, and not what it was made from.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 2,
        .max_words = 2,
        .examples = "  moeflux tune qwen held-out.txt --ram 6G\n"
                    "  moeflux tune qwen held-out.txt --ram 6G --loss 0.03 --report report.html\n"
                    "  moeflux run qwen --ram 6G --tuned \"Why is the sky blue?\"\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (opt.model.lossy || opt.model.tuned) {
        app_say("--%s is what tune looks for; leave it out", opt.model.lossy ? "lossy" : "tuned");
        return APP_USAGE;
    }
    char *dir;
    mf_error err;
    if (models_ready(&opt.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    app_catch_interrupts();
    tune *t = calloc(1, sizeof *t);
    mf_status st = t ? MF_OK : mf__fail(&err, MF_E_NOMEM, "no memory for measurements");
    if (t) {
        t->opt = &opt;
        t->dir = dir;
        st = run(t, words[1], &err);
        for (int i = 0; i < t->n_points; i++) losses_free(&t->points[i].nll);
        losses_free(&t->exact.nll);
        tune_text_free(&t->text);
    }
    free(t);
    free(dir);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
