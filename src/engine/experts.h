/* A model's experts without the model: for programs that measure. */
#ifndef MF_ENGINE_EXPERTS_H
#define MF_ENGINE_EXPERTS_H

#include "store/store.h"

mf__store *mf__model_store(mf_model *model); /* nearest to the compute */
/* As the store over the files was opened (policy and speed_dir are NULL); valid as long as the model is open. */
mf__store_config mf__model_store_config(const mf_model *model);

#endif
