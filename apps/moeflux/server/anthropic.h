/* Requests of Anthropic's Messages API. */
#ifndef MOEFLUX_ANTHROPIC_H
#define MOEFLUX_ANTHROPIC_H

#include "api.h"

/* answers: max_tokens is needed, as an answer is wanted; otherwise tokens are only counted. */
bool anthropic_request(gen *g, job *j, const json_t *body, bool answers);

#endif
