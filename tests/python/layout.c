/* Sizes and offsets of the structures that the Python package describes, one line each: STRUCT FIELD OFFSET, and STRUCT
 * size SIZE. */
#include <stdio.h>

#include "moeflux.h"

#define SIZE(name, type) printf("%s size %zu\n", name, sizeof(type))
#define FIELD(name, type, field) printf("%s %s %zu\n", name, #field, offsetof(type, field))

int main(void) {
    SIZE("Error", mf_error);
    SIZE("ModelOptions", mf_model_options);
    FIELD("ModelOptions", mf_model_options, ram_bytes);
    FIELD("ModelOptions", mf_model_options, vram_bytes);
    FIELD("ModelOptions", mf_model_options, policy);
    FIELD("ModelOptions", mf_model_options, experts_dirs);
    FIELD("ModelOptions", mf_model_options, experts_per_token);
    FIELD("ModelOptions", mf_model_options, lossy);
    FIELD("ModelOptions", mf_model_options, log);
    FIELD("ModelOptions", mf_model_options, prompt_cache_disk);
    FIELD("ModelOptions", mf_model_options, progress);
    FIELD("ModelOptions", mf_model_options, elsewhere);
    SIZE("Lossy", mf_lossy);
    FIELD("Lossy", mf_lossy, skip);
    FIELD("Lossy", mf_lossy, most);
    SIZE("ModelInfo", mf_model_info);
    FIELD("ModelInfo", mf_model_info, n_vocab);
    FIELD("ModelInfo", mf_model_info, eos);
    FIELD("ModelInfo", mf_model_info, kv);
    FIELD("ModelInfo", mf_model_info, state_bytes);
    SIZE("SessionOptions", mf_session_options);
    FIELD("SessionOptions", mf_session_options, cancel);
    SIZE("LogitBias", mf_logit_bias);
    SIZE("SamplerOptions", mf_sampler_options);
    FIELD("SamplerOptions", mf_sampler_options, seed);
    FIELD("SamplerOptions", mf_sampler_options, bias);
    SIZE("TextInfo", mf_text_info);
    SIZE("EventC", mf_event);
    FIELD("EventC", mf_event, name);
    FIELD("EventC", mf_event, top);
    SIZE("ReplyOptions", mf_reply_options);
    FIELD("ReplyOptions", mf_reply_options, text);
    FIELD("ReplyOptions", mf_reply_options, reasoning);
    FIELD("ReplyOptions", mf_reply_options, sampling);
    FIELD("ReplyOptions", mf_reply_options, max_tokens);
    FIELD("ReplyOptions", mf_reply_options, form);
    FIELD("ReplyOptions", mf_reply_options, known);
    FIELD("ReplyOptions", mf_reply_options, fn);
    SIZE("ReplyPrompt", mf_reply_prompt);
    SIZE("ReplyResult", mf_reply_result);
    return 0;
}
