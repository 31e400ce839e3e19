/* str.format and the % operator: values written by a specification.
 *
 *   "{:>8.2f}".format(x)    [[fill]align][sign][#][0][width][,][.precision][type]
 *   "%-8.2f" % x            [(key)][flags][width][.precision]type
 *
 * Both read their specification into a `spec`; what is written is padded by one function. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

#define MAX_PRECISION 500
#define MAX_WIDTH 10000000

typedef struct spec {
    char fill[4];
    size_t n_fill;
    char align;              /* < > ^ =, or 0: as the type likes it */
    char sign;               /* + - or space */
    bool alternate, percent; /* percent: of the % operator */
    size_t width;
    char group;    /* , _ or 0 */
    int precision; /* -1: none */
    char type;     /* 0: none */
} spec;

/* ---- padding --------------------------------------------------------------------------------------------------- */

static mf_status put_fill(jctx *c, const spec *f, size_t n, mf__strbuf *out) {
    if (f->n_fill == 1) return mf__j_put_many(c, out, f->fill[0], n);
    for (size_t i = 0; i < n; i++) {
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_put_text(c, out, f->fill, f->n_fill));
    }
    return MF_OK;
}

/* `head` characters (a sign, 0x) stay in front of what '=' fills in. */
static mf_status put_padded(jctx *c, const spec *f, jvalue text, size_t head, char align, mf__strbuf *out) {
    size_t n;
    MF__TRY(mf__j_length(c, text, &n));
    size_t more = f->width > n ? f->width - n : 0;
    if (f->align) align = f->align;
    size_t left = align == '>' ? more : align == '^' ? more / 2 : 0;
    MF__TRY(put_fill(c, f, left, out));
    MF__TRY(mf__j_put_text(c, out, text.s, head));
    if (align == '=') MF__TRY(put_fill(c, f, more, out));
    MF__TRY(mf__j_put_text(c, out, text.s + head, text.n - head));
    return align == '=' ? MF_OK : put_fill(c, f, more - left, out);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* Digits of the whole part in groups, in place; text has room. Zeros that fill the width are grouped too. */
static size_t group_digits(char *text, size_t n, size_t whole, const spec *f, size_t head) {
    char grouped[2048];
    size_t size = f->type == 'x' || f->type == 'X' || f->type == 'b' || f->type == 'o' ? 4 : 3, k = sizeof grouped;
    size_t rest = n - whole, digits = 0, most = f->width > head + rest ? f->width - head - rest : 0;
    bool zeros = f->align == '=' && f->n_fill == 1 && f->fill[0] == '0' && most < sizeof grouped / 2;
    for (size_t i = whole; i > 0 || (zeros && sizeof grouped - k < most); digits++) {
        if (digits && digits % size == 0) grouped[--k] = f->group;
        grouped[--k] = i > 0 ? text[--i] : '0';
    }
    size_t made = sizeof grouped - k;
    memmove(text + made, text + whole, rest);
    memcpy(text, grouped + k, made);
    return made + rest;
}

/* A number as text: sign and prefix, then digits. */
static mf_status put_number(jctx *c, const spec *f, bool negative, const char *prefix, char *digits, size_t n,
                            mf__strbuf *out) {
    char text[4096];
    size_t head = 0, whole = 0;
    if (negative || f->sign == '+' || f->sign == ' ') text[head++] = negative ? '-' : f->sign;
    for (; *prefix; prefix++) text[head++] = *prefix;
    memcpy(text + head, digits, n);
    while (whole < n && isxdigit((unsigned char)digits[whole]) &&
           (digits[whole] <= '9' || f->type == 'x' || f->type == 'X'))
        whole++;
    if (f->group) n = group_digits(text + head, n, whole, f, head);
    return put_padded(c, f, mf__j_string(text, head + n), head, '>', out);
}

static mf_status bad_type(jctx *c, const spec *f, jvalue v) {
    if (!f->type) return mf__j_fail(c, MF_E_INVALID, "%s cannot be formatted with a width", mf__j_type(v));
    return mf__j_fail(c, MF_E_INVALID, "the format '%c' does not fit %s", f->type, mf__j_type(v));
}

static mf_status put_double(jctx *c, const spec *f, double x, mf__strbuf *out) {
    char text[1024], pattern[8] = "%.*e";
    char type = f->type ? f->type : 'g';
    int precision = f->precision < 0 ? 6 : f->precision;
    bool negative = signbit(x) && !isnan(x);
    MF__TRY(mf__j_pay(c, 20));
    if (f->type == '%') type = 'f', x *= 100;
    if (isnan(x) || isinf(x)) {
        const char *word = isupper((unsigned char)type) ? (isnan(x) ? "NAN" : "INF") : isnan(x) ? "nan" : "inf";
        memcpy(text, word, 4);
    } else {
        if ((type == 'g' || type == 'G') && precision == 0) precision = 1;
        snprintf(pattern, sizeof pattern, f->alternate ? "%%#.*%c" : "%%.*%c", type == 'n' ? 'g' : type);
        snprintf(text, sizeof text, pattern, precision, fabs(x));
    }
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) /* whatever the locale's decimal point is */
        if (!isalnum((unsigned char)text[i]) && text[i] != '+' && text[i] != '-') text[i] = '.';
    if (!f->type && f->precision >= 0 && !strpbrk(text, ".en")) memcpy(text + n, ".0", 3), n += 2;
    if (f->type == '%') text[n++] = '%';
    return put_number(c, f, negative, "", text, n, out);
}

