/* moeflux tune: one measurement, and what they all share. */
#ifndef MOEFLUX_TUNE_H
#define MOEFLUX_TUNE_H

#include "losses.h"
#include "lossy.h"

/* Documents as tokens; each is decoded alone, token by token. */
typedef struct tune_text {
    int32_t *ids;    /* all of them, one after the other */
    int64_t *starts; /* [n_docs + 1] */
    int64_t n_docs, n_ids;
    int64_t n_scored; /* tokens that are predicted: all but the first of each document */
} tune_text;

mf_status tune_text_read(const char *dir, const char *file, int64_t n_tokens, int64_t per_doc, tune_text *out,
                         mf_error *err);
void tune_text_free(tune_text *t);

/* Ends of the parts of the text, in tokens that are predicted: the first fills the cache, the second compares settings,
 * the rest says what the chosen one costs. */
typedef struct tune_parts {
    int64_t n_warm, n_choose, n;
} tune_parts;

/* One setting, measured. */
typedef struct tune_point {
    mf_lossy lossy;
    losses nll;
    double bytes, tokens_s; /* read per token, and how many a second: of the tokens that compare */
    double rest_bytes;      /* ... of the rest, if it was decoded */
    int64_t evictions;      /* ... experts that had to go since the first part of the text */
    mf_stats stats;
    estimate loss; /* against exact, of the tokens that compare */
    char model[TUNED_MODEL];
} tune_point;

/* Decodes the text with the point's setting in a model opened for it, with an empty cache; whole: with the rest. */
mf_status tune_measure(const char *dir, const app_model_options *model, const tune_text *text, const tune_parts *parts,
                       bool whole, tune_point *point, mf_error *err);

#endif
