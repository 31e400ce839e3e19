/* tokenizer.json from a GGUF's metadata: byte-level BPE (tokenizer.ggml.model "gpt2"), whose way of splitting text is
 * given by a name only (tokenizer.ggml.pre). The patterns are those of the models' own tokenizer.json. */
#include <stdio.h>
#include <string.h>

#include "convert/gguf.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER(but) "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" but "]"
#define LOWER(but) "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" but "]"
/* Words that begin anew where a capital letter follows a small one. */
#define CASED_WORDS(but)                                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER(but) "*" LOWER(but) "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER(              \
        but) "+" LOWER(but) "*" CONTRACTIONS "?|"
#define NOT_HAN "&&[^\\p{Han}]"
#define MAX_PATTERNS 3

static const struct {
    const char *pre;
    bool nfc;
    const char *patterns[MAX_PATTERNS]; /* applied one after the other */
} SPLITS[] = {
    {"qwen2", true, {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"qwen35",
     true,
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"glm4", false, {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"gpt-4o", false, {CASED_WORDS("") "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {"kimi-k2", false, {"\\p{Han}+|" CASED_WORDS(NOT_HAN) "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"deepseek-v3",
     false,
     {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
};

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

static json_t *byte_level(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex",
                     0);
}

static json_t *pre_tokenizer(int split) {
    json_t *steps = json_array();
    for (int i = 0; i < MAX_PATTERNS && SPLITS[split].patterns[i]; i++)
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                               SPLITS[split].patterns[i], "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, byte_level());
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

/* Ordinary tokens into vocab, the others into added. Two tokens with the same text are possible; the first counts. */
static mf_status sort_tokens(const mf__gguf *g, json_t *vocab, json_t *added, mf_error *err) {
    const json_t *tokens = json_object_get(g->meta, "tokenizer.ggml.tokens");
    const json_t *types = json_object_get(g->meta, "tokenizer.ggml.token_type");
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const char *text = json_string_value(json_array_get(tokens, i));
        json_int_t type = types ? json_integer_value(json_array_get(types, i)) : TOKEN_NORMAL;
        if (!text || type == TOKEN_UNUSED) continue;
        int failed = 0;
        if (type == TOKEN_CONTROL || type == TOKEN_USER)
            failed = json_array_append_new(added, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                                            "content", text, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                                            "normalized", 0, "special", type == TOKEN_CONTROL));
        else if (!json_object_get(vocab, text))
            failed = json_object_set_new(vocab, text, json_integer((json_int_t)i));
        if (failed) return mf__fail(err, MF_E_NOMEM, "no memory for the tokenizer");
    }
    return MF_OK;
}

static json_t *assemble(const mf__gguf *g, int split, json_t *vocab, json_t *added) {
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token", "fuse_unk", 0,
                  "byte_fallback", 0, "vocab", vocab, "merges", json_object_get(g->meta, "tokenizer.ggml.merges"));
    json_t *normalizer = SPLITS[split].nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    return json_pack("{s:s, s:n, s:n, s:O, s:o, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
                     "added_tokens", added, "normalizer", normalizer, "pre_tokenizer", pre_tokenizer(split),
                     "post_processor", "decoder", byte_level(), "model", model);
}

/* The texts of the tokens that templates name. */
static json_t *named_tokens(const mf__gguf *g) {
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"}};
    json_t *config = json_object();
    for (size_t i = 0; config && i < MF__COUNT(names); i++) {
        const json_t *id = json_object_get(g->meta, names[i][1]);
        json_t *text = json_is_integer(id) ? json_array_get(json_object_get(g->meta, "tokenizer.ggml.tokens"),
                                                            (size_t)json_integer_value(id))
                                           : NULL;
        if (json_is_string(text)) json_object_set(config, names[i][0], text);
    }
    return config;
}

mf_status mf__gguf_tokenizer(const mf__gguf *g, json_t **out, json_t **config, char why[240], mf_error *err) {
    const char *model = json_string_value(json_object_get(g->meta, "tokenizer.ggml.model"));
    const char *pre = json_string_value(json_object_get(g->meta, "tokenizer.ggml.pre"));
    *out = *config = NULL;
    int split = -1;
    for (size_t i = 0; pre && i < MF__COUNT(SPLITS); i++)
        if (!strcmp(pre, SPLITS[i].pre)) split = (int)i;
    snprintf(why, 240,
             "its kind is \"%.40s\" with the splitting \"%.40s\", known is \"gpt2\" with qwen2, qwen35, glm4, "
             "gpt-4o, kimi-k2 or deepseek-v3",
             model ? model : "(none)", pre ? pre : "(none)");
    if (!model || strcmp(model, "gpt2") || split < 0 ||
        !json_is_array(json_object_get(g->meta, "tokenizer.ggml.tokens")) ||
        !json_is_array(json_object_get(g->meta, "tokenizer.ggml.merges")))
        return MF_OK;
    json_t *vocab = json_object(), *added = json_array();
    mf_status status = vocab && added ? sort_tokens(g, vocab, added, err) : mf__fail(err, MF_E_NOMEM, "no memory");
    if (status == MF_OK) *out = assemble(g, split, vocab, added);
    if (status == MF_OK) *config = named_tokens(g);
    json_decref(vocab);
    json_decref(added);
    if (status == MF_OK && (!*out || !*config)) status = mf__fail(err, MF_E_NOMEM, "no memory for the tokenizer");
    return status;
}

mf_status mf__gguf_model_open(const char *path, mf__gguf_model *out, mf_error *err) {
    char why[240];
    *out = (mf__gguf_model){0};
    MF__TRY(mf__gguf_open(path, &out->raw, err));
    mf_status status = mf__gguf_config(&out->raw, &out->config, err);
    if (status == MF_OK) status = mf__gguf_names(&out->raw, out->config, &out->catalog, err);
    if (status == MF_OK) status = mf__gguf_tokenizer(&out->raw, &out->tokenizer, &out->tokenizer_config, why, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "%s", path);
    if (!out->tokenizer) snprintf(out->no_tokenizer, sizeof out->no_tokenizer, "%s", why);
    out->chat_template = json_string_value(json_object_get(out->raw.meta, "tokenizer.chat_template"));
    return MF_OK;
}

void mf__gguf_model_close(mf__gguf_model *m) {
    mf__catalog_close(m->catalog);
    json_decref(m->config);
    json_decref(m->tokenizer);
    json_decref(m->tokenizer_config);
    mf__gguf_close(&m->raw);
    *m = (mf__gguf_model){0};
}
