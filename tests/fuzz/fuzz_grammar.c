/* Hostile schemas, regular expressions and grammars; and whatever they let through must be completable. The first byte
 * chooses the kind. */
#include <stdlib.h>
#include <string.h>

#include "../unit/text/make_tokenizer.h"
#include "text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A tokenizer of single bytes. */
static const mf__token_trie *byte_trie(void) {
    static mf__token_trie *trie;
    if (trie) return trie;
    mf__strbuf json = {0};
    mf_error err;
    mf__tokenizer *tok;
    make_tokenizer(&(make_options){0}, &json);
    if (mf__tokenizer_parse("bytes", json.data, json.size, &tok, &err) != MF_OK) abort();
    if (mf__token_trie_create(tok, &trie, &err) != MF_OK) abort();
    mf__strbuf_free(&json);
    return trie;
}

/* Takes some allowed byte a few times, then asks for the shortest end: neither may fail but for the limits. */
static void walk(const mf__grammar *g, uint8_t choice) {
    mf__constraint *c;
    mf_error err;
    if (mf__constraint_create(g, byte_trie(), 256, NULL, 0, &c, &err) != MF_OK) return;
    if (choice & 1) mf__constraint_order(c);
    for (int step = 0; step < 24; step++) {
        const uint32_t *mask;
        if (mf__constraint_mask(c, &mask, &err) != MF_OK) break;
        int32_t id = choice, tried = 0;
        while (tried < 256 && !(mask[id / 32] >> id % 32 & 1)) id = (id + 1) % 256, tried++;
        if (tried == 256) {
            if (!mf__constraint_complete(c)) abort(); /* a dead end */
            break;
        }
        if (mf__constraint_accept(c, id, &err) != MF_OK) abort();
        choice = (uint8_t)(choice * 5 + 17);
    }
    mf__strbuf rest = {0};
    uint64_t n;
    int32_t first;
    mf_status st = mf__constraint_shortest(c, &rest, &err);
    if (st != MF_OK && err.status == MF_E_INTERNAL) abort();
    /* every byte is a token: the same way in tokens */
    if (st == MF_OK && rest.size < 1000 && mf__constraint_way(c, -1, 1000, &n, &first, &err) == MF_OK && n != rest.size)
        abort();
    mf__strbuf_free(&rest);
    mf__constraint_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf__grammar *g = NULL;
    mf_error err;
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    json_t *schema = NULL;
    mf_status status = MF_E_INVALID;
    if (data[0] % 3 == 0)
        status = mf__grammar_from_regex(text, size - 2, &g, &err);
    else if (data[0] % 3 == 1)
        status = mf__grammar_from_rules(text, size - 2, &g, &err);
    else if (mf__json_parse("fuzz", text, size - 2, &schema, &err) == MF_OK)
        status = mf__grammar_from_schema(schema, &g, &err);
    if (status == MF_OK) walk(g, data[1]);
    mf__grammar_free(g);
    json_decref(schema);
    return 0;
}