static mf_status put_plain_double(jctx *c, const spec *f, double x, mf__strbuf *out) {
    mf__strbuf b = {0};
    jvalue text;
    char digits[64];
    MF__TRY(mf__j_take(c, mf__j_print(c, mf__j_float(x), &b), &b, &text));
    size_t skip = text.s[0] == '-';
    if (text.n >= sizeof digits) return mf__j_fail(c, MF_E_INTERNAL, "a float of %zu digits", text.n);
    memcpy(digits, text.s + skip, text.n - skip);
    return put_number(c, f, skip, "", digits, text.n - skip, out);
}

static mf_status put_integer(jctx *c, const spec *f, int64_t i, mf__strbuf *out) {
    static const char *const digits_of[] = {"0123456789abcdef", "0123456789ABCDEF"};
    char text[600];
    size_t k = sizeof text;
    char type = f->type ? f->type : 'd';
    unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    do text[--k] = digits_of[type == 'X'][u % base];
    while ((u /= base) != 0);
    for (int n = f->precision; n > (int)(sizeof text - k);) text[--k] = '0'; /* of % alone */
    const char *prefix = !f->alternate ? "" : base == 2 ? "0b" : base == 8 ? "0o" : type == 'x' ? "0x" : "0X";
    if (base == 10) prefix = "";
    return put_number(c, f, i < 0, prefix, text + k, sizeof text - k, out);
}

/* ---- by type --------------------------------------------------------------------------------------------------- */

static mf_status put_text(jctx *c, const spec *f, jvalue s, mf__strbuf *out) {
    if (f->precision >= 0) {
        MF__TRY(mf__j_pay_bytes(c, s.n, J_SEARCHED));
        s.n = mf__j_utf8_offset(s.s, s.n, (size_t)f->precision);
    }
    return put_padded(c, f, s, 0, f->percent ? '>' : '<', out);
}

static mf_status put_character(jctx *c, const spec *f, int64_t code, mf__strbuf *out) {
    char text[4];
    if (code < 0 || code >= 0x110000 || (code >= 0xD800 && code < 0xE000))
        return mf__j_fail(c, MF_E_INVALID, "%%c of %lld, which is no character", (long long)code);
    size_t n = (size_t)mf__utf8_encode((uint32_t)code, text);
    return put_padded(c, f, mf__j_string(text, n), 0, f->percent ? '>' : '<', out);
}

