/* Reading a tokenizer.json's normalizer, pre_tokenizer and decoder. Kinds that are not known are MF_E_UNSUPPORTED: a
 * tokenizer that is nearly right is wrong. */
#ifndef MF_TEXT_TOKENIZER_STEPS_H
#define MF_TEXT_TOKENIZER_STEPS_H

#include "base/json.h"
#include "text/splitter.h"

#define MF__STEPS_MAX 16

/* Null, NFC, or a Sequence of those. */
mf_status mf__steps_read_normalizer(const char *where, const json_t *norm, int depth, bool *nfc, mf_error *err);

/* Split, Digits and ByteLevel, or a Sequence of those in which ByteLevel comes last. */
mf_status mf__steps_read(const char *where, const json_t *pre, mf__split_step **steps, int *n, mf_error *err);
void mf__steps_free(mf__split_step *steps, int n);

mf_status mf__steps_check_decoder(const char *where, const json_t *decoder, mf_error *err); /* ByteLevel or nothing */

#endif
