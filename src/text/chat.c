/* Chat templates: finding a model's, and rendering it. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MAX_TEMPLATE ((size_t)4 << 20)

static const char usual[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

mf__notation mf__notation_detect(const char *source) {
    static const struct {
        const char *word;
        mf__notation notation;
    } words[] = {{"<|channel|>", MF__NOTATION_HARMONY},
                 {"]<]minimax[>[", MF__NOTATION_MINIMAX3},
                 {"<|tool_call>call:", MF__NOTATION_GEMMA},
                 {"<|channel>", MF__NOTATION_GEMMA},
                 {"'<tool_calls{}>'", MF__NOTATION_HY3},
                 {"<tool_calls:opensource>", MF__NOTATION_HY3},
                 {"[TOOL_CALLS]", MF__NOTATION_MISTRAL},
                 {"[THINK]", MF__NOTATION_MISTRAL},
                 {"｜DSML｜", MF__NOTATION_DSML},
                 {"tool▁calls▁begin", MF__NOTATION_DEEPSEEK},
                 {"<|tool_calls_section_begin|>", MF__NOTATION_KIMI},
                 {"<minimax:tool_call>", MF__NOTATION_MINIMAX},
                 {"<tool_call>", MF__NOTATION_TAGS}};
    for (size_t i = 0; i < MF__COUNT(words); i++)
        if (strstr(source, words[i].word)) return words[i].notation;
    return MF__NOTATION_PLAIN;
}

const mf__think *mf__think_of(mf__notation notation) {
    static const mf__think usual_marks = {"<think>", "</think>", "\n</think>\n\n"};
    static const mf__think own[MF__NOTATIONS] = {
        [MF__NOTATION_HY3] = {"<think:opensource>", "</think:opensource>", "</think:opensource>"},
        [MF__NOTATION_MINIMAX3] = {"<mm:think>", "</mm:think>", "</mm:think>"},
        [MF__NOTATION_MISTRAL] = {"[THINK]", "[/THINK]", "[/THINK]"},
        [MF__NOTATION_GEMMA] = {"<|channel>thought", "<channel|>", "\n<channel|>"}};
    return (unsigned)notation < MF__NOTATIONS && own[notation].open ? &own[notation] : &usual_marks;
}

mf__call_style mf__call_style_detect(const char *source) {
    switch (mf__notation_detect(source)) {
    case MF__NOTATION_TAGS:
        if (strstr(source, "<function=")) return MF__CALL_FUNCTION;
        if (!strstr(source, "<arg_key>")) return MF__CALL_JSON;
        return strstr(source, "</arg_key><arg_value>") ? MF__CALL_GLM_DENSE : MF__CALL_GLM;
    case MF__NOTATION_DEEPSEEK: return strstr(source, "```json") ? MF__CALL_DEEPSEEK_FENCED : MF__CALL_DEEPSEEK;
    case MF__NOTATION_DSML: return strstr(source, "function_calls") ? MF__CALL_DSML : MF__CALL_DSML_4;
    case MF__NOTATION_KIMI: return MF__CALL_KIMI;
    case MF__NOTATION_MINIMAX: return MF__CALL_MINIMAX;
    case MF__NOTATION_HARMONY: return MF__CALL_HARMONY;
    case MF__NOTATION_HY3: return MF__CALL_HY3;
    case MF__NOTATION_MINIMAX3: return MF__CALL_MINIMAX3;
    case MF__NOTATION_MISTRAL: return MF__CALL_MISTRAL;
    case MF__NOTATION_GEMMA: return MF__CALL_GEMMA;
    default: return MF__CALL_JSON;
    }
}

/* Hunyuan's <answer>, ERNIE's <response>. */
const char *const *mf__wrap_detect(const char *source) {
    static const char *const wraps[][2] = {{"<answer>", "</answer>"}, {"<response>", "</response>"}};
    mf__notation notation = mf__notation_detect(source);
    if (notation != MF__NOTATION_PLAIN && notation != MF__NOTATION_TAGS) return NULL;
    for (size_t i = 0; i < MF__COUNT(wraps); i++)
        if (strstr(source, wraps[i][0]) && strstr(source, wraps[i][1])) return wraps[i];
    return NULL;
}

