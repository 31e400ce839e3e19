/* Reading tokenizer.json: vocabulary, merges and added tokens. The pre-tokenizer is read by tokenizer_steps.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/nfc.h"
#include "text/tokenizer_int.h"
#include "text/tokenizer_steps.h"
#include "text/unicode.h"

/* While reading: what each id is called. Names are borrowed from the JSON. */
typedef struct loader {
    mf__tokenizer *tok;
    const json_t *vocab;
    const char **names; /* by id; NULL: no token */
    bool *literal;      /* by id: an added token, whose name is its bytes */
    int16_t unmap[324]; /* byte-level character to byte; -1: none */
    mf_error *err;
} loader;

/* Byte-level names show every byte as a printable character: 188 bytes as themselves, the rest from U+0100 on. */
static void fill_unmap(int16_t unmap[324]) {
    for (int c = 0; c < 324; c++) unmap[c] = -1;
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unmap[shown ? b : next++] = (int16_t)b;
    }
}

/* The bytes a byte-level name stands for; false when it has a character that stands for none. */
static bool unmap_name(const loader *l, const char *name, char *out, size_t *n) {
    size_t k = 0;
    for (const char *p = name; *p;) {
        uint32_t c;
        p += mf__utf8_decode(p, &c);
        if (c >= 324 || l->unmap[c] < 0) return false;
        out[k++] = (char)l->unmap[c];
    }
    *n = k;
    return true;
}

/* ---- vocabulary ------------------------------------------------------------------------------------------------ */

static mf_status check_id(const loader *l, const char *what, const json_t *value, int32_t *id) {
    if (!json_is_integer(value))
        return mf__fail(l->err, MF_E_FORMAT, "%s: the id of %s is %s, not an integer", l->tok->name, what,
                        mf__json_type_name(value));
    json_int_t v = json_integer_value(value);
    if (v < 0 || v >= MF__TOKENIZER_MAX_IDS)
        return mf__fail(l->err, MF_E_FORMAT, "%s: the id of %s is %lld; ids are 0 to %d", l->tok->name, what,
                        (long long)v, MF__TOKENIZER_MAX_IDS - 1);
    *id = (int32_t)v;
    return MF_OK;
}

static mf_status size_vocab(loader *l, const json_t *added) {
    int32_t top = -1, id = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, name, value) {
        MF__TRY(check_id(l, name, value, &id));
        if (id > top) top = id;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        MF__TRY(check_id(l, "an added token", json_object_get(json_array_get(added, i), "id"), &id));
        if (id > top) top = id;
    }
    l->tok->n_vocab = top + 1;
    l->names = calloc((size_t)top + 2, sizeof *l->names);
    l->literal = calloc((size_t)top + 2, sizeof *l->literal);
    if (!l->names || !l->literal) return mf__fail(l->err, MF_E_NOMEM, "%s: no memory for the vocabulary", l->tok->name);
    return MF_OK;
}

static mf_status read_vocab(loader *l) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, name, value) {
        json_int_t id = json_integer_value(value);
        if (l->names[id])
            return mf__fail(l->err, MF_E_FORMAT, "%s: \"%.60s\" and \"%.60s\" have the same id %lld", l->tok->name,
                            l->names[id], name, (long long)id);
        l->names[id] = name;
    }
    return MF_OK;
}

/* All tokens' bytes, one behind the other. */
static mf_status build_bytes(loader *l) {
    mf__tokenizer *tok = l->tok;
    size_t total = 0, at = 0;
    for (int32_t id = 0; id < tok->n_vocab; id++) total += l->names[id] ? strlen(l->names[id]) : 0;
    if (total > UINT32_MAX) return mf__fail(l->err, MF_E_LIMIT, "%s: %zu bytes of tokens", tok->name, total);
    tok->bytes = malloc(total + 1);
    tok->offsets = malloc(((size_t)tok->n_vocab + 1) * sizeof *tok->offsets);
    if (!tok->bytes || !tok->offsets) return mf__fail(l->err, MF_E_NOMEM, "%s: no memory for the tokens", tok->name);
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        tok->offsets[id] = (uint32_t)at;
        const char *name = l->names[id];
        size_t n = 0;
        if (!name) continue;
        if (l->literal[id] || !unmap_name(l, name, tok->bytes + at, &n)) {
            n = strlen(name);
            memcpy(tok->bytes + at, name, n);
        }
        at += n;
    }
    tok->offsets[tok->n_vocab] = (uint32_t)at;
    return MF_OK;
}

