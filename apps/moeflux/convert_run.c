/* Running a conversion: progress, and what is said at the end. */
#include "convert_run.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "convert/outlook.h"
#include "progress.h"

typedef struct job {
    progress bar;
    bool started;
    int64_t total;
    const char *why;
} job;

static bool show(void *user, int64_t done, int64_t total) {
    job *j = user;
    char have[APP_BYTES_TEXT], all[APP_BYTES_TEXT];
    if (!j->started && *j->why && j->bar.terminal) app_note("%s", j->why);
    if (!j->started && done > 0)
        app_note("going on where an earlier run stopped: %s of %s are done", app_bytes((double)done, have),
                app_bytes((double)total, all));
    if (!j->started) j->bar.base = done;
    j->started = true;
    j->total = total;
    progress_show(&j->bar, done, total);
    return app_interrupted(NULL);
}

/* ---- the error --------------------------------------------------------------------------------------------------- */

typedef struct errors {
    double squares, worst;
    int n;
} errors;

static void count(errors *e, const json_t *figures) {
    double rms = json_number_value(json_object_get(figures, "relative_rms"));
    e->squares += rms * rms;
    e->n++;
    if (rms > e->worst) e->worst = rms;
}

static void error_text(const errors *e, const char *what, char text[96]) {
    if (e->n)
        snprintf(text, 96, "%.2g %% in the %s", 100 * sqrt(e->squares / e->n), what);
    else
        *text = '\0';
}

/* What conversion.json says, in a few words: the relative error of matrices as they were rounded. */
static void say_error(const char *dir) {
    errors experts = {0}, trunk = {0};
    char *path = mf__path_join(dir, "conversion.json"), of_experts[96], of_trunk[96];
    json_t *root = path ? json_load_file(path, 0, NULL) : NULL, *value, *part;
    const char *key, *name;
    json_object_foreach(json_object_get(root, "tensors"), key, value) count(&trunk, value);
    json_object_foreach(json_object_get(root, "experts"), key, value) {
        json_object_foreach(value, name, part) count(&experts, part);
    }
    json_decref(root);
    free(path);
    if (!experts.n && !trunk.n) return;
    error_text(&experts, "experts", of_experts);
    error_text(&trunk, "rest", of_trunk);
    app_note("error: %s%s%s (relative RMS; conversion.json has every tensor's)", of_experts,
            experts.n && trunk.n ? ", " : "", of_trunk);
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

mf_status convert_run(const char *src, const char *dst, mf__convert_options *opt, const char *why, mf_error *err) {
    job j = {.why = why};
    char size[APP_BYTES_TEXT], before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    progress_start(&j.bar, "converting", NULL);
    opt->progress = show;
    opt->progress_user = &j;
    app_catch_interrupts();
    mf_status st = mf__convert(src, dst, opt, err);
    progress_end(&j.bar);
    if (st == MF_E_CANCELLED) app_say("stopped; %s was not written: %s", dst, err->text);
    if (st != MF_OK) return st;
    app_note("converted %s to %s (%s read) in %.1f s", src, dst, app_bytes((double)(j.total - j.bar.base), size),
            app_seconds() - j.bar.start);
    app_note("%s of weights became %s%s%s%s", app_bytes((double)j.total, before),
            app_bytes((double)app_dir_bytes(dst), after), *why ? " (" : "", why, *why ? ")" : "");
    say_error(dst);
    return MF_OK;
}

mf_status convert_show_plan(const char *src, const mf__convert_options *opt, const char *why, mf_error *err) {
    mf__outlook look;
    char before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    MF__TRY(mf__outlook_make(src, opt, &look, err));
    printf("%-18s %10s %10s  %s\n", "part", "before", "after", why);
    for (int i = 0; i < MF_OUTLOOK_PARTS; i++) {
        const mf__outlook_part *p = &look.parts[i];
        if (!p->before) continue;
        printf("%-18s %10s %10s  %s%s%s\n", p->name, app_bytes((double)p->before, before),
               app_bytes((double)p->after, after), p->from, strcmp(p->from, p->to) ? " to " : "",
               strcmp(p->from, p->to) ? p->to : ", kept");
    }
    printf("%-18s %10s %10s\n", "together", app_bytes((double)look.before, before),
           app_bytes((double)look.after, after));
    return MF_OK;
}
