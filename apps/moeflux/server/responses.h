/* Requests of OpenAI's Responses API. */
#ifndef MOEFLUX_RESPONSES_H
#define MOEFLUX_RESPONSES_H

#include "api.h"

bool responses_request(gen *g, job *j, const json_t *body);

#endif