static mf_status put_formatted(jctx *c, const spec *f, jvalue v, mf__strbuf *out) {
    bool of_float = f->type && strchr("eEfFgG%", f->type), of_int = f->type && strchr("bdoxXn", f->type);
    if (v.kind == J_STRING) return f->type && f->type != 's' ? bad_type(c, f, v) : put_text(c, f, v, out);
    if (!mf__j_is_number(v)) return bad_type(c, f, v);
    if (v.kind == J_FLOAT) {
        if (!f->type && f->precision < 0) return put_plain_double(c, f, v.f, out);
        return of_float || !f->type || f->type == 'n' ? put_double(c, f, v.f, out) : bad_type(c, f, v);
    }
    if (f->type == 'c') return put_character(c, f, mf__j_as_int(v), out);
    if (of_float) return put_double(c, f, mf__j_as_double(v), out);
    if (f->type && !of_int) return bad_type(c, f, v);
    if (f->precision >= 0) return mf__j_fail(c, MF_E_INVALID, "a precision for an integer");
    return put_integer(c, f, mf__j_as_int(v), out);
}

/* ---- specifications of str.format ------------------------------------------------------------------------------ */

static mf_status read_count(jctx *c, const char **s, const char *end, size_t most, size_t *out) {
    for (*out = 0; *s < end && isdigit((unsigned char)**s); (*s)++) {
        *out = *out * 10 + (size_t)(**s - '0');
        if (*out > most) return mf__j_fail(c, MF_E_LIMIT, "a format wider than %zu", most);
    }
    return MF_OK;
}

static mf_status read_spec(jctx *c, const char *s, size_t n, spec *f) {
    const char *end = s + n;
    *f = (spec){.fill = " ", .n_fill = 1, .precision = -1};
    size_t first = mf__j_utf8_offset(s, n, 1);
    if (first < n && strchr("<>^=", s[first])) {
        memcpy(f->fill, s, first);
        f->n_fill = first;
        f->align = s[first];
        s += first + 1;
    } else if (s < end && *s && strchr("<>^=", *s)) {
        f->align = *s++;
    }
    if (s < end && *s && strchr("+- ", *s)) f->sign = *s++;
    if (s < end && *s == '#') f->alternate = true, s++;
    if (s < end && *s == '0') {
        if (!f->align) f->align = '=', f->fill[0] = '0', f->n_fill = 1;
        s++;
    }
    MF__TRY(read_count(c, &s, end, MAX_WIDTH, &f->width));
    if (s < end && (*s == ',' || *s == '_')) f->group = *s++;
    if (s < end && *s == '.') {
        size_t precision;
        s++;
        if (s == end || !isdigit((unsigned char)*s)) return mf__j_fail(c, MF_E_INVALID, "a format without precision");
        MF__TRY(read_count(c, &s, end, MAX_PRECISION, &precision));
        f->precision = (int)precision;
    }
    if (s < end) f->type = *s++;
    if (s < end) return mf__j_fail(c, MF_E_INVALID, "the format \"%.*s\" is not valid", n > 40 ? 40 : (int)n, end - n);
    return MF_OK;
}

/* ---- str.format ------------------------------------------------------------------------------------------------ */

typedef struct fields {
    const jargs *args;
    const jdict *map; /* of format_map */
    size_t next;      /* field {} */
    bool markup;
} fields;

static mf_status first_value(jctx *c, fields *f, const char *name, size_t n, jvalue *out) {
    size_t at = 0;
    bool number = true;
    for (size_t i = 0; i < n && number; i++) {
        number = isdigit((unsigned char)name[i]) && at < 100000;
        at = at * 10 + (size_t)(name[i] - '0');
    }
    if (n == 0) at = f->next++;
    if (number && f->args && at < f->args->n) return *out = f->args->pos[at], MF_OK;
    if (!number && f->args) MF__TRY(mf__j_pay(c, f->args->n_named / 8));
    for (size_t i = 0; !number && f->args && i < f->args->n_named; i++)
        if (f->args->named[i].n_name == n && memcmp(f->args->named[i].name, name, n) == 0)
            return *out = f->args->named[i].value, MF_OK;
    if (!number && f->map) {
        const jvalue *found;
        MF__TRY(mf__j_find(c, f->map, mf__j_string(name, n), &found));
        if (found) return *out = *found, MF_OK;
    }
    if (number) return mf__j_fail(c, MF_E_INVALID, "format: there is no argument number %zu", at);
    return mf__j_fail(c, MF_E_INVALID, "format: there is no argument \"%.*s\"", n > 40 ? 40 : (int)n, name);
}