static void find_byte_tokens(loader *l) {
    for (int b = 0; b < 256; b++) l->tok->byte_ids[b] = -1;
    for (uint32_t c = 0; c < 324; c++) {
        char name[5] = {0};
        if (l->unmap[c] < 0) continue;
        mf__utf8_encode(c, name);
        const json_t *id = json_object_get(l->vocab, name);
        if (id) l->tok->byte_ids[l->unmap[c]] = (int32_t)json_integer_value(id);
    }
}

/* Which tokens a piece of text can be as a whole: those of the vocabulary whose bytes are what their name spells. */
static mf_status mark_words(loader *l) {
    mf__tokenizer *tok = l->tok;
    tok->is_word = calloc((size_t)tok->n_vocab + 1, sizeof *tok->is_word);
    char *bytes = malloc(tok->offsets[tok->n_vocab] + (size_t)1);
    if (!tok->is_word || !bytes) {
        free(bytes);
        return mf__fail(l->err, MF_E_NOMEM, "%s: no memory for the vocabulary", tok->name);
    }
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        size_t n, have;
        const char *now = mf__tokenizer_bytes(tok, id, &have);
        if (have == 0 || !json_object_get(l->vocab, l->names[id])) continue;
        tok->is_word[id] = unmap_name(l, l->names[id], bytes, &n) && n == have && memcmp(bytes, now, n) == 0;
    }
    free(bytes);
    return MF_OK;
}

/* ---- merges ---------------------------------------------------------------------------------------------------- */

/* The two halves of merge i, NUL-terminated in `joined` (left, NUL, right): either spelling. */
static mf_status split_merge(const loader *l, size_t i, const json_t *merge, mf__strbuf *joined, const char **right) {
    const char *a = NULL, *b = NULL, *space = NULL;
    size_t n_a = 0;
    if (json_is_string(merge)) {
        a = json_string_value(merge);
        space = strchr(a, ' ');
        if (space && !strchr(space + 1, ' ')) b = space + 1, n_a = (size_t)(space - a);
    } else if (json_is_array(merge) && json_array_size(merge) == 2) {
        a = json_string_value(json_array_get(merge, 0));
        b = json_string_value(json_array_get(merge, 1));
        n_a = a ? strlen(a) : 0;
    }
    if (!a || !b)
        return mf__fail(l->err, MF_E_FORMAT, "%s: merge %zu is neither \"left right\" nor [\"left\", \"right\"]",
                        l->tok->name, i);
    mf__strbuf_clear(joined);
    MF__TRY(mf__strbuf_append(joined, a, n_a, l->err));
    MF__TRY(mf__strbuf_append(joined, "", 1, l->err));
    MF__TRY(mf__strbuf_append(joined, b, strlen(b) + 1, l->err));
    *right = joined->data + n_a + 1;
    return MF_OK;
}

static mf_status merge_id(const loader *l, size_t i, const char *name, int32_t *id) {
    const json_t *value = json_object_get(l->vocab, name);
    if (!value)
        return mf__fail(l->err, MF_E_FORMAT, "%s: merge %zu needs the token \"%.60s\", which is not in the vocabulary",
                        l->tok->name, i, name);
    *id = (int32_t)json_integer_value(value);
    return MF_OK;
}

