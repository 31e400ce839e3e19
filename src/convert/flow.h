/* The stream of a conversion: plan -> read, encode -> sink. The sink is the writer of a native directory, or, when a
 * model is compared with its source, something that only checks. */
#ifndef MF_CONVERT_FLOW_H
#define MF_CONVERT_FLOW_H

#include "convert/encode.h"
#include "convert/plan.h"
#include "convert/stage.h"
#include "weights/native.h"

/* The functions of weights/native.h's writer that a stream uses, with the same meaning. */
typedef struct mf__sink {
    void *ctx;
    bool (*has_tensor)(const void *ctx, const char *name);
    int (*experts_done)(const void *ctx, int layer);
    mf_status (*tensor_begin)(void *ctx, const mf__entry *entry, int bits, mf_error *err);
    mf_status (*tensor_data)(void *ctx, const void *data, int64_t size, mf_error *err);
    mf_status (*tensor_end)(void *ctx, mf_error *err);
    mf_status (*experts_begin)(void *ctx, int layer, const mf__expert_layout *layout, int n_experts, mf_error *err);
    mf_status (*experts)(void *ctx, const mf__expert_run *run, mf_error *err);
    mf_status (*experts_end)(void *ctx, mf_error *err);
    mf_status (*part)(void *ctx, json_t *note, mf_error *err);
    mf_status (*commit)(void *ctx, mf_error *err); /* all parts so far are on the disk; NULL where no feed is used */
} mf__sink;

mf__sink mf__sink_writer(mf__native_writer *w);

/* Everything of the plan that the sink does not have yet. The notes that come with parts are those of report.h. */
mf_status mf__flow_run(const mf__plan *plan, const mf__stage *stage, const mf__sink *sink, mf_error *err);

#endif
