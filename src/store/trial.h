/* Does reading ahead pay? Recall says how often a prediction is right, not whether the time it saves is more than the
 * time it takes from compute and from other reads. So it is tried: some passes with it, some without, and the faster
 * way is kept for a while before it is tried again. Only passes of about as many rows can be compared: passes of 1 row,
 * of 2 and 3, of 4 to 7 and so on have a trial each. */
#ifndef MF_STORE_TRIAL_H
#define MF_STORE_TRIAL_H

#include "base/status.h"

#define MF_TRIAL_CYCLES 16 /* passes that are timed on each side */
#define MF_TRIAL_SETTLE 4  /* passes before them, while the cache gets used to the change */
#define MF_TRIAL_KEEP 1024 /* passes that the decision holds */
#define MF_TRIAL_SIZES 12  /* the last is of 2048 rows or more */

typedef struct mf__trial {
    bool off; /* the answer for the next pass; a zeroed trial begins with reading ahead */
    int side; /* 0: timing with, 1: without */
    int n;    /* passes of this side so far */
    int keep; /* passes the decision still holds; 0: trying */
    int64_t ns[2][MF_TRIAL_CYCLES];
} mf__trial;

void mf__trial_pass(mf__trial *t, int64_t ns); /* one more pass that decodes, and how long it took */
int mf__trial_size(int n_rows);                /* which trial such a pass belongs to */

#endif
