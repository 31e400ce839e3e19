/* A GGUF file as a checkpoint: the config and the tokenizer its metadata stands for, and its tensors under the names
 * the import knows. */
#ifndef MF_CONVERT_GGUF_H
#define MF_CONVERT_GGUF_H

#include "weights/gguf.h"

typedef struct mf__gguf_model {
    mf__gguf raw;
    mf__catalog *catalog; /* tensors by the names of published checkpoints */
    json_t *config;       /* as config.json */
    json_t *tokenizer;    /* as tokenizer.json; NULL when the file has no tokenizer that is known */
    json_t *tokenizer_config;
    const char *chat_template; /* NULL when there is none */
    char no_tokenizer[240];    /* why tokenizer is NULL */
} mf__gguf_model;

/* MF_E_UNSUPPORTED for an architecture that is not known, or a tensor of a type that is not read. After a failure *out
 * is to be closed too. */
mf_status mf__gguf_model_open(const char *path, mf__gguf_model *out, mf_error *err);
void mf__gguf_model_close(mf__gguf_model *m); /* zeroes it */

/* The parts, each from the metadata alone (and the raw tensors' shapes). */
mf_status mf__gguf_config(const mf__gguf *g, json_t **out, mf_error *err);
mf_status mf__gguf_names(const mf__gguf *g, const json_t *config, mf__catalog **out, mf_error *err);
/* *out NULL: no tokenizer, or one of a kind that is not known (why says which). */
mf_status mf__gguf_tokenizer(const mf__gguf *g, json_t **out, json_t **config, char why[240], mf_error *err);

#endif
