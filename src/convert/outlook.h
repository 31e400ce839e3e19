/* What a conversion would do, before it does it: sizes and forms by part, and which preset suits the source. */
#ifndef MF_CONVERT_OUTLOOK_H
#define MF_CONVERT_OUTLOOK_H

#include "convert/convert.h"

enum {
    MF_OUTLOOK_EMBED,
    MF_OUTLOOK_HEAD,
    MF_OUTLOOK_ROUTER,
    MF_OUTLOOK_TRUNK,
    MF_OUTLOOK_SMALL,
    MF_OUTLOOK_EXPERTS,
    MF_OUTLOOK_PARTS
};

typedef struct mf__outlook_part {
    const char *name;
    int64_t before, after; /* bytes */
    char from[32], to[32]; /* "BF16", "4 bits/64"; "mixed" where tensors differ */
} mf__outlook_part;

typedef struct mf__outlook {
    mf__outlook_part parts[MF_OUTLOOK_PARTS];
    int64_t before, after; /* of what is converted; tensors that the model does not use are in neither */
    bool wide;             /* the source keeps its experts, or its matrices if it has none, in 16 bits or more */
} mf__outlook;

mf_status mf__outlook_make(const char *src, const mf__convert_options *opt, mf__outlook *out, mf_error *err);

/* Sets the widths to those of the preset that suits src, whose name comes back: "balanced" where the source is wide;
 * "exact" where it is quantized already. */
mf_status mf__outlook_recommend(const char *src, mf__convert_options *opt, const char **preset, mf_error *err);

#endif