/* name.attribute[index]: n bytes. */
static mf_status field_value(jctx *c, fields *f, const char *s, size_t n, jvalue *out) {
    size_t k = 0;
    while (k < n && s[k] != '.' && s[k] != '[') k++;
    MF__TRY(first_value(c, f, s, k, out));
    while (k < n) {
        size_t start = k + 1, end = start;
        bool item = s[k] == '[';
        while (end < n && (item ? s[end] != ']' : s[end] != '.' && s[end] != '[')) end++;
        if (end == start || (item && end == n))
            return mf__j_fail(c, MF_E_INVALID, "format: a field that is not closed");
        int64_t index = 0;
        bool number = item && end - start < 10;
        for (size_t i = start; i < end && number; i++) {
            number = isdigit((unsigned char)s[i]);
            index = index * 10 + (s[i] - '0');
        }
        jvalue key = number ? mf__j_int(index) : mf__j_string(s + start, end - start);
        MF__TRY(item ? mf__j_getitem(c, *out, key, out) : mf__j_getattr(c, *out, key.s, key.n, out));
        k = end + item;
    }
    return MF_OK;
}

static mf_status convert(jctx *c, char how, jvalue v, jvalue *out) {
    mf__strbuf b = {0};
    if (how == 's') return mf__j_str(c, v, out);
    if (how == 'r') return mf__j_take(c, mf__j_repr(c, v, &b), &b, out);
    if (how == 'a') return mf__j_take(c, mf__j_ascii(c, v, &b), &b, out);
    return mf__j_fail(c, MF_E_INVALID, "format: the conversion !%c is not known", how);
}

static mf_status format_into(jctx *c, jvalue s, fields *f, int depth, mf__strbuf *out);

static mf_status put_value(jctx *c, const fields *f, jvalue v, jvalue how, mf__strbuf *out) {
    spec parsed;
    mf__strbuf b = {0};
    jvalue text;
    if (!f->markup && how.n == 0) return mf__j_print(c, v, out);
    if (!f->markup) {
        MF__TRY(read_spec(c, how.s, how.n, &parsed));
        return put_formatted(c, &parsed, v, out);
    }
    bool safe = v.kind == J_STRING && v.form == JF_MARKUP && how.n == 0;
    mf_status status = how.n ? read_spec(c, how.s, how.n, &parsed) : MF_OK;
    if (status == MF_OK) status = how.n ? put_formatted(c, &parsed, v, &b) : mf__j_print(c, v, &b);
    MF__TRY(mf__j_take(c, status, &b, &text));
    if (!safe) MF__TRY(mf__j_escape(c, text, &text));
    return mf__j_print(c, text, out);
}

/* One field, the text between its braces. */
static mf_status put_field(jctx *c, jvalue s, fields *f, int depth, mf__strbuf *out) {
    size_t name = 0, at;
    bool bracket = false;
    while (name < s.n && (bracket || (s.s[name] != '!' && s.s[name] != ':'))) {
        bracket = s.s[name] == '[' || (bracket && s.s[name] != ']');
        name++;
    }
    jvalue v, how = mf__j_string("", 0);
    mf__strbuf b = {0};
    MF__TRY(field_value(c, f, s.s, name, &v));
    at = name;
    if (at < s.n && s.s[at] == '!') {
        if (at + 1 >= s.n) return mf__j_fail(c, MF_E_INVALID, "format: a conversion is missing");
        MF__TRY(convert(c, s.s[at + 1], v, &v));
        at += 2;
        if (at < s.n && s.s[at] != ':') return mf__j_fail(c, MF_E_INVALID, "format: expected : behind a conversion");
    }
    if (at < s.n) /* fields inside the specification */
        MF__TRY(mf__j_take(c, format_into(c, mf__j_string(s.s + at + 1, s.n - at - 1), f, depth + 1, &b), &b, &how));
    return put_value(c, f, v, how, out);
}

