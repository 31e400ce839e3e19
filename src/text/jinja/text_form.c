/* What values look like as text: Python's str and repr, and json.dumps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/value.h"
#include "text/unicode.h"

#define MAX_NESTING 64

static mf_status put(jctx *c, mf__strbuf *out, const char *s, size_t n) {
    if (n > c->opt.max_memory || out->size > c->opt.max_memory - n)
        return jfail(c, MF_E_LIMIT, "a text of more than %zu bytes", c->opt.max_memory);
    return mf__strbuf_append(out, s, n, c->err);
}

static mf_status puts_(jctx *c, mf__strbuf *out, const char *s) {
    return put(c, out, s, strlen(s));
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* The shortest digits that read back as x, and the exponent of the first. Locale-proof: only digits are taken from
 * printf. */
static int shortest_digits(double x, char digits[20], int *exponent) {
    char text[40];
    int n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x) break;
    }
    const char *e = strchr(text, 'e');
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    *exponent = atoi(e + 1);
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

/* Python's repr of a float: 1.0, 0.0001, 1e-05, 1e+16, inf, nan. */
static mf_status put_float(jctx *c, mf__strbuf *out, double x, bool json) {
    char digits[20] = "0", text[64];
    int exponent, n, k = 0;
    if (isnan(x)) return puts_(c, out, json ? "NaN" : "nan");
    if (isinf(x)) return puts_(c, out, x < 0 ? (json ? "-Infinity" : "-inf") : json ? "Infinity" : "inf");
    if (signbit(x)) text[k++] = '-', x = -x;
    n = shortest_digits(x, digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        text[k++] = digits[0];
        if (n > 1) text[k++] = '.';
        memcpy(text + k, digits + 1, (size_t)n - 1);
        k += n - 1;
        k += snprintf(text + k, sizeof text - (size_t)k, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        int point = exponent + 1; /* digits before the point */
        if (point <= 0) {
            text[k++] = '0';
            text[k++] = '.';
            for (int i = point; i < 0; i++) text[k++] = '0';
        }
        for (int i = 0; i < n || i < point; i++) {
            if (i == point && point > 0) text[k++] = '.';
            text[k++] = i < n ? digits[i] : '0';
        }
        if (n <= point) text[k++] = '.', text[k++] = '0';
    }
    return put(c, out, text, (size_t)k);
}

static mf_status put_int(jctx *c, mf__strbuf *out, int64_t i) {
    char text[24];
    return put(c, out, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)i));
}

/* ---- repr ------------------------------------------------------------------------------------------------------ */

/* As Python's str.isprintable: no controls, formats, surrogates, private use, unassigned or separators but space. */
static bool printable(uint32_t ch) {
    if (ch < 0x7F) return ch >= 0x20;
    int lo = 0, hi = mf__unicode_n_category_runs;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (mf__unicode_category_runs[mid] >> 8 <= ch)
            lo = mid;
        else
            hi = mid;
    }
    const char *name = mf__unicode_category_names[mf__unicode_category_runs[lo] & 0xFF];
    return name[0] != 'C' && name[0] != 'Z';
}

static mf_status repr_string(jctx *c, jvalue v, mf__strbuf *out) {
    bool has_single = v.n && memchr(v.s, '\'', v.n), has_double = v.n && memchr(v.s, '"', v.n);
    char quote = has_single && !has_double ? '"' : '\'', text[16];
    MF__TRY(put(c, out, &quote, 1));
    for (size_t i = 0; i < v.n;) {
        uint32_t ch;
        size_t n = (size_t)mf__utf8_decode(v.s + i, &ch);
        if (ch == (uint32_t)quote || ch == '\\')
            snprintf(text, sizeof text, "\\%c", (char)ch);
        else if (ch == '\n' || ch == '\r' || ch == '\t')
            snprintf(text, sizeof text, "\\%c", ch == '\n' ? 'n' : ch == '\r' ? 'r' : 't');
        else if (printable(ch))
            snprintf(text, sizeof text, "%.*s", (int)n, v.s + i);
        else
            snprintf(text, sizeof text, ch < 0x100 ? "\\x%02x" : ch < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)ch);
        MF__TRY(puts_(c, out, text));
        i += n;
    }
    return put(c, out, &quote, 1);
}

mf_status j_repr(jctx *c, jvalue v, mf__strbuf *out, int depth) {
    if (depth > MAX_NESTING) return jfail(c, MF_E_LIMIT, "a value nested deeper than %d", MAX_NESTING);
    switch (v.kind) {
    case J_UNDEFINED: return puts_(c, out, "Undefined");
    case J_NONE: return puts_(c, out, "None");
    case J_BOOL: return puts_(c, out, v.b ? "True" : "False");
    case J_INT: return put_int(c, out, v.i);
    case J_FLOAT: return put_float(c, out, v.f, false);
    case J_STRING: return repr_string(c, v, out);
    case J_LIST:
    case J_TUPLE:
        MF__TRY(puts_(c, out, v.kind == J_LIST ? "[" : "("));
        for (size_t i = 0; i < v.list->n; i++) {
            if (i) MF__TRY(puts_(c, out, ", "));
            MF__TRY(j_repr(c, v.list->items[i], out, depth + 1));
        }
        return puts_(c, out, v.kind == J_LIST ? "]" : v.list->n == 1 ? ",)" : ")");
    case J_DICT:
        MF__TRY(puts_(c, out, "{"));
        for (size_t i = 0; i < v.dict->n; i++) {
            if (i) MF__TRY(puts_(c, out, ", "));
            MF__TRY(j_repr(c, v.dict->pairs[i].key, out, depth + 1));
            MF__TRY(puts_(c, out, ": "));
            MF__TRY(j_repr(c, v.dict->pairs[i].value, out, depth + 1));
        }
        return puts_(c, out, "}");
    default: return jfail(c, MF_E_INVALID, "%s has no text form", j_type(v));
    }
}