static mf_status read_merges(loader *l, const json_t *merges) {
    size_t n = json_array_size(merges);
    MF__TRY(mf__bpe_pairs_init(&l->tok->pairs, n, l->err));
    mf__strbuf joined = {0}, whole = {0};
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < n; i++) {
        const char *right = "";
        int32_t a = 0, b = 0, ab = 0;
        status = split_merge(l, i, json_array_get(merges, i), &joined, &right);
        mf__strbuf_clear(&whole);
        if (status == MF_OK) status = mf__strbuf_printf(&whole, l->err, "%s%s", joined.data, right);
        if (status == MF_OK) status = merge_id(l, i, joined.data, &a);
        if (status == MF_OK) status = merge_id(l, i, right, &b);
        if (status == MF_OK) status = merge_id(l, i, whole.data ? whole.data : "", &ab);
        if (status == MF_OK) mf__bpe_pairs_set(&l->tok->pairs, a, b, (uint32_t)i, ab);
    }
    mf__strbuf_free(&joined);
    mf__strbuf_free(&whole);
    return status;
}

/* ---- added tokens ---------------------------------------------------------------------------------------------- */

static mf_status read_added_one(loader *l, const json_t *obj, const char *where) {
    mf__added_token t = {0};
    const char *content;
    MF__TRY(mf__json_get_string(obj, where, "content", &content, l->err));
    MF__TRY(check_id(l, content, json_object_get(obj, "id"), &t.id));
    MF__TRY(mf__json_opt_bool(obj, where, "special", false, &t.special, l->err));
    MF__TRY(mf__json_opt_bool(obj, where, "normalized", !t.special, &t.normalized, l->err));
    MF__TRY(mf__json_opt_bool(obj, where, "lstrip", false, &t.lstrip, l->err));
    MF__TRY(mf__json_opt_bool(obj, where, "rstrip", false, &t.rstrip, l->err));
    MF__TRY(mf__json_opt_bool(obj, where, "single_word", false, &t.single_word, l->err));
    size_t n = strlen(content);
    if (n > MF__ADDED_MAX_BYTES)
        return mf__fail(l->err, MF_E_LIMIT, "%s: a token of %zu bytes; the limit is %d", where, n, MF__ADDED_MAX_BYTES);
    const char *name = l->names[t.id];
    if (name && strcmp(name, content) != 0)
        return mf__fail(l->err, MF_E_FORMAT, "%s: the added token \"%.60s\" has id %d, which is \"%.60s\"", where,
                        content, (int)t.id, name);
    const json_t *other = json_object_get(l->vocab, content);
    if (other && json_integer_value(other) != t.id)
        return mf__fail(l->err, MF_E_FORMAT, "%s: the added token \"%.60s\" has id %d, but %lld in the vocabulary",
                        where, content, (int)t.id, (long long)json_integer_value(other));
    l->names[t.id] = content;
    l->literal[t.id] = true;
    if (n == 0) return MF_OK;
    mf__strbuf form = {0};
    bool same = true;
    if (t.normalized && l->tok->nfc) MF__TRY(mf__nfc(content, n, &same, &form, l->err));
    t.text = same ? strdup(content) : form.data;
    t.size = (uint32_t)(same ? n : form.size);
    if (!t.text) return mf__fail(l->err, MF_E_NOMEM, "%s: no memory", where);
    mf__added_set *set = &l->tok->added[t.normalized];
    set->tokens[set->n++] = t;
    return MF_OK;
}

