/* How long a constrained step takes on given texts. Not a test; tools/maskbench_schemas.py runs it.
 *
 *   step_speed TOKENIZER < LINES.jsonl
 *
 * A line is {"schema": ..., "texts": ["...", ...]}. Each text is tokenized, and every token's mask and acceptance are
 * measured (processor time) up to the first that is not allowed. Schemas that do not compile are left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/grammar/grammar.h"

static double *steps;
static size_t n_steps, capacity;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void must(bool fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "step_speed: %s\n", what);
    exit(1);
}

static void record(double ms) {
    if (n_steps == capacity) {
        steps = realloc(steps, (capacity = capacity * 2 + 1024) * sizeof *steps);
        must(steps != NULL, "no memory");
    }
    steps[n_steps++] = ms;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One text; the slowest step so far is told with where it was. */
static void walk(const mf__tokenizer *tok, mf__constraint *c, const char *text, size_t size, double *worst) {
    int32_t *ids;
    size_t n;
    mf_error err;
    const uint32_t *mask;
    must(mf__tokenizer_encode(tok, text, size, false, &ids, &n, &err) == MF_OK, "a text that cannot be tokenized");
    mf__constraint_reset(c);
    for (size_t i = 0; i < n; i++) {
        double start = now_ms();
        mf_status st = mf__constraint_mask(c, &mask, &err);
        bool allowed = st == MF_OK && (mask[ids[i] / 32] >> ids[i] % 32 & 1);
        if (st == MF_OK) st = mf__constraint_accept(c, ids[i], &err);
        double spent = now_ms() - start;
        must(allowed == (st == MF_OK), "a mask that does not agree with what is accepted");
        record(spent);
        if (spent > *worst) {
            *worst = spent;
            fprintf(stderr, "%.3f ms at token %zu of %.60s\n", spent, i, text);
        }
        if (!allowed) break;
    }
    free(ids);
}

int main(int argc, char **argv) {
    mf_error err;
    mf__tokenizer *tok;
    mf__token_trie *trie;
    must(argc == 2, "TOKENIZER < LINES.jsonl");
    must(mf__tokenizer_open(argv[1], &tok, &err) == MF_OK && mf__token_trie_create(tok, &trie, &err) == MF_OK,
         err.text);
    char *line = NULL;
    size_t room = 0, n_schemas = 0;
    double worst = 0, sum = 0;
    for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
        json_t *l = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        const json_t *texts = json_object_get(l, "texts");
        mf__grammar *g;
        mf__constraint *c;
        if (l && mf__grammar_from_schema(json_object_get(l, "schema"), &g, &err) == MF_OK) {
            must(mf__constraint_create(g, trie, mf__tokenizer_n_vocab(tok), NULL, 0, &c, &err) == MF_OK, err.text);
            for (size_t i = 0; i < json_array_size(texts); i++)
                walk(tok, c, json_string_value(json_array_get(texts, i)), json_string_length(json_array_get(texts, i)),
                     &worst);
            mf__constraint_free(c);
            mf__grammar_free(g);
            n_schemas++;
        }
        json_decref(l);
    }
    must(n_steps > 0, "no steps");
    for (size_t i = 0; i < n_steps; i++) sum += steps[i];
    qsort(steps, n_steps, sizeof *steps, ascending);
    printf(
        "%zu schemas, vocabulary %d, %zu steps: mean %.4f ms, 99 %% below %.3f ms, 99.9 %% below %.3f ms, the slowest "
        "%.3f ms\n",
        n_schemas, (int)mf__tokenizer_n_vocab(tok), n_steps, sum / (double)n_steps, steps[n_steps * 99 / 100],
        steps[n_steps * 999 / 1000], steps[n_steps - 1]);
    free(steps);
    free(line);
    mf__token_trie_free(trie);
    mf__tokenizer_free(tok);
    return 0;
}