static mf_status format_into(jctx *c, jvalue s, fields *f, int depth, mf__strbuf *out) {
    if (depth > 1) return mf__j_fail(c, MF_E_INVALID, "format: fields nested too deep");
    for (size_t i = 0; i < s.n;) {
        size_t start = i;
        while (i < s.n && s.s[i] != '{' && s.s[i] != '}') i++;
        MF__TRY(mf__j_pay(c, 1 + (i - start) / J_DECODED));
        MF__TRY(mf__j_put_text(c, out, s.s + start, i - start));
        if (i == s.n) return MF_OK;
        if (i + 1 < s.n && s.s[i + 1] == s.s[i]) {
            MF__TRY(mf__j_put_text(c, out, s.s + i, 1));
            i += 2;
            continue;
        }
        if (s.s[i] == '}') return mf__j_fail(c, MF_E_INVALID, "format: a } without {");
        size_t end = i + 1, open = 1;
        for (; end < s.n && open; end++) open += (s.s[end] == '{') - (size_t)(s.s[end] == '}');
        if (open) return mf__j_fail(c, MF_E_INVALID, "format: a { that is not closed");
        MF__TRY(mf__j_pay_bytes(c, end - i, J_DECODED));
        MF__TRY(put_field(c, mf__j_string(s.s + i + 1, end - i - 2), f, depth, out));
        i = end;
    }
    return MF_OK;
}

static mf_status format_with(jctx *c, jvalue s, fields f, jvalue *out) {
    mf__strbuf b = {0};
    f.markup = s.form == JF_MARKUP;
    MF__TRY(mf__j_take(c, format_into(c, s, &f, 0, &b), &b, out));
    out->form = s.form;
    return MF_OK;
}

mf_status mf__j_format(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return format_with(c, s, (fields){.args = a->all}, out);
}

mf_status mf__j_format_map(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    if (a->all->n != 1 || a->all->pos[0].kind != J_DICT) return mf__j_fail(c, MF_E_INVALID, "format_map needs a dict");
    return format_with(c, s, (fields){.map = a->all->pos[0].dict}, out);
}

/* ---- the % operator -------------------------------------------------------------------------------------------- */

typedef struct percent {
    jvalue args;
    size_t next;
} percent;

static mf_status next_arg(jctx *c, percent *p, jvalue *out) {
    bool many = p->args.kind == J_TUPLE;
    if (p->next >= (many ? p->args.list->n : 1)) return mf__j_fail(c, MF_E_INVALID, "%%: not enough arguments");
    *out = many ? p->args.list->items[p->next] : p->args;
    p->next++;
    return MF_OK;
}

/* A width or precision: digits, or * for an argument. */
static mf_status percent_count(jctx *c, percent *p, const char **s, const char *end, int64_t most, int64_t *out) {
    size_t n;
    if (*s < end && **s == '*') {
        jvalue v;
        (*s)++;
        MF__TRY(next_arg(c, p, &v));
        MF__TRY(mf__j_int_arg(c, &v, "*", 0, out));
        return *out > most || *out < -most ? mf__j_fail(c, MF_E_LIMIT, "a format wider than %lld", (long long)most)
                                           : MF_OK;
    }
    MF__TRY(read_count(c, s, end, (size_t)most, &n));
    *out = (int64_t)n;
    return MF_OK;
}

static mf_status percent_spec(jctx *c, percent *p, const char **s, const char *end, spec *f) {
    bool left = false, zero = false;
    int64_t n;
    *f = (spec){.fill = " ", .n_fill = 1, .precision = -1, .percent = true};
    for (; *s < end && **s && strchr("#0- +", **s); (*s)++) {
        if (**s == '#') f->alternate = true;
        if (**s == '0') zero = true;
        if (**s == '-') left = true;
        if (**s == '+' || (**s == ' ' && !f->sign)) f->sign = **s;
    }
    MF__TRY(percent_count(c, p, s, end, MAX_WIDTH, &n));
    if (n < 0) left = true, n = -n;
    f->width = (size_t)n;
    f->align = left ? '<' : '>';
    if (*s < end && **s == '.') {
        (*s)++;
        MF__TRY(percent_count(c, p, s, end, MAX_PRECISION, &n));
        f->precision = n < 0 ? 0 : (int)n;
    }
    while (*s < end && **s && strchr("hlL", **s)) (*s)++;
    if (*s == end) return mf__j_fail(c, MF_E_INVALID, "%%: a format without a type");
    f->type = *(*s)++;
    if (zero && !left && f->type && strchr("diuoxXeEfFgG", f->type)) f->align = '=', f->fill[0] = '0';
    return MF_OK;
}

