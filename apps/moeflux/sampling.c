/* How tokens are chosen: options, the model's own defaults, and what a reply needs of them. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app.h"
#include "base/file.h"

static uint64_t seed_from_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + ((uint64_t)getpid() << 40);
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    return (x ^ (x >> 29)) % 1000000000u; /* short enough to be typed again */
}

void sampling_init(sampling_options *s, int64_t n_tokens) {
    *s = (sampling_options){.n_tokens = n_tokens,
                            .temperature = 0.8,
                            .top_p = 0.95,
                            .typical = 1,
                            .repetition = 1,
                            .seed = seed_from_clock()};
}

int sampling_rows(void *sampling_options_, opt_def *rows) {
    sampling_options *s = sampling_options_;
    const opt_def all[] = {
        {.name = "tokens",
         .letter = 'n',
         .kind = OPT_INT,
         .value = &s->n_tokens,
         .arg = "N",
         .help = "most tokens to generate",
         .max = 1 << 30},
        {.name = "temperature",
         .kind = OPT_REAL,
         .value = &s->temperature,
         .arg = "T",
         .help = "0 takes the likeliest token (default: the model's, else 0.8)",
         .max = 100,
         .given = &s->temperature_given},
        {.name = "top-k",
         .kind = OPT_INT,
         .value = &s->top_k,
         .arg = "K",
         .help = "only the K likeliest tokens; 0 is off (default: the model's)",
         .max = 1 << 24,
         .given = &s->top_k_given},
        {.name = "top-p",
         .kind = OPT_REAL,
         .value = &s->top_p,
         .arg = "P",
         .help = "only the likeliest tokens that make up P (default: the model's, else 0.95)",
         .max = 1,
         .given = &s->top_p_given},
        {.name = "min-p",
         .kind = OPT_REAL,
         .value = &s->min_p,
         .arg = "P",
         .help = "only tokens at least P times as likely as the likeliest; 0 is off",
         .max = 1,
         .given = &s->min_p_given},
        {.name = "typical",
         .kind = OPT_REAL,
         .value = &s->typical,
         .arg = "P",
         .help = "only the most typical tokens that make up P; 1 is off",
         .max = 1,
         .given = &s->typical_given},
        {.name = "repetition-penalty",
         .kind = OPT_REAL,
         .value = &s->repetition,
         .arg = "X",
         .help = "above 1: tokens said before are less likely; 1 is off",
         .min = 0.01,
         .max = 100,
         .given = &s->repetition_given},
        {.name = "frequency-penalty",
         .kind = OPT_REAL,
         .value = &s->frequency,
         .arg = "X",
         .help = "taken from a token's logit for each time it was said",
         .min = -100,
         .max = 100},
        {.name = "presence-penalty",
         .kind = OPT_REAL,
         .value = &s->presence,
         .arg = "X",
         .help = "taken from a token's logit once it was said",
         .min = -100,
         .max = 100},
        {.name = "penalty-window",
         .kind = OPT_INT,
         .value = &s->window,
         .arg = "N",
         .help = "penalties look at the last N tokens (default: the whole answer)",
         .max = 1 << 24},
        {.name = "logit-bias",
         .kind = OPT_LIST,
         .value = &s->bias,
         .arg = "ID:X",
         .help = "add X to a token's logit; -inf forbids it (repeatable)"},
        {.name = "seed",
         .kind = OPT_SEED,
         .value = &s->seed,
         .arg = "S",
         .help = "same seed, same text (default: from the clock)",
         .given = &s->seed_given},
        {.name = "stop",
         .kind = OPT_LIST,
         .value = &s->stop,
         .arg = "TEXT",
         .help = "end the answer before TEXT (repeatable)"},
        {.name = "json-schema",
         .kind = OPT_STRING,
         .value = &s->schema,
         .arg = "FILE",
         .help = "the answer is JSON that is valid for this schema"},
        {.name = "json-object",
         .kind = OPT_FLAG,
         .value = &s->any_json,
         .help = "the answer is a JSON object or array"},
        {.name = "regex",
         .kind = OPT_STRING,
         .value = &s->regex,
         .arg = "PATTERN",
         .help = "the answer as a whole matches this regular expression"},
        {.name = "grammar",
         .kind = OPT_STRING,
         .value = &s->grammar,
         .arg = "FILE",
         .help = "the answer follows these rules: root ::= ..."},
    };
    memcpy(rows, all, sizeof all);
    return (int)MF__COUNT(all);
}

