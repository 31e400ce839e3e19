/* Models by name: the folder they live in, and the way from what somebody typed to a directory that can be opened.
 *
 *   a path where something is        that
 *   a name                           FOLDER/NAME, or the model that comes along
 *   a checkpoint or a GGUF file      FOLDER/ITS_NAME, converted once; origin.json there says from what */
#include "models.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "convert/outlook.h"
#include "convert_run.h"
#include "weights/gguf.h"

#define MANIFEST "model_weights.json"
#define FOLDER_VARIABLE "MOEFLUX_MODELS"

int models_rows(void *model_find_, opt_def *rows) {
    model_find *f = model_find_;
    const opt_def all[] = {
        {.name = "model",
         .letter = 'm',
         .kind = OPT_WORD,
         .value = &f->model,
         .arg = "MODEL",
         .help = "the model, instead of the first word"},
        {.name = "models",
         .kind = OPT_STRING,
         .value = &f->models,
         .arg = "DIR",
         .help = "where models with a name are (default: what moeflux where says)"},
        {.name = "convert",
         .kind = OPT_FLAG,
         .value = &f->convert,
         .help = "convert a checkpoint or a GGUF file without asking, if it was not before"},
    };
    int n = (int)MF__COUNT(all) - f->lookup;
    memcpy(rows, all, (size_t)n * sizeof *all);
    return n;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

mf_status models_folder(const char *given, char **out, mf_error *err) {
    const char *variable = getenv(FOLDER_VARIABLE);
    if (given && !*given) return mf__fail(err, MF_E_INVALID, "--models is \"\"; expected the name of a directory");
    *out = given                   ? strdup(given)
           : variable && *variable ? strdup(variable)
                                   : app_user_path("XDG_DATA_HOME", ".local/share", "models");
    if (*out) return MF_OK;
    return mf__fail(err, MF_E_NOT_FOUND,
                    "no folder for models: neither --models nor " FOLDER_VARIABLE
                    " nor XDG_DATA_HOME nor HOME says where");
}

bool models_is_name(const char *text) {
    return *text && *text != '.' && *text != '-' && !strchr(text, '/') && strlen(text) < 200;
}

bool models_is_native(const char *path) {
    return app_has_file(path, MANIFEST);
}

bool models_is_source(const char *path) {
    if (!mf__path_is_dir(path)) return mf__gguf_is(path);
    return app_has_file(path, "config.json") &&
           (app_has_file(path, "model.safetensors") || app_has_file(path, "model.safetensors.index.json"));
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The model that comes along, if it is called so; NULL: no. */
static char *shipped_as(const char *name) {
    char *path;
    if (app_shipped_model(&path, NULL) != MF_OK) return NULL;
    if (!strcmp(last_part(path), name)) return path;
    free(path);
    return NULL;
}

/* FOLDER/NAME, if that is a model. */
static char *in_folder(const char *folder, const char *name) {
    char *path = models_is_name(name) ? mf__path_join(folder, name) : NULL;
    if (path && models_is_native(path)) return path;
    free(path);
    return NULL;
}

/* No such name: the nearest one, and what to do. */
static mf_status no_such(const model_find *find, const char *word, const char *folder, mf_error *err) {
    model_entry *list = NULL;
    int n = 0;
    const char *names[256], *near = NULL;
    if (models_is_name(word) && models_list(find, &list, &n, NULL) == MF_OK) {
        int n_names = 0;
        for (int i = 0; i < n && n_names < (int)MF__COUNT(names); i++) names[n_names++] = list[i].name;
        near = opt_nearest(word, names, n_names);
    }
    mf_status st =
        near ? mf__fail(err, MF_E_NOT_FOUND, "%s does not exist, and no model is called so; did you mean %s?", word,
                        near)
             : mf__fail(err, MF_E_NOT_FOUND,
                        "%s does not exist, and no model in %s is called so; moeflux list shows those that are there",
                        word, folder);
    models_list_free(list, n);
    return st;
}

mf_status models_find(const model_find *find, const char *word, char **path, mf_error *err) {
    char *folder = NULL;
    *path = NULL;
    if (!word) return app_shipped_model(path, err);
    bool there = mf__path_exists(word);
    if (!there || !models_is_name(word) || (!models_is_native(word) && !models_is_source(word))) {
        if (find->models || !there) MF__TRY(models_folder(find->models, &folder, err));
        if (folder) *path = in_folder(folder, word);
        if (!*path && !there) *path = shipped_as(word);
    }
    mf_status st = MF_OK;
    if (!*path && !there)
        st = no_such(find, word, folder, err);
    else if (!*path)
        *path = strdup(word);
    free(folder);
    return st != MF_OK || *path ? st : mf__fail(err, MF_E_NOMEM, "no memory for a path");
}

/* ---- where a model came from -------------------------------------------------------------------------------------- */

mf_status models_note_origin(const char *dir, const char *from, const char *stamp, mf_error *err) {
    char *path = mf__path_join(dir, MODELS_ORIGIN);
    json_t *root = json_pack("{s:s, s:s}", "from", from, "stamp", stamp);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    mf_status st = path && text ? mf__file_replace(path, text, strlen(text), err)
                                : mf__fail(err, MF_E_NOMEM, "no memory for %s", MODELS_ORIGIN);
    free(text);
    json_decref(root);
    free(path);
    return st;
}

/* Changes when the files of a source do: sizes and times of what names them. */
static void stamp_of(const char *source, char text[64]) {
    static const char *const files[] = {"", "config.json", "model.safetensors", "model.safetensors.index.json"};
    unsigned long long size = 0, time = 0;
    for (size_t i = 0; i < MF__COUNT(files); i++) {
        struct stat s;
        char *path = *files[i] ? mf__path_join(source, files[i]) : strdup(source);
        if (path && !stat(path, &s) && S_ISREG(s.st_mode)) {
            size += (unsigned long long)s.st_size;
            time = time * 31 + (unsigned long long)s.st_mtime;
        }
        free(path);
    }
    snprintf(text, 64, "%llu-%llu", size, time);
}

/* What a source would be called: its directory's or file's name, without .gguf and the number of a part. */
static char *name_of(const char *source) {
    char *name = strdup(last_part(source)), *part;
    if (!name) return NULL;
    size_t n = strlen(name);
    if (n > 5 && !strcmp(name + n - 5, ".gguf")) name[n - 5] = '\0';
    if ((part = strstr(name, "-00001-of-"))) *part = '\0';
    return name;
}

/* ---- converting what needs it -------------------------------------------------------------------------------------- */

/* True when dir was made from this source as it is now; an error when it is something else. */
static mf_status made_of(const char *dir, const char *source, const char *stamp, bool *same, mf_error *err) {
    char *path = mf__path_join(dir, MODELS_ORIGIN);
    json_t *root = path ? json_load_file(path, 0, NULL) : NULL;
    const char *from = json_string_value(json_object_get(root, "from"));
    const char *then = json_string_value(json_object_get(root, "stamp"));
    mf_status st = MF_OK;
    *same = from && then && !strcmp(from, source) && !strcmp(then, stamp);
    if (!*same && from && !strcmp(from, source))
        st = mf__fail(err, MF_E_EXISTS,
                      "%s has changed since it was converted to %s; to convert it again: moeflux rm %s", source, dir,
                      last_part(dir));
    else if (!*same)
        st = mf__fail(err, MF_E_EXISTS,
                      "%s would be converted to %s, where another model is%s%s; moeflux convert takes any name", source,
                      dir, from ? ", from " : "", from ? from : "");
    json_decref(root);
    free(path);
    return st;
}

/* What --convert, or a question, says; leaves the options of the conversion in opt. */
static mf_status agree(const model_find *find, const char *source, const char *dir, mf__convert_options *opt,
                       char why[64], mf_error *err) {
    const char *preset;
    mf__outlook look;
    char before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    MF__TRY(mf__outlook_recommend(source, opt, &preset, err));
    MF__TRY(mf__outlook_make(source, opt, &look, err));
    snprintf(why, 64, "preset %s", preset);
    app_bytes((double)look.before, before);
    app_bytes((double)look.after, after);
    if (find->convert) return MF_OK;
    if (!app_can_ask())
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s has not been converted; --convert does it once (%s to %s, in %s), or first run: moeflux "
                        "convert %s NEW_DIR",
                        source, before, after, dir, source);
    if (app_ask(true, "%s is not converted yet. Convert it once to %s, preset %s, %s to %s?", source, dir, preset,
                before, after))
        return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s was not converted", source);
}

static mf_status convert_to(const model_find *find, const char *source, const char *folder, const char *dir,
                            mf_error *err) {
    mf__convert_options opt;
    char stamp[64], why[64];
    bool same;
    stamp_of(source, stamp);
    if (models_is_native(dir)) return made_of(dir, source, stamp, &same, err);
    mf__convert_options_init(&opt);
    opt.log = app_log(false);
    MF__TRY(agree(find, source, dir, &opt, why, err));
    if (!app_make_folders(folder)) return mf__fail(err, MF_E_IO, "the folder for models, %s, cannot be made", folder);
    MF__TRY(convert_run(source, dir, &opt, why, err));
    return models_note_origin(dir, source, stamp, err);
}

mf_status models_ready(const model_find *find, const char *word, char **dir, mf_error *err) {
    char *path, *folder = NULL;
    MF__TRY(models_find(find, word, &path, err));
    *dir = path;
    if (models_is_native(path) || !models_is_source(path)) return MF_OK; /* opening says what else is wrong */
    char *source = realpath(path, NULL), *name = source ? name_of(source) : NULL;
    *dir = NULL;
    mf_status st = name ? models_folder(find->models, &folder, err) : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    if (st == MF_OK && !(*dir = mf__path_join(folder, name))) st = mf__fail(err, MF_E_NOMEM, "no memory for a path");
    if (st == MF_OK) st = convert_to(find, source, folder, *dir, err);
    if (st != MF_OK) {
        free(*dir);
        *dir = NULL;
    }
    free(path);
    free(source);
    free(name);
    free(folder);
    return st;
}
