/* A model's experts without the model: for programs that measure. */
#ifndef MF_ENGINE_EXPERTS_H
#define MF_ENGINE_EXPERTS_H

#include "store/store.h"

mf__store *mf__model_store(mf_model *model); /* nearest to the compute */
/* As the store over the files was opened (policy and speed_dir are NULL); valid as long as the model is open. */
mf__store_config mf__model_store_config(const mf_model *model);
/* Takes bytes of the host's memory out of the experts' budget, if they can be had without unmapping them or dropping
 * prompts; a negative number gives them back. */
bool mf__model_borrow(mf_model *model, int64_t bytes);

#endif
