/* moeflux list, rm and where: the folder of models from outside. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "models.h"

#define PARTIAL ".partial"   /* of a conversion */
#define DOWNLOAD ".download" /* of a pull */

/* ---- reading the folder ------------------------------------------------------------------------------------------- */

static json_t *read_json(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    json_t *root = path ? json_load_file(path, 0, NULL) : NULL;
    free(path);
    return root;
}

static void describe(model_entry *e) {
    json_t *config = read_json(e->path, "config.json"), *made = read_json(e->path, "conversion.json");
    json_t *origin = read_json(e->path, MODELS_ORIGIN);
    const char *family = json_string_value(json_object_get(config, "model_type"));
    const char *from = json_string_value(json_object_get(origin, "from"));
    const json_t *options = json_object_get(made, "options"), *experts = json_object_get(options, "experts");
    snprintf(e->family, sizeof e->family, "%s", family ? family : "");
    if (json_object_get(options, "gate"))
        snprintf(e->experts, sizeof e->experts, "mixed bits");
    else if (json_is_integer(experts))
        snprintf(e->experts, sizeof e->experts, "%d bits", (int)json_integer_value(experts));
    else if (json_is_string(experts))
        snprintf(e->experts, sizeof e->experts, "kept");
    e->from = from ? strdup(from) : NULL;
    e->bytes = app_dir_bytes(e->path);
    json_decref(config);
    json_decref(made);
    json_decref(origin);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const model_entry *)a)->name, ((const model_entry *)b)->name);
}

static mf_status add(model_entry **list, int *n, model_entry e, mf_error *err) {
    model_entry *grown = e.name && e.path ? realloc(*list, (size_t)(*n + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(e.name);
        free(e.path);
        return mf__fail(err, MF_E_NOMEM, "no memory for a list of models");
    }
    *list = grown;
    describe(&e);
    grown[(*n)++] = e;
    return MF_OK;
}

static mf_status read_folder(const char *folder, model_entry **list, int *n, mf_error *err) {
    DIR *d = opendir(folder);
    mf_status st = MF_OK;
    if (!d) return errno == ENOENT ? MF_OK : mf__fail_errno(err, errno, "cannot read %s", folder);
    for (struct dirent *e; st == MF_OK && (e = readdir(d));) {
        char *path = models_is_name(e->d_name) ? mf__path_join(folder, e->d_name) : NULL;
        bool unfinished = mf__text_ends_with(e->d_name, PARTIAL) || mf__text_ends_with(e->d_name, DOWNLOAD);
        if (path && (unfinished ? mf__path_is_dir(path) : models_is_native(path)))
            st = add(list, n, (model_entry){.name = strdup(e->d_name), .path = strdup(path), .unfinished = unfinished},
                     err);
        free(path);
    }
    closedir(d);
    return st;
}

mf_status models_list(const model_find *find, model_entry **out, int *n, mf_error *err) {
    char *folder, *shipped = NULL;
    *out = NULL;
    *n = 0;
    MF__TRY(models_folder(find->models, &folder, err));
    mf_status st = read_folder(folder, out, n, err);
    free(folder);
    if (st == MF_OK && *n) qsort(*out, (size_t)*n, sizeof **out, by_name);
    if (st == MF_OK && app_shipped_model(&shipped, NULL) == MF_OK) {
        const char *name = strrchr(shipped, '/') + 1;
        st = add(out, n, (model_entry){.name = strdup(name), .path = strdup(shipped), .shipped = true}, err);
        free(shipped);
    }
    if (st == MF_OK) return MF_OK;
    models_list_free(*out, *n);
    *out = NULL;
    *n = 0;
    return st;
}

void models_list_free(model_entry *list, int n) {
    for (int i = 0; i < n; i++) {
        free(list[i].name);
        free(list[i].path);
        free(list[i].from);
    }
    free(list);
}

/* ---- list --------------------------------------------------------------------------------------------------------- */

static json_t *entry_json(const model_entry *e) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s?, s:b, s:b}", "name", e->name, "path", e->path, "bytes",
                     (json_int_t)e->bytes, "family", e->family, "experts", e->experts, "from", e->from, "unfinished",
                     (int)e->unfinished, "comes_along", (int)e->shipped);
}

static mf_status print_json(const model_entry *list, int n, mf_error *err) {
    json_t *models = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(models, entry_json(&list[i]));
    json_t *root = json_pack("{s:o}", "models", models);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text) return mf__fail(err, MF_E_NOMEM, "no memory for the list");
    puts(text);
    free(text);
    return MF_OK;
}

static void print_table(const model_entry *list, int n) {
    int width = 4;
    for (int i = 0; i < n; i++) width = (int)strlen(list[i].name) > width ? (int)strlen(list[i].name) : width;
    printf("%-*s  %9s  %-8s  %-14s  %s\n", width, "NAME", "SIZE", "EXPERTS", "FAMILY", "FROM");
    for (int i = 0; i < n; i++) {
        const model_entry *e = &list[i];
        char size[APP_BYTES_TEXT];
        printf("%-*s  %9s  %-8s  %-14s  %s\n", width, e->name, app_bytes((double)e->bytes, size), e->experts, e->family,
               e->unfinished ? "(interrupted; the same command goes on, moeflux rm removes it)"
               : e->shipped  ? "(comes with moeflux)"
               : e->from     ? e->from
                             : "");
    }
}

