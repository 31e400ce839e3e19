/* Does reading ahead pay? Recall says how often a prediction is right, not whether the time it saves is more than the
 * time it takes from compute and from other reads. So it is tried, and the faster way is kept for a while.
 *
 * Times of passes drift: the cache learns, the drive and the machine have others to serve. So the two ways take turns
 * in short blocks, in the order A B B A, in which a steady drift cancels: one comparison. A comparison whose equal
 * blocks differ too much was made under a load that changed, and does not count. One comparison is enough where reading
 * ahead is clearly faster; to give it up takes three that agree, or the median of five. Where its reads are nearly
 * always wanted and the drive idles without them, it must be slower by more than noise.
 *
 * Only passes of about as many rows can be compared: passes of 1 row, of 2 and 3, of 4 to 7 and so on have a trial
 * each. */
#ifndef MF_STORE_TRIAL_H
#define MF_STORE_TRIAL_H

#include "base/status.h"

#define MF_TRIAL_WARM 8       /* passes before anything is timed */
#define MF_TRIAL_SETTLE 1     /* passes of a block that are not timed: the change itself */
#define MF_TRIAL_PASSES 3     /* ... that are; their median counts */
#define MF_TRIAL_LEAST 3      /* comparisons before reading ahead is given up */
#define MF_TRIAL_MOST 5       /* ... before the median decides */
#define MF_TRIAL_WILD 6       /* comparisons that do not count, before the question is put off */
#define MF_TRIAL_KEEP 256     /* passes that a decision holds; twice as many each time it is confirmed */
#define MF_TRIAL_LONGEST 4096 /* ... at most */
#define MF_TRIAL_SIZES 12     /* the last is of 2048 rows or more */

/* One pass that decodes. */
typedef struct mf__trial_seen {
    int64_t ns;      /* how long it took */
    int64_t idle_ns; /* how much of it the drive had nothing to do */
    bool sure;       /* what is read ahead is nearly always wanted */
} mf__trial_seen;

typedef struct mf__trial {
    bool off;     /* the answer for the next pass; a zeroed trial begins with reading ahead */
    bool decided; /* off, as it was decided last */
    int n_warm;   /* passes before the first comparison, so far */
    int keep;     /* passes that the decision still holds; 0: trying */
    int held;     /* ... that it held the last time */
    int block, n; /* of the comparison under way, and passes of the block so far */
    int64_t ns[MF_TRIAL_PASSES];
    int64_t medians[4]; /* of the blocks */
    int n_gains, n_wild;
    double gains[MF_TRIAL_MOST]; /* of each comparison: log of the time without over the time with */
    int64_t off_ns, off_idle_ns; /* of passes without */
} mf__trial;

void mf__trial_pass(mf__trial *t, mf__trial_seen seen);
int mf__trial_size(int n_rows); /* which trial such a pass belongs to */

#endif
