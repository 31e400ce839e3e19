/* moeflux schema: what a JSON Schema (or a pattern, or a grammar) becomes, which texts it accepts, and an example. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app.h"
#include "base/file.h"
#include "options.h"
#include "text/grammar/grammar.h"

#define MAX_FILE ((size_t)64 << 20)
#define READ_FLAGS (JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

typedef struct trial {
    bool strict, regex, rules;
    int64_t examples;
    uint64_t seed;
} trial;

/* A whole number beyond 64 bits is read as a real one. */
static mf_status read_json(const char *name, const char *text, size_t size, json_t **out, mf_error *err) {
    json_error_t why;
    *out = json_loadb(text, size, READ_FLAGS, &why);
    if (!*out && json_error_code(&why) == json_error_numeric_overflow)
        *out = json_loadb(text, size, READ_FLAGS | JSON_DECODE_INT_AS_REAL, &why);
    if (*out) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s: line %d column %d: %s", name, why.line, why.column, why.text);
}

/* Processor time: what else runs on the machine does not count. */
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static mf_status compile_schema(const trial *t, const json_t *schema, mf__grammar **out, double *ms, mf_error *err) {
    double start = seconds();
    mf_status st =
        t->strict ? mf__grammar_from_schema_strict(schema, out, err) : mf__grammar_from_schema(schema, out, err);
    *ms = (seconds() - start) * 1e3;
    return st;
}

