/* moeflux template: a chat template applied to requests, as JSON in and JSON out. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "models.h"
#include "options.h"
#include "text/chat.h"

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
static int one(const mf__chat *f, const char *text, size_t size, bool plain) {
    mf__strbuf out = {0};
    mf_error err;
    mf_status st = mf__chat_render_json(f, text, size, &out, &err);
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

static int all_lines(const mf__chat *f, bool plain) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int code = APP_OK;
    while ((n = getline(&line, &capacity, stdin)) >= 0)
        if (strspn(line, " \t\r\n") != (size_t)n && one(f, line, (size_t)n, plain) != APP_OK) code = APP_FAILED;
    free(line);
    return code;
}

static int whole_input(const mf__chat *f, bool plain) {
    mf__strbuf in = {0};
    mf_error err;
    mf_status st = app_read_stdin(APP_MAX_TEXT, &in, &err);
    int code = st == MF_OK ? one(f, in.data ? in.data : "", in.size, plain) : app_fail(&err);
    mf__strbuf_free(&in);
    return code;
}

int cmd_template(int argc, char **argv) {
    bool jsonl = false, plain = false;
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "jsonl",
         .kind = OPT_FLAG,
         .value = &jsonl,
         .help = "one request per line in, one result per line out"},
        {.name = "text",
         .kind = OPT_FLAG,
         .value = &plain,
         .help = "print the text as it is instead of {\"text\":...}"},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "template MODEL_OR_JINJA_FILE [options] < REQUEST",
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
    mf__chat f;
    mf_error err;
    char *path;
    if (models_find(&find, words[0], &path, &err) != MF_OK) return app_fail(&err);
    mf_status st = mf__chat_open(path, NULL, &f, &err);
    if (st == MF_OK && !f.jinja)
        st = mf__fail(&err, MF_E_NOT_FOUND,
                      "%s has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
                      path);
    free(path);
    int code = st != MF_OK ? app_fail(&err) : jsonl ? all_lines(&f, plain) : whole_input(&f, plain);
    mf__chat_close(&f);
    return code;
}