mf_status j_print(jctx *c, jvalue v, mf__strbuf *out) {
    if (v.kind == J_STRING) return put(c, out, v.s, v.n);
    if (v.kind == J_UNDEFINED) return MF_OK;
    return j_repr(c, v, out, 0);
}

mf_status j_str(jctx *c, jvalue v, jvalue *out) {
    if (v.kind == J_STRING) return *out = v, MF_OK;
    mf__strbuf b = {0};
    mf_status status = j_print(c, v, &b);
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static mf_status escape_string(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    MF__TRY(puts_(c, out, "\""));
    size_t start = 0; /* what needs no escape is copied in one go */
    for (size_t i = 0; i < v.n;) {
        uint32_t ch;
        char text[16];
        size_t n = (size_t)mf__utf8_decode(v.s + i, &ch);
        const char *p = ch && ch < 0x80 ? strchr(plain, (int)ch) : NULL;
        if (p)
            snprintf(text, sizeof text, "\\%c", letters[p - plain]);
        else if (ch < 0x20 || (ascii && ch >= 0x7F && ch < 0x10000 && ch != 0x7F))
            snprintf(text, sizeof text, "\\u%04x", (unsigned)ch);
        else if (ascii && ch >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + (unsigned)((ch - 0x10000) >> 10),
                     0xDC00 + (unsigned)((ch - 0x10000) & 0x3FF));
        else
            text[0] = 0;
        if (text[0]) {
            MF__TRY(put(c, out, v.s + start, i - start));
            MF__TRY(puts_(c, out, text));
            start = i + n;
        }
        i += n;
    }
    MF__TRY(put(c, out, v.s + start, v.n - start));
    return puts_(c, out, "\"");
}

static mf_status json_break(jctx *c, const jjson_format *f, mf__strbuf *out, int depth) {
    if (f->indent < 0) return MF_OK;
    MF__TRY(puts_(c, out, "\n"));
    for (int i = 0; i < f->indent * depth; i++) MF__TRY(puts_(c, out, " "));
    return MF_OK;
}

static mf_status json_key(jctx *c, jvalue key, const jjson_format *f, mf__strbuf *out) {
    if (key.kind == J_STRING) return escape_string(c, key, f->ascii, out);
    if (key.kind > J_STRING || key.kind == J_UNDEFINED)
        return jfail(c, MF_E_INVALID, "%s cannot be a key in JSON", j_type(key));
    MF__TRY(puts_(c, out, "\""));
    MF__TRY(j_tojson(c, key, f, out, 0));
    return puts_(c, out, "\"");
}

static int compare_keys(const void *a, const void *b) {
    const jvalue *x = &((const jpair *)a)->key, *y = &((const jpair *)b)->key;
    if (x->kind != J_STRING || y->kind != J_STRING) return (int)x->kind - (int)y->kind;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return d ? d : x->n < y->n ? -1 : x->n > y->n;
}

static mf_status json_dict(jctx *c, const jdict *d, const jjson_format *f, mf__strbuf *out, int depth) {
    const jpair *pairs = d->pairs;
    if (f->sort_keys && d->n) {
        void *sorted;
        MF__TRY(j_alloc(c, d->n * sizeof *pairs, &sorted));
        memcpy(sorted, d->pairs, d->n * sizeof *pairs);
        qsort(sorted, d->n, sizeof *pairs, compare_keys);
        pairs = sorted;
    }
    MF__TRY(puts_(c, out, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i) MF__TRY(put(c, out, f->item_separator, f->n_item_separator));
        MF__TRY(json_break(c, f, out, depth + 1));
        MF__TRY(json_key(c, pairs[i].key, f, out));
        MF__TRY(put(c, out, f->key_separator, f->n_key_separator));
        MF__TRY(j_tojson(c, pairs[i].value, f, out, depth + 1));
    }
    if (d->n) MF__TRY(json_break(c, f, out, depth));
    return puts_(c, out, "}");
}

mf_status j_tojson(jctx *c, jvalue v, const jjson_format *f, mf__strbuf *out, int depth) {
    if (depth > MAX_NESTING) return jfail(c, MF_E_LIMIT, "a value nested deeper than %d", MAX_NESTING);
    switch (v.kind) {
    case J_NONE: return puts_(c, out, "null");
    case J_BOOL: return puts_(c, out, v.b ? "true" : "false");
    case J_INT: return put_int(c, out, v.i);
    case J_FLOAT: return put_float(c, out, v.f, true);
    case J_STRING: return escape_string(c, v, f->ascii, out);
    case J_DICT: return json_dict(c, v.dict, f, out, depth);
    case J_LIST:
    case J_TUPLE:
        MF__TRY(puts_(c, out, "["));
        for (size_t i = 0; i < v.list->n; i++) {
            if (i) MF__TRY(put(c, out, f->item_separator, f->n_item_separator));
            MF__TRY(json_break(c, f, out, depth + 1));
            MF__TRY(j_tojson(c, v.list->items[i], f, out, depth + 1));
        }
        if (v.list->n) MF__TRY(json_break(c, f, out, depth));
        return puts_(c, out, "]");
    default: return jfail(c, MF_E_INVALID, "%s cannot be written as JSON", j_type(v));
    }
}
