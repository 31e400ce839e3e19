/* References: resources ($id), anchors, and what a $ref leads to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_RESOURCES 4096

static mf_status room(mf__schemas *c, void **array, uint32_t *capacity, uint32_t wanted, size_t item) {
    if (wanted <= *capacity) return MF_OK;
    uint32_t n = *capacity ? *capacity * 2 : 16;
    void *more = realloc(*array, n * item);
    if (!more) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    *array = more;
    *capacity = n;
    return MF_OK;
}

/* ---- URIs -------------------------------------------------------------------------------------------------------- */

/* The length of "scheme:"; 0: there is none. */
static size_t scheme_length(const char *uri) {
    size_t n = 0;
    for (;; n++) {
        char c = uri[n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool other = (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
        if (!letter && (n == 0 || !other)) break;
    }
    return n && uri[n] == ':' ? n + 1 : 0;
}

/* Where the path of an absolute URI begins. */
static size_t path_start(const char *uri) {
    size_t n = scheme_length(uri);
    if (uri[n] == '/' && uri[n + 1] == '/') {
        n += 2;
        while (uri[n] && uri[n] != '/' && uri[n] != '?') n++;
    }
    return n;
}

/* Removes "." and ".." from a path, in place. */
static void remove_dots(char *path) {
    char *out = path, *in = path;
    while (*in) {
        size_t n = strcspn(in + 1, "/") + 1; /* "/segment", or the first segment without a slash */
        bool slash = *in == '/';
        const char *name = in + slash;
        size_t size = n - slash;
        bool last = in[n] == 0;
        if (size == 1 && name[0] == '.') {
            if (last && slash) *out++ = '/';
        } else if (size == 2 && name[0] == '.' && name[1] == '.') {
            while (out > path && *--out != '/') {
            }
            if (last) *out++ = '/';
        } else {
            memmove(out, in, n);
            out += n;
        }
        in += n;
    }
    *out = 0;
}

/* ref seen from base (both without fragments), as a string of its own. */
static char *join_uri(const char *base, const char *ref, size_t ref_size) {
    size_t base_size = strlen(base);
    char *out = malloc(base_size + ref_size + 3);
    if (!out) return NULL;
    size_t keep = 0, start = path_start(base);
    if (scheme_length(ref) && scheme_length(ref) <= ref_size) {
        keep = 0;
    } else if (ref_size >= 2 && ref[0] == '/' && ref[1] == '/') {
        keep = scheme_length(base);
    } else if (ref_size && ref[0] == '/') {
        keep = start;
    } else if (ref_size == 0) {
        keep = base_size;
    } else {
        const char *slash = strrchr(base + start, '/');
        keep = slash ? (size_t)(slash + 1 - base) : start;
    }
    memcpy(out, base, keep);
    if (keep && keep == start && ref_size && ref[0] != '/' && scheme_length(base) && start > scheme_length(base))
        out[keep++] = '/';
    memcpy(out + keep, ref, ref_size);
    out[keep + ref_size] = 0;
    if (strncmp(out, "urn:", 4) != 0) remove_dots(out + path_start(out));
    return out;
}

/* ---- resources --------------------------------------------------------------------------------------------------- */

static mf_status add_resource(mf__schemas *c, const char *uri, size_t size, const json_t *node, uint32_t parent,
                              uint32_t *out) {
    if (c->n_resources == MAX_RESOURCES) return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: too many \"$id\"");
    MF__TRY(room(c, (void **)&c->resources, &c->resources_capacity, c->n_resources + 1, sizeof *c->resources));
    char *absolute = join_uri(c->n_resources ? c->resources[parent].uri : "", uri, size);
    if (!absolute) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    c->resources[c->n_resources] = (resource){absolute, node, parent};
    *out = c->n_resources++;
    return MF_OK;
}

static mf_status add_anchor(mf__schemas *c, const char *name, uint32_t base, const json_t *node, bool dynamic) {
    if (c->n_anchors == MAX_RESOURCES) return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: too many \"$anchor\"");
    MF__TRY(room(c, (void **)&c->anchors, &c->anchors_capacity, c->n_anchors + 1, sizeof *c->anchors));
    c->anchors[c->n_anchors++] = (anchor){name, base, node, dynamic};
    return MF_OK;
}

static mf_status look_for_ids(mf__schemas *c, const json_t *node, uint32_t base);

static mf_status read_ids(mf__schemas *c, const json_t *node, uint32_t *base) {
    const char *id = json_string_value(json_object_get(node, "$id"));
    if (!id) id = json_string_value(json_object_get(node, "id"));
    bool reference = json_is_string(json_object_get(node, "$ref"));
    if (c->legacy && reference) id = NULL;
    if (id && reference && node != c->root && !json_object_get(c->root, "$schema"))
        return mf__schema_fail(c, MF_E_UNSUPPORTED, node, "$id",
                               "beside \"$ref\" depends on the draft: \"$schema\" is missing");
    const char *name = json_string_value(json_object_get(node, "$anchor"));
    const char *dynamic = json_string_value(json_object_get(node, "$dynamicAnchor"));
    if (id && id[0] == '#') { /* as drafts up to 7 wrote anchors */
        MF__TRY(add_anchor(c, id + 1, *base, node, false));
    } else if (id && node != c->root) {
        MF__TRY(add_resource(c, id, strcspn(id, "#"), node, *base, base));
    }
    if (name) MF__TRY(add_anchor(c, name, *base, node, false));
    return dynamic ? add_anchor(c, dynamic, *base, node, true) : MF_OK;
}