static mf_status read_added(loader *l, const json_t *added) {
    size_t n = json_array_size(added);
    char where[160];
    for (int k = 0; k < 2; k++) {
        l->tok->added[k].tokens = calloc(n + 1, sizeof(mf__added_token));
        if (!l->tok->added[k].tokens) return mf__fail(l->err, MF_E_NOMEM, "%s: no memory", l->tok->name);
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(where, sizeof where, "%.120s: added_tokens[%zu]", l->tok->name, i);
        MF__TRY(read_added_one(l, json_array_get(added, i), where));
    }
    return MF_OK;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

/* Options that change what ids come out and that this reader does not follow must be absent. */
static mf_status check_model(loader *l, const json_t *model) {
    const char *type = json_string_value(json_object_get(model, "type"));
    const char *name = l->tok->name;
    if (type && strcmp(type, "BPE") != 0)
        return mf__fail(l->err, MF_E_UNSUPPORTED, "%s: model type \"%.40s\"; this build reads byte-level BPE", name,
                        type);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < MF__COUNT(affixes); i++) {
        const char *s = json_string_value(json_object_get(model, affixes[i]));
        if (s && *s)
            return mf__fail(l->err, MF_E_UNSUPPORTED,
                            "%s: model.%s is \"%.40s\"; this build reads byte-level BPE, "
                            "which has none",
                            name, affixes[i], s);
    }
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return mf__fail(l->err, MF_E_UNSUPPORTED, "%s: model.byte_fallback is true: not a byte-level tokenizer", name);
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return mf__fail(l->err, MF_E_UNSUPPORTED, "%s: model.dropout is set; encoding would be random", name);
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return mf__fail(l->err, MF_E_FORMAT, "%s: model.vocab is %s, not an object with tokens", name,
                        mf__json_type_name(vocab));
    if (!json_is_array(merges))
        return mf__fail(l->err, MF_E_FORMAT, "%s: model.merges is %s, not an array", name, mf__json_type_name(merges));
    return MF_OK;
}

static mf_status read_unk(loader *l, const json_t *model) {
    const json_t *unk = json_object_get(model, "unk_token");
    l->tok->unk_id = -1;
    MF__TRY(mf__json_opt_bool(model, l->tok->name, "fuse_unk", false, &l->tok->fuse_unk, l->err));
    if (!json_is_string(unk) || !*json_string_value(unk)) return MF_OK;
    const json_t *id = json_object_get(l->vocab, json_string_value(unk));
    if (id) l->tok->unk_id = (int32_t)json_integer_value(id);
    return MF_OK;
}

static mf_status read_root(loader *l, const json_t *root) {
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model))
        return mf__fail(l->err, MF_E_FORMAT, "%s: \"model\" is %s, not an object: is this a tokenizer.json?",
                        l->tok->name, mf__json_type_name(model));
    MF__TRY(check_model(l, model));
    if (added && !json_is_array(added) && !json_is_null(added))
        return mf__fail(l->err, MF_E_FORMAT, "%s: added_tokens is %s, not an array", l->tok->name,
                        mf__json_type_name(added));
    l->vocab = json_object_get(model, "vocab");
    MF__TRY(mf__json_opt_bool(model, l->tok->name, "ignore_merges", false, &l->tok->ignore_merges, l->err));
    MF__TRY(mf__steps_read_normalizer(l->tok->name, json_object_get(root, "normalizer"), 0, &l->tok->nfc, l->err));
    MF__TRY(
        mf__steps_read(l->tok->name, json_object_get(root, "pre_tokenizer"), &l->tok->steps, &l->tok->n_steps, l->err));
    MF__TRY(mf__steps_check_decoder(l->tok->name, json_object_get(root, "decoder"), l->err));
    MF__TRY(size_vocab(l, added));
    MF__TRY(read_vocab(l));
    MF__TRY(read_unk(l, model));
    MF__TRY(read_merges(l, json_object_get(model, "merges")));
    MF__TRY(read_added(l, added));
    MF__TRY(build_bytes(l));
    find_byte_tokens(l);
    MF__TRY(mark_words(l));
    return mf__tokenizer_finish(l->tok, l->err);
}

mf_status mf__tokenizer_parse(const char *name, const char *json, size_t size, mf__tokenizer **out, mf_error *err) {
    *out = NULL;
    json_t *root;
    MF__TRY(mf__json_parse(name, json, size, &root, err));
    loader l = {.tok = calloc(1, sizeof(mf__tokenizer)), .err = err};
    mf_status status = MF_OK;
    if (l.tok) l.tok->name = strdup(name);
    if (!l.tok || !l.tok->name) status = mf__fail(err, MF_E_NOMEM, "%s: no memory for the tokenizer", name);
    fill_unmap(l.unmap);
    if (l.tok) l.tok->source_size = size;
    if (status == MF_OK) status = read_root(&l, root);
    free(l.names);
    free(l.literal);
    json_decref(root);
    if (status != MF_OK) return mf__tokenizer_free(l.tok), status;
    *out = l.tok;
    return MF_OK;
}