static mf_status compile(const trial *t, const char *name, const char *text, size_t size, mf__grammar **out, double *ms,
                         mf_error *err) {
    double start = seconds();
    json_t *schema;
    mf_status st;
    if (t->regex) {
        st = mf__grammar_from_regex(text, size, out, err);
    } else if (t->rules) {
        st = mf__grammar_from_rules(text, size, out, err);
    } else {
        MF__TRY(read_json(name, text, size, &schema, err));
        st = compile_schema(t, schema, out, ms, err);
        json_decref(schema);
        return st;
    }
    *ms = (seconds() - start) * 1e3;
    return st;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static mf_status try_files(const mf__grammar *g, const opt_list *files, bool *all, mf_error *err) {
    *all = true;
    for (int i = 0; i < files->n; i++) {
        char *text;
        size_t size, at;
        bool accepted;
        MF__TRY(mf__file_read(files->items[i], MAX_FILE, &text, &size, err));
        while (size && (text[size - 1] == '\n' || text[size - 1] == '\r')) size--; /* files end with a line */
        mf_status st = mf__grammar_accepts(g, text, size, &accepted, &at, err);
        if (st == MF_OK && accepted)
            printf("%s: accepted\n", files->items[i]);
        else if (st == MF_OK && at == size)
            printf("%s: not accepted: it is not complete\n", files->items[i]);
        else if (st == MF_OK)
            printf("%s: not accepted: byte %zu, at \"%.*s\"\n", files->items[i], at,
                   size - at > 20 ? 20 : (int)(size - at), text + at);
        *all = *all && accepted;
        free(text);
        MF__TRY(st);
    }
    return MF_OK;
}

static mf_status show(const trial *t, const char *word, const opt_list *files, bool *all, mf_error *err) {
    mf__grammar *g = NULL;
    char *text = NULL;
    size_t size = strlen(word);
    double ms;
    if (!t->regex) MF__TRY(mf__file_read(word, MAX_FILE, &text, &size, err));
    mf_status st = compile(t, word, text ? text : word, size, &g, &ms, err);
    free(text);
    if (st != MF_OK) return t->regex ? st : mf__fail_prefix(err, st, "%s", word);
    fprintf(stderr, "compiled in %.2f ms: %u states\n", ms, (unsigned)mf__grammar_states(g));
    if (*mf__grammar_notes(g)) fprintf(stderr, "not enforced:\n%s", mf__grammar_notes(g));
    st = try_files(g, files, all, err);
    for (int64_t i = 0; st == MF_OK && i < t->examples && files->n == 0; i++) {
        mf__strbuf example = {0};
        st = mf__grammar_example(g, t->seed + (uint64_t)i, &example, err);
        if (st == MF_OK) printf("%s\n", example.data ? example.data : "");
        mf__strbuf_free(&example);
    }
    mf__grammar_free(g);
    return st;
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static mf_status try_texts(const mf__grammar *g, const json_t *texts, json_t *reply, mf_error *err) {
    json_t *list = json_array();
    mf_status st = MF_OK;
    for (size_t i = 0; st == MF_OK && i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        bool accepted;
        size_t at;
        if (!json_is_string(text)) {
            st = mf__fail(err, MF_E_FORMAT, "texts[%zu] is not a string", i);
            break;
        }
        st = mf__grammar_accepts(g, json_string_value(text), json_string_length(text), &accepted, &at, err);
        if (st == MF_OK) json_array_append_new(list, json_integer(accepted ? -1 : (json_int_t)at));
    }
    json_object_set_new(reply, "refused_at", list);
    return st;
}

static mf_status make_examples(const trial *t, const mf__grammar *g, int64_t n, json_t *reply, mf_error *err) {
    json_t *list = json_array();
    mf_status st = MF_OK;
    for (int64_t i = 0; st == MF_OK && i < n; i++) {
        mf__strbuf example = {0};
        st = mf__grammar_example(g, t->seed + (uint64_t)i, &example, err);
        json_t *text = st == MF_OK ? json_stringn(example.data ? example.data : "", example.size) : NULL;
        if (st == MF_OK && json_array_append_new(list, text) != 0)
            st = mf__fail(err, MF_E_INTERNAL, "an example that is not UTF-8");
        mf__strbuf_free(&example);
    }
    json_object_set_new(reply, "examples", list);
    return st;
}

static void answer_line(const trial *t, const json_t *line, json_t *reply) {
    mf_error err;
    mf__grammar *g = NULL;
    const json_t *n = json_object_get(line, "examples");
    double ms = 0;
    mf_status st = compile_schema(t, json_object_get(line, "schema"), &g, &ms, &err);
    json_object_set_new(reply, "compiled", json_boolean(st == MF_OK));
    json_object_set_new(reply, "ms", json_real(ms));
    if (st == MF_OK) {
        json_object_set_new(reply, "states", json_integer(mf__grammar_states(g)));
        json_object_set_new(reply, "notes", json_string(mf__grammar_notes(g)));
        st = try_texts(g, json_object_get(line, "texts"), reply, &err);
        if (st == MF_OK) st = make_examples(t, g, n ? json_integer_value(n) : 0, reply, &err);
    }
    if (st != MF_OK) json_object_set_new(reply, "error", json_string(err.text));
    mf__grammar_free(g);
}

static mf_status all_lines(const trial *t, const char *path, mf_error *err) {
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!in) return mf__fail(err, MF_E_NOT_FOUND, "%s cannot be opened", path);
    char *text = NULL;
    size_t capacity = 0, number = 0;
    mf_status st = MF_OK;
    for (ssize_t n; st == MF_OK && (n = getline(&text, &capacity, in)) >= 0;) {
        json_t *line = NULL, *reply = json_object();
        number++;
        if (strspn(text, " \t\r\n") != (size_t)n) {
            st = read_json("line", text, (size_t)n, &line, err);
            if (st == MF_OK && !json_object_get(line, "schema"))
                st = mf__fail(err, MF_E_FORMAT, "an object with \"schema\" is needed");
            if (st != MF_OK) {
                mf__fail_prefix(err, st, "%s, line %zu", path, number);
            } else {
                answer_line(t, line, reply);
                json_dumpf(reply, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
                putchar('\n');
            }
        }
        json_decref(line);
        json_decref(reply);
    }
    free(text);
    if (in != stdin) fclose(in);
    return st;
}

int cmd_schema(int argc, char **argv) {
    trial t = {.examples = 1, .seed = 1};
    opt_list files = {0};
    bool jsonl = false, all = true;
    opt_def defs[] = {
        {.name = "accepts",
         .kind = OPT_LIST,
         .value = &files,
         .arg = "FILE",
         .help = "say whether the text in FILE is accepted (repeatable)"},
        {.name = "jsonl",
         .kind = OPT_FLAG,
         .value = &jsonl,
         .help = "SCHEMA is a file of JSON lines (- is standard input): see above"},
        {.name = "regex", .kind = OPT_FLAG, .value = &t.regex, .help = "SCHEMA is a regular expression, as it stands"},
        {.name = "grammar", .kind = OPT_FLAG, .value = &t.rules, .help = "SCHEMA is a file of rules: root ::= ..."},
        {.name = "strict", .kind = OPT_FLAG, .value = &t.strict, .help = "refuse formats that are not enforced"},
        {.name = "examples",
         .kind = OPT_INT,
         .value = &t.examples,
         .arg = "N",
         .help = "how many random examples to write (default 1)",
         .max = 1e6},
        {.name = "seed", .kind = OPT_SEED, .value = &t.seed, .arg = "S", .help = "same seed, same examples"},
    };
    opt_spec spec = {
        .usage = "schema SCHEMA [options]",
        .about =
            "Compiles a JSON Schema as `moeflux run --json-schema` does; says how large it becomes, how long that\n"
            "takes, and what of it is not supported or not enforced; writes random texts that it accepts, or says\n"
            "whether given ones are (exit code 1 where one is not).\n"
            "With --jsonl a line {\"schema\":..., \"texts\":[\"...\"], \"examples\":N} gives {\"compiled\":..., "
            "\"ms\":...,\n"
            "\"states\":..., \"notes\":..., \"refused_at\":[byte, or -1: accepted], \"examples\":[...], "
            "\"error\":...}.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux schema invoice.json --examples 3\n"
                    "  moeflux schema invoice.json --accepts answer.json\n"
                    "  moeflux schema --regex '[a-z]+@[a-z]+'\n"
                    "  moeflux schema --grammar arithmetic.txt --seed 7\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (t.regex + t.rules + jsonl > 1) {
        app_say("only one of --regex, --grammar and --jsonl can be given");
        return APP_USAGE;
    }
    mf_error err;
    mf_status st = jsonl ? all_lines(&t, words[0], &err) : show(&t, words[0], &files, &all, &err);
    if (st != MF_OK) return app_fail(&err);
    return all ? APP_OK : APP_FAILED;
}
