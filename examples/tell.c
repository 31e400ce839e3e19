/* tell MODEL_DIR PROMPT: goes on with a text, greedily, for 40 tokens. A whole program on moeflux.h.
 *
 *   cc tell.c $(pkg-config --static --cflags --libs moeflux) -o tell */
#include <moeflux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPT 4096
#define N_TOKENS 40

static int fail(const mf_error *err) {
    fprintf(stderr, "tell: %s\n", err->text);
    return 1;
}

static int is_end(const mf_model_info *info, int32_t id) {
    for (int32_t i = 0; i < info->n_eos; i++)
        if (info->eos[i] == id) return 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: tell MODEL_DIR PROMPT\n");
        return 2;
    }
    mf_error err;
    mf_model *model;
    mf_text *text;
    mf_session *session;
    mf_sampler *sampler;
    mf_sampler_options how;
    mf_sampler_options_init(&how);
    how.temperature = 0;
    if (mf_model_open(argv[1], NULL, &model, &err)) return fail(&err);
    const mf_model_info *info = mf_model_info_get(model);
    size_t n_vocab = (size_t)info->n_vocab, n;
    if (mf_text_open(argv[1], &text, &err)) return fail(&err);
    if (mf_session_create(model, NULL, &session, &err)) return fail(&err);
    if (mf_sampler_create(&how, info->n_vocab, &sampler, &err)) return fail(&err);

    static int32_t ids[MAX_PROMPT];
    if (mf_text_encode(text, argv[2], strlen(argv[2]), false, ids, MAX_PROMPT, &n, &err)) return fail(&err);
    if (n == 0 || n > MAX_PROMPT) {
        fprintf(stderr, "tell: the prompt has %zu tokens, expected 1 to %d\n", n, MAX_PROMPT);
        return 2;
    }
    float *logits = malloc(n_vocab * sizeof *logits);
    if (!logits) return 1;
    if (mf_eval_prompt(session, ids, n, 0, logits, n_vocab, &err)) return fail(&err);

    mf_text_stream stream = {{0}, 0};
    char piece[1024];
    fputs(argv[2], stdout);
    for (int i = 0; i < N_TOKENS; i++) {
        int32_t id = mf_sampler_next(sampler, logits);
        if (id < 0 || is_end(info, id)) break;
        mf_sampler_accept(sampler, id);
        if (mf_text_decode(text, &stream, &id, 1, piece, sizeof piece, &n, &err)) return fail(&err);
        fwrite(piece, 1, n < sizeof piece ? n : sizeof piece, stdout);
        fflush(stdout);
        if (mf_eval_token(session, id, mf_memory_length(session), logits, n_vocab, &err)) return fail(&err);
    }
    if (mf_text_decode(text, &stream, NULL, 0, piece, sizeof piece, &n, &err)) return fail(&err);
    fwrite(piece, 1, n, stdout);
    putchar('\n');

    free(logits);
    mf_sampler_free(sampler);
    mf_session_free(session);
    mf_text_close(text);
    mf_model_close(model);
    return 0;
}
