/* Models by name. They live in one folder (--models, $MOEFLUX_MODELS, or moeflux/models in the user's data directory);
 * whatever else a command is given as a model, a directory, a checkpoint or a GGUF file, becomes a model directory
 * here: what needs converting is converted once, into that folder. */
#ifndef MOEFLUX_MODELS_H
#define MOEFLUX_MODELS_H

#include "app.h"
#include "options.h"

/* The rows --model, --models and --convert; --convert is left out where `lookup` says that nothing is run. */
#define OPT_FIND_ROWS(f)                                                                                               \
    { .name = "find", .kind = OPT_GROUP, .value = &(f), .group = models_rows }
int models_rows(void *model_find, opt_def *rows);

/* Where models are, malloc'd; it need not exist. */
mf_status models_folder(const char *given, char **out, mf_error *err);

/* What `word` names, as a path (malloc'd): the path itself where something is there, else the model of that name, else
 * the one that comes along. */
mf_status models_find(const model_find *find, const char *word, char **path, mf_error *err);

/* The same as a model directory that can be opened: a checkpoint or a GGUF file is converted first, if it was not
 * before. On a terminal that is asked, elsewhere --convert must say so. No word: the model that comes along. */
mf_status models_ready(const model_find *find, const char *word, char **dir, mf_error *err);

/* What stands in the folder besides the weights: where a model came from. */
#define MODELS_ORIGIN "origin.json"
mf_status models_note_origin(const char *dir, const char *from, const char *stamp, mf_error *err);

typedef struct model_entry {
    char *name, *path;
    char *from;       /* NULL: not known */
    char family[64];  /* model_type of its config.json; "" when there is none */
    char experts[16]; /* "4 bits", "kept", "" */
    int64_t bytes;    /* on disk */
    bool unfinished;  /* a conversion that was interrupted */
    bool shipped;     /* comes with moeflux */
} model_entry;

/* All of the folder, by name, and the one that comes along. */
mf_status models_list(const model_find *find, model_entry **out, int *n, mf_error *err);
void models_list_free(model_entry *list, int n);

bool models_is_name(const char *text);   /* a plain name: no slash, no dot in front */
bool models_is_native(const char *path); /* a directory with a manifest */
bool models_is_source(const char *path); /* a checkpoint or a GGUF file */

#endif
