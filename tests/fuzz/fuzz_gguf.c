/* The GGUF reader on arbitrary bytes: an error, or tensors that all lie inside the file and decode. What the metadata
 * says of the model and its tokenizer is read as a conversion would. */
#include "convert/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "model/family.h"
#include "quant/gguf_types.h"
#include "text/tokenizer_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_config(const mf__gguf *g) {
    json_t *root = NULL;
    mf__catalog *names = NULL;
    mf__config config;
    mf_error err = {0};
    if (mf__gguf_config(g, &root, &err) == MF_OK) mf__gguf_names(g, root, &names, &err);
    char *text = root ? json_dumps(root, 0) : NULL;
    if (text) mf__config_parse_text("fuzz", text, strlen(text), &config, &err);
    free(text);
    mf__catalog_close(names);
    json_decref(root);
}

static void read_tokenizer(const mf__gguf *g) {
    json_t *root = NULL, *config = NULL;
    mf__tokenizer *tok = NULL;
    mf_error err = {0};
    char why[240];
    mf__gguf_tokenizer(g, &root, &config, why, &err);
    char *text = root ? json_dumps(root, 0) : NULL;
    if (text && mf__tokenizer_parse("fuzz", text, strlen(text), &tok, &err) == MF_OK) mf__tokenizer_free(tok);
    free(text);
    json_decref(root);
    json_decref(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf__gguf g;
    mf_error err = {0};
    mf_status status = mf__gguf_parse("fuzz", data, size, &g, &err);
    if (status != MF_OK) {
        if (g.catalog || g.meta || err.status != status || !err.text[0]) abort();
        return 0;
    }
    for (int64_t i = 0; i < mf__catalog_count(g.catalog); i++) {
        const mf__entry *e = mf__catalog_at(g.catalog, i);
        mf__tensor t;
        if (e->data < data || e->data + e->size > data + size || mf__catalog_find(g.catalog, e->name) != e) abort();
        if (mf__catalog_tensor(g.catalog, e->name, 0, &t, NULL) != MF_OK) continue;
        if (mf__tensor_bytes(&t) > e->size) abort();
        float *row = malloc((size_t)t.n_cols * sizeof *row);
        if (row) mf__tensor_row_f32(&t, t.n_rows - 1, row);
        free(row);
    }
    read_config(&g);
    read_tokenizer(&g);
    mf__gguf_close(&g);
    return 0;
}
