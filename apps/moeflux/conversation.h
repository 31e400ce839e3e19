/* A conversation: messages, and how to think about them. In a file it is one JSON object,
 *
 *   {"moeflux_conversation": 1, "model": NAME, "think": "auto|on|off", "messages": [{"role", "content", ...}, ...]}
 */
#ifndef MOEFLUX_CONVERSATION_H
#define MOEFLUX_CONVERSATION_H

#include <jansson.h>

#include "app.h"

typedef struct conversation {
    json_t *messages; /* perhaps a system message, then user and assistant in turn */
    mf_switch think;
} conversation;

mf_status conversation_init(conversation *c, mf_error *err);
void conversation_free(conversation *c);
size_t conversation_turns(const conversation *c); /* messages but for the system's */

mf_status conversation_set_system(conversation *c, const char *text, mf_error *err); /* empty or NULL: none */
const char *conversation_system(const conversation *c);                              /* NULL: none */
mf_status conversation_ask(conversation *c, const char *text, size_t size, mf_error *err);
void conversation_reset(conversation *c); /* keeps the system message */
/* Removes the first request and what answered it; false: there is none. */
bool conversation_forget(conversation *c);
/* Removes the last message if it has that role, which is returned (decref it); NULL: it has not. */
json_t *conversation_take(conversation *c, const char *role);

/* {"messages": ...}, as mf_reply takes it; malloc'd, NULL: no memory. */
char *conversation_request(const conversation *c);

mf_status conversation_save(const conversation *c, const char *model, const char *path, mf_error *err);
/* c is replaced when all is well, and unchanged otherwise. */
mf_status conversation_load(conversation *c, const char *path, mf_error *err);

/* An assistant's message, collected from events. */
typedef struct said {
    mf__strbuf text, reasoning;
    json_t *calls;                        /* NULL: none */
    mf__strbuf call_name, call_arguments; /* of the call at hand */
} said;

mf_status said_event(said *s, const mf_event *event, mf_error *err);
bool said_nothing(const said *s);
mf_status conversation_answer(conversation *c, const said *s, mf_error *err);
void said_clear(said *s);
void said_free(said *s);

#endif
