/* Asking the hub. What comes back is read as if an enemy had written it. */
#include "hub.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MAX_ANSWER ((size_t)32 << 20)
#define MAX_FILES 100000
#define MAX_PAGES 1000

static bool all_of(const char *text, size_t n, const char *also) {
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(also, text[i])) return false;
    return n > 0;
}

bool hub_is_name(const char *word) {
    const char *slash = strchr(word, '/'), *at = strchr(word, '@');
    if (!slash || slash == word || word[0] == '.' || slash[1] == '.') return false;
    size_t n = at ? (size_t)(at - word) : strlen(word);
    if ((size_t)(slash - word) >= n || n > 200) return false;
    if (at && !(all_of(at + 1, strlen(at + 1), "._-/") && !strstr(at, "..") && strlen(at) < 100)) return false;
    return all_of(word, (size_t)(slash - word), "._-") && all_of(slash + 1, n - (size_t)(slash - word) - 1, "._-");
}

/* A relative path that stays below its folder. */
static bool is_safe(const char *path) {
    if (!*path || *path == '/' || strlen(path) > 400) return false;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || *p == '.') return *p == '.' && n > 1 && p[1] != '.' && !p[n]; /* .gitattributes, not .. */
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 32 || p[i] == '\\' || p[i] == 127) return false;
        p += n + (p[n] == '/');
    }
    return true;
}

static bool is_hex(const char *text, size_t n) {
    if (strlen(text) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", text[i])) return false;
    return true;
}

static mf_status get_json(fetch *f, const char *url, json_t **out, char **next, mf_error *err) {
    mf__strbuf text = {0};
    mf_status st = fetch_get(f, url, (fetch_range){.most = MAX_ANSWER}, &text, next, err);
    if (st == MF_OK) st = mf__json_parse(url, text.data ? text.data : "", text.size, out, err);
    mf__strbuf_free(&text);
    return st;
}

/* ---- the listing --------------------------------------------------------------------------------------------------- */

static mf_status add_file(hub_repo *r, const json_t *item, mf_error *err) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *path = json_string_value(json_object_get(item, "path"));
    const json_t *lfs = json_object_get(item, "lfs");
    bool git = !json_is_object(lfs);
    const char *oid = json_string_value(json_object_get(git ? item : lfs, "oid"));
    const json_t *size = json_object_get(git ? item : lfs, "size");
    if (type && !strcmp(type, "directory")) return MF_OK;
    if (!path || !is_safe(path) || !oid || !is_hex(oid, git ? 40 : 64) || !json_is_integer(size) ||
        json_integer_value(size) < 0)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: the list of files has an entry without path, size or hash, or with a bad one%s%s", r->name,
                        path ? ": " : "", path && is_safe(path) ? path : "");
    hub_file *grown = r->n_files < MAX_FILES ? realloc(r->files, (size_t)(r->n_files + 1) * sizeof *grown) : NULL;
    if (!grown) return mf__fail(err, MF_E_LIMIT, "%s has more than %d files", r->name, MAX_FILES);
    r->files = grown;
    hub_file *file = &grown[r->n_files];
    *file = (hub_file){.path = strdup(path), .size = json_integer_value(size), .git = git};
    memcpy(file->sha, oid, strlen(oid) + 1);
    if (!file->path) return mf__fail(err, MF_E_NOMEM, "no memory for a list of files");
    r->n_files++;
    return MF_OK;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const hub_file *)a)->path, ((const hub_file *)b)->path);
}

static mf_status read_page(fetch *f, hub_repo *r, const char *url, char **next, mf_error *err) {
    json_t *page = NULL;
    mf_status st = get_json(f, url, &page, next, err);
    if (st == MF_OK && !json_is_array(page))
        st = mf__fail(err, MF_E_FORMAT, "%s: expected a list of files, found %s", url, mf__json_type_name(page));
    for (size_t i = 0; st == MF_OK && i < json_array_size(page); i++) st = add_file(r, json_array_get(page, i), err);
    json_decref(page);
    return st;
}

