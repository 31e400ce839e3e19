/* A model's experts without the model: for programs that measure. */
#ifndef MF_ENGINE_EXPERTS_H
#define MF_ENGINE_EXPERTS_H

#include "store/store.h"
#include "weights/shard.h"

mf__store *mf__model_store(mf_model *model); /* nearest to the compute */
/* As the store over the files was opened (policy and speed_dir are NULL); valid as long as the model is open. */
mf__store_config mf__model_store_config(const mf_model *model);
/* Takes bytes of the host's memory out of the experts' budget, if they can be had without unmapping them or dropping
 * prompts; a negative number gives them back. */
bool mf__model_borrow(mf_model *model, int64_t bytes);
/* Counters of the experts in the host's memory, below those of a device; false: there is no such tier. */
bool mf__model_host_stats(mf_model *model, mf_stats *out);
/* Messages that take experts' inputs elsewhere, or bring them here: so many bytes once and so many per row of a pass
 * count in ram_bytes from now on. Before there are sessions. */
void mf__model_messages(mf_model *model, int64_t bytes, int64_t row_bytes);
/* With experts_only: room for requests of n_rows and their messages, so that they do not fail for lack of it. */
mf_status mf__experts_reserve(mf_model *model, int32_t n_rows, mf_error *err);
/* The most rows of a pass where sessions have chunks of n_chunk; 0: of the usual length. */
int32_t mf__model_pass_rows(const mf_model *model, int64_t n_chunk);
/* State that evaluating a session's n-th token touches, beside the weights (mf_model_info.token_bytes). */
int64_t mf__model_touched_bytes(const mf_model *model, int64_t n);

/* Whose share the model's directory is; NULL: it has all experts. */
const mf__shard *mf__model_shard(const mf_model *model);
bool mf__model_has_experts(const mf_model *model, int layer);
/* mf_model_fingerprint without how it computes: the same for the same model and experts per token on any machine. */
mf_status mf__model_content(mf_model *model, uint64_t *out, mf_error *err);

#endif
