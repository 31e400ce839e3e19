/* Does reading ahead pay? Recall says how often a prediction is right, not whether the time it saves is more than the
 * time it takes from compute and from other reads. So it is tried: some tokens with it, some without, and the faster
 * way is kept for a while before it is tried again. */
#ifndef MF_STORE_TRIAL_H
#define MF_STORE_TRIAL_H

#include "base/status.h"

#define MF_TRIAL_CYCLES 16 /* tokens that are timed on each side */
#define MF_TRIAL_SETTLE 4  /* tokens before them, while the cache gets used to the change */
#define MF_TRIAL_KEEP 1024 /* tokens that the decision holds */

typedef struct mf__trial {
    bool off; /* the answer for the next token; a zeroed trial begins with reading ahead */
    int side; /* 0: timing with, 1: without */
    int n;    /* tokens of this side so far */
    int keep; /* tokens the decision still holds; 0: trying */
    int64_t ns[2][MF_TRIAL_CYCLES];
} mf__trial;

void mf__trial_token(mf__trial *t, int64_t ns); /* one more decoded token, and how long it took */

#endif
