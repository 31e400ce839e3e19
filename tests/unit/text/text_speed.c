/* How fast text is: tokenizing, and steps of constrained answers. Not a test; docs/SPEED_LOG.md says how it is run.
 *
 *   text_speed TOKENIZER LINES.jsonl SCHEMAS.jsonl FILE...
 *
 * The text is the "text" of LINES and the FILES in turn, again and again up to 8 MB: many scripts, symbols, code,
 * prose. Then runs of one character, 100 kB and 1 MB long; then random answers to SCHEMAS: every step's mask and
 * acceptance. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "random_answer.h"

#define MIXED ((size_t)8000000)

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *must(void *p, const char *what) {
    if (p) return p;
    fprintf(stderr, "text_speed: %s\n", what);
    exit(1);
}

static void must_ok(mf_status status, const mf_error *err) {
    if (status != MF_OK) must(NULL, err->text);
}

/* Each line of a file as JSON; NULL behind the last. at begins as 0. */
static json_t *next_line(const char *text, size_t size, size_t *at) {
    if (*at >= size) return NULL;
    const char *end = must(memchr(text + *at, '\n', size - *at), "a line without an end");
    json_t *line =
        must(json_loadb(text + *at, (size_t)(end - text) - *at, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), "not JSON");
    *at = (size_t)(end - text) + 1;
    return line;
}

static double encode(const mf__tokenizer *tok, const char *text, size_t size, size_t *n) { /* the best of three */
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        mf_error err;
        int32_t *ids;
        double start = now_ms();
        must_ok(mf__tokenizer_encode(tok, text, size, true, &ids, n, &err), &err);
        double spent = now_ms() - start;
        best = spent < best ? spent : best;
        free(ids);
    }
    return best;
}

static void measure_mixed(const mf__tokenizer *tok, const char *lines, size_t n_lines, char **files, int n_files) {
    mf__strbuf text = {0};
    mf_error err;
    size_t n;
    while (text.size < MIXED) {
        size_t at = 0;
        for (json_t *line; (line = next_line(lines, n_lines, &at)); json_decref(line)) {
            const json_t *t = json_object_get(line, "text");
            must_ok(mf__strbuf_append(&text, json_string_value(t), json_string_length(t), &err), &err);
        }
        for (int i = 0; i < n_files; i++) {
            char *bytes;
            must_ok(mf__file_read(files[i], 64 << 20, &bytes, &n, &err), &err);
            must_ok(mf__strbuf_append(&text, bytes, n, &err), &err);
            free(bytes);
        }
    }
    size_t size = MIXED;
    while (((unsigned char)text.data[size] & 0xC0) == 0x80) size--; /* no half character */
    double ms = encode(tok, text.data, size, &n);
    printf("mixed text: %zu bytes, %zu tokens, %.0f ms, %.1f MB/s\n", size, n, ms, (double)size / ms / 1e3);
    mf__strbuf_free(&text);
}

