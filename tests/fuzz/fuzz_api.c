/* The bodies of the APIs: the first byte chooses which. Whatever the bytes are, a request is refused with a status of
 * 4xx and a sentence, or becomes replies. The tokenizer is the story model's, the model is only asked for its shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "server_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const api *const APIS[] = {&api_chat,         &api_completions, &api_responses, &api_messages,
                                  &api_count_tokens, &api_tokenize,    &api_detokenize};

static server *make_server(void) {
    static server s;
    mf_error err;
    mf_model_options mo;
    mf_text *text;
    mf_model *model;
    mf_model_options_init(&mo);
    mo.n_threads = 1;
    if (mf_model_open(STORIES, &mo, &model, &err) || mf_text_open(STORIES, &text, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    server_options_init(&s.opt);
    s.opt.model = model;
    s.opt.text = text;
    s.opt.model_id = "stories";
    s.info = mf_model_info_get(model);
    s.opt.n_ctx = s.info->n_ctx;
    mf_sampler_options_init(&s.sampling);
    return &s;
}

static void free_prepared(job *j) {
    for (int i = 0; i < j->n_choices; i++) {
        seq_free(j->seqs[i]);
        j->seqs[i] = NULL;
    }
    j->server->n_jobs++;
    job_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static server *s;
    if (!s) s = make_server();
    if (size < 1) return 0;
    job *j = calloc(1, sizeof *j);
    j->server = s;
    j->api = APIS[data[0] % (sizeof APIS / sizeof *APIS)];
    j->n_per_prompt = 1;
    j->n_body = size - 1;
    j->body = malloc(size);
    memcpy(j->body, data + 1, size - 1);
    j->body[size - 1] = 0;
    job_read(j);
    if (j->problem.status) {
        char *body = problem_body(j->api->family, &j->problem);
        json_t *parsed = json_loads(body ? body : "", 0, NULL);
        if (j->problem.status < 400 || j->problem.status >= 500 || !parsed) abort();
        json_decref(parsed);
        free(body);
    } else if (!j->whole && !j->n_choices) {
        abort(); /* neither refused nor begun */
    }
    free_prepared(j);
    return 0;
}
