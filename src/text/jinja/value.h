/* Values while a template runs: Python's, as far as templates see them. All memory is the render's arena. */
#ifndef MF_TEXT_JINJA_VALUE_H
#define MF_TEXT_JINJA_VALUE_H

#include "base/arena.h"
#include "text/jinja/jinja.h"

typedef enum jkind {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNCTION
} jkind;

typedef struct jvalue {
    jkind kind;
    size_t n; /* bytes of a string; number of a function */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* not NUL-terminated; of J_UNDEFINED: the name that was looked up, or NULL */
        struct jlist *list;
        struct jdict *dict; /* also of a namespace */
        struct jloop *loop;
        const struct jmacro *macro;
        const struct jvalue *self; /* of a bound method; NULL for a global function */
    };
} jvalue;

typedef struct jlist {
    jvalue *items;
    size_t n, capacity;
} jlist;

typedef struct jpair {
    jvalue key, value;
} jpair;

typedef struct jdict { /* in order of insertion; looked up by walking */
    jpair *pairs;
    size_t n, capacity;
} jdict;

typedef struct jloop {
    const jlist *items;
    size_t at;
    jvalue changed; /* last value given to loop.changed() */
} jloop;

typedef struct jframe jframe;

typedef struct jmacro {
    const struct jnode *node;
    jframe *frame; /* where it was defined */
} jmacro;

/* One render. */
typedef struct jctx {
    const mf__jinja *template;
    const char *name;
    mf__jinja_options opt;
    mf__arena arena;
    size_t memory;
    int64_t steps;
    int depth;
    int line; /* of the node being evaluated */
    size_t written;
    mf__strbuf *out;
    jframe *frame;
    mf_error *err;
} jctx;

mf_status jfail(jctx *c, mf_status status, const char *fmt, ...) MF__PRINTF(3, 4); /* adds name and line */

/* Making values. Strings are borrowed: they must live as long as the render. */
static inline jvalue j_undefined(const char *name, size_t n) {
    return (jvalue){.kind = J_UNDEFINED, .n = n, .s = name};
}
static inline jvalue j_none(void) {
    return (jvalue){.kind = J_NONE};
}
static inline jvalue j_bool(bool b) {
    return (jvalue){.kind = J_BOOL, .b = b};
}
static inline jvalue j_int(int64_t i) {
    return (jvalue){.kind = J_INT, .i = i};
}
static inline jvalue j_float(double f) {
    return (jvalue){.kind = J_FLOAT, .f = f};
}
static inline jvalue j_string(const char *s, size_t n) {
    return (jvalue){.kind = J_STRING, .n = n, .s = s};
}
static inline bool j_is_list(jvalue v) {
    return v.kind == J_LIST || v.kind == J_TUPLE;
}
static inline bool j_is_number(jvalue v) {
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

mf_status j_alloc(jctx *c, size_t size, void **out);
mf_status j_copy(jctx *c, const char *s, size_t n, jvalue *out); /* a string of its own */
mf_status j_list(jctx *c, jkind kind, size_t capacity, jvalue *out);
mf_status j_append(jctx *c, jvalue list, jvalue item);
mf_status j_dict(jctx *c, size_t capacity, jvalue *out);
mf_status j_put(jctx *c, jvalue dict, jvalue key, jvalue value);
mf_status j_from_json(jctx *c, const json_t *json, jvalue *out);

const jvalue *j_find(const jdict *dict, jvalue key); /* NULL: not there */
bool j_truth(jvalue v);
bool j_equal(jvalue a, jvalue b);
mf_status j_compare(jctx *c, jvalue a, jvalue b, int *order); /* error for what has no order */
const char *j_type(jvalue v);                                 /* "str", "list", ... */
bool j_is_text(jvalue v, const char *text);

/* Length in characters, items or keys; error for what has none. */
mf_status j_length(jctx *c, jvalue v, size_t *n);
/* The items that iterating gives: characters, items, keys. */
mf_status j_iterate(jctx *c, jvalue v, const jlist **out);

size_t j_utf8_count(const char *s, size_t n);
size_t j_utf8_offset(const char *s, size_t n, size_t chars); /* of character number `chars` */
bool j_is_space(uint32_t c);                                 /* as Python's str.isspace */

/* text_form.c: what print, repr and json.dumps write. */
mf_status j_str(jctx *c, jvalue v, jvalue *out);
mf_status j_print(jctx *c, jvalue v, mf__strbuf *out);
mf_status j_repr(jctx *c, jvalue v, mf__strbuf *out, int depth);
typedef struct jjson_format {
    bool ascii, sort_keys;
    int indent; /* -1: one line */
    const char *item_separator, *key_separator;
    size_t n_item_separator, n_key_separator;
} jjson_format;
mf_status j_tojson(jctx *c, jvalue v, const jjson_format *f, mf__strbuf *out, int depth);

#endif
