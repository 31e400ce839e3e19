/* What values look like as text: Python's str and repr, and json.dumps. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* The shortest digits that read back as x, and the exponent of the first. Locale-proof: only digits are taken from
 * printf. */
static int shortest_digits(double x, char digits[20], int *exponent) {
    char text[40];
    int n = 0;
    /* Digits fewer than 15 show as zeros at the end; only numbers close to 0 have less than 15 to them. */
    for (int precision = x < DBL_MIN ? 0 : 14; precision < 17; precision++) {
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
    MF__TRY(mf__j_pay(c, fabs(x) < DBL_MIN ? 600 : 100)); /* up to 17 attempts, or 3 */
    if (isnan(x)) return mf__j_puts(c, out, json ? "NaN" : "nan");
    if (isinf(x)) return mf__j_puts(c, out, x < 0 ? (json ? "-Infinity" : "-inf") : json ? "Infinity" : "inf");
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
    return mf__j_put_text(c, out, text, (size_t)k);
}

static mf_status put_int(jctx *c, mf__strbuf *out, int64_t i) {
    char text[24];
    return mf__j_put_text(c, out, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)i));
}

/* ---- repr ------------------------------------------------------------------------------------------------------ */

bool mf__j_printable(uint32_t ch) {
    if (ch < 0x7F) return ch >= 0x20;
    const char *name = mf__j_category(ch);
    return name[0] != 'C' && name[0] != 'Z';
}

/* The escape a character needs, or "". */
static void repr_escape(uint32_t ch, char quote, bool ascii, char text[16]) {
    text[0] = 0;
    if (ch == (uint32_t)quote || ch == '\\')
        snprintf(text, 16, "\\%c", (char)ch);
    else if (ch == '\n' || ch == '\r' || ch == '\t')
        snprintf(text, 16, "\\%c", ch == '\n' ? 'n' : ch == '\r' ? 'r' : 't');
    else if (!mf__j_printable(ch) || (ascii && ch >= 0x80))
        snprintf(text, 16, ch < 0x100 ? "\\x%02x" : ch < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)ch);
}

static mf_status repr_string(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    bool has_single = v.n && memchr(v.s, '\'', v.n), has_double = v.n && memchr(v.s, '"', v.n);
    char quote = has_single && !has_double ? '"' : '\'', text[16];
    MF__TRY(mf__j_pay_bytes(c, v.n, J_DECODED));
    MF__TRY(mf__j_put_text(c, out, &quote, 1));
    size_t start = 0; /* what needs no escape is copied in one go */
    for (size_t i = 0; i < v.n;) {
        uint32_t ch;
        size_t n = (size_t)mf__utf8_decode(v.s + i, &ch);
        repr_escape(ch, quote, ascii, text);
        if (ch >= 0x80) MF__TRY(mf__j_pay(c, 2)); /* a look into the tables of Unicode */
        if (text[0]) {
            MF__TRY(mf__j_pay(c, 4));
            MF__TRY(mf__j_put_text(c, out, v.s + start, i - start));
            MF__TRY(mf__j_puts(c, out, text));
            start = i + n;
        }
        i += n;
    }
    MF__TRY(mf__j_put_text(c, out, v.s + start, v.n - start));
    return mf__j_put_text(c, out, &quote, 1);
}

static mf_status repr(jctx *c, jvalue v, bool ascii, mf__strbuf *out);

static mf_status repr_range(jctx *c, const int64_t *range, mf__strbuf *out) {
    char text[96];
    int n = snprintf(text, sizeof text, range[2] == 1 ? "range(%lld, %lld" : "range(%lld, %lld, %lld",
                     (long long)range[0], (long long)range[1], (long long)range[2]);
    MF__TRY(mf__j_put_text(c, out, text, (size_t)n));
    return mf__j_puts(c, out, ")");
}

static mf_status repr_list(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    const char *view = v.kind != J_LIST      ? NULL
                       : v.form == JF_KEYS   ? "dict_keys("
                       : v.form == JF_VALUES ? "dict_values("
                       : v.form == JF_ITEMS  ? "dict_items("
                                             : NULL;
    if (v.kind == J_LIST && v.form == JF_RANGE) return repr_range(c, v.list->range, out);
    if (v.kind == J_LIST && v.form == JF_GENERATOR)
        return mf__j_fail(c, MF_E_INVALID, "a generator (of map, select, ...) has no text form; |list makes it a list");
    if (view) MF__TRY(mf__j_puts(c, out, view));
    MF__TRY(mf__j_puts(c, out, v.kind == J_LIST ? "[" : "("));
    for (size_t i = 0; i < v.list->n; i++) {
        if (i) MF__TRY(mf__j_puts(c, out, ", "));
        MF__TRY(repr(c, v.list->items[i], ascii, out));
    }
    MF__TRY(mf__j_puts(c, out, v.kind == J_LIST ? "]" : v.list->n == 1 ? ",)" : ")"));
    return view ? mf__j_puts(c, out, ")") : MF_OK;
}

