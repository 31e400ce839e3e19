/* A judge of JSON values by JSON Schema, for tests: it shares nothing with text/grammar. */
#ifndef TEST_VALIDATE_H
#define TEST_VALIDATE_H

#include <jansson.h>
#include <stdbool.h>

/* Is value valid by schema, a part of root (which $ref begins at)? Ends the program at a keyword it does not know. */
bool validate(const json_t *root, const json_t *schema, const json_t *value);

/* Does the pattern, in the notation of ECMA-262, match anywhere in the text? */
bool validate_pattern(const char *pattern, const char *text);

#endif
