/* From a published checkpoint to a native model directory. */
#ifndef MF_CONVERT_CONVERT_H
#define MF_CONVERT_CONVERT_H

#include "base/status.h"

#define MF_BITS_KEEP 0 /* as the checkpoint has it */

/* A source whose files come one after the other: only the beginning of each, with the table of its tensors, is there
 * when the conversion starts. Called on any thread, one call at a time each; path is a file of the source. */
typedef struct mf__feed {
    void *user;
    const char *identity; /* which source this is, in one word: a later run with the same one goes on with it */
    /* Returns when all bytes of the file are there. */
    mf_status (*want)(void *user, const char *path, mf_error *err);
    /* Nothing more is read from it, and what was made of it is on the disk: it may go. */
    mf_status (*done)(void *user, const char *path, mf_error *err);
} mf__feed;

typedef struct mf__convert_options {
    /* Each MF_BITS_KEEP, or 2 3 4 5 6 8. */
    int expert_bits; /* the routed experts */
    int trunk_bits;  /* every matrix that is none of the others */
    int embed_bits;  /* the embedding table; the head too, when it is the same table */
    int head_bits;
    int router_bits; /* routers and the gates of shared experts */
    int group;       /* 32, 64 or 128 */
    int also_bits;   /* 2 or 3: small copies of the experts beside them, in packed_experts_2bit/; 0: none */
    /* Widths and groups of the experts' gate, up and down, where they are to differ; 0: expert_bits, group. */
    int part_bits[3], part_group[3];
    int also_part_bits[3]; /* ... and those of the small copies; 0: also_bits */
    /* What the experts saw of a text, and its name for people and for runs that go on (NULL: none of both): errors that
     * this text makes large are kept small. scales_only: by the choice of scales alone, which is faster. */
    const struct mf__sample *sample;
    const char *calibration;
    bool scales_only;
    bool allow_nonfinite;
    bool restart;  /* do not go on with what an interrupted conversion left */
    int n_threads; /* 0: one per processor */
    mf_log_sink log;
    /* Called now and then, on the caller's thread, with the bytes of the source that are done and all there are (the
     * first call tells what an earlier run did already); true stops with MF_E_CANCELLED. May be NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *progress_user;
    const mf__feed *feed; /* NULL: the source is all there */
} mf__convert_options;

void mf__convert_options_init(mf__convert_options *opt); /* keep everything; groups of 64 */
/* "small", "balanced" or "exact": sets the widths. False for another name. */
bool mf__convert_preset(mf__convert_options *opt, const char *name);

/* src: a directory with config.json and safetensors, or a GGUF file (the first of several). dst must not exist; it is
 * complete afterwards, or absent. A run that was interrupted (MF_E_CANCELLED, a full disk, a kill) leaves dst.partial
 * with its finished parts, and the same call goes on from there; any other failure leaves nothing. */
mf_status mf__convert(const char *src, const char *dst, const mf__convert_options *opt, mf_error *err);

#endif
