/* Answers to schemas from random logits, for tools/random_schemas.py.
 *
 *   random_answers TOKENIZER ANSWERS MAX_TOKENS SEED
 *
 * Reads a schema per line, writes {"answers": [...], "whole": N} or {"error": ...} per line; "whole" counts the answers
 * that ended by themselves. */
#include <stdio.h>
#include <stdlib.h>

#include "random_answer.h"

static int fails(const char *what) {
    fprintf(stderr, "random_answers: %s\n", what);
    return 1;
}

static mf_status answer_all(random_speaker *r, const json_t *schema, const mf__token_trie *trie, int n_answers,
                            json_t *reply, mf_error *err) {
    mf__grammar *g;
    MF__TRY(mf__grammar_from_schema(schema, &g, err));
    mf_status status = mf__constraint_create(g, trie, r->n_vocab, &r->eos, 1, &r->c, err);
    json_t *answers = json_array();
    int n_whole = 0;
    for (int i = 0; status == MF_OK && i < n_answers; i++) {
        mf__strbuf text = {0};
        bool whole = false;
        r->brief = i % 2;
        if (i == n_answers / 2) mf__constraint_order(r->c); /* one half in any order, the other in the schema's */
        status = random_answer(r, &text, &whole, err);
        n_whole += whole;
        json_t *answer = status == MF_OK ? json_stringn(text.data, text.size) : NULL;
        if (status == MF_OK && json_array_append_new(answers, answer) != 0)
            status = mf__fail(err, MF_E_INTERNAL, "an answer that is not UTF-8");
        mf__strbuf_free(&text);
    }
    json_object_set_new(reply, "answers", answers);
    json_object_set_new(reply, "whole", json_integer(n_whole));
    mf__constraint_free(r->c);
    r->c = NULL;
    mf__grammar_free(g);
    return status;
}

int main(int argc, char **argv) {
    mf_error err;
    mf__tokenizer *tok;
    mf__token_trie *trie;
    if (argc != 5) return fails("TOKENIZER ANSWERS MAX_TOKENS SEED");
    if (mf__tokenizer_open(argv[1], &tok, &err) != MF_OK || mf__token_trie_create(tok, &trie, &err) != MF_OK)
        return fails(err.text);
    /* Rows of logits are longer than the vocabulary, as models' are; the one behind the last token ends an answer. */
    int32_t n_vocab = mf__tokenizer_n_vocab(tok) + 1;
    random_speaker r = {.tok = tok, .n_vocab = n_vocab, .eos = n_vocab - 1, .max_tokens = atoi(argv[3])};
    mf_sampler_options so;
    mf_sampler_options_init(&so);
    so.temperature = 1;
    so.seed = strtoull(argv[4], NULL, 10);
    r.seed = so.seed * 0x9E3779B97F4A7C15u | 1;
    r.logits = malloc((size_t)n_vocab * sizeof *r.logits);
    if (!r.logits || mf_sampler_create(&so, n_vocab, &r.sampler, &err) != MF_OK) return fails("no memory");
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        json_t *schema = json_loadb(line, (size_t)n, JSON_DECODE_ANY, NULL), *reply = json_object();
        if (!schema) return fails("a line that is not JSON");
        if (answer_all(&r, schema, trie, atoi(argv[2]), reply, &err) != MF_OK)
            json_object_set_new(reply, "error", json_string(err.text));
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(schema);
        json_decref(reply);
    }
    free(line);
    free(r.logits);
    mf_sampler_free(r.sampler);
    mf__token_trie_free(trie);
    mf__tokenizer_free(tok);
    return 0;
}