static mf_status set_template(mf__chat *f, const char *name, const char *source, size_t size, mf_error *err) {
    if (strlen(source) != size) return mf__fail(err, MF_E_FORMAT, "%s: a zero byte in the template", name);
    f->notation = mf__notation_detect(source);
    f->style = mf__call_style_detect(source);
    f->wrap = mf__wrap_detect(source);
    f->has_developer = strstr(source, "developer") != NULL;
    f->splits_reasoning = strstr(source, "'</think>'") || strstr(source, "\"</think>\"");
    f->has_no_think = strstr(source, "'no_think'") != NULL;
    f->has_tools = strstr(source, "tools") != NULL;
    f->has_reasoning = strstr(source, "thinking") || strstr(source, "reasoning_effort");
    return mf__jinja_parse(name, source, size, &f->jinja, err);
}

static mf_status read_template(mf__chat *f, const char *path, mf_error *err) {
    char *source;
    size_t size;
    MF__TRY(mf__file_read(path, MAX_TEMPLATE, &source, &size, err));
    mf_status st = set_template(f, path, source, size, err);
    free(source);
    return st;
}

/* ---- tokenizer_config.json -------------------------------------------------------------------------------------- */

/* bos_token and its kin: a string, or an object with its content. */
static mf_status keep_token(mf__chat *f, const json_t *config, const char *key, mf_error *err) {
    json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (json_is_string(value) && json_object_set(f->variables, key, value))
        return mf__fail(err, MF_E_NOMEM, "no memory for %s", key);
    return MF_OK;
}

/* chat_template is a text, or a list of {"name", "template"} of which "default" is wanted. */
static const json_t *default_template(const json_t *value) {
    size_t i;
    const json_t *entry;
    json_array_foreach((json_t *)value, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && !strcmp(name, "default")) return json_object_get(entry, "template");
    }
    return value;
}

static mf_status read_config(mf__chat *f, const char *path, mf_error *err) {
    static const char *const tokens[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    json_t *config;
    MF__TRY(mf__json_read(path, (size_t)64 << 20, &config, err));
    mf_status st = MF_OK;
    for (size_t i = 0; i < MF__COUNT(tokens) && st == MF_OK; i++) st = keep_token(f, config, tokens[i], err);
    const json_t *t = default_template(json_object_get(config, "chat_template"));
    if (st == MF_OK && !f->jinja && json_is_string(t)) {
        char *name = mf__path_join(path, "chat_template");
        st = name ? set_template(f, name, json_string_value(t), json_string_length(t), err)
                  : mf__fail(err, MF_E_NOMEM, "no memory for a path");
        free(name);
    }
    json_decref(config);
    return st;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static mf_status read_part(mf__chat *f, const char *dir, const char *name,
                           mf_status (*read)(mf__chat *, const char *, mf_error *), mf_error *err) {
    char *path = mf__path_join(dir, name);
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = mf__path_exists(path) ? read(f, path, err) : MF_OK;
    free(path);
    return st;
}

static mf_status open_format(mf__chat *f, const char *path, const mf__tokenizer *tok, mf_error *err) {
    f->variables = json_object();
    if (!f->variables) return mf__fail(err, MF_E_NOMEM, "no memory for variables");
    if (!mf__path_is_dir(path)) return read_template(f, path, err);
    MF__TRY(read_part(f, path, "chat_template.jinja", read_template, err));
    MF__TRY(read_part(f, path, "tokenizer_config.json", read_config, err));
    if (!f->jinja && tok && mf__tokenizer_id(tok, "<|im_start|>") >= 0)
        return set_template(f, "the usual chat format", usual, sizeof usual - 1, err);
    return MF_OK;
}

mf_status mf__chat_open(const char *path, const mf__tokenizer *tok, mf__chat *out, mf_error *err) {
    *out = (mf__chat){.notation = MF__NOTATION_PLAIN};
    mf_status st = open_format(out, path, tok, err);
    if (st != MF_OK) mf__chat_close(out);
    return st;
}

void mf__chat_close(mf__chat *f) {
    mf__jinja_free(f->jinja);
    json_decref(f->variables);
    *f = (mf__chat){0};
}

/* ---- rendering -------------------------------------------------------------------------------------------------- */

static bool is_variable_name(const char *name) {
    if (!*name || (*name >= '0' && *name <= '9')) return false;
    for (; *name; name++) {
        bool letter = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || (uint8_t)*name >= 0x80;
        if (!letter && *name != '_' && !(*name >= '0' && *name <= '9')) return false;
    }
    return true;
}

/* "extra" holds variables: what no template could ask for, or the request says itself, is a mistake. */
static mf_status check_extra(const json_t *request, const json_t *extra, mf_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)extra, key, value) {
        if (!is_variable_name(key))
            return mf__fail(err, MF_E_FORMAT,
                            "\"extra\" has \"%.60s\", which cannot be a variable's name in a template", key);
        if (json_object_get(request, key) &&
            (!strcmp(key, "messages") || !strcmp(key, "tools") || !strcmp(key, "add_generation_prompt")))
            return mf__fail(err, MF_E_FORMAT, "\"%s\" is in the request and in its \"extra\"; one of them must go",
                            key);
    }
    value = json_object_get(extra, "strftime_now");
    if (value && !json_is_string(value))
        return mf__fail(err, MF_E_FORMAT, "\"strftime_now\" in \"extra\" is %s, expected a string: the date to write",
                        mf__json_type_name(value));
    return MF_OK;
}

