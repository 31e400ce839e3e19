/* A look at a model on a hub before any weights come: its config, its index, and of each file of weights the table of
 * tensors at its beginning, by requests of ranges. They go into a folder for the moment, where files of weights have
 * their full size and nothing behind the table, so that whatever reads a checkpoint can read this one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "models.h"
#include "pull.h"

/* A survey reads the config and the tables; the tokenizer, which has megabytes, it does not. */
static void keep_what_counts(pull *p) {
    int n = 0;
    for (int i = 0; i < p->n_items; i++) {
        pull_item *item = &p->items[i];
        if (p->kind == PULL_NATIVE) item->weights = mf__text_ends_with(item->local, ".bin");
        if (item->weights || !strcmp(item->local, "config.json") || !strcmp(item->local, "model_weights.json") ||
            mf__text_ends_with(item->local, ".index.json"))
            p->items[n++] = *item;
    }
    p->n_items = n;
}

/* A model directory's tables are in its manifest. */
static mf_status make_empty(pull *p, char **source, mf_error *err) {
    const mf__strbuf none = {.data = (char[1]){0}};
    for (int i = 0; i < p->n_items; i++) {
        char *path;
        if (!p->items[i].weights) continue;
        MF__TRY(pull_path(p->work, p->items[i].local, "", &path, err));
        mf_status st = pull_write_head(path, p->items[i].file->size, &none, err);
        free(path);
        MF__TRY(st);
    }
    return (*source = strdup(p->work)) ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
}

static mf_status make_folder(pull *p, char **folder, mf_error *err) {
    const char *tmp = getenv("TMPDIR");
    char *experts;
    MF__TRY(pull_path(tmp && *tmp ? tmp : "/tmp", "moeflux-XXXXXX", "", folder, err));
    if (!mkdtemp(*folder)) {
        mf_status st = mf__fail_errno(err, errno, "cannot make the folder %s", *folder);
        free(*folder);
        *folder = NULL;
        return st;
    }
    MF__TRY(pull_path(*folder, "model", "", &p->work, err));
    MF__TRY(pull_path(*folder, "state", "", &p->state, err));
    MF__TRY(mf__dir_make(p->work, err));
    MF__TRY(mf__dir_make(p->state, err));
    MF__TRY(pull_path(p->work, "packed_experts", "", &experts, err));
    mf_status st = p->kind == PULL_NATIVE ? mf__dir_make(experts, err) : MF_OK;
    free(experts);
    return st;
}

static mf_status look(pull *p, const char *word, pull_view *out, mf_error *err) {
    MF__TRY(pull_connect(p, word, err));
    memcpy(out->identity, p->identity, sizeof out->identity);
    keep_what_counts(p);
    MF__TRY(make_folder(p, &out->folder, err));
    MF__TRY(pull_small(p, err));
    MF__TRY(pull_shards(p, err));
    return p->kind == PULL_NATIVE ? make_empty(p, &out->source, err) : pull_heads(p, &out->source, err);
}

mf_status pull_look(const pull_options *o, const char *word, pull_view *out, mf_error *err) {
    pull p = {.opt = o, .lock = -1, .net = {.allow_http = o->allow_http, .connections = 4, .at_once = true}};
    char *token = NULL;
    *out = (pull_view){0};
    app_catch_interrupts();
    mf_status st = pull_token(o, &token, err);
    p.net.token = token;
    if (st == MF_OK) st = look(&p, word, out, err);
    pull_close(&p);
    free(token);
    if (st != MF_OK) pull_view_close(out);
    return st;
}

void pull_view_close(pull_view *v) {
    if (v->folder) mf__dir_remove(v->folder, NULL);
    free(v->folder);
    free(v->source);
    *v = (pull_view){0};
}