int cmd_list(int argc, char **argv) {
    model_find find = {.lookup = true};
    bool json = false;
    opt_def defs[] = {
        {.name = "json", .kind = OPT_FLAG, .value = &json, .help = "print one JSON object"},
        {.name = "models",
         .kind = OPT_STRING,
         .value = &find.models,
         .arg = "DIR",
         .help = "where models with a name are (default: what moeflux where says)"},
    };
    opt_spec spec = {
        .usage = "list [options]",
        .about = "Lists the models that have a name. Every command takes such a name, and as well the path of a model\n"
                 "directory, of a checkpoint or of a GGUF file.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .examples = "  moeflux list\n  moeflux list --json\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    model_entry *list;
    int n;
    mf_error err;
    mf_status st = models_list(&find, &list, &n, &err);
    if (st == MF_OK && json)
        st = print_json(list, n, &err);
    else if (st == MF_OK)
        print_table(list, n);
    models_list_free(list, n);
    return st == MF_OK ? APP_OK : app_fail(&err);
}

/* ---- rm ----------------------------------------------------------------------------------------------------------- */

/* A link into the folder is taken away, what it points to stays. */
static mf_status remove_entry(const model_entry *e, mf_error *err) {
    struct stat s;
    if (!lstat(e->path, &s) && S_ISLNK(s.st_mode))
        return unlink(e->path) ? mf__fail_errno(err, errno, "cannot remove %s", e->path) : MF_OK;
    return mf__dir_remove(e->path, err);
}

static mf_status remove_named(const model_find *find, const char *name, bool yes, mf_error *err) {
    model_entry *list, *found = NULL;
    int n;
    char size[APP_BYTES_TEXT];
    MF__TRY(models_list(find, &list, &n, err));
    for (int i = 0; i < n && !found; i++)
        if (!strcmp(list[i].name, name)) found = &list[i];
    mf_status st = MF_OK;
    if (!found)
        st = mf__fail(err, MF_E_NOT_FOUND,
                      "no model is called %s (rm takes names, not paths); moeflux list shows those that are there",
                      name);
    else if (found->shipped)
        st = mf__fail(err, MF_E_INVALID, "%s comes with moeflux, in %s: it is not removed", name, found->path);
    else if (!yes && !app_can_ask())
        st = mf__fail(err, MF_E_INVALID, "--yes is missing: nobody can be asked whether %s (%s) may be removed", name,
                      app_bytes((double)found->bytes, size));
    else if (!yes && !app_ask(false, "Remove %s, %s?", found->path, app_bytes((double)found->bytes, size)))
        st = mf__fail(err, MF_E_CANCELLED, "%s stays", name);
    if (st == MF_OK) st = remove_entry(found, err);
    if (st == MF_OK) app_note("removed %s, %s", found->path, app_bytes((double)found->bytes, size));
    models_list_free(list, n);
    return st;
}

int cmd_rm(int argc, char **argv) {
    model_find find = {.lookup = true};
    bool yes = false;
    opt_def defs[] = {
        {.name = "yes", .letter = 'y', .kind = OPT_FLAG, .value = &yes, .help = "do not ask"},
        {.name = "models",
         .kind = OPT_STRING,
         .value = &find.models,
         .arg = "DIR",
         .help = "where models with a name are (default: what moeflux where says)"},
    };
    opt_spec spec = {
        .usage = "rm NAME... [options]",
        .about = "Removes models that have a name, and what interrupted conversions left (NAME.partial). Checkpoints\n"
                 "elsewhere that they were made from are never touched.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = OPT_MAX_WORDS,
        .examples = "  moeflux rm qwen\n  moeflux rm qwen --yes\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    mf_error err;
    for (int i = 0; i < OPT_MAX_WORDS && words[i]; i++) {
        mf_status st = remove_named(&find, words[i], yes, &err);
        if (st == MF_E_CANCELLED) app_say("%s", err.text);
        if (st == MF_E_CANCELLED) return APP_FAILED;
        if (st != MF_OK) return app_fail(&err);
    }
    return APP_OK;
}

/* ---- where -------------------------------------------------------------------------------------------------------- */

int cmd_where(int argc, char **argv) {
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "models",
         .kind = OPT_STRING,
         .value = &find.models,
         .arg = "DIR",
         .help = "the folder, instead of the usual one"},
    };
    opt_spec spec = {
        .usage = "where [NAME] [options]",
        .about = "Prints the folder where models are kept: --models, or MOEFLUX_MODELS of the environment, or\n"
                 "moeflux/models in the user's data directory. With a NAME, the directory of that model.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .max_words = 1,
        .examples = "  moeflux where\n  du -h \"$(moeflux where qwen)\"\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *path = NULL;
    mf_error err;
    mf_status st = words[0] ? models_find(&find, words[0], &path, &err) : models_folder(find.models, &path, &err);
    if (st == MF_OK) puts(path);
    free(path);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