static mf_status read_list(fetch *f, hub_repo *r, mf_error *err) {
    mf__strbuf first = {0};
    MF__TRY(mf__strbuf_printf(&first, err, "%s/api/models/%s/tree/%s?recursive=true", r->endpoint, r->name, r->commit));
    char *url = first.data;
    mf_status st = MF_OK;
    for (int i = 0; st == MF_OK && url; i++) {
        char *next = NULL;
        st = i < MAX_PAGES ? read_page(f, r, url, &next, err)
                           : mf__fail(err, MF_E_LIMIT, "%s: the list of files does not end", r->name);
        size_t n = strlen(r->endpoint);
        if (st == MF_OK && next && (strncmp(next, r->endpoint, n) || next[n] != '/'))
            st = mf__fail(err, MF_E_FORMAT, "%s: the list of files goes on at another place, %s", r->name, next);
        free(url);
        url = next;
    }
    free(url);
    if (st == MF_OK && r->n_files) qsort(r->files, (size_t)r->n_files, sizeof *r->files, by_path);
    return st;
}

/* What a branch or tag is now: all files come from that commit, also if it moves meanwhile. */
static mf_status read_commit(fetch *f, hub_repo *r, const char *revision, mf_error *err) {
    mf__strbuf url = {0};
    json_t *about = NULL;
    MF__TRY(mf__strbuf_printf(&url, err, "%s/api/models/%s/revision/", r->endpoint, r->name));
    mf_status st = MF_OK;
    for (const char *p = revision; *p && st == MF_OK; p++)
        st = mf__strbuf_printf(&url, err, *p == '/' ? "%%2F" : "%c", *p);
    if (st == MF_OK) st = get_json(f, url.data, &about, NULL, err);
    const char *sha = json_string_value(json_object_get(about, "sha"));
    if (st == MF_OK && (!sha || !is_hex(sha, strlen(sha)) || strlen(sha) < 7 || strlen(sha) > 64))
        st = mf__fail(err, MF_E_FORMAT, "%s: no commit in the answer; is this a hub of models?", url.data);
    if (st == MF_OK) memcpy(r->commit, sha, strlen(sha) + 1);
    json_decref(about);
    mf__strbuf_free(&url);
    return st;
}

mf_status hub_open(fetch *f, const char *endpoint, const char *word, hub_repo *out, mf_error *err) {
    const char *at = strchr(word, '@');
    size_t n = strlen(endpoint);
    *out = (hub_repo){0};
    if (!hub_is_name(word))
        return mf__fail(err, MF_E_INVALID, "\"%s\" is no name of a model there; expected ORG/NAME or ORG/NAME@REVISION",
                        word);
    while (n > 1 && endpoint[n - 1] == '/') n--;
    out->endpoint = strndup(endpoint, n);
    out->name = at ? strndup(word, (size_t)(at - word)) : strdup(word);
    if (!out->endpoint || !out->name) return mf__fail(err, MF_E_NOMEM, "no memory for a name");
    MF__TRY(read_commit(f, out, at ? at + 1 : "main", err));
    return read_list(f, out, err);
}

void hub_close(hub_repo *r) {
    for (int i = 0; i < r->n_files; i++) free(r->files[i].path);
    free(r->files);
    free(r->endpoint);
    free(r->name);
    *r = (hub_repo){0};
}

const hub_file *hub_find(const hub_repo *r, const char *path) {
    for (int i = 0; i < r->n_files; i++)
        if (!strcmp(r->files[i].path, path)) return &r->files[i];
    return NULL;
}

char *hub_url(const hub_repo *r, const hub_file *file) {
    mf__strbuf url = {0};
    mf_status st = mf__strbuf_printf(&url, NULL, "%s/%s/resolve/%s/", r->endpoint, r->name, r->commit);
    for (const char *p = file->path; *p && st == MF_OK; p++)
        st = mf__strbuf_printf(&url, NULL, isalnum((unsigned char)*p) || strchr("-._~/", *p) ? "%c" : "%%%02X",
                               (unsigned char)*p);
    if (st == MF_OK) return url.data;
    mf__strbuf_free(&url);
    return NULL;
}
