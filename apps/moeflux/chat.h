/* The state of `moeflux chat`, which chat.c runs and chat_commands.c changes. */
#ifndef MOEFLUX_CHAT_H
#define MOEFLUX_CHAT_H

#include "answer.h"
#include "conversation.h"
#include "lines.h"
#include "remote.h"
#include "screen.h"

typedef struct chat {
    app_model_options model;
    sampling_options sampling;
    talker talker;  /* empty where there is a remote */
    remote *remote; /* --server; NULL: the model is ours */
    int64_t n_held; /* with a remote: tokens of the conversation, when it was last told */
    conversation talk;
    said said; /* the answer at hand */
    screen screen;
    lines *in;
    const char *file; /* where the conversation is kept up to date; NULL: nowhere */
    json_t *pending;  /* a request that got no answer; /retry asks it again */
    bool terminal;    /* somebody is sitting there */
    uint64_t n_answers;
    bool reading; /* a line on the screen says so */
    bool leave, failed;
} chat;

/* Lines for the user, on standard error. */
void chat_note(const chat *c, const char *fmt, ...) MF__PRINTF(2, 3);
void chat_error(chat *c, const mf_error *err); /* the exit code will tell */

const char *chat_model(const chat *c);
bool chat_can_reason(const chat *c); /* the model can be told to think or not */

/* Lets the model answer the last message. */
void chat_answer(chat *c);

/* The conversation, and beside it the state, in FILE.state. */
mf_status chat_save(chat *c, const char *path, mf_error *err);
mf_status chat_load(chat *c, const char *path, mf_error *err);

/* A line that begins with '/'. */
void chat_command(chat *c, const char *line);
const char *chat_completion(int i); /* what Tab may complete a line to, one after the other; NULL ends */

#endif
