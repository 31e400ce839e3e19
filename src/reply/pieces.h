/* Arguments of tool calls while they are written: where a call's JSON begins in a block, and how far it has come. The
 * block as a whole is read later (calls.h) and decides; here only what cannot turn out otherwise is given out, so the
 * block must be one that a constraint holds to its form. */
#ifndef MF_REPLY_PIECES_H
#define MF_REPLY_PIECES_H

#include "reply/span.h"
#include "text/chat.h"

typedef struct mf__pieces {
    size_t at;      /* bytes of the block that were looked at */
    int n_begun;    /* calls that were begun */
    size_t n_given; /* bytes of the last one's arguments that came out */
    bool inside;    /* ... which go on */
    bool blind;     /* what follows cannot be told before the block has ended */
    int depth;      /* of brackets in the arguments */
    bool in_string, escaped;
} mf__pieces;

typedef enum mf__pieces_event {
    MF__PIECES_WAIT,  /* nothing more can be said of what is there */
    MF__PIECES_BEGIN, /* a call begins: its name and id */
    MF__PIECES_MORE   /* its arguments go on: piece */
} mf__pieces_event;

typedef struct mf__piece {
    mf__span name;
    bool quoted; /* the name is a JSON string */
    mf__span id; /* empty: none */
    mf__span text;
} mf__piece;

/* What comes next in the block; to be called until it waits. name: of the call that the block is the arguments of
 * (harmony), else empty. */
mf__pieces_event mf__pieces_next(mf__pieces *p, mf__notation notation, mf__span name, mf__span block, mf__piece *out);

#endif