static mf_status put_percent(jctx *c, const spec *f, jvalue v, bool markup, mf__strbuf *out) {
    spec as = *f;
    jvalue text;
    if (strchr("sra", f->type)) {
        MF__TRY(convert(c, f->type, v, &text));
        if (markup && !(f->type == 's' && v.kind == J_STRING && v.form == JF_MARKUP)) {
            text.form = JF_PLAIN;
            MF__TRY(mf__j_escape(c, text, &text));
        }
        return put_text(c, &as, text, out);
    }
    if (f->type == 'c' && v.kind == J_STRING && mf__j_utf8_count(v.s, v.n) == 1) return put_text(c, &as, v, out);
    if (!strchr("diuoxXeEfFgGc", f->type))
        return mf__j_fail(c, MF_E_INVALID, "%%: the format '%c' is not known", f->type);
    if (!mf__j_is_number(v)) return bad_type(c, f, v);
    if (strchr("diu", f->type)) {
        as.type = 'd';
        if (v.kind == J_FLOAT && !(v.f > -9e18 && v.f < 9e18)) return bad_type(c, f, v);
        return put_integer(c, &as, v.kind == J_FLOAT ? (int64_t)v.f : mf__j_as_int(v), out);
    }
    if (strchr("oxX", f->type))
        return v.kind == J_FLOAT ? bad_type(c, f, v) : put_integer(c, &as, mf__j_as_int(v), out);
    as.precision = f->type == 'c' ? -1 : f->precision;
    return put_formatted(c, &as, v, out);
}

static mf_status percent_field(jctx *c, percent *p, const char **s, const char *end, bool markup, mf__strbuf *out) {
    spec f;
    jvalue v = mf__j_none();
    bool keyed = *s < end && **s == '(';
    if (keyed) {
        const char *close = memchr(*s, ')', (size_t)(end - *s));
        if (!close || p->args.kind != J_DICT) return mf__j_fail(c, MF_E_INVALID, "%%(name) needs a dict");
        MF__TRY(mf__j_getitem(c, p->args, mf__j_string(*s + 1, (size_t)(close - *s) - 1), &v));
        if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
        *s = close + 1;
        p->next = 1;
    }
    MF__TRY(percent_spec(c, p, s, end, &f));
    if (f.type == '%') return mf__j_puts(c, out, "%");
    if (!keyed) MF__TRY(next_arg(c, p, &v));
    return put_percent(c, &f, v, markup, out);
}

static mf_status percent_into(jctx *c, jvalue format, jvalue args, mf__strbuf *out) {
    percent p = {args, 0};
    const char *s = format.s, *end = format.s + format.n;
    while (s < end) {
        const char *sign = memchr(s, '%', (size_t)(end - s));
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_put_text(c, out, s, (size_t)((sign ? sign : end) - s)));
        if (!sign) break;
        s = sign + 1;
        MF__TRY(percent_field(c, &p, &s, end, format.form == JF_MARKUP, out));
    }
    bool all = args.kind == J_TUPLE
                   ? p.next == args.list->n
                   : p.next > 0 || args.kind == J_DICT || args.kind == J_LIST || args.kind == J_UNDEFINED;
    return all ? MF_OK : mf__j_fail(c, MF_E_INVALID, "%%: not all arguments were used");
}

mf_status mf__j_percent(jctx *c, jvalue format, jvalue args, jvalue *out) {
    mf__strbuf b = {0};
    MF__TRY(mf__j_take(c, percent_into(c, format, args, &b), &b, out));
    out->form = format.form;
    return MF_OK;
}
