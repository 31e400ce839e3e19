/* The table of families, and what is done alike for all of them. */
#include <string.h>

#include "model/family.h"

const mf__family *const mf__families[] = {&mf__qwen3_5_moe, &mf__deepseek_v3, NULL};

const mf__family *mf__family_find(const char *model_type) {
    for (int i = 0; mf__families[i]; i++)
        for (int k = 0; mf__families[i]->model_types[k]; k++)
            if (!strcmp(mf__families[i]->model_types[k], model_type)) return mf__families[i];
    return NULL;
}

void mf__config_look(mf__config *config, const mf__catalog *cat) {
    if (config->family->look) config->family->look(config, cat);
}

mf_status mf__blueprint_build(const mf__config *config, mf__blueprint *out, mf_error *err) {
    memset(out, 0, sizeof *out);
    out->config = *config;
    mf_status st = config->family->build(out, err);
    if (st != MF_OK) mf__blueprint_free(out);
    return st;
}

void mf__layer_graphs(const mf__layer_kind *kind, const mf__graph *out[MF_LAYER_GRAPHS]) {
    out[0] = kind->mix;
    out[1] = kind->shared;
    out[2] = kind->experts;
    out[3] = kind->combine;
}

void mf__blueprint_free(mf__blueprint *bp) {
    mf__graph_free(bp->embed);
    mf__graph_free(bp->tail);
    for (int i = 0; i < bp->n_kinds; i++) {
        mf__graph_free(bp->kinds[i].mix);
        mf__graph_free(bp->kinds[i].shared);
        mf__graph_free(bp->kinds[i].experts);
        mf__graph_free(bp->kinds[i].combine);
    }
    memset(bp, 0, sizeof *bp);
}
