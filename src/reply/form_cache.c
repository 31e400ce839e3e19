/* A few forms, the least recently used goes first. */
#include "reply/form_cache.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES 8
#define MAX_KEY ((size_t)1 << 20) /* bytes of tools; larger ones are made anew */

typedef struct entry {
    char *key;
    const mf_form *form;
    uint64_t used;
} entry;

typedef struct cache {
    entry entries[ENTRIES];
    uint64_t clock;
} cache;

static void forget(entry *e) {
    free(e->key);
    mf_form_free((mf_form *)e->form);
    *e = (entry){0};
}

static void free_cache(void *data) {
    cache *c = data;
    for (int i = 0; i < ENTRIES; i++) forget(&c->entries[i]);
    free(c);
}

/* All that the form depends on, as text; NULL: not worth keeping, or no memory. */
static char *key_of(const mf__tool_form *f) {
    mf__strbuf key = {0};
    char *tools = json_dumps(f->tools, JSON_COMPACT | JSON_ENCODE_ANY);
    mf_status st = tools && strlen(tools) <= MAX_KEY
                       ? mf__strbuf_printf(&key, NULL, "%d %d %d %d %s\n%s", (int)f->style, f->one_call, f->inside,
                                           f->arguments, f->only ? f->only : "", tools)
                       : MF_E_LIMIT;
    free(tools);
    if (st == MF_OK) return key.data;
    mf__strbuf_free(&key);
    return NULL;
}

static mf_status make(const mf__tool_form *f, const mf_form **out, mf_error *err) {
    mf__grammar *grammar;
    mf_form *form;
    MF__TRY(mf__tool_form_compile(f, &grammar, err));
    MF__TRY(mf__form_of_grammar(grammar, &form, err));
    *out = form;
    return MF_OK;
}

static const mf_form *look_up(mf_text *text, const char *key) {
    const mf_form *found = NULL;
    pthread_mutex_lock(&text->lock);
    cache *c = text->reply_cache;
    for (int i = 0; c && i < ENTRIES; i++)
        if (c->entries[i].key && !strcmp(c->entries[i].key, key)) {
            c->entries[i].used = ++c->clock;
            found = mf__form_keep(c->entries[i].form);
        }
    pthread_mutex_unlock(&text->lock);
    return found;
}

/* Takes the key over. */
static void keep(mf_text *text, char *key, const mf_form *form) {
    pthread_mutex_lock(&text->lock);
    cache *c = text->reply_cache;
    if (!c && (c = text->reply_cache = calloc(1, sizeof *c))) text->free_reply_cache = free_cache;
    entry *oldest = c ? &c->entries[0] : NULL;
    for (int i = 1; c && i < ENTRIES; i++)
        if (c->entries[i].used < oldest->used) oldest = &c->entries[i];
    if (c) {
        forget(oldest);
        *oldest = (entry){key, mf__form_keep(form), ++c->clock};
    } else {
        free(key);
    }
    pthread_mutex_unlock(&text->lock);
}

mf_status mf__form_cache_get(const mf_text *text, const mf__tool_form *f, const mf_form **out, mf_error *err) {
    mf_text *t = (mf_text *)text; /* the cache is the text's, under its lock */
    char *key = key_of(f);
    *out = key ? look_up(t, key) : NULL;
    if (*out) {
        free(key);
        return MF_OK;
    }
    mf_status st = make(f, out, err);
    if (st == MF_OK && key)
        keep(t, key, *out);
    else
        free(key);
    return st;
}
