/* Reading less at a loss: the settings of mf_lossy on command lines, and the file in which tune leaves what it found.
 */
#ifndef MOEFLUX_LOSSY_H
#define MOEFLUX_LOSSY_H

#include "app.h"

#define LOSSY_TEXT 160
#define TUNED_NAME "tuned.json"
#define TUNED_MODEL 128

/* "bonus=0.5,protect=2": the names of mf_lossy, with - for _; those that are not there are 0. */
mf_status lossy_parse(const char *text, mf_lossy *out, mf_error *err);
const char *lossy_text(const mf_lossy *lossy, char text[LOSSY_TEXT]); /* the same; "exact" where nothing is set */
bool lossy_any(const mf_lossy *lossy);

/* What tune found, beside the model. */
typedef struct tuned {
    mf_lossy lossy;
    double loss, error;      /* nats per token more than exact, and the standard error of that */
    double bytes, exact;     /* read per token, and without loss */
    int64_t n_tokens, ram;   /* it was measured with; ram 0: what was free */
    char text[128];          /* the name of the file */
    char model[TUNED_MODEL]; /* it was measured with, by its sizes; "": of an earlier version, which did not say */
} tuned;

const char *tuned_model(const mf_model_info *info, char text[TUNED_MODEL]);

mf_status tuned_read(const char *dir, tuned *out, mf_error *err);
mf_status tuned_write(const char *dir, const tuned *t, mf_error *err);

#endif
