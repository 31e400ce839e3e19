/* Calls as forms: calls.c read backwards. */
#include "reply/tool_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

#define MAX_CALLS 32

typedef mf__form form;

/* ---- building ---------------------------------------------------------------------------------------------------- */

/* Forms are made in an arena; when it is out of memory that is remembered, and said once at the end. */
typedef struct build {
    mf__arena arena;
    bool no_memory;
    mf__call_style style;
    json_t *any; /* the schema of any object */
} build;

static form *make(build *b, size_t n) {
    form *f = mf__arena_array(&b->arena, n, sizeof *f);
    static form none[16];
    b->no_memory = b->no_memory || !f;
    return f ? f : none;
}

static form text(build *b, const char *s) {
    char *copy = mf__arena_strdup(&b->arena, s);
    b->no_memory = b->no_memory || !copy;
    return (form){.kind = MF__FORM_TEXT, .text = copy ? copy : "", .size = copy ? strlen(copy) : 0};
}

static form sequence(build *b, const form *parts, size_t n) {
    form *all = make(b, n);
    if (!b->no_memory) memcpy(all, parts, n * sizeof *parts);
    return (form){.kind = MF__FORM_SEQUENCE, .parts = all, .n_parts = n};
}

static form repeat(build *b, form part, const char *between, int64_t min, int64_t max) {
    form *parts = make(b, 2);
    if (b->no_memory) return part;
    parts[0] = part;
    if (between) parts[1] = text(b, between);
    return (form){.kind = MF__FORM_REPEAT, .parts = parts, .n_parts = between ? 2 : 1, .min = min, .max = max};
}

static form line_end(build *b) {
    return repeat(b, text(b, "\n"), NULL, 0, 1);
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

static const json_t *function_of(const json_t *tool) {
    const json_t *inner = json_object_get(tool, "function");
    return json_is_object(inner) ? inner : tool;
}

static const json_t *parameters_of(const json_t *tool) {
    const json_t *p = json_object_get(tool, "parameters");
    if (!p) p = json_object_get(tool, "input_schema");
    return json_is_object(p) ? p : NULL;
}

static bool can_be_enforced(const json_t *schema) {
    mf__grammar *g = NULL;
    bool can = schema && mf__grammar_from_schema(schema, &g, NULL) == MF_OK;
    mf__grammar_free(g);
    return can;
}

static form schema_form(const json_t *schema) {
    return (form){.kind = MF__FORM_SCHEMA, .schema = schema};
}

static form arguments_form(build *b, const json_t *tool) {
    const json_t *p = parameters_of(tool);
    return schema_form(can_be_enforced(p) ? p : b->any);
}

/* ---- values in tags ---------------------------------------------------------------------------------------------- */

/* How one notation writes a parameter: before its name, between name and value, behind the value. */
typedef struct tags {
    const char *key, *value, *value_other, *end;
} tags;

static const tags tags_of[MF__CALL_STYLES] = {
    [MF__CALL_FUNCTION] = {"<parameter=", ">\n", ">\n", "\n</parameter>\n"},
    [MF__CALL_GLM] = {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_key>\n<arg_value>", "</arg_value>\n"},
    [MF__CALL_GLM_DENSE] = {"<arg_key>", "</arg_key><arg_value>", "</arg_key><arg_value>", "</arg_value>"},
    [MF__CALL_MINIMAX] = {"<parameter name=\"", "\">", "\">", "</parameter>\n"},
    [MF__CALL_DSML] = {"<｜DSML｜parameter name=\"", "\" string=\"true\">", "\" string=\"false\">",
                       "</｜DSML｜parameter>\n"},
    [MF__CALL_DSML_4] = {"<｜DSML｜parameter name=\"", "\" string=\"true\">", "\" string=\"false\">",
                         "</｜DSML｜parameter>\n"},
    [MF__CALL_HY3] = {"<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>",
                      "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n"},
    [MF__CALL_MINIMAX3] = {"]<]minimax[>[<", ">", ">", NULL}, /* the end has the name again */
};

static bool is_text(const json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && !strcmp(type, "string") && !json_object_get(schema, "enum") && !json_object_get(schema, "const");
}

/* A string of a fixed choice is written without quotes: it is one of these texts. */
static bool enum_form(build *b, const json_t *schema, form *out) {
    const json_t *all = json_object_get(schema, "enum");
    size_t n = json_array_size(all);
    if (!n) return false;
    form *parts = make(b, n);
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(all, i));
        if (!s || b->no_memory) return false;
        parts[i] = text(b, s);
    }
    *out = (form){.kind = MF__FORM_CHOICE, .parts = parts, .n_parts = n};
    return true;
}

