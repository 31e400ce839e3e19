/* The tiny random model for tests of sessions: converted from the unpacked checkpoint into a directory of this process.
 */
#ifndef TESTS_GOLDEN_TINY_H
#define TESTS_GOLDEN_TINY_H

#include "moeflux.h"

#define TINY_VOCAB 512
#define TINY_HIDDEN 128
#define TINY_LAYERS 8

/* Group setup and teardown: *state is the directory's name. tiny_checkpoint must be set before; where that is a model
 * directory already, it is used as it is. */
extern const char *tiny_checkpoint;
extern int tiny_also_bits; /* of small copies of the experts; 0: none */
int tiny_setup(void **state);
int tiny_teardown(void **state);

extern const char *tiny_backend; /* "ref" */
mf_model *tiny_open(const char *dir, int n_threads);
mf_session *tiny_session(mf_model *m, int n_ctx, int n_chunk);

/* The test sequence: token i of a sequence of any length, in the vocabulary. */
int32_t tiny_token(int64_t i);
/* Evaluates n of them at the session's end; logits gets the last row. Asserts success. */
void tiny_eval(mf_session *s, int64_t n, float logits[TINY_VOCAB]);

#endif
