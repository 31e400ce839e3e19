/* How tokens are chosen: options, the model's own defaults, samplers and grammars made from them. */
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

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
         .max = 1 << 30},
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
        {.name = "json", .kind = OPT_FLAG, .value = &s->any_json, .help = "the answer is a JSON object or array"},
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

static mf_status number_of(const json_t *root, const char *path, const char *key, double max, bool given, double *value,
                           mf_error *err) {
    return given ? MF_OK : mf__json_opt_double(root, path, key, 0, max, *value, value, err);
}

static mf_status read_defaults(sampling_options *s, const json_t *root, const char *path, mf_error *err) {
    bool sample;
    MF__TRY(mf__json_opt_bool(root, path, "do_sample", true, &sample, err));
    MF__TRY(number_of(root, path, "temperature", 100, s->temperature_given, &s->temperature, err));
    if (!sample && !s->temperature_given) s->temperature = 0;
    MF__TRY(number_of(root, path, "top_p", 1, s->top_p_given, &s->top_p, err));
    MF__TRY(number_of(root, path, "min_p", 1, s->min_p_given, &s->min_p, err));
    MF__TRY(number_of(root, path, "typical_p", 1, s->typical_given, &s->typical, err));
    MF__TRY(number_of(root, path, "repetition_penalty", 100, s->repetition_given, &s->repetition, err));
    return s->top_k_given ? MF_OK : mf__json_opt_int(root, path, "top_k", 0, 1 << 24, s->top_k, &s->top_k, err);
}

mf_status sampling_finish(sampling_options *s, const char *dir, mf_error *err) {
    char *path = mf__path_join(dir, "generation_config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    json_t *root = NULL;
    mf_status st = mf__path_exists(path) ? mf__json_read(path, 1 << 20, &root, err) : MF_OK;
    if (root) st = read_defaults(s, root, path, err);
    json_decref(root);
    free(path);
    return st;
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

mf_status sampling_make(const sampling_options *s, int32_t n_vocab, uint64_t seed, mf_sampler **out, mf_error *err) {
    mf_logit_bias bias[APP_MAX_LIST];
    mf_sampler_options so;
    for (int i = 0; i < s->bias.n; i++) MF__TRY(read_bias(s->bias.items[i], n_vocab, &bias[i], err));
    mf_sampler_options_init(&so);
    so.temperature = (float)s->temperature;
    so.top_k = (int)s->top_k;
    so.top_p = (float)s->top_p;
    so.min_p = (float)s->min_p;
    so.typical_p = (float)s->typical;
    so.repetition_penalty = (float)s->repetition;
    so.frequency_penalty = (float)s->frequency;
    so.presence_penalty = (float)s->presence;
    so.penalty_window = (int)s->window;
    so.seed = seed;
    so.bias = bias;
    so.n_bias = s->bias.n;
    return mf_sampler_create(&so, n_vocab, out, err);
}

/* ---- what the answer must be like -------------------------------------------------------------------------------- */

static mf_status from_schema(const char *path, mf__grammar **out, mf_error *err) {
    json_t *schema;
    MF__TRY(mf__json_read(path, (size_t)16 << 20, &schema, err));
    mf_status st = mf__grammar_from_schema(schema, out, err);
    json_decref(schema);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "%s", path);
}

static mf_status from_rules(const char *path, mf__grammar **out, mf_error *err) {
    char *text;
    size_t size;
    MF__TRY(mf__file_read(path, (size_t)16 << 20, &text, &size, err));
    mf_status st = mf__grammar_from_rules(text, size, out, err);
    free(text);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "%s", path);
}

mf_status sampling_grammar(const sampling_options *s, mf__grammar **out, mf_error *err) {
    *out = NULL;
    if ((s->schema != NULL) + (s->grammar != NULL) + (s->regex != NULL) + s->any_json > 1)
        return mf__fail(err, MF_E_INVALID, "only one of --json-schema, --json, --regex and --grammar can be given");
    if (s->schema) return from_schema(s->schema, out, err);
    if (s->grammar) return from_rules(s->grammar, out, err);
    if (s->any_json) return mf__grammar_any_json(out, err);
    if (!s->regex) return MF_OK;
    mf_status st = mf__grammar_from_regex(s->regex, strlen(s->regex), out, err);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "--regex");
}
