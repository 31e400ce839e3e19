/* What is there, without running it: a published checkpoint, a GGUF file, or a native model directory, whoever made it.
 *
 * A survey goes on where opening would stop: what it can find out it tells, and what is wrong or not supported it lists
 * with the sentence that opening or converting would give. */
#ifndef MF_CONVERT_SURVEY_H
#define MF_CONVERT_SURVEY_H

#include "model/family.h"

typedef enum mf__survey_part {
    MF_SURVEY_EMBED,
    MF_SURVEY_HEAD,
    MF_SURVEY_ATTENTION, /* full, sliding and latent */
    MF_SURVEY_LINEAR,
    MF_SURVEY_SHARED, /* shared experts */
    MF_SURVEY_DENSE,  /* the feed-forward of layers without experts */
    MF_SURVEY_ROUTER,
    MF_SURVEY_REST, /* norms */
    MF_SURVEY_PARTS
} mf__survey_part;

#define MF_SURVEY_PROBLEMS 6

typedef struct mf__survey {
    bool is_native; /* else a checkpoint; sizes are then those of its tensors as they are */
    bool known;     /* the config was read: blueprint and all numbers below are valid */
    mf__blueprint bp;
    int64_t part_bytes[MF_SURVEY_PARTS];
    int64_t trunk_bytes; /* their sum */
    int n_moe_layers;
    bool has_layout;
    mf__expert_layout layout; /* of one expert, as it is or as convert would keep it */
    int64_t expert_bytes;     /* of all routed experts */
    int64_t unused_bytes;     /* tensors that a text model does not use */
    int64_t cold_bytes;       /* experts read for one token when none is in memory */
    int64_t resident_bytes;   /* bytes touched for one token when all are */
    int64_t state_bytes;      /* recurrent state, per session */
    int n_problems;           /* all of them; the first few are kept */
    mf_error problems[MF_SURVEY_PROBLEMS];
} mf__survey;

/* MF_OK also for models with problems; an error when dir is neither a checkpoint nor a GGUF file nor a model directory,
 * or cannot be read. After MF_OK the survey is to be freed. */
mf_status mf__survey_make(const char *dir, mf__survey *out, mf_error *err);
void mf__survey_free(mf__survey *s);
const char *mf__survey_part_name(mf__survey_part part); /* "embedding", "attention", ... */

#endif
