/* What the experts of a model see while it reads a text: for `convert --calibrate`. */
#ifndef MOEFLUX_CALIBRATE_H
#define MOEFLUX_CALIBRATE_H

#include "app.h"
#include "convert/sample.h"

#define CALIBRATE_NAME 64

typedef struct calibrate_options {
    const char *text;  /* a file; documents as for eval, long ones in pieces */
    const char *model; /* the same model as a directory; NULL: one of 8 bits is made of the source, and removed */
    int64_t n_tokens;  /* read at most so many */
    int64_t threads;
} calibrate_options;

/* src and dst: of the conversion. name: the text's, with a hash of what was read. */
mf_status calibrate(const char *src, const char *dst, const calibrate_options *opt, mf__sample **out,
                    char name[CALIBRATE_NAME], mf_error *err);

#endif
