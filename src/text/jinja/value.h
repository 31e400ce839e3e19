/* Values while a template runs: Python's, as far as templates see them. All memory is the render's arena. */
#ifndef MF_TEXT_JINJA_VALUE_H
#define MF_TEXT_JINJA_VALUE_H

#include "text/jinja/budget.h"

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
    J_FUNCTION,
    J_CYCLER,
    J_JOINER,
    J_BLOCKS /* self: the template's blocks as functions */
} jkind;

/* What else there is to know of a value. */
typedef enum jform {
    JF_PLAIN,
    JF_MARKUP,    /* a string: HTML already, needs no escape */
    JF_KEYS,      /* a list: dict.keys(), as it prints itself */
    JF_VALUES,    /* dict.values() */
    JF_ITEMS,     /* dict.items() */
    JF_GENERATOR, /* what map, select and their kin make: gone once it was iterated */
    JF_RANGE,     /* range(): items[0], items[1], ... with the bounds in list->range */
    JF_GROUP,     /* a tuple of groupby: has .grouper and .list */
    JF_ATTRIBUTE, /* an undefined: looked for as an attribute; the kind it was looked for in is `owner` */
} jform;

typedef struct jvalue {
    jkind kind;
    uint8_t form;  /* jform */
    uint8_t owner; /* jkind; see JF_ATTRIBUTE */
    size_t n;      /* bytes of a string */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* not NUL-terminated; of J_UNDEFINED: the name that was looked up, or NULL */
        struct jlist *list;
        struct jdict *dict; /* also of a namespace */
        struct jloop *loop;
        struct jcycler *cycler; /* also of a joiner */
        const struct jmacro *macro;
        const struct jfunction *function;
    };
} jvalue;

typedef struct jlist {
    jvalue *items;
    size_t n, capacity;
    const int64_t *range; /* first, end, step, of JF_RANGE */
} jlist;

typedef struct jpair {
    jvalue key, value;
} jpair;

typedef struct jdict { /* pairs in order of insertion; `slots` finds them by hash once there are more than a few */
    jpair *pairs;
    size_t n, capacity;
    uint32_t *slots; /* number of a pair + 1, 0: free; a power of two of them, at least twice n. NULL: none */
    size_t n_slots;
    bool stale; /* pairs have moved since slots was filled */
} jdict;

typedef struct jframe jframe;

typedef struct jloop {
    const jlist *items;
    size_t at;
    int depth;                /* 0: not inside a recursive loop's call */
    const jvalue *changed;    /* last values given to loop.changed() */
    size_t n_changed;         /* 0: never called */
    const struct jnode *node; /* of a recursive loop, else NULL */
    jframe *frame;            /* around it */
} jloop;

typedef struct jcycler {
    const jvalue *items; /* a joiner has its separator alone */
    size_t n, at;
} jcycler;

typedef struct jmacro {
    const struct jnode *node;
    jframe *frame; /* where it was defined */
    bool autoescape;
} jmacro;

typedef struct jfunction {
    const struct jentry *entry;
    jvalue self; /* the value a method belongs to; None for a global function */
} jfunction;

/* Making values. Strings are borrowed: they must live as long as the render. */
static inline jvalue mf__j_undefined(const char *name, size_t n) {
    return (jvalue){.kind = J_UNDEFINED, .n = n, .s = name};
}
static inline jvalue mf__j_none(void) {
    return (jvalue){.kind = J_NONE};
}
static inline jvalue mf__j_bool(bool b) {
    return (jvalue){.kind = J_BOOL, .b = b};
}
static inline jvalue mf__j_int(int64_t i) {
    return (jvalue){.kind = J_INT, .i = i};
}
static inline jvalue mf__j_float(double f) {
    return (jvalue){.kind = J_FLOAT, .f = f};
}
static inline jvalue mf__j_string(const char *s, size_t n) {
    return (jvalue){.kind = J_STRING, .n = n, .s = s};
}
static inline bool mf__j_is_list(jvalue v) {
    return v.kind == J_LIST || v.kind == J_TUPLE;
}
/* A view of a dict or a generator: can be iterated, but has no items by number. */
static inline bool mf__j_is_view(jvalue v) {
    return v.kind == J_LIST && v.form != JF_PLAIN && v.form != JF_RANGE;
}
static inline bool mf__j_is_number(jvalue v) {
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}
static inline bool mf__j_is_int(jvalue v) { /* as Python: a bool is one */
    return v.kind == J_BOOL || v.kind == J_INT;
}
static inline int64_t mf__j_as_int(jvalue v) {
    return v.kind == J_INT ? v.i : v.b;
}
static inline double mf__j_as_double(jvalue v) {
    return v.kind == J_FLOAT ? v.f : v.kind == J_INT ? (double)v.i : (double)v.b;
}

