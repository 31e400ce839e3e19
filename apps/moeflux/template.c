/* moeflux template: a chat template applied to requests, as JSON in and JSON out. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "chat_format.h"
#include "options.h"

/* The template's variables: those of the model, the request's own, and "extra". */
static mf_status variables_of(const chat_format *f, const json_t *request, json_t **out, mf_error *err) {
    json_t *vars = json_copy(f->variables), *extra = json_object_get(request, "extra");
    json_t *generate = json_object_get(request, "add_generation_prompt"), *tools = json_object_get(request, "tools");
    int bad = !vars;
    *out = vars;
    if (!json_is_array(json_object_get(request, "messages")))
        return mf__fail(err, MF_E_FORMAT, "\"messages\" is %s, expected an array",
                        mf__json_type_name(json_object_get(request, "messages")));
    if (extra && !json_is_object(extra) && !json_is_null(extra))
        return mf__fail(err, MF_E_FORMAT, "\"extra\" is %s, expected an object", mf__json_type_name(extra));
    if (json_is_object(extra)) bad |= json_object_update(vars, extra);
    bad |= json_object_set(vars, "messages", json_object_get(request, "messages"));
    bad |= json_object_set_new(vars, "tools", tools ? json_incref(tools) : json_null());
    bad |= json_object_set_new(vars, "add_generation_prompt", generate ? json_incref(generate) : json_false());
    json_object_del(vars, "strftime_now");
    return bad ? mf__fail(err, MF_E_NOMEM, "no memory for the request") : MF_OK;
}

static mf_status apply(const chat_format *f, const char *text, size_t size, mf__strbuf *out, mf_error *err) {
    json_error_t why;
    json_t *vars = NULL, *request = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!request) return mf__fail(err, MF_E_FORMAT, "not JSON: %s (column %d)", why.text, why.column);
    const json_t *extra = json_object_get(request, "extra");
    mf__jinja_options opt = {.strftime_now = json_string_value(json_object_get(extra, "strftime_now"))};
    mf_status st = json_is_object(request) ? variables_of(f, request, &vars, err)
                                           : mf__fail(err, MF_E_FORMAT, "a request is a JSON object");
    if (st == MF_OK) st = mf__jinja_render(f->jinja, vars, &opt, out, err);
    json_decref(vars);
    json_decref(request);
    return st;
}

static int print_member(const char *key, const char *text, size_t size) {
    json_t *obj = json_pack("{s:o}", key, json_stringn(text, size));
    char *line = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
    json_decref(obj);
    if (!line) {
        app_say("no memory for the result");
        return APP_FAILED;
    }
    puts(line);
    free(line);
    return APP_OK;
}

/* One request. What a template refuses is a result; what is no request at all is a failure as well. */
static int one(const chat_format *f, const char *text, size_t size, bool plain) {
    mf__strbuf out = {0};
    mf_error err;
    mf_status st = apply(f, text, size, &out, &err);
    int code = APP_OK;
    if (plain && st != MF_OK)
        code = app_fail(&err);
    else if (plain)
        fwrite(out.data ? out.data : "", 1, out.size, stdout);
    else if (st == MF_OK)
        code = print_member("text", out.data ? out.data : "", out.size);
    else
        code = print_member("error", err.text, strlen(err.text));
    if (st == MF_E_FORMAT) code = APP_FAILED;
    mf__strbuf_free(&out);
    return code;
}

static int all_lines(const chat_format *f, bool plain) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int code = APP_OK;
    while ((n = getline(&line, &capacity, stdin)) >= 0)
        if (strspn(line, " \t\r\n") != (size_t)n && one(f, line, (size_t)n, plain) != APP_OK) code = APP_FAILED;
    free(line);
    return code;
}

static int whole_input(const chat_format *f, bool plain) {
    mf__strbuf in = {0};
    mf_error err;
    mf_status st = app_read_stdin(&in, &err);
    int code = st == MF_OK ? one(f, in.data ? in.data : "", in.size, plain) : app_fail(&err);
    mf__strbuf_free(&in);
    return code;
}

int cmd_template(int argc, char **argv) {
    bool jsonl = false, plain = false;
    opt_def defs[] = {
        {.name = "jsonl",
         .kind = OPT_FLAG,
         .value = &jsonl,
         .help = "one request per line in, one result per line out"},
        {.name = "text",
         .kind = OPT_FLAG,
         .value = &plain,
         .help = "print the text as it is instead of {\"text\":...}"},
    };
    opt_spec spec = {
        .usage = "template DIR_OR_JINJA_FILE [options] < REQUEST",
        .about = "Applies a model's chat template to a request, a JSON object: \"messages\", and perhaps \"tools\",\n"
                 "\"add_generation_prompt\" and \"extra\" (more variables). Writes {\"text\":...}, or {\"error\":...}\n"
                 "when the template refuses the request.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples =
            "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"add_generation_prompt\":true}' |\n"
            "      moeflux template models/stories-moe --text\n"
            "  moeflux template chat_template.jinja --jsonl < requests.jsonl\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    chat_format f;
    mf_error err;
    mf_status st = chat_format_open(words[0], NULL, &f, &err);
    if (st == MF_OK && !f.jinja)
        st = mf__fail(&err, MF_E_NOT_FOUND,
                      "%s has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
                      words[0]);
    int code = st != MF_OK ? app_fail(&err) : jsonl ? all_lines(&f, plain) : whole_input(&f, plain);
    chat_format_close(&f);
    return code;
}
