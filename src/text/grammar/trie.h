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

struct mf__token_trie {
    trie_node *nodes;
    uint32_t n_nodes, max_depth;
    int32_t *tokens;
    uint32_t n_tokens;
    const mf__tokenizer *tok;
};

#endif