/* The first character of a tag's end is looked for in raw text; a tag that is not ASCII is kept out by its "</". */
static form raw_text(build *b, const char *end) {
    bool ascii = true;
    for (const char *p = end; *p; p++) ascii = ascii && (unsigned char)*p < 0x80;
    if (ascii) return (form){.kind = MF__FORM_UNTIL, .text = end, .size = strlen(end)};
    static const char no_tag[] = "([^<]|<+[^</])*";
    return sequence(b, (form[]){{.kind = MF__FORM_REGEX, .text = no_tag, .size = sizeof no_tag - 1}, text(b, end)}, 2);
}

static form parameter_form(build *b, const char *key, const json_t *schema, bool required) {
    const tags *t = &tags_of[b->style];
    char named[512];
    const char *end = t->end;
    form choice, value;
    if (!end) {
        snprintf(named, sizeof named, "]<]minimax[>[</%.400s>", key);
        end = text(b, named).text;
    }
    bool raw = is_text(schema), quoted = !raw && !enum_form(b, schema, &choice);
    if (raw)
        value = raw_text(b, end);
    else
        value = sequence(
            b, (form[]){quoted ? schema_form(can_be_enforced(schema) ? schema : b->any) : choice, text(b, end)}, 2);
    form all =
        sequence(b, (form[]){text(b, t->key), text(b, key), text(b, quoted ? t->value_other : t->value), value}, 4);
    return required ? all : repeat(b, all, NULL, 0, 1);
}

static bool is_required(const json_t *parameters, const char *key) {
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(parameters, "required"), i, v) {
        const char *s = json_string_value(v);
        if (s && !strcmp(s, key)) return true;
    }
    return false;
}