/* A request's own member becomes a variable; what neither it nor "extra" has becomes `missing`, whose owner it is. */
static int set_own(json_t *vars, const json_t *request, const char *key, json_t *missing) {
    json_t *value = json_object_get(request, key);
    int bad = value ? json_object_set(vars, key, value) : 0;
    if (!value && !json_object_get(vars, key)) bad = json_object_set(vars, key, missing);
    json_decref(missing);
    return bad;
}

/* The template's variables: those of the model, the request's own, and "extra". */
static mf_status variables_of(const mf__chat *f, const json_t *request, json_t **out, mf_error *err) {
    json_t *vars = json_copy(f->variables), *extra = json_object_get(request, "extra");
    int bad = !vars;
    *out = vars;
    if (!json_is_array(json_object_get(request, "messages")))
        return mf__fail(err, MF_E_FORMAT, "\"messages\" is %s, expected an array",
                        mf__json_type_name(json_object_get(request, "messages")));
    if (extra && !json_is_object(extra) && !json_is_null(extra))
        return mf__fail(err, MF_E_FORMAT, "\"extra\" is %s, expected an object", mf__json_type_name(extra));
    if (json_is_object(extra)) {
        MF__TRY(check_extra(request, extra, err));
        bad |= json_object_update(vars, extra);
    }
    bad |= set_own(vars, request, "messages", json_null());
    bad |= set_own(vars, request, "tools", json_null());
    bad |= set_own(vars, request, "add_generation_prompt", json_false());
    json_object_del(vars, "strftime_now");
    return bad ? mf__fail(err, MF_E_NOMEM, "no memory for the request") : MF_OK;
}

mf_status mf__chat_render_with(const mf__chat *f, const json_t *request, const mf__jinja_options *options,
                               mf__strbuf *out, mf_error *err) {
    json_t *vars = NULL;
    const char *today = json_string_value(json_object_get(json_object_get(request, "extra"), "strftime_now"));
    mf__jinja_options opt = options ? *options : (mf__jinja_options){0};
    if (today) opt.strftime_now = today;
    if (!json_is_object(request)) return mf__fail(err, MF_E_FORMAT, "a request is a JSON object");
    mf_status st = variables_of(f, request, &vars, err);
    if (st == MF_OK) st = mf__jinja_render(f->jinja, vars, &opt, out, err);
    json_decref(vars);
    return st;
}

mf_status mf__chat_render(const mf__chat *f, const json_t *request, mf__strbuf *out, mf_error *err) {
    return mf__chat_render_with(f, request, NULL, out, err);
}

/* Whether a text ends in one of the markers; white space behind it does not count. */
static bool ends_in_marker(const char *prompt, size_t n, bool open) {
    while (n && strchr(" \n\t\r", prompt[n - 1])) n--;
    for (int i = 0; i < MF__NOTATIONS; i++) {
        const mf__think *t = mf__think_of((mf__notation)i);
        const char *mark = open ? t->open : t->close;
        size_t k = strlen(mark);
        if (n >= k && !memcmp(prompt + n - k, mark, k)) return true;
    }
    return false;
}

bool mf__text_opens_reasoning(const char *prompt, size_t n) {
    return ends_in_marker(prompt, n, true);
}

bool mf__text_closes_reasoning(const char *prompt, size_t n) {
    return ends_in_marker(prompt, n, false);
}

mf_status mf__chat_parse(const char *json, size_t size, json_t **out, mf_error *err) {
    json_error_t why;
    *out = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!*out) return mf__fail(err, MF_E_FORMAT, "not JSON: %s (column %d)", why.text, why.column);
    return MF_OK;
}

mf_status mf__chat_render_json(const mf__chat *f, const char *json, size_t size, mf__strbuf *out, mf_error *err) {
    json_t *request;
    MF__TRY(mf__chat_parse(json, size, &request, err));
    mf_status st = mf__chat_render(f, request, out, err);
    json_decref(request);
    return st;
}
