/* moeflux pull: a model from a hub, converted while it comes.
 *
 *   ask        the commit, the list of files                                              hub.c
 *   choose     a model directory as it is, a checkpoint, or GGUF files
 *   small      config, tokenizer, index: first, whole
 *   weights    the head of each file, the plan, then file after file, each gone when its tensors are written
 *
 * NAME.download holds what has come, NAME.partial what is converted of it; both are gone at the end, and the same
 * command goes on with them after any interruption. */
#include "pull.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "models.h"
#include "options.h"

#define MAX_SMALL ((int64_t)512 << 20) /* tokenizers are the largest of what is no weights */

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for a download");
}

mf_status pull_path(const char *dir, const char *name, const char *ending, char **out, mf_error *err) {
    mf__strbuf text = {0};
    MF__TRY(mf__strbuf_printf(&text, err, "%s/%s%s", dir, name, ending));
    *out = text.data;
    return MF_OK;
}

/* ---- choosing ------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static mf_status take(pull *p, const hub_file *file, const char *local, bool weights, mf_error *err) {
    pull_item *grown = realloc(p->items, (size_t)(p->n_items + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    p->items = grown;
    grown[p->n_items++] = (pull_item){.file = file, .local = local, .weights = weights, .id = -1};
    return MF_OK;
}

/* What travels with the weights; the same as convert takes along. */
static mf_status take_companions(pull *p, mf_error *err) {
    static const char *const names[] = {
        "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "special_tokens_map.json", "LICENSE"};
    for (size_t i = 0; i < MF__COUNT(names); i++) {
        const hub_file *file = hub_find(&p->repo, names[i]);
        if (!file) continue;
        if (file->size > MAX_SMALL)
            return mf__fail(err, MF_E_LIMIT, "%s: %s has %lld bytes, more than such a file can have", p->repo.name,
                            file->path, (long long)file->size);
        MF__TRY(take(p, file, file->path, false, err));
    }
    return MF_OK;
}

static mf_status choose_native(pull *p, mf_error *err) {
    p->kind = PULL_NATIVE;
    MF__TRY(take_companions(p, err));
    for (int i = 0; i < p->repo.n_files; i++) {
        const hub_file *f = &p->repo.files[i];
        if (!strncmp(f->path, "model_weights.", 14) || !strcmp(f->path, "conversion.json") ||
            (!strncmp(f->path, "packed_experts/layer_", 21) && !strchr(f->path + 15, '/')))
            MF__TRY(take(p, f, f->path, false, err));
    }
    return MF_OK;
}

static mf_status choose_checkpoint(pull *p, const hub_file *index, mf_error *err) {
    p->kind = PULL_CHECKPOINT;
    MF__TRY(take_companions(p, err));
    if (index) return take(p, index, index->path, false, err); /* and later what it names */
    const hub_file *only = hub_find(&p->repo, "model.safetensors");
    return take(p, only, only->path, true, err);
}

/* The length of a file's name without the number of a part and .gguf. */
static size_t stem(const char *path) {
    const char *part = strstr(path, "-00001-of-");
    return part ? (size_t)(part - path) : strlen(path) - 5;
}

static bool is_gguf(const char *path) {
    return mf__text_ends_with(path, ".gguf") && !strstr(path, "mmproj");
}

/* The first file of a model: not a later part of one that is split. */
static bool is_first(const char *path) {
    const char *of = strstr(path, "-of-");
    return is_gguf(path) && (!of || of - path < 6 || strncmp(of - 6, "-0", 2) || !strncmp(of - 5, "00001", 5));
}

static mf_status which_gguf(const pull *p, mf_error *err) {
    mf__strbuf list = {0};
    char size[APP_BYTES_TEXT];
    for (int i = 0; i < p->repo.n_files; i++)
        if (is_first(p->repo.files[i].path))
            mf__strbuf_printf(&list, NULL, "%s%s (%s)", list.size ? ", " : "", p->repo.files[i].path,
                              app_bytes((double)p->repo.files[i].size, size));
    mf_status st = mf__fail(err, MF_E_INVALID, "--file must say which of these: %.700s", list.data ? list.data : "");
    mf__strbuf_free(&list);
    return st;
}

static mf_status choose_gguf(pull *p, mf_error *err) {
    const hub_file *chosen = p->opt->file ? hub_find(&p->repo, p->opt->file) : NULL;
    int n = 0;
    p->kind = PULL_GGUF;
    if (p->opt->file && (!chosen || !is_gguf(chosen->path)))
        return mf__fail(err, MF_E_INVALID, "--file is \"%s\"; %s has no such GGUF file", p->opt->file, p->repo.name);
    for (int i = 0; i < p->repo.n_files && !p->opt->file; i++) {
        if (!is_first(p->repo.files[i].path)) continue;
        chosen = &p->repo.files[i];
        n++;
    }
    if (n > 1) return which_gguf(p, err);
    size_t same = stem(chosen->path);
    bool split = strstr(chosen->path, "-00001-of-") != NULL;
    for (int i = 0; i < p->repo.n_files; i++) {
        const char *path = p->repo.files[i].path;
        bool part = split && is_gguf(path) && !strncmp(path, chosen->path, same) && !strncmp(path + same, "-0", 2);
        if (&p->repo.files[i] == chosen || part) MF__TRY(take(p, &p->repo.files[i], last_part(path), true, err));
    }
    return MF_OK;
}

static mf_status choose(pull *p, mf_error *err) {
    const hub_file *index = hub_find(&p->repo, "model.safetensors.index.json");
    bool weights = index || hub_find(&p->repo, "model.safetensors"), gguf = false;
    for (int i = 0; i < p->repo.n_files; i++) gguf = gguf || is_first(p->repo.files[i].path);
    if (!p->opt->file && hub_find(&p->repo, "model_weights.json")) return choose_native(p, err);
    if (!p->opt->file && weights && hub_find(&p->repo, "config.json")) return choose_checkpoint(p, index, err);
    if (gguf || p->opt->file) return choose_gguf(p, err);
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s has no weights that are read here: neither safetensors with a config.json nor GGUF files",
                    p->repo.name);
}