static form parameters_form(build *b, const json_t *tool) {
    const json_t *p = parameters_of(tool), *properties = json_object_get(p, "properties");
    size_t n = json_object_size(properties), i = 0;
    form *parts = make(b, n);
    const char *key;
    json_t *schema;
    json_object_foreach((json_t *)properties, key, schema) {
        if (b->no_memory) break;
        parts[i++] = parameter_form(b, key, schema, is_required(p, key));
    }
    return (form){.kind = MF__FORM_SEQUENCE, .parts = parts, .n_parts = i};
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static form call_form(build *b, const json_t *tool, const char *name) {
    static const char number[] = "[0-9]{1,3}";
    json_t *quoted = json_string(name);
    char *json = quoted ? json_dumps(quoted, JSON_ENCODE_ANY) : NULL;
    form n = text(b, name), in_json = text(b, json ? json : "");
    form index = {.kind = MF__FORM_REGEX, .text = number, .size = sizeof number - 1};
    b->no_memory = b->no_memory || !json;
    free(json);
    json_decref(quoted);
#define SEQUENCE(...) sequence(b, (form[]){__VA_ARGS__}, sizeof((form[]){__VA_ARGS__}) / sizeof(form))
    switch (b->style) {
    case MF__CALL_FUNCTION:
        return SEQUENCE(line_end(b), text(b, "<function="), n, text(b, ">\n"), parameters_form(b, tool),
                        text(b, "</function>\n"));
    case MF__CALL_GLM: return SEQUENCE(n, text(b, "\n"), parameters_form(b, tool));
    case MF__CALL_GLM_DENSE: return SEQUENCE(n, parameters_form(b, tool));
    case MF__CALL_MINIMAX:
        return SEQUENCE(text(b, "<invoke name=\""), n, text(b, "\">\n"), parameters_form(b, tool),
                        text(b, "</invoke>\n"));
    case MF__CALL_DSML:
    case MF__CALL_DSML_4:
        return SEQUENCE(text(b, "<｜DSML｜invoke name=\""), n, text(b, "\">\n"), parameters_form(b, tool),
                        text(b, "</｜DSML｜invoke>\n"));
    case MF__CALL_DEEPSEEK:
        return SEQUENCE(text(b, "<｜tool▁call▁begin｜>"), n, text(b, "<｜tool▁sep｜>"), arguments_form(b, tool),
                        text(b, "<｜tool▁call▁end｜>"));
    case MF__CALL_DEEPSEEK_FENCED:
        return SEQUENCE(text(b, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"), n, text(b, "\n```json\n"),
                        arguments_form(b, tool), text(b, "\n```<｜tool▁call▁end｜>"));
    case MF__CALL_KIMI:
        return SEQUENCE(text(b, "<|tool_call_begin|>functions."), n, text(b, ":"), index,
                        text(b, "<|tool_call_argument_begin|>"), arguments_form(b, tool), text(b, "<|tool_call_end|>"));
    case MF__CALL_HY3:
        return SEQUENCE(text(b, "<tool_call:opensource>"), n, text(b, "<tool_sep:opensource>\n"),
                        parameters_form(b, tool), text(b, "</tool_call:opensource>\n"));
    case MF__CALL_MINIMAX3:
        return SEQUENCE(text(b, "]<]minimax[>[<invoke name=\""), n, text(b, "\">"), parameters_form(b, tool),
                        text(b, "]<]minimax[>[</invoke>\n"));
    case MF__CALL_MISTRAL: return SEQUENCE(n, text(b, "[ARGS]"), arguments_form(b, tool));
    case MF__CALL_GEMMA: /* arguments as JSON, which is read as well as its own notation */
        return SEQUENCE(text(b, "call:"), n, arguments_form(b, tool));
    case MF__CALL_HARMONY: /* behind "to=functions." */
        return SEQUENCE(n, text(b, " <|constrain|>json<|message|>"), arguments_form(b, tool));
    default:
        return SEQUENCE(line_end(b), text(b, "{\"name\": "), in_json, text(b, ", \"arguments\": "),
                        arguments_form(b, tool), text(b, "}\n"));
    }
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

/* The markers around a block, and whether several calls are in one block or each has its own. */
typedef struct block {
    const char *open, *close;
    bool shared;
} block;

static const block blocks[MF__CALL_STYLES] = {
    [MF__CALL_JSON] = {"<tool_call>", "</tool_call>", false},
    [MF__CALL_FUNCTION] = {"<tool_call>", "</tool_call>", false},
    [MF__CALL_GLM] = {"<tool_call>", "</tool_call>", false},
    [MF__CALL_GLM_DENSE] = {"<tool_call>", "</tool_call>", false},
    [MF__CALL_MINIMAX] = {"<minimax:tool_call>", "</minimax:tool_call>", true},
    [MF__CALL_DSML] = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", true},
    [MF__CALL_DSML_4] = {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", true},
    [MF__CALL_DEEPSEEK] = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", true},
    [MF__CALL_DEEPSEEK_FENCED] = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", true},
    [MF__CALL_KIMI] = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", true},
    [MF__CALL_HARMONY] = {"", "", false},
    [MF__CALL_HY3] = {"<tool_calls:opensource>", "</tool_calls:opensource>", true},
    [MF__CALL_MINIMAX3] = {"]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", true},
    [MF__CALL_MISTRAL] = {"[TOOL_CALLS]", "", false},
    [MF__CALL_GEMMA] = {"<|tool_call>", "<tool_call|>", false},
};

static form calls_form(build *b, form call, bool one, bool inside) {
    const block *k = &blocks[b->style];
    bool line = b->style == MF__CALL_MINIMAX || b->style == MF__CALL_DSML || b->style == MF__CALL_DSML_4 ||
                b->style == MF__CALL_HY3 || b->style == MF__CALL_MINIMAX3;
    int64_t most = one ? 1 : MAX_CALLS;
    if (b->style == MF__CALL_HARMONY) return call;
    form inner = k->shared ? repeat(b, call, NULL, 1, most) : call;
    form behind = line ? SEQUENCE(line_end(b), inner, text(b, k->close)) : SEQUENCE(inner, text(b, k->close));
    if (inside) return behind;
    form whole = SEQUENCE(text(b, k->open), behind);
    bool close = b->style == MF__CALL_MISTRAL || b->style == MF__CALL_GEMMA; /* no line between two */
    if (!k->shared) whole = repeat(b, whole, close ? NULL : "\n", 1, most);
    return SEQUENCE(repeat(b, text(b, "\n"), NULL, 0, 2), whole);
}

static mf_status compile(build *b, const mf__tool_form *f, mf__grammar **out, mf_error *err) {
    size_t n = json_array_size(f->tools), n_calls = 0;
    form *calls = make(b, n ? n : 1);
    for (size_t i = 0; i < n && !b->no_memory; i++) {
        const json_t *tool = function_of(json_array_get(f->tools, i));
        const char *name = json_string_value(json_object_get(tool, "name"));
        if (name && *name && (!f->only || !strcmp(name, f->only)))
            calls[n_calls++] = f->arguments ? arguments_form(b, tool) : call_form(b, tool, name);
    }
    if (!n_calls)
        return f->only ? mf__fail(err, MF_E_INVALID, "the request has no tool \"%.80s\"", f->only)
                       : mf__fail(err, MF_E_INVALID, "a tool call is required, but the request has no tools");
    form call = {.kind = MF__FORM_CHOICE, .parts = calls, .n_parts = n_calls};
    form all = f->arguments ? call : calls_form(b, call, f->one_call, f->inside);
    if (b->no_memory) return mf__fail(err, MF_E_NOMEM, "no memory for the form of tool calls");
    return mf__grammar_from_form(&all, out, err);
}

mf_status mf__tool_form_compile(const mf__tool_form *f, mf__grammar **out, mf_error *err) {
    build b = {.style = f->style, .any = json_pack("{s:s}", "type", "object")};
    *out = NULL;
    mf_status st = b.any ? compile(&b, f, out, err) : mf__fail(err, MF_E_NOMEM, "no memory for a schema");
    json_decref(b.any);
    mf__arena_free(&b.arena);
    return st;
}

/* ---- markers ----------------------------------------------------------------------------------------------------- */

int mf__tool_form_markers(mf__call_style style, const char *out[MF__MAX_CALL_MARKERS]) {
    static const char *const inner[] = {"<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁call▁end｜>",
                                        "<｜tool▁sep｜>",
                                        "<|tool_call_begin|>",
                                        "<|tool_call_end|>",
                                        "<|tool_call_argument_begin|>",
                                        "<|constrain|>",
                                        "<|message|>",
                                        "｜DSML｜",
                                        "<tool_call:opensource>",
                                        "</tool_call:opensource>",
                                        "<tool_sep:opensource>",
                                        "<arg_key:opensource>",
                                        "</arg_key:opensource>",
                                        "<arg_value:opensource>",
                                        "</arg_value:opensource>",
                                        "]<]minimax[>[",
                                        "[ARGS]"};
    int n = 0;
    if (*blocks[style].open) out[n++] = blocks[style].open;
    if (*blocks[style].close) out[n++] = blocks[style].close;
    for (size_t i = 0; i < MF__COUNT(inner); i++) out[n++] = inner[i];
    return n;
}

const char *mf__tool_form_opening(mf__call_style style) {
    return blocks[style].open;
}
