/* What a conversion will write: every trunk tensor and the experts' layout, with the form each gets. Made before
 * anything is written, so that a bad checkpoint costs nothing. */
#ifndef MF_CONVERT_PLAN_H
#define MF_CONVERT_PLAN_H

#include <jansson.h>

#include "convert/convert.h"
#include "convert/gguf.h"
#include "model/import.h"

#define MF_EXPERT_ALIGN 4096

typedef struct mf__plan_tensor {
    char *name;
    mf__source src;     /* where it is in the checkpoint */
    mf__tensor dst;     /* the form it gets; no pointers */
    bool add_one;       /* the checkpoint stores w - 1 */
    int64_t chunk_rows; /* rows handled at once */
    int n_dims;         /* as stored: of vectors and kernels; 2 for matrices */
    int64_t dims[3];
} mf__plan_tensor;

typedef struct mf__plan {
    const mf__convert_options *opt;
    const char *src;
    json_t *config;
    mf__gguf_model gguf; /* when src is a GGUF file */
    mf__blueprint bp;
    mf__catalog *cat;
    mf__import im;
    mf__plan_tensor *tensors;
    int64_t n_tensors;
    bool has_experts;
    mf__expert_layout layout, second; /* second: with also_bits */
    int experts_at_once;
    int64_t source_bytes, target_bytes;
    int64_t max_in, max_out, max_rows, max_cols; /* of one item: buffer bytes, rows, columns */
} mf__plan;

/* plan is zeroed first; after a failure it is to be closed too. */
mf_status mf__plan_make(const char *src, const mf__convert_options *opt, mf__plan *plan, mf_error *err);
void mf__plan_close(mf__plan *plan);
bool mf__plan_layer_has_experts(const mf__plan *plan, int layer);
bool mf__plan_is_router(const char *name); /* or the gate of a shared expert */
/* "experts 4, trunk 8, ..., groups of 64" */
#define MF_OPTIONS_TEXT 320
void mf__plan_options_text(const mf__convert_options *opt, char text[MF_OPTIONS_TEXT]);
json_t *mf__plan_options_json(const mf__convert_options *opt);
/* And back: from the manifest of a converted model. */
mf_status mf__plan_options_parse(const json_t *obj, const char *where, mf__convert_options *opt, mf_error *err);

#endif