mf_status pull_shards(pull *p, mf_error *err) {
    char *path;
    json_t *index = NULL, *value;
    const char *key;
    if (p->kind != PULL_CHECKPOINT || !hub_find(&p->repo, "model.safetensors.index.json")) return MF_OK;
    MF__TRY(pull_path(p->work, "model.safetensors.index.json", "", &path, err));
    mf_status st = mf__json_read(path, (size_t)MAX_SMALL, &index, err);
    json_t *names = json_object();
    json_object_foreach(json_object_get(index, "weight_map"), key, value) {
        if (json_is_string(value)) json_object_set_new(names, json_string_value(value), json_true());
    }
    if (st == MF_OK && !json_object_size(names))
        st = mf__fail(err, MF_E_FORMAT, "%s names no files (weight_map)", path);
    for (int i = 0; st == MF_OK && i < p->repo.n_files; i++) { /* in the order of their names */
        const hub_file *file = &p->repo.files[i];
        if (!json_object_get(names, file->path) || strchr(file->path, '/')) continue;
        st = take(p, file, file->path, true, err);
        json_object_del(names, file->path);
    }
    if (st == MF_OK && json_object_size(names))
        st = mf__fail(err, MF_E_FORMAT, "%s names %s, which %s does not have", path,
                      json_object_iter_key(json_object_iter(names)), p->repo.name);
    json_decref(names);
    json_decref(index);
    free(path);
    return st;
}

/* ---- places --------------------------------------------------------------------------------------------------------- */

static mf_status name_model(pull *p, mf_error *err) {
    const char *base = p->kind == PULL_GGUF ? p->items[0].local : last_part(p->repo.name);
    p->name = p->opt->name ? strdup(p->opt->name) : p->kind == PULL_GGUF ? strndup(base, stem(base)) : strdup(base);
    if (!p->name) return no_memory(err);
    if (!models_is_name(p->name))
        return mf__fail(err, MF_E_INVALID, "--name is \"%s\"; expected a name without a slash or a dot in front",
                        p->name);
    return MF_OK;
}

static mf_status note_identity(const pull *p, mf_error *err) {
    char *path;
    MF__TRY(pull_path(p->state, "repository", "", &path, err));
    mf_status st = mf__file_replace(path, p->identity, strlen(p->identity), err);
    free(path);
    return st;
}

/* What the work folder is of; an empty text where there is none. */
static void read_identity(const char *folder, const char *name, char text[400]) {
    mf__strbuf path = {0};
    char *found = NULL;
    size_t n;
    *text = '\0';
    if (mf__strbuf_printf(&path, NULL, "%s/%s.download/.state/repository", folder, name) == MF_OK &&
        mf__file_read(path.data, 399, &found, &n, NULL) == MF_OK)
        snprintf(text, 400, "%s", found);
    free(found);
    mf__strbuf_free(&path);
}

