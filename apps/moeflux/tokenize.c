/* moeflux tokenize: text to token ids and back, for a whole text or line by line as JSON. */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "models.h"
#include "options.h"
#include "text/tokenizer.h"

#define MAX_INPUT ((size_t)1 << 30)

static mf_status out_of_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory");
}

static mf_status decode(const mf__tokenizer *tok, const int32_t *ids, size_t n, mf__strbuf *out, mf_error *err) {
    mf__detok d;
    mf__detok_init(&d, tok);
    for (size_t i = 0; i < n; i++) MF__TRY(mf__detok_push(&d, ids[i], out, err));
    return mf__detok_flush(&d, out, err);
}

/* ---- JSON lines ------------------------------------------------------------------------------------------------ */

static mf_status print_object(const char *key, json_t *value, mf_error *err) {
    json_t *obj = value ? json_pack("{s:o}", key, value) : NULL;
    char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
    json_decref(obj);
    if (!text) return out_of_memory(err);
    puts(text);
    free(text);
    return MF_OK;
}

static mf_status encode_object(const mf__tokenizer *tok, const json_t *text, const json_t *special, mf_error *err) {
    int32_t *ids;
    size_t n;
    MF__TRY(mf__tokenizer_encode(tok, json_string_value(text), json_string_length(text), !json_is_false(special), &ids,
                                 &n, err));
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return print_object("ids", list, err);
}

static mf_status decode_object(const mf__tokenizer *tok, const json_t *list, mf_error *err) {
    size_t n = json_array_size(list);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    mf__strbuf text = {0};
    if (!ids) return out_of_memory(err);
    mf_status st = MF_OK;
    for (size_t i = 0; i < n && st == MF_OK; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > INT32_MAX)
            st = mf__fail(err, MF_E_INVALID, "ids[%zu] is not a token id", i);
        ids[i] = (int32_t)v;
    }
    if (st == MF_OK) st = decode(tok, ids, n, &text, err);
    if (st == MF_OK) st = print_object("text", json_stringn(text.data ? text.data : "", text.size), err);
    mf__strbuf_free(&text);
    free(ids);
    return st;
}

static mf_status one_line(const mf__tokenizer *tok, const char *line, size_t size, bool to_text, mf_error *err) {
    json_error_t je;
    json_t *obj = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!obj) return mf__fail(err, MF_E_FORMAT, "not JSON: %s", je.text);
    const json_t *text = json_object_get(obj, "text"), *ids = json_object_get(obj, "ids");
    mf_status st;
    if (json_is_array(ids) && (to_text || !text))
        st = decode_object(tok, ids, err);
    else if (json_is_string(text) && !to_text)
        st = encode_object(tok, text, json_object_get(obj, "special"), err);
    else
        st = mf__fail(err, MF_E_FORMAT, "an object with \"%s\" is needed", to_text ? "ids" : "text\" or \"ids");
    json_decref(obj);
    return st;
}

static mf_status all_lines(const mf__tokenizer *tok, bool to_text, mf_error *err) {
    char *line = NULL;
    size_t capacity = 0, number = 0;
    ssize_t n;
    mf_status st = MF_OK;
    while (st == MF_OK && (n = getline(&line, &capacity, stdin)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        st = one_line(tok, line, (size_t)n, to_text, err);
        if (st != MF_OK) mf__fail_prefix(err, st, "line %zu", number);
    }
    free(line);
    return st;
}

/* ---- plain ------------------------------------------------------------------------------------------------------ */

static mf_status plain_encode(const mf__tokenizer *tok, const mf__strbuf *in, bool special, mf_error *err) {
    int32_t *ids;
    size_t n;
    MF__TRY(mf__tokenizer_encode(tok, in->data ? in->data : "", in->size, special, &ids, &n, err));
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", ids[i]);
    putchar('\n');
    free(ids);
    return MF_OK;
}

static mf_status plain_decode(const mf__tokenizer *tok, const mf__strbuf *in, mf_error *err) {
    mf__detok d;
    mf__strbuf text = {0};
    mf_status st = MF_OK;
    mf__detok_init(&d, tok);
    for (const char *at = in->data; at && st == MF_OK;) {
        char *end;
        while (isspace((unsigned char)*at) || *at == ',') at++;
        if (!*at) break;
        long long id = strtoll(at, &end, 10);
        if (end == at || id < 0 || id > INT32_MAX)
            st = mf__fail(err, MF_E_FORMAT, "\"%.20s\" is not a token id", at);
        else
            st = mf__detok_push(&d, (int32_t)id, &text, err);
        at = end;
    }
    if (st == MF_OK) st = mf__detok_flush(&d, &text, err);
    if (st == MF_OK && text.size) fwrite(text.data, 1, text.size, stdout);
    mf__strbuf_free(&text);
    return st;
}

int cmd_tokenize(int argc, char **argv) {
    bool to_text = false, jsonl = false, no_special = false;
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "decode", .kind = OPT_FLAG, .value = &to_text, .help = "from ids to text"},
        {.name = "jsonl", .kind = OPT_FLAG, .value = &jsonl, .help = "one JSON object per line in, one out"},
        {.name = "no-special",
         .kind = OPT_FLAG,
         .value = &no_special,
         .help = "markers such as <|im_end|> in the text are plain text"},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "tokenize MODEL_OR_TOKENIZER_JSON [options] < INPUT",
        .about = "Reads a text from standard input and prints its token ids on one line, or the other way round.\n"
                 "With --jsonl: {\"text\":..., \"special\":true|false} gives {\"ids\":...}, {\"ids\":...} gives "
                 "{\"text\":...}.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  printf 'Once upon a time' | moeflux tokenize models/stories-moe\n"
                    "  echo 920 604 261 495 | moeflux tokenize models/stories-moe --decode\n"
                    "  echo '{\"text\":\"hello\",\"special\":false}' | moeflux tokenize tokenizer.json --jsonl\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (no_special && (to_text || jsonl)) {
        app_say("--no-special does nothing with %s", to_text ? "--decode" : "--jsonl, where each line says it itself");
        return APP_USAGE;
    }
    mf__tokenizer *tok = NULL;
    mf__strbuf in = {0};
    mf_error err;
    char *path = NULL;
    mf_status st = models_find(&find, words[0], &path, &err);
    if (st == MF_OK) st = mf__tokenizer_open(path, &tok, &err);
    free(path);
    if (st == MF_OK && jsonl)
        st = all_lines(tok, to_text, &err);
    else if (st == MF_OK && (st = app_read_stdin(MAX_INPUT, &in, &err)) == MF_OK)
        st = to_text ? plain_decode(tok, &in, &err) : plain_encode(tok, &in, !no_special, &err);
    mf__strbuf_free(&in);
    mf__tokenizer_free(tok);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
