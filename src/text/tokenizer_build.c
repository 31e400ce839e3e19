/* What every tokenizer has, wherever it was read from: opening by path, derived tables, the end. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/tokenizer_int.h"
#include "text/tokenizer_steps.h"

#define MAX_FILE ((size_t)256 << 20)

/* For ignore_merges: pieces that are tokens as a whole. */
static mf_status build_words(mf__tokenizer *tok, mf_error *err) {
    uint32_t capacity = 16;
    while (capacity < (uint32_t)tok->n_vocab * 2) capacity *= 2;
    tok->word_slots = malloc(capacity * sizeof *tok->word_slots);
    if (!tok->word_slots) return mf__fail(err, MF_E_NOMEM, "%s: no memory for the vocabulary", tok->name);
    memset(tok->word_slots, 0xFF, capacity * sizeof *tok->word_slots);
    tok->word_mask = capacity - 1;
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        if (!tok->is_word[id]) continue;
        size_t n;
        const char *bytes = mf__tokenizer_bytes(tok, id, &n);
        uint32_t i = mf__bytes_hash(bytes, n) & tok->word_mask;
        while (tok->word_slots[i] >= 0) i = (i + 1) & tok->word_mask;
        tok->word_slots[i] = id;
    }
    return MF_OK;
}

static int compare_tokens(const void *a, const void *b) {
    const mf__added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : x->size < y->size ? -1 : x->size > y->size;
}

mf_status mf__tokenizer_finish(mf__tokenizer *tok, mf_error *err) {
    for (int k = 0; k < 2; k++) {
        mf__added_set *set = &tok->added[k];
        qsort(set->tokens, set->n, sizeof *set->tokens, compare_tokens);
        for (size_t i = 0; i < set->n; i++) {
            set->first[(uint8_t)set->tokens[i].text[0]] = true;
            if (i && compare_tokens(&set->tokens[i - 1], &set->tokens[i]) == 0)
                return mf__fail(err, MF_E_FORMAT, "%s: the added token \"%.60s\" is there twice (ids %d and %d)",
                                tok->name, set->tokens[i].text, (int)set->tokens[i - 1].id, (int)set->tokens[i].id);
        }
    }
    if (tok->ignore_merges) MF__TRY(build_words(tok, err));
    return mf__splitter_create(tok->name, tok->steps, tok->n_steps, &tok->splitter, err);
}

void mf__tokenizer_free(mf__tokenizer *tok) {
    if (!tok) return;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < tok->added[k].n; i++) free((char *)tok->added[k].tokens[i].text);
        free(tok->added[k].tokens);
    }
    mf__steps_free(tok->steps, tok->n_steps);
    mf__splitter_free(tok->splitter);
    free(tok->pairs.slots);
    free(tok->word_slots);
    free(tok->is_word);
    free(tok->offsets);
    free(tok->bytes);
    free(tok->name);
    free(tok);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static mf_status open_file(const char *path, mf__tokenizer **out, mf_error *err) {
    char *bytes;
    size_t size;
    MF__TRY(mf__file_read(path, MAX_FILE, &bytes, &size, err));
    mf_status status = mf__tokenizer_magic((const uint8_t *)bytes, size)
                           ? mf__tokenizer_read(path, (const uint8_t *)bytes, size, out, err)
                           : mf__tokenizer_parse(path, bytes, size, out, err);
    free(bytes);
    return status;
}

/* The compiled file, unless the tokenizer.json beside it is another one than it was made from. */
static mf_status open_dir(const char *compiled, const char *json, mf__tokenizer **out, mf_error *err) {
    int64_t size;
    if (!mf__path_exists(compiled)) return open_file(json, out, err);
    MF__TRY(open_file(compiled, out, err));
    if (!mf__path_exists(json) || mf__file_size(json, &size, NULL) != MF_OK || (uint64_t)size == (*out)->source_size)
        return MF_OK;
    mf__tokenizer_free(*out);
    *out = NULL;
    return open_file(json, out, err);
}

mf_status mf__tokenizer_open(const char *path, mf__tokenizer **out, mf_error *err) {
    *out = NULL;
    if (!mf__path_is_dir(path)) return open_file(path, out, err);
    char *compiled = mf__path_join(path, MF__TOKENIZER_COMPILED), *json = mf__path_join(path, "tokenizer.json");
    mf_status status =
        compiled && json ? open_dir(compiled, json, out, err) : mf__fail(err, MF_E_NOMEM, "no memory to open %s", path);
    free(compiled);
    free(json);
    return status;
}

mf_status mf__tokenizer_compile(const mf__tokenizer *tok, const char *path, mf_error *err) {
    mf__strbuf b = {0};
    mf_status status = mf__tokenizer_write(tok, &b, err);
    if (status == MF_OK) status = mf__file_replace(path, b.data, b.size, err);
    mf__strbuf_free(&b);
    return status;
}