static mf_status repr_dict(jctx *c, const jdict *d, bool ascii, mf__strbuf *out) {
    MF__TRY(mf__j_puts(c, out, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i) MF__TRY(mf__j_puts(c, out, ", "));
        MF__TRY(repr(c, d->pairs[i].key, ascii, out));
        MF__TRY(mf__j_puts(c, out, ": "));
        MF__TRY(repr(c, d->pairs[i].value, ascii, out));
    }
    return mf__j_puts(c, out, "}");
}

/* What Python prints without an address in memory. */
static mf_status repr_object(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    if (v.kind == J_NAMESPACE) {
        MF__TRY(mf__j_puts(c, out, "<Namespace "));
        MF__TRY(repr_dict(c, v.dict, ascii, out));
    } else if (v.kind == J_MACRO) {
        MF__TRY(mf__j_puts(c, out, "<Macro "));
        MF__TRY(repr_string(c, mf__j_string(v.macro->node->s, v.macro->node->n), ascii, out));
    } else if (v.kind == J_LOOP) {
        char text[64];
        snprintf(text, sizeof text, "<LoopContext %zu/%zu", v.loop->at + 1, v.loop->items->n);
        MF__TRY(mf__j_puts(c, out, text));
    } else {
        return mf__j_fail(c, MF_E_INVALID, "%s has no text form", mf__j_type(v));
    }
    return mf__j_puts(c, out, ">");
}

static mf_status repr_nested(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    switch (v.kind) {
    case J_UNDEFINED: return mf__j_puts(c, out, "Undefined");
    case J_NONE: return mf__j_puts(c, out, "None");
    case J_BOOL: return mf__j_puts(c, out, v.b ? "True" : "False");
    case J_INT: return put_int(c, out, v.i);
    case J_FLOAT: return put_float(c, out, v.f, false);
    case J_STRING:
        if (v.form != JF_MARKUP) return repr_string(c, v, ascii, out);
        MF__TRY(mf__j_puts(c, out, "Markup("));
        MF__TRY(repr_string(c, v, ascii, out));
        return mf__j_puts(c, out, ")");
    case J_LIST:
    case J_TUPLE: return repr_list(c, v, ascii, out);
    case J_DICT: return repr_dict(c, v.dict, ascii, out);
    default: return repr_object(c, v, ascii, out);
    }
}

static mf_status repr(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    MF__TRY(mf__j_pay(c, 1));
    MF__TRY(mf__j_enter(c));
    MF__TRY(repr_nested(c, v, ascii, out));
    mf__j_leave(c);
    return MF_OK;
}

mf_status mf__j_repr(jctx *c, jvalue v, mf__strbuf *out) {
    return repr(c, v, false, out);
}

mf_status mf__j_ascii(jctx *c, jvalue v, mf__strbuf *out) {
    return repr(c, v, true, out);
}

mf_status mf__j_print(jctx *c, jvalue v, mf__strbuf *out) {
    if (v.kind == J_STRING) return mf__j_put_text(c, out, v.s, v.n);
    if (v.kind == J_UNDEFINED) return MF_OK;
    return mf__j_repr(c, v, out);
}