/* ---- the model's defaults ---------------------------------------------------------------------------------------- */

mf_status sampling_finish(sampling_options *s, const char *dir, mf_error *err) {
    mf_sampler_options o = {.temperature = (float)s->temperature,
                            .top_k = (int)s->top_k,
                            .top_p = (float)s->top_p,
                            .min_p = (float)s->min_p,
                            .typical_p = (float)s->typical,
                            .repetition_penalty = (float)s->repetition};
    MF__TRY(mf_sampler_options_load(&o, dir, err));
    if (!s->temperature_given) s->temperature = (double)o.temperature;
    if (!s->top_k_given) s->top_k = o.top_k;
    if (!s->top_p_given) s->top_p = (double)o.top_p;
    if (!s->min_p_given) s->min_p = (double)o.min_p;
    if (!s->typical_given) s->typical = (double)o.typical_p;
    if (!s->repetition_given) s->repetition = (double)o.repetition_penalty;
    return MF_OK;
}

/* ---- samplers ---------------------------------------------------------------------------------------------------- */

static mf_status read_bias(const char *text, int32_t n_vocab, mf_logit_bias *out, mf_error *err) {
    char *end;
    long id = strtol(text, &end, 10);
    const char *number = *end == ':' ? end + 1 : "";
    double bias = strtod(number, &end);
    if (!*number || *end || isnan(bias) || id < 0 || id >= n_vocab)
        return mf__fail(err, MF_E_INVALID, "--logit-bias is \"%s\"; expected ID:NUMBER with an id from 0 to %d", text,
                        n_vocab - 1);
    *out = (mf_logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return MF_OK;
}

mf_status sampling_apply(const sampling_options *s, int32_t n_vocab, uint64_t seed, mf_logit_bias room[APP_MAX_LIST],
                         mf_reply_options *out, mf_error *err) {
    for (int i = 0; i < s->bias.n; i++) MF__TRY(read_bias(s->bias.items[i], n_vocab, &room[i], err));
    mf_sampler_options_init(&out->sampling);
    out->sampling.temperature = (float)s->temperature;
    out->sampling.top_k = (int)s->top_k;
    out->sampling.top_p = (float)s->top_p;
    out->sampling.min_p = (float)s->min_p;
    out->sampling.typical_p = (float)s->typical;
    out->sampling.repetition_penalty = (float)s->repetition;
    out->sampling.frequency_penalty = (float)s->frequency;
    out->sampling.presence_penalty = (float)s->presence;
    out->sampling.penalty_window = (int)s->window;
    out->sampling.seed = seed;
    out->sampling.bias = room;
    out->sampling.n_bias = s->bias.n;
    out->max_tokens = s->n_tokens;
    out->stops = s->stop.items;
    out->n_stops = s->stop.n;
    return MF_OK;
}

/* ---- what the answer must be like -------------------------------------------------------------------------------- */

static mf_status form_of_file(mf_form_kind kind, const char *path, mf_form **out, mf_error *err) {
    char *text;
    size_t size;
    MF__TRY(mf__file_read(path, (size_t)16 << 20, &text, &size, err));
    mf_status st = mf_form_create(kind, text, size, out, err);
    free(text);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "%s", path);
}

mf_status sampling_form(const sampling_options *s, mf_form **out, mf_error *err) {
    *out = NULL;
    for (int i = 0; i < s->stop.n; i++)
        if (!*s->stop.items[i])
            return mf__fail(err, MF_E_INVALID, "--stop '' would end nothing: give the text that ends the answer");
    if ((s->schema != NULL) + (s->grammar != NULL) + (s->regex != NULL) + s->any_json > 1)
        return mf__fail(err, MF_E_INVALID, "--json-schema, --json-object, --regex and --grammar exclude each other");
    if (s->schema) return form_of_file(MF_FORM_SCHEMA, s->schema, out, err);
    if (s->grammar) return form_of_file(MF_FORM_GRAMMAR, s->grammar, out, err);
    if (s->any_json) return mf_form_create(MF_FORM_JSON, NULL, 0, out, err);
    if (!s->regex) return MF_OK;
    mf_status st = mf_form_create(MF_FORM_REGEX, s->regex, strlen(s->regex), out, err);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "--regex");
}
