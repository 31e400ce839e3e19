/* The vocabulary as a flattened tree of bytes: nodes in depth-first order, each with the place behind its subtree. */
#ifndef MF_TEXT_GRAMMAR_TRIE_H
#define MF_TEXT_GRAMMAR_TRIE_H

#include "text/grammar/grammar.h"

typedef struct trie_node {
    uint32_t after; /* the next node that is not below this one */
    uint16_t depth; /* bytes from the root, at least 1 */
    uint8_t byte;
    uint8_t n_tokens; /* tokens that end here (255 at most) */
    uint32_t tokens;  /* first of them in trie->tokens */
} trie_node;

typedef struct token_tree {
    trie_node *nodes;
    uint32_t n_nodes;
    int32_t *tokens;
    uint32_t n_tokens;
} token_tree;

#define TRIE_LENGTHS 32

/* Inside a JSON string most tokens need no looking at: plain ones, which are whole characters that stand for
 * themselves. plain[k] has a bit for each of at most k characters, plain[TRIE_LENGTHS + 1] for all of them. */
struct mf__token_trie {
    token_tree all, marked; /* marked: the tokens that are not plain */
    token_tree longer;      /* the plain ones of more than TRIE_LENGTHS characters */
    uint32_t max_depth, max_chars;
    uint32_t *plain[TRIE_LENGTHS + 2];
    size_t n_words; /* of a plain mask */
    const mf__tokenizer *tok;
};

/* The longest token that s begins with, *used bytes of it; -1: there is none. */
int32_t mf__token_trie_longest(const mf__token_trie *t, const char *s, size_t n, int32_t n_vocab, size_t *used);

#endif
