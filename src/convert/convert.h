/* From a published checkpoint to a native model directory. */
#ifndef MF_CONVERT_CONVERT_H
#define MF_CONVERT_CONVERT_H

#include "base/status.h"

#define MF_BITS_KEEP 0 /* as the checkpoint has it */

typedef struct mf__convert_options {
    int expert_bits; /* MF_BITS_KEEP, or 2 3 4 5 6 8 */
    int trunk_bits;  /* the same, for every matrix outside the experts but the routers */
    int group;       /* 32, 64 or 128 */
    mf_log_sink log;
    /* Called now and then with bytes read so far and in all; true stops with MF_E_CANCELLED. May be NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *progress_user;
} mf__convert_options;

void mf__convert_options_init(mf__convert_options *opt); /* keep, keep, 64 */

/* src: a directory with config.json and safetensors. dst must not exist; it is complete afterwards, or absent. */
mf_status mf__convert(const char *src, const char *dst, const mf__convert_options *opt, mf_error *err);

#endif