mf_status mf__j_str(jctx *c, jvalue v, jvalue *out) {
    if (v.kind == J_STRING) return *out = v, MF_OK;
    mf__strbuf b = {0};
    return mf__j_take(c, mf__j_print(c, v, &b), &b, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static mf_status escape_string(jctx *c, jvalue v, bool ascii, mf__strbuf *out) {
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    MF__TRY(mf__j_pay_bytes(c, v.n, J_DECODED));
    MF__TRY(mf__j_puts(c, out, "\""));
    size_t start = 0; /* what needs no escape is copied in one go */
    for (size_t i = 0; i < v.n;) {
        uint32_t ch;
        char text[16];
        size_t n = (size_t)mf__utf8_decode(v.s + i, &ch);
        const char *p = ch && ch < 0x80 ? strchr(plain, (int)ch) : NULL;
        if (p)
            snprintf(text, sizeof text, "\\%c", letters[p - plain]);
        else if (ch < 0x20 || (ascii && ch >= 0x7F && ch < 0x10000))
            snprintf(text, sizeof text, "\\u%04x", (unsigned)ch);
        else if (ascii && ch >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + (unsigned)((ch - 0x10000) >> 10),
                     0xDC00 + (unsigned)((ch - 0x10000) & 0x3FF));
        else
            text[0] = 0;
        if (text[0]) {
            MF__TRY(mf__j_pay(c, 4));
            MF__TRY(mf__j_put_text(c, out, v.s + start, i - start));
            MF__TRY(mf__j_puts(c, out, text));
            start = i + n;
        }
        i += n;
    }
    MF__TRY(mf__j_put_text(c, out, v.s + start, v.n - start));
    return mf__j_puts(c, out, "\"");
}

static mf_status json_break(jctx *c, const jjson_format *f, mf__strbuf *out, int level) {
    if (!f->indent) return MF_OK;
    MF__TRY(mf__j_puts(c, out, "\n"));
    for (int i = 0; i < level; i++) MF__TRY(mf__j_put_text(c, out, f->indent, f->n_indent));
    return MF_OK;
}

static mf_status json_key(jctx *c, jvalue key, const jjson_format *f, mf__strbuf *out) {
    if (key.kind == J_STRING) return escape_string(c, key, f->ascii, out);
    if (key.kind > J_STRING || key.kind == J_UNDEFINED)
        return mf__j_fail(c, MF_E_INVALID, "%s cannot be a key in JSON", mf__j_type(key));
    MF__TRY(mf__j_puts(c, out, "\""));
    MF__TRY(mf__j_tojson(c, key, f, out, 0));
    return mf__j_puts(c, out, "\"");
}

static mf_status json_dict(jctx *c, const jdict *d, const jjson_format *f, mf__strbuf *out, int level) {
    const jpair *pairs = d->pairs;
    if (f->sort_keys && d->n) {
        void *sorted;
        MF__TRY(mf__j_alloc_array(c, d->n, sizeof *pairs, &sorted));
        memcpy(sorted, d->pairs, d->n * sizeof *pairs);
        MF__TRY(mf__j_sort_pairs(c, sorted, d->n, false));
        pairs = sorted;
    }
    MF__TRY(mf__j_puts(c, out, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i) MF__TRY(mf__j_put_text(c, out, f->item_separator, f->n_item_separator));
        MF__TRY(json_break(c, f, out, level + 1));
        MF__TRY(json_key(c, pairs[i].key, f, out));
        MF__TRY(mf__j_put_text(c, out, f->key_separator, f->n_key_separator));
        MF__TRY(mf__j_tojson(c, pairs[i].value, f, out, level + 1));
    }
    if (d->n) MF__TRY(json_break(c, f, out, level));
    return mf__j_puts(c, out, "}");
}

static mf_status json_list(jctx *c, const jlist *list, const jjson_format *f, mf__strbuf *out, int level) {
    MF__TRY(mf__j_puts(c, out, "["));
    for (size_t i = 0; i < list->n; i++) {
        if (i) MF__TRY(mf__j_put_text(c, out, f->item_separator, f->n_item_separator));
        MF__TRY(json_break(c, f, out, level + 1));
        MF__TRY(mf__j_tojson(c, list->items[i], f, out, level + 1));
    }
    if (list->n) MF__TRY(json_break(c, f, out, level));
    return mf__j_puts(c, out, "]");
}

static mf_status json_value(jctx *c, jvalue v, const jjson_format *f, mf__strbuf *out, int level) {
    switch (v.kind) {
    case J_NONE: return mf__j_puts(c, out, "null");
    case J_BOOL: return mf__j_puts(c, out, v.b ? "true" : "false");
    case J_INT: return put_int(c, out, v.i);
    case J_FLOAT: return put_float(c, out, v.f, true);
    case J_STRING: return escape_string(c, v, f->ascii, out);
    case J_DICT: return json_dict(c, v.dict, f, out, level);
    case J_LIST:
        if (v.form)
            return mf__j_fail(c, MF_E_INVALID, "%s cannot be written as JSON; |list makes it a list",
                              v.form == JF_RANGE       ? "a range"
                              : v.form == JF_GENERATOR ? "a generator (of map, select, ...)"
                                                       : "a view of a dict");
        return json_list(c, v.list, f, out, level);
    case J_TUPLE: return json_list(c, v.list, f, out, level);
    default: return mf__j_fail(c, MF_E_INVALID, "%s cannot be written as JSON", mf__j_type(v));
    }
}

mf_status mf__j_tojson(jctx *c, jvalue v, const jjson_format *f, mf__strbuf *out, int level) {
    MF__TRY(mf__j_pay(c, 1));
    MF__TRY(mf__j_enter(c));
    MF__TRY(json_value(c, v, f, out, level));
    mf__j_leave(c);
    return MF_OK;
}
