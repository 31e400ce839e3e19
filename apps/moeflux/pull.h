/* The state of `moeflux pull`: pull.c chooses files and gets the small ones, pull_convert.c converts while the large
 * ones come. */
#ifndef MOEFLUX_PULL_H
#define MOEFLUX_PULL_H

#include "hub.h"
#include "options.h"
#include "progress.h"

typedef enum pull_kind { PULL_NATIVE, PULL_CHECKPOINT, PULL_GGUF } pull_kind;

/* One file of the repository that is wanted. */
typedef struct pull_item {
    const hub_file *file;
    const char *local; /* its name in the work folder: the path there, or its last part */
    bool weights;      /* comes while it is converted; all others come first */
    int id;            /* of the fetch at hand */
    int64_t head;      /* bytes at the beginning that were read before the rest, and are kept to the end */
    uint64_t head_hash;
    bool checked; /* the head is still what it was when the whole file had come */
} pull_item;

typedef struct pull_options {
    model_find find;
    const char *endpoint, *token_file, *file, *name, *preset;
    bool allow_http, restart, dry, keep;
    int64_t connections;
} pull_options;

typedef struct pull {
    const pull_options *opt;
    fetch_options net;
    fetch *fetch;
    hub_repo repo;
    pull_kind kind;
    pull_item *items;
    int n_items;
    char *name, *dir;   /* the model's, in the end */
    char *work, *state; /* NAME.download, and in it what is known about each file */
    int lock;
    char identity[400]; /* ORG/NAME@COMMIT */
    progress bar;
    bool shown;            /* the bar has begun */
    bool here;             /* an interrupted run had finished all but its tidying up */
    bool fresh;            /* no earlier run left anything */
    _Atomic int converted; /* per cent */
} pull;

/* The rows --file, --endpoint, --token-file and --allow-http; the value is a pull_options. */
int pull_hub_rows(void *options, opt_def *rows);

mf_status pull_path(const char *dir, const char *name, const char *ending, char **out, mf_error *err);
/* --token-file, HF_TOKEN, or where other programs leave it. malloc'd; *out NULL: none. */
mf_status pull_token(const pull_options *o, char **out, mf_error *err);
/* Asks the hub about ORG/NAME[@REV], and chooses of its files. */
mf_status pull_connect(pull *p, const char *word, mf_error *err);
/* All that is no weights, into the work folder. */
mf_status pull_small(pull *p, mf_error *err);
/* Where there is an index: the shards that it names become items, each once. */
mf_status pull_shards(pull *p, mf_error *err);
/* The table of tensors of every file of weights, in files of full size with nothing behind it; what convert would take,
 * malloc'd. */
mf_status pull_heads(pull *p, char **source, mf_error *err);
/* A file of that size, its first bytes being those, with nothing behind them. */
mf_status pull_write_head(const char *path, int64_t size, const mf__strbuf *head, mf_error *err);
/* Adds the item to a fetch; its bytes go into the work folder. */
mf_status pull_add(pull *p, fetch *f, pull_item *item, mf_error *err);
/* The weights, converted as they come; the model directory is complete afterwards. */
mf_status pull_convert(pull *p, mf_error *err);
void pull_close(pull *p); /* but for the token */

/* A model on a hub as inspect wants it: a folder with its config, and files of weights that have their tables and
 * nothing else. */
typedef struct pull_view {
    char *source;       /* what can be surveyed */
    char *folder;       /* it lies here; gone after pull_view_close */
    char identity[400]; /* ORG/NAME@COMMIT */
} pull_view;

bool pull_is_name(const char *word); /* looks like ORG/NAME, perhaps with a revision */
mf_status pull_look(const pull_options *o, const char *word, pull_view *out, mf_error *err);
void pull_view_close(pull_view *v);

#endif
