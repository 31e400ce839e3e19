/* Tokenizer patterns, second half: cutting text into the pieces that BPE works on.
 *
 *   text --alphabet--> one class byte per code point --step 1..n, each on the pieces of the one before--> pieces
 *
 * A splitter is immutable once made and may be used from several threads; a mf__split_run is one thread's scratch. */
#ifndef MF_TEXT_SPLITTER_H
#define MF_TEXT_SPLITTER_H

#include "base/status.h"

typedef enum mf__split_behavior {
    MF__SPLIT_ISOLATED,             /* matches are pieces, and so is what lies between */
    MF__SPLIT_REMOVED,              /* matches are dropped */
    MF__SPLIT_CONTIGUOUS,           /* neighbouring matches are one piece */
    MF__SPLIT_MERGED_WITH_PREVIOUS, /* a match ends the piece before it */
    MF__SPLIT_MERGED_WITH_NEXT,     /* a match begins the piece behind it */
} mf__split_behavior;

typedef struct mf__split_step {
    const char *pattern;
    size_t size;
    bool literal; /* plain text, not a regular expression */
    bool invert;  /* what lies between matches counts as the match */
    bool prefix;  /* before this step a space is put in front of every piece that has none */
    mf__split_behavior behavior;
} mf__split_step;

typedef struct mf__splitter mf__splitter;

/* `where` begins error texts. A step with an empty pattern only applies its prefix. */
mf_status mf__splitter_create(const char *where, const mf__split_step *steps, int n_steps, mf__splitter **out,
                              mf_error *err);
void mf__splitter_free(mf__splitter *sp); /* NULL is fine */

typedef struct mf__piece {
    uint32_t start, end; /* bytes of run->text */
} mf__piece;

typedef struct mf__split_run {
    const char *text; /* the caller's, or `prefixed` when a step put spaces in */
    mf__piece *pieces;
    size_t n_pieces;
    /* scratch */
    mf__piece *spare;
    size_t pieces_capacity, spare_capacity;
    uint8_t *classes;
    size_t classes_capacity;
    char *prefixed;
    void *match_data, *match_context, *jit_stack;
} mf__split_run;

#define MF__SPLIT_MAX_TEXT ((size_t)1 << 30)

/* Cuts text (valid UTF-8, at most MF__SPLIT_MAX_TEXT bytes) into run->pieces. The run was zeroed before its first use
 * and is used again with the same splitter. */
mf_status mf__splitter_run(const mf__splitter *sp, const char *text, size_t size, mf__split_run *run, mf_error *err);
void mf__split_run_free(mf__split_run *run);

#endif
