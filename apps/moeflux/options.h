/* Command lines: `--name value`, `--name=value`, flags, and words. */
#ifndef MOEFLUX_OPTIONS_H
#define MOEFLUX_OPTIONS_H

#include "app.h"

typedef enum opt_kind {
    OPT_FLAG,   /* bool */
    OPT_STRING, /* const char * */
    OPT_INT,    /* int64_t in [min, max] */
    OPT_COUNT,  /* the same, also written 64K or 1M */
    OPT_REAL,   /* double in [min, max] */
    OPT_SEED,   /* uint64_t */
    OPT_BITS,   /* int64_t: one of 2 3 4 5 6 8, or 0 for "keep" */
    OPT_SIZE,   /* int64_t bytes, written 6G, 512M, 1.5T or 123456 */
    OPT_CHOICE, /* int: the place of the word in `choices` */
    OPT_LIST,   /* opt_list: the option may be given several times */
    OPT_WORD,   /* const char *: the first word of the command line, by name */
    OPT_GROUP,  /* stands for the rows that `group` makes for value, but for names that earlier rows have */
} opt_kind;

typedef struct opt_def {
    const char *name; /* without the dashes */
    char letter;      /* also -n; 0: none */
    opt_kind kind;
    void *value;      /* where it goes, of the kind's type; keeps its default unless the option is given */
    const char *arg;  /* what the help calls the value */
    const char *help; /* one line */
    double min, max;
    bool or_zero;                                    /* OPT_SIZE: 0 is a value */
    bool *given;                                     /* set to true when the option is there; may be NULL */
    const char *const *choices;                      /* OPT_CHOICE: words, NULL ends */
    bool *alone;                                     /* OPT_CHOICE: set when no such word follows; NULL: one must */
    int (*group)(void *value, struct opt_def *rows); /* fills rows, returns how many */
} opt_def;

typedef struct opt_spec {
    const char *usage; /* "run [DIR] [options]" */
    const char *about; /* a paragraph */
    const opt_def *defs;
    int n_defs;
    int min_words, max_words; /* positional arguments */
    const char *examples;     /* lines */
} opt_spec;

typedef enum opt_result { OPT_DONE = 0, OPT_HELP, OPT_BAD } opt_result;

#define OPT_MAX_WORDS 4
#define OPT_MAX_ROWS 64

/* Fills the targets and words. OPT_HELP: the help was asked for and printed. OPT_BAD: said what is wrong. */
opt_result opt_parse(const opt_spec *spec, int argc, char **argv, const char *words[OPT_MAX_WORDS]);

/* Sets one of the rows of a group by name, as the command line would. OPT_BAD: said what is wrong. */
opt_result opt_set(const opt_def *group, const char *name, const char *value);

/* The nearest of n names by edit distance, or NULL when none is near. */
const char *opt_nearest(const char *name, const char *const *names, int n);

/* The options that all evaluating commands have; m is an app_model_options. */
#define OPT_MODEL_ROWS(m)                                                                                              \
    { .name = "model", .kind = OPT_GROUP, .value = &(m), .group = app_model_rows }
int app_model_rows(void *model_options, opt_def *rows);

/* For the exit code of a command: help is fine, anything else is wrong usage. */
static inline int opt_exit(opt_result r) {
    return r == OPT_HELP ? APP_OK : APP_USAGE;
}

#endif