static void measure_runs(const mf__tokenizer *tok) {
    static const char *const units[][2] = {
        {"a", "a"},   {"A", "A"},        {"7", "7"},           {"space", " "},         {"end of line", "\n"},
        {"dot", "."}, {"Han", "\u4e2d"}, {"accent", "\u0301"}, {"emoji", "\U0001F600"}};
    const size_t sizes[2] = {100000, 1000000};
    char *text = must(malloc(sizes[1] + 8), "no memory");
    for (size_t i = 0; i < MF__COUNT(units); i++) {
        double ms[2];
        size_t n, unit = strlen(units[i][1]), filled = 0;
        for (; filled + unit <= sizes[1]; filled += unit) memcpy(text + filled, units[i][1], unit);
        for (int k = 0; k < 2; k++) ms[k] = encode(tok, text, sizes[k] / unit * unit, &n);
        printf("one character, %s: 100 kB %.2f ms, 1 MB %.2f ms (x %.1f)\n", units[i][0], ms[0], ms[1], ms[1] / ms[0]);
    }
    free(text);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double *steps;
static size_t n_steps, capacity;

static void record(double ms) {
    if (n_steps == capacity)
        steps = must(realloc(steps, (capacity = capacity * 2 + 1024) * sizeof *steps), "no memory");
    steps[n_steps++] = ms;
}

static void answer(random_speaker *r) {
    mf_error err;
    mf__constraint_reset(r->c);
    for (int i = 0; i < r->max_tokens && !mf__constraint_ended(r->c); i++) {
        const uint32_t *mask;
        double start = now_ms();
        must_ok(mf__constraint_mask(r->c, &mask, &err), &err);
        double spent = now_ms() - start;
        random_logits(r);
        int32_t id = mf_sampler_next_masked(r->sampler, r->logits, mask);
        start = now_ms();
        must_ok(mf__constraint_accept(r->c, id, &err), &err);
        record(spent + now_ms() - start);
    }
}

static void measure_steps(const mf__tokenizer *tok, const char *lines, size_t n_lines) {
    mf_error err;
    mf__token_trie *trie;
    int32_t n_vocab = mf__tokenizer_n_vocab(tok) + 1;
    random_speaker r = {.tok = tok, .n_vocab = n_vocab, .eos = n_vocab - 1, .max_tokens = 60, .seed = 1};
    mf_sampler_options so;
    mf_sampler_options_init(&so);
    r.logits = must(malloc((size_t)n_vocab * sizeof *r.logits), "no memory");
    must_ok(mf_sampler_create(&so, n_vocab, &r.sampler, &err), &err);
    double start = now_ms(), compiling = 0, worst = 0;
    must_ok(mf__token_trie_create(tok, &trie, &err), &err);
    double made = now_ms() - start;
    size_t at = 0, n = 0;
    for (json_t *schema; (schema = next_line(lines, n_lines, &at)); json_decref(schema), n++) {
        mf__grammar *g;
        start = now_ms();
        must_ok(mf__grammar_from_schema(schema, &g, &err), &err);
        double spent = now_ms() - start;
        compiling += spent;
        worst = spent > worst ? spent : worst;
        must_ok(mf__constraint_create(g, trie, n_vocab, &r.eos, 1, &r.c, &err), &err);
        for (int k = 0; k < 6; k++) {
            r.brief = k % 2;
            answer(&r);
        }
        mf__constraint_free(r.c);
        mf__grammar_free(g);
    }
    double sum = 0;
    for (size_t i = 0; i < n_steps; i++) sum += steps[i];
    qsort(steps, n_steps, sizeof *steps, ascending);
    printf("%zu schemas: compiled in %.2f ms each, %.2f ms at most; vocabulary %d, prepared once in %.0f ms\n", n,
           compiling / (double)n, worst, (int)n_vocab - 1, made);
    printf("%zu constrained steps: mean %.3f ms, 99 %% below %.3f ms, 99.9 %% below %.3f ms, the slowest %.3f ms\n",
           n_steps, sum / (double)n_steps, steps[n_steps * 99 / 100], steps[n_steps * 999 / 1000], steps[n_steps - 1]);
    free(steps);
    free(r.logits);
    mf_sampler_free(r.sampler);
    mf__token_trie_free(trie);
}

int main(int argc, char **argv) {
    mf_error err;
    mf__tokenizer *tok;
    char *lines, *schemas;
    size_t n_lines, n_schemas;
    if (argc < 4) must(NULL, "TOKENIZER LINES.jsonl SCHEMAS.jsonl FILE...");
    double start = now_ms();
    must_ok(mf__tokenizer_open(argv[1], &tok, &err), &err);
    printf("opened in %.1f ms\n", now_ms() - start);
    must_ok(mf__file_read(argv[2], 64 << 20, &lines, &n_lines, &err), &err);
    must_ok(mf__file_read(argv[3], 64 << 20, &schemas, &n_schemas, &err), &err);
    measure_mixed(tok, lines, n_lines, argv + 4, argc - 4);
    measure_runs(tok);
    measure_steps(tok, schemas, n_schemas);
    free(lines);
    free(schemas);
    mf__tokenizer_free(tok);
    return 0;
}
