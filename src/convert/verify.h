/* Reading every byte of a model again: against its own checksums, or against the checkpoint it was made from. */
#ifndef MF_CONVERT_VERIFY_H
#define MF_CONVERT_VERIFY_H

#include "base/status.h"

typedef struct mf__verify_options {
    int n_threads;                                             /* 0: chosen */
    bool (*progress)(void *user, int64_t done, int64_t total); /* bytes; true stops; may be NULL */
    void *progress_user;
} mf__verify_options;

typedef struct mf__verify_result {
    int64_t bytes;                         /* read */
    int64_t n_tensors, n_experts, n_files; /* that have checksums and were read */
    int64_t n_bad;
} mf__verify_result;

/* MF_E_FORMAT names the first tensor, expert or file that is not what was written; MF_E_UNSUPPORTED: the directory has
 * no checksums (other tools do not write them). result may be NULL. */
mf_status mf__verify(const char *dir, const mf__verify_options *opt, mf__verify_result *result, mf_error *err);

/* Converts src again, in memory, as dir's manifest says it was done, and compares with the checksums of dir.
 * MF_E_MISMATCH names the first tensor or expert that would be different. Says nothing about dir's own bytes; but of a
 * conversion with a calibration, whose text had a part in the experts' bytes, those are compared by their values, and
 * *cosine (may be NULL) is the least cosine of any part of an expert and of what the source gives without. Else it is
 * 1. */
mf_status mf__verify_against(const char *dir, const char *src, const mf__verify_options *opt, double *cosine,
                             mf_error *err);

#endif