static mf_status lock_work(pull *p, mf_error *err) {
    char *path;
    MF__TRY(pull_path(p->state, "lock", "", &path, err));
    p->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    mf_status st = MF_OK;
    if (p->lock < 0)
        st = mf__fail_errno(err, errno, "cannot create %s", path);
    else if (flock(p->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        st = mf__fail(err, MF_E_EXISTS, "another moeflux pull is at work in %s", p->work);
    free(path);
    return st;
}

static mf_status make_places(pull *p, const char *folder, mf_error *err) {
    char before[400];
    MF__TRY(pull_path(folder, p->name, "", &p->dir, err));
    MF__TRY(pull_path(folder, p->name, ".download", &p->work, err));
    MF__TRY(pull_path(p->work, ".state", "", &p->state, err));
    read_identity(folder, p->name, before);
    p->here = models_is_native(p->dir) && !strcmp(before, p->identity);
    if (p->here) return MF_OK;
    if (mf__path_exists(p->dir))
        return mf__fail(err, MF_E_EXISTS,
                        "a model %s is there already, in %s; moeflux rm %s removes it, --name takes another name",
                        p->name, p->dir, p->name);
    p->fresh = !*before;
    if (*before && strcmp(before, p->identity) && !p->opt->restart)
        return mf__fail(
            err, MF_E_EXISTS,
            "%s is left from a download of %s, this one is of %s; --restart begins anew, --name takes another name",
            p->work, before, p->identity);
    if (!app_make_folders(p->state)) return mf__fail(err, MF_E_IO, "the folder %s cannot be made", p->state);
    MF__TRY(lock_work(p, err));
    if (*before && (p->opt->restart || strcmp(before, p->identity))) {
        MF__TRY(mf__dir_remove(p->work, err));
        close(p->lock);
        if (!app_make_folders(p->state)) return mf__fail(err, MF_E_IO, "the folder %s cannot be made", p->state);
        MF__TRY(lock_work(p, err));
    }
    return note_identity(p, err);
}

/* ---- getting --------------------------------------------------------------------------------------------------------- */

mf_status pull_add(pull *p, fetch *f, pull_item *item, mf_error *err) {
    fetch_file file = {.size = item->file->size, .git = item->file->git, .url = hub_url(&p->repo, item->file)};
    char *flat = strdup(item->local);
    for (char *c = flat; c && *c; c++)
        if (*c == '/') *c = '+';
    memcpy(file.sha, item->file->sha, sizeof file.sha);
    mf_status st = flat && file.url ? pull_path(p->work, item->local, "", &file.path, err) : no_memory(err);
    if (st == MF_OK) st = pull_path(p->state, flat, "", &file.note, err);
    free(flat);
    item->id = st == MF_OK ? fetch_add(f, &file) : -1;
    if (item->id >= 0) return MF_OK;
    free(file.url);
    free(file.path);
    free(file.note);
    return st != MF_OK ? st : no_memory(err);
}

static void tick(void *user, int64_t have, int64_t total) {
    pull *p = user;
    if (!p->shown) p->bar.base = have;
    p->shown = true;
    progress_show(&p->bar, have, total);
}

/* All that is no weights, and of a model directory everything. */
mf_status pull_small(pull *p, mf_error *err) {
    fetch *f;
    fetch_options net = p->net;
    if (p->kind == PULL_NATIVE) net.tick = tick, net.user = p;
    MF__TRY(fetch_create(&net, &f, err));
    mf_status st = MF_OK;
    for (int i = 0; st == MF_OK && i < p->n_items; i++)
        if (!p->items[i].weights) st = pull_add(p, f, &p->items[i], err);
    if (st == MF_OK) st = fetch_start(f, INT64_MAX, err);
    for (int i = 0; st == MF_OK && i < p->n_items; i++)
        if (!p->items[i].weights) st = fetch_want(f, p->items[i].id, err);
    fetch_free(f);
    return st;
}

/* A model directory as it is: complete in the work folder, then under its name. */
static mf_status publish(pull *p, mf_error *err) {
    char *folder = strdup(p->dir);
    MF__TRY(models_note_origin(p->work, p->identity, p->repo.commit, err));
    MF__TRY(mf__dir_remove(p->state, err));
    mf_status st = folder ? MF_OK : no_memory(err);
    if (st == MF_OK && rename(p->work, p->dir)) st = mf__fail_errno(err, errno, "cannot rename %s", p->work);
    if (st == MF_OK) {
        *strrchr(folder, '/') = '\0';
        st = mf__dir_sync(folder, err);
    }
    free(folder);
    return st;
}

static mf_status get_native(pull *p, mf_error *err) {
    char *experts;
    MF__TRY(pull_path(p->work, "packed_experts", "", &experts, err));
    mf_status st = mf__dir_make(experts, err);
    free(experts);
    if (st == MF_OK) st = pull_small(p, err);
    return st == MF_OK ? publish(p, err) : st;
}

static mf_status tidy_up(pull *p, mf_error *err) {
    MF__TRY(models_note_origin(p->dir, p->identity, p->repo.commit, err));
    return mf__dir_remove(p->work, err);
}

static mf_status get_converted(pull *p, mf_error *err) {
    MF__TRY(pull_small(p, err));
    MF__TRY(pull_shards(p, err));
    MF__TRY(pull_convert(p, err));
    if (p->opt->dry) return p->fresh ? mf__dir_remove(p->work, err) : MF_OK;
    return tidy_up(p, err);
}

/* ---- the command ------------------------------------------------------------------------------------------------------ */

static bool is_loopback(const char *endpoint) {
    static const char *const hosts[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < MF__COUNT(hosts); i++) {
        size_t n = strlen(hosts[i]);
        if (!strncmp(endpoint, hosts[i], n) && (endpoint[n] == ':' || endpoint[n] == '/' || !endpoint[n])) return true;
    }
    return false;
}

mf_status pull_token(const pull_options *o, char **out, mf_error *err) {
    const char *given = getenv("HF_TOKEN"), *home = getenv("HF_HOME");
    char *path = NULL, *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (o->token_file) {
        MF__TRY(mf__file_read(o->token_file, 4096, &text, &n, err));
    } else if (given && *given) {
        text = strdup(given);
    } else {
        mf__strbuf b = {0};
        const char *user = getenv("HOME");
        if (home && *home ? mf__strbuf_printf(&b, NULL, "%s/token", home) == MF_OK
                          : user && mf__strbuf_printf(&b, NULL, "%s/.cache/huggingface/token", user) == MF_OK)
            path = b.data;
        if (path && mf__path_exists(path) && mf__file_read(path, 4096, &text, &n, NULL) != MF_OK) text = NULL;
        free(path);
    }
    if (!text) return MF_OK;
    text[strcspn(text, " \t\r\n")] = '\0';
    if (!*text && o->token_file) {
        free(text);
        return mf__fail(err, MF_E_INVALID, "%s has no token in its first line", o->token_file);
    }
    *out = text;
    return MF_OK;
}

/* A download that was interrupted goes on with the commit it began with, whatever the branch is by now. */
static mf_status full_word(const pull_options *o, const char *folder, const char *word, char out[400], mf_error *err) {
    char before[400];
    size_t n = strlen(word);
    if (n > 300) return mf__fail(err, MF_E_INVALID, "\"%.60s...\" is no name of a model", word);
    snprintf(out, 400, "%s", word);
    read_identity(folder, o->name ? o->name : last_part(word), before);
    if (!strchr(word, '@') && !o->restart && !strncmp(before, word, n) && before[n] == '@')
        snprintf(out, 400, "%s", before);
    return MF_OK;
}

mf_status pull_connect(pull *p, const char *word, mf_error *err) {
    const char *from_env = getenv("HF_ENDPOINT");
    const char *endpoint = p->opt->endpoint ? p->opt->endpoint : from_env && *from_env ? from_env : HUB_ENDPOINT;
    if (strncmp(endpoint, "https://", 8) && !p->opt->allow_http)
        return mf__fail(err, MF_E_INVALID,
                        "--endpoint is \"%s\", which has no TLS; expected https://..., or --allow-http", endpoint);
    if (p->net.token && strncmp(endpoint, "https://", 8) && !is_loopback(endpoint)) {
        app_say("warning: the token is not sent to %s, which has no TLS", endpoint);
        p->net.token = NULL;
    }
    MF__TRY(fetch_create(&p->net, &p->fetch, err));
    MF__TRY(hub_open(p->fetch, endpoint, word, &p->repo, err));
    snprintf(p->identity, sizeof p->identity, "%s@%s", p->repo.name, p->repo.commit);
    return choose(p, err);
}

static mf_status run(pull *p, const char *word, const char *folder, mf_error *err) {
    char full[400];
    MF__TRY(full_word(p->opt, folder, word, full, err));
    MF__TRY(pull_connect(p, full, err));
    MF__TRY(name_model(p, err));
    MF__TRY(make_places(p, folder, err));
    if (p->here) return tidy_up(p, err);
    progress_start(&p->bar, "downloading", NULL);
    mf_status st = p->kind == PULL_NATIVE ? get_native(p, err) : get_converted(p, err);
    progress_end(&p->bar);
    return st;
}

void pull_close(pull *p) {
    fetch_free(p->fetch);
    hub_close(&p->repo);
    if (p->lock >= 0) close(p->lock);
    free(p->items);
    free(p->name);
    free(p->dir);
    free(p->work);
    free(p->state);
}

static int pull_model(const pull_options *o, const char *word) {
    pull p = {.opt = o, .lock = -1, .net = {.allow_http = o->allow_http, .connections = (int)o->connections}};
    char *token = NULL, *folder = NULL;
    mf_error err;
    double start = app_seconds();
    app_catch_interrupts();
    mf_status st = models_folder(o->find.models, &folder, &err);
    if (st == MF_OK) st = pull_token(o, &token, &err);
    p.net.token = token;
    if (st == MF_OK) st = run(&p, word, folder, &err);
    if (st == MF_OK && !o->dry) {
        char size[APP_BYTES_TEXT];
        app_note("%s is %s now, %s in %.1f s", p.identity, p.name, app_bytes((double)app_dir_bytes(p.dir), size),
                 app_seconds() - start);
        app_note("next: moeflux run %s \"...\", moeflux chat %s, or moeflux serve %s", p.name, p.name, p.name);
    }
    if (st == MF_E_CANCELLED) app_say("stopped; the same command goes on from here");
    int code = st == MF_OK ? APP_OK : app_fail(&err);
    pull_close(&p);
    free(token);
    free(folder);
    return code;
}

bool pull_is_name(const char *word) {
    return hub_is_name(word);
}

int pull_hub_rows(void *pull_options_, opt_def *out) {
    pull_options *o = pull_options_;
    const opt_def all[] = {
        {.name = "file",
         .kind = OPT_STRING,
         .value = &o->file,
         .arg = "PATH",
         .help = "of several GGUF files this one; the first part of a split one"},
        {.name = "endpoint",
         .kind = OPT_STRING,
         .value = &o->endpoint,
         .arg = "URL",
         .help = "a hub that speaks the same protocol (default: HF_ENDPOINT, or " HUB_ENDPOINT ")"},
        {.name = "token-file",
         .kind = OPT_STRING,
         .value = &o->token_file,
         .arg = "FILE",
         .help = "a token, for models that need one (default: HF_TOKEN, or where the hub's programs keep it)"},
        {.name = "allow-http",
         .kind = OPT_FLAG,
         .value = &o->allow_http,
         .help = "also addresses without TLS, redirects too"},
    };
    memcpy(out, all, sizeof all);
    return (int)MF__COUNT(all);
}

int cmd_pull(int argc, char **argv) {
    pull_options o = {.connections = 4};
    opt_def defs[] = {
        {.name = "name",
         .kind = OPT_STRING,
         .value = &o.name,
         .arg = "NAME",
         .help = "what the model is called here (default: NAME there)"},
        {.name = "preset",
         .kind = OPT_STRING,
         .value = &o.preset,
         .arg = "NAME",
         .help = "small, balanced (default for 16 bits) or exact, as moeflux convert has it"},
        {.name = "dry-run",
         .kind = OPT_FLAG,
         .value = &o.dry,
         .help = "show what would become of it; no weights are downloaded"},
        {.name = "hub", .kind = OPT_GROUP, .value = &o, .group = pull_hub_rows},
        {.name = "connections",
         .kind = OPT_INT,
         .value = &o.connections,
         .arg = "N",
         .help = "files at a time (default 4; weights: as many as the disk's bound allows)",
         .min = 1,
         .max = 64},
        {.name = "restart",
         .kind = OPT_FLAG,
         .value = &o.restart,
         .help = "begin anew instead of going on with an interrupted download"},
        {.name = "models",
         .kind = OPT_STRING,
         .value = &o.find.models,
         .arg = "DIR",
         .help = "where models with a name are (default: what moeflux where says)"},
    };
    opt_spec spec = {
        .usage = "pull ORG/NAME[@REVISION] [options]",
        .about = "Gets a model from the Hugging Face hub, or from a mirror that speaks its protocol, and converts it\n"
                 "while it comes: a file is deleted when its tensors are written, so the disk needs room for the\n"
                 "result and two files. Every file is compared with the hash that the hub tells. Interrupted\n"
                 "anywhere, the same command goes on.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux pull Qwen/Qwen3.6-35B-A3B\n"
                    "  moeflux pull Qwen/Qwen3.6-35B-A3B --dry-run\n"
                    "  moeflux pull someone/Qwen3-30B-GGUF --file Qwen3-30B-Q8_0.gguf --name qwen\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (!hub_is_name(words[0])) {
        app_say("\"%s\" is no name of a model on a hub; expected ORG/NAME or ORG/NAME@REVISION", words[0]);
        return APP_USAGE;
    }
    return pull_model(&o, words[0]);
}