static mf_status look_for_ids(mf__schemas *c, const json_t *node, uint32_t base) {
    const char *key;
    json_t *value;
    if (json_is_array(node))
        for (size_t i = 0; i < json_array_size(node); i++) MF__TRY(look_for_ids(c, json_array_get(node, i), base));
    if (!json_is_object(node)) return MF_OK;
    MF__TRY(read_ids(c, node, &base));
    json_object_foreach((json_t *)node, key, value) {
        bool data = strcmp(key, "enum") == 0 || strcmp(key, "const") == 0 || strcmp(key, "default") == 0 ||
                    strcmp(key, "examples") == 0;
        if (!data) MF__TRY(look_for_ids(c, value, base));
    }
    return MF_OK;
}

mf_status mf__schema_resources(mf__schemas *c, const json_t *root) {
    for (uint32_t i = 0; i < c->n_resources; i++) free(c->resources[i].uri);
    c->n_resources = c->n_anchors = 0;
    const char *id = json_string_value(json_object_get(root, "$id"));
    if (!id) id = json_string_value(json_object_get(root, "id"));
    uint32_t base;
    MF__TRY(add_resource(c, id ? id : "", id ? strcspn(id, "#") : 0, root, 0, &base));
    return look_for_ids(c, root, 0);
}

uint32_t mf__schema_base_of(const mf__schemas *c, const json_t *node, uint32_t base) {
    if (c->n_resources == 1) return base;
    if (!json_object_get(node, "$id") && !json_object_get(node, "id")) return base;
    for (uint32_t i = 0; i < c->n_resources; i++)
        if (c->resources[i].node == node) return i;
    return base;
}

literal mf__literal_child(const mf__schemas *c, literal parent, const json_t *node) {
    return (literal){node, mf__schema_base_of(c, node, parent.base), false};
}

/* ---- $ref -------------------------------------------------------------------------------------------------------- */

static int hex_digit(char d) {
    return d >= '0' && d <= '9' ? d - '0' : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10 : -1;
}

static char *percent_decoded(const char *text) {
    char *out = malloc(strlen(text) + 1), *p = out;
    for (; out && *text; text++) {
        bool code = *text == '%' && hex_digit(text[1]) >= 0 && hex_digit(text[2]) >= 0;
        *p++ = code ? (char)(hex_digit(text[1]) * 16 + hex_digit(text[2])) : *text;
        if (code) text += 2;
    }
    if (out) *p = 0;
    return out;
}

/* Follows a JSON pointer ("/a/b"); token is as long as the pointer. */
static const json_t *follow_pointer(const mf__schemas *c, const json_t *at, const char *p, char *token,
                                    uint32_t *base) {
    while (*p == '/' && at) {
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            char ch = *p;
            if (ch == '~' && (p[1] == '0' || p[1] == '1')) ch = *++p == '1' ? '/' : '~';
            token[n++] = ch;
        }
        token[n] = 0;
        *base = mf__schema_base_of(c, at, *base);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(token, NULL, 10)) : json_object_get(at, token);
    }
    if (at) *base = mf__schema_base_of(c, at, *base);
    return at;
}

static const json_t *find_fragment(const mf__schemas *c, uint32_t *base, const char *fragment, char *token) {
    if (!*fragment) return c->resources[*base].node;
    if (*fragment == '/') return follow_pointer(c, c->resources[*base].node, fragment, token, base);
    for (uint32_t i = 0; i < c->n_anchors; i++)
        if (c->anchors[i].base == *base && strcmp(c->anchors[i].name, fragment) == 0) {
            *base = mf__schema_base_of(c, c->anchors[i].node, *base);
            return c->anchors[i].node;
        }
    return NULL;
}

/* Dynamic references are those of one place only: where a name is given twice, which is meant depends on the way. */
static bool is_dynamic(const mf__schemas *c, const char *name) {
    int n = 0;
    for (uint32_t i = 0; i < c->n_anchors; i++) n += c->anchors[i].dynamic && strcmp(c->anchors[i].name, name) == 0;
    return n > 1;
}

mf_status mf__schema_resolve(mf__schemas *c, literal from, const char *key, literal *out) {
    const char *ref = json_string_value(json_object_get(from.node, key));
    if (!ref) return mf__schema_fail(c, MF_E_FORMAT, from.node, key, "is not a reference");
    const char *hash = strchr(ref, '#'), *fragment = hash ? hash + 1 : "";
    if (strcmp(key, "$ref") != 0 && is_dynamic(c, fragment))
        return mf__schema_fail(c, MF_E_UNSUPPORTED, from.node, key, "depends on the way to it, which is not supported");
    char *uri = join_uri(c->resources[from.base].uri, ref, hash ? (size_t)(hash - ref) : strlen(ref));
    char *decoded = percent_decoded(fragment), *token = decoded ? malloc(strlen(decoded) + 1) : NULL;
    const json_t *node = NULL;
    uint32_t base = MF__NEVER;
    for (uint32_t i = 0; uri && i < c->n_resources && base == MF__NEVER; i++)
        if (strcmp(c->resources[i].uri, uri) == 0) base = i;
    bool found = base != MF__NEVER, memory = uri && decoded && token;
    if (found && memory) node = find_fragment(c, &base, decoded, token);
    free(uri);
    free(decoded);
    free(token);
    if (!memory) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    char what[160];
    snprintf(what, sizeof what, found ? "\"%.80s\" leads nowhere" : "\"%.80s\" leads out of the schema", ref);
    if (!node) return mf__schema_fail(c, found ? MF_E_NOT_FOUND : MF_E_UNSUPPORTED, from.node, key, what);
    *out = (literal){node, base, false};
    return MF_OK;
}