mf_status mf__j_copy(jctx *c, const char *s, size_t n, jvalue *out); /* a string of its own */
mf_status mf__j_list(jctx *c, jkind kind, size_t capacity, jvalue *out);
mf_status mf__j_append(jctx *c, jvalue list, jvalue item);
mf_status mf__j_pair(jctx *c, jvalue a, jvalue b, jvalue *out);                            /* a tuple of two */
mf_status mf__j_set_range(jctx *c, jvalue list, int64_t first, int64_t end, int64_t step); /* of JF_RANGE */
mf_status mf__j_from_json(jctx *c, const json_t *json, jvalue *out);

/* dict.c. Keys that cannot be keys (lists, dicts) are an error of every one of these. */
mf_status mf__j_dict(jctx *c, size_t capacity, jvalue *out);
mf_status mf__j_put(jctx *c, jvalue dict, jvalue key, jvalue value);
mf_status mf__j_find(jctx *c, const jdict *dict, jvalue key, const jvalue **out); /* *out NULL: not there */
mf_status mf__j_remove(jctx *c, jdict *dict, jvalue key, jvalue *value, bool *found);
void mf__j_clear(jdict *dict);

bool mf__j_truth(jvalue v);
mf_status mf__j_equal(jctx *c, jvalue a, jvalue b, bool *out);
mf_status mf__j_compare(jctx *c, jvalue a, jvalue b, int *order);      /* error for what has no order */
mf_status mf__j_sort_pairs(jctx *c, jpair *a, size_t n, bool reverse); /* by key, stable */
const char *mf__j_type(jvalue v);                                      /* "str", "list", ... */
bool mf__j_is_text(jvalue v, const char *text);
bool mf__j_same_name(const char *a, size_t n, const char *text); /* n bytes at a are the text */

/* A list becomes a generator: true even when empty, without length or items by number. */
static inline void mf__j_make_generator(jvalue *list) {
    list->form = JF_GENERATOR;
}

/* Length in characters, items or keys; error for what has none. */
mf_status mf__j_length(jctx *c, jvalue v, size_t *n);
/* The items that iterating gives: characters, items, keys. A generator is empty afterwards. */
mf_status mf__j_iterate(jctx *c, jvalue v, const jlist **out);

size_t mf__j_utf8_count(const char *s, size_t n);
size_t mf__j_utf8_offset(const char *s, size_t n, size_t chars); /* of character number `chars` */
bool mf__j_is_space(uint32_t c);                                 /* as Python's str.isspace */
/* The first occurrence, which the caller pays for. NULL: none. */
const char *mf__j_search(jvalue s, jvalue what);

/* text_form.c: what print, repr and json.dumps write. */
mf_status mf__j_str(jctx *c, jvalue v, jvalue *out);
mf_status mf__j_print(jctx *c, jvalue v, mf__strbuf *out);
mf_status mf__j_repr(jctx *c, jvalue v, mf__strbuf *out);
mf_status mf__j_ascii(jctx *c, jvalue v, mf__strbuf *out); /* repr with everything but ASCII escaped */
bool mf__j_printable(uint32_t ch);                         /* as Python's str.isprintable */

typedef struct jjson_format {
    bool ascii, sort_keys;
    const char *indent; /* NULL: one line */
    size_t n_indent;
    const char *item_separator, *key_separator;
    size_t n_item_separator, n_key_separator;
} jjson_format;
mf_status mf__j_tojson(jctx *c, jvalue v, const jjson_format *f, mf__strbuf *out, int level);

#endif
