/* qwen3_moe: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    bool sliding;
    MF__TRY(mf__json_opt_bool(text, where, "use_sliding_window", false, &sliding, err));
    if (sliding)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: use_sliding_window true is not supported by the family %s", where,
                        c->family->name);
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", false, c, err));
    return mf__keys_sparse_step(text, where, c, err);
}

static const char *const TYPES[] = {"qwen3_moe", NULL};

const mf__family mf__qwen3_moe = {.name = "qwen3_moe",
                                  .models = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
                                  .model_types = TYPES,
                                  .witness = "self_attn.q_norm.weight",
                                  .usual_ctx = 40960,
                                  .n_usual_eos = 2,
                                  .usual_eos = {151645, 151643},
                                  .has = {.mixers = 1u << MF_MIX_FULL,
                                          .bias_qkv = true,
                                          .bias_o = true,
                                          .qk_norm = MF_QK_NORM_HEAD,
                                          .yarn = true,
                                          .route = MF_ROUTE_SOFTMAX,
                                          .dense = true},
                                  .configure = configure};
