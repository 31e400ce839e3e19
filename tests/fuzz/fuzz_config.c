/* config.json on arbitrary bytes: an error with a sentence, or a config whose graphs can be built, or an error again.
 */
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the rest of the code relies on without asking. */
static void check_config(const mf__config *c) {
    if (!c->family || !c->model_type[0]) abort();
    if (c->n_layers < 1 || c->n_layers > MF_MAX_LAYERS || c->n_hidden < 1 || c->n_vocab < 1 || c->n_ctx < 1) abort();
    if (c->n_eos < 0 || c->n_eos > MF_MAX_EOS) abort();
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] < 0 || c->eos[i] >= c->n_vocab) abort();
    if (c->moe.top_k < 1 || c->moe.top_k > MF_MAX_TOPK || c->moe.top_k > c->moe.n_experts) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf__config config;
    mf__blueprint bp;
    mf_error err = {0};
    mf_status status = mf__config_parse_text("fuzz", (const char *)data, size, &config, &err);
    if (status != MF_OK) {
        if (err.status != status || !err.text[0]) abort();
        return 0;
    }
    check_config(&config);
    status = mf__blueprint_build(&config, &bp, &err);
    if (status != MF_OK) {
        if (err.status != status || !err.text[0]) abort();
        return 0;
    }
    for (int32_t l = 0; l < config.n_layers; l++)
        if (bp.kind_of[l] >= bp.n_kinds) abort();
    mf__blueprint_free(&bp);
    return 0;
}
