/* Filters that make texts. */
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

mf_status mf__j_join(jctx *c, const jlist *items, jvalue separator, jvalue *out) {
    mf__strbuf b = {0};
    mf_status status = MF_OK;
    bool markup = false; /* only where escapes are asked for does markup among the items matter */
    for (size_t i = 0; c->autoescape && i < items->n && !markup; i++)
        markup = items->items[i].kind == J_STRING && items->items[i].form == JF_MARKUP;
    if (c->autoescape && separator.kind == J_STRING && separator.form == JF_MARKUP) markup = true;
    if (markup) MF__TRY(mf__j_escape(c, separator, &separator));
    for (size_t i = 0; status == MF_OK && i < items->n; i++) {
        jvalue v = items->items[i];
        status = mf__j_pay(c, 1);
        if (status == MF_OK && markup) status = mf__j_escape(c, v, &v);
        if (status == MF_OK && i) status = mf__j_print(c, separator, &b);
        if (status == MF_OK) status = mf__j_print(c, v, &b);
    }
    MF__TRY(mf__j_take(c, status, &b, out));
    if (markup) out->form = JF_MARKUP;
    return MF_OK;
}

static mf_status x_join(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    jvalue picked, separator = a->at[0] ? *a->at[0] : mf__j_string("", 0);
    MF__TRY(mf__j_iterate(c, in, &items));
    if (!a->at[1] || a->at[1]->kind == J_NONE) return mf__j_join(c, items, separator, out);
    MF__TRY(mf__j_list(c, J_LIST, items->n, &picked));
    for (size_t i = 0; i < items->n; i++) {
        jvalue v;
        MF__TRY(mf__j_attribute(c, items->items[i], a->at[1], &v));
        MF__TRY(mf__j_append(c, picked, v));
    }
    return mf__j_join(c, picked.list, separator, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static mf_status json_indent(jctx *c, const jvalue *indent, jjson_format *f) {
    mf__strbuf b = {0};
    jvalue text;
    if (!indent || indent->kind == J_NONE) return MF_OK;
    if (indent->kind == J_STRING) {
        text = *indent;
    } else {
        int64_t n;
        MF__TRY(mf__j_int_arg(c, indent, "tojson: indent", 0, &n));
        MF__TRY(mf__j_take(c, mf__j_put_many(c, &b, ' ', n < 0 ? 0 : (size_t)n), &b, &text));
    }
    f->indent = text.s ? text.s : "";
    f->n_indent = text.n;
    f->item_separator = ",";
    f->n_item_separator = 1;
    return MF_OK;
}

static mf_status x_tojson(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jvalue *separators = a->at[2];
    jjson_format f = {.ascii = mf__j_truth_arg(a->at[0], false),
                      .sort_keys = mf__j_truth_arg(a->at[3], false),
                      .item_separator = ", ",
                      .key_separator = ": ",
                      .n_item_separator = 2,
                      .n_key_separator = 2};
    MF__TRY(json_indent(c, a->at[1], &f));
    if (separators && separators->kind != J_NONE) {
        const jlist *pair;
        MF__TRY(mf__j_iterate(c, *separators, &pair));
        if (pair->n != 2 || pair->items[0].kind != J_STRING || pair->items[1].kind != J_STRING)
            return mf__j_fail(c, MF_E_INVALID, "tojson: separators must be two texts");
        f.item_separator = pair->items[0].s;
        f.n_item_separator = pair->items[0].n;
        f.key_separator = pair->items[1].s;
        f.n_key_separator = pair->items[1].n;
    }
    mf__strbuf b = {0};
    return mf__j_take(c, mf__j_tojson(c, in, &f, &b, 0), &b, out);
}

/* ---- case and markup ------------------------------------------------------------------------------------------- */

static mf_status x_string(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    return mf__j_str(c, in, out);
}

static mf_status x_safe(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    MF__TRY(mf__j_str(c, in, out));
    out->form = JF_MARKUP;
    return MF_OK;
}

static mf_status x_escape(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    return mf__j_escape(c, in, out);
}

static mf_status x_forceescape(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    MF__TRY(mf__j_str(c, in, &in));
    in.form = JF_PLAIN;
    return mf__j_escape(c, in, out);
}

static bool begins_word(uint32_t ch) { /* what comes before a word that gets a capital */
    return ch == '-' || ch == '(' || ch == '{' || ch == '[' || ch == '<' || mf__j_is_space(ch);
}

/* Unlike str.title, a word ends only at spaces, hyphens and opening brackets. */
static mf_status title_into(jctx *c, jvalue s, mf__strbuf *out) {
    for (size_t i = 0; i < s.n;) {
        size_t start = i, first = 0;
        uint32_t ch;
        while (i < s.n) {
            size_t n = (size_t)mf__utf8_decode(s.s + i, &ch);
            if (begins_word(ch)) break;
            if (i == start) first = n;
            i += n;
        }
        jvalue head, rest;
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_change_case(c, mf__j_string(s.s + start, first), 'u', &head));
        MF__TRY(mf__j_change_case(c, mf__j_string(s.s + start + first, i - start - first), 'l', &rest));
        MF__TRY(mf__j_print(c, head, out));
        MF__TRY(mf__j_print(c, rest, out));
        for (; i < s.n; i += (size_t)mf__utf8_decode(s.s + i, &ch)) {
            mf__utf8_decode(s.s + i, &ch);
            if (!begins_word(ch)) break;
            MF__TRY(mf__j_put_text(c, out, s.s + i, mf__j_utf8_offset(s.s + i, s.n - i, 1)));
            MF__TRY(mf__j_pay(c, 1));
        }
    }
    return MF_OK;
}

static mf_status x_title(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    mf__strbuf b = {0};
    (void)a;
    MF__TRY(mf__j_str(c, in, &in));
    MF__TRY(mf__j_take(c, title_into(c, in, &b), &b, out));
    out->form = in.form;
    return MF_OK;
}

/* ---- shaping --------------------------------------------------------------------------------------------------- */

static mf_status x_trim(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    MF__TRY(mf__j_str(c, in, &in));
    return mf__j_strip(c, in, a->at[0], 3, out);
}

static mf_status x_replace(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    jvalue s, from, to;
    int64_t count;
    const jvalue *limit = a->at[2] && a->at[2]->kind == J_NONE ? NULL : a->at[2];
    MF__TRY(mf__j_int_arg(c, limit, "replace", -1, &count));
    MF__TRY(mf__j_str(c, in, &s));
    MF__TRY(mf__j_str(c, *a->at[0], &from));
    MF__TRY(mf__j_str(c, *a->at[1], &to));
    if (!c->autoescape) {
        s.form = JF_PLAIN;
    } else if (s.form || from.form || to.form) {
        MF__TRY(mf__j_escape(c, s, &s));
        MF__TRY(mf__j_escape(c, from, &from));
        MF__TRY(mf__j_escape(c, to, &to));
    }
    return mf__j_replace(c, s, from, to, count, out);
}

static mf_status x_format(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    jvalue args;
    MF__TRY(mf__j_str(c, in, &in));
    if (a->all->n && a->all->n_named)
        return mf__j_fail(c, MF_E_INVALID, "the filter \"format\" takes arguments by place or by name, not both");
    if (a->all->n_named) {
        MF__TRY(mf__j_dict(c, a->all->n_named, &args));
        for (size_t i = 0; i < a->all->n_named; i++) {
            const jnamed *n = &a->all->named[i];
            MF__TRY(mf__j_put(c, args, mf__j_string(n->name, n->n_name), n->value));
        }
    } else {
        MF__TRY(mf__j_list(c, J_TUPLE, a->all->n, &args));
        for (size_t i = 0; i < a->all->n; i++) MF__TRY(mf__j_append(c, args, a->all->pos[i]));
    }
    return mf__j_percent(c, in, args, out);
}

static mf_status indent_into(jctx *c, jvalue s, jvalue pad, bool first, bool blank, mf__strbuf *out) {
    for (size_t i = 0; i <= s.n;) {
        const char *end = i < s.n ? memchr(s.s + i, '\n', s.n - i) : NULL;
        size_t stop = end ? (size_t)(end - s.s) : s.n;
        bool empty = stop == i;
        MF__TRY(mf__j_pay(c, 1));
        if (i == 0 ? first : !empty || blank) MF__TRY(mf__j_print(c, pad, out));
        MF__TRY(mf__j_put_text(c, out, s.s + i, stop + (end ? 1 : 0) - i));
        i = stop + 1;
    }
    return MF_OK;
}

/* The first line is indented by `first`, empty ones by `blank` only. */
static mf_status x_indent(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    bool first = mf__j_truth_arg(a->at[1], false), blank = mf__j_truth_arg(a->at[2], false);
    jvalue pad;
    mf__strbuf b = {0};
    if (a->at[0] && a->at[0]->kind == J_STRING) {
        pad = *a->at[0];
    } else {
        int64_t width;
        MF__TRY(mf__j_int_arg(c, a->at[0], "indent", 4, &width));
        MF__TRY(mf__j_take(c, mf__j_put_many(c, &b, ' ', width < 0 ? 0 : (size_t)width), &b, &pad));
    }
    if (in.kind == J_UNDEFINED) return mf__j_undefined_error(c, in);
    MF__TRY(mf__j_need_string(c, &in, "indent"));
    if (blank && !first && in.n == 0) return *out = in, MF_OK;
    b = (mf__strbuf){0};
    MF__TRY(mf__j_take(c, indent_into(c, in, pad, first, blank, &b), &b, out));
    out->form = in.form;
    return MF_OK;
}

static mf_status x_center(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    jvalue args[] = {a->at[0] ? *a->at[0] : mf__j_int(80)};
    MF__TRY(mf__j_str(c, in, &in));
    return mf__j_apply(c, "filter", mf__j_method(in, "center", 6), in, &(jargs){.pos = args, .n = 1}, out);
}

static mf_status x_wordcount(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    int64_t n = 0;
    bool in_word = false;
    (void)a;
    MF__TRY(mf__j_str(c, in, &in));
    MF__TRY(mf__j_pay(c, in.n));
    for (size_t i = 0; i < in.n;) { /* runs of letters, digits, _ */
        uint32_t ch;
        i += (size_t)mf__utf8_decode(in.s + i, &ch);
        const char *k = mf__j_category(ch);
        bool word = k[0] == 'L' || k[0] == 'N' || ch == '_';
        n += word && !in_word;
        in_word = word;
    }
    *out = mf__j_int(n);
    return MF_OK;
}

static mf_status x_truncate(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    jvalue end = a->at[2] ? *a->at[2] : mf__j_string("...", 3), cut;
    const jvalue *spare = a->at[3] && a->at[3]->kind == J_NONE ? NULL : a->at[3];
    int64_t length, leeway;
    size_t n, n_end;
    mf__strbuf b = {0};
    MF__TRY(mf__j_need_string(c, &end, "truncate: end"));
    MF__TRY(mf__j_int_arg(c, a->at[0], "truncate", 255, &length));
    MF__TRY(mf__j_int_arg(c, spare, "truncate: leeway", 5, &leeway));
    MF__TRY(mf__j_length(c, in, &n));
    MF__TRY(mf__j_length(c, end, &n_end));
    if (length < (int64_t)n_end || leeway < 0)
        return mf__j_fail(c, MF_E_INVALID, "truncate: %lld characters leave no room for its end", (long long)length);
    if ((int64_t)n <= length || (int64_t)n - length <= leeway) return *out = in, MF_OK;
    MF__TRY(mf__j_need_string(c, &in, "truncate"));
    cut = mf__j_string(in.s, mf__j_utf8_offset(in.s, in.n, (size_t)length - n_end));
    if (!mf__j_truth_arg(a->at[1], false)) { /* at the last space */
        const char *space = cut.n ? memrchr(cut.s, ' ', cut.n) : NULL;
        if (space) cut.n = (size_t)(space - cut.s);
    }
    mf_status status = mf__j_print(c, cut, &b);
    if (status == MF_OK) status = mf__j_print(c, end, &b);
    return mf__j_take(c, status, &b, out);
}

/* ---- HTML and addresses ---------------------------------------------------------------------------------------- */

/* In the parts of a query a space is a +, and / is escaped. */
static mf_status url_into(jctx *c, jvalue s, bool query, mf__strbuf *out) {
    static const char hex[] = "0123456789ABCDEF";
    MF__TRY(mf__j_pay_bytes(c, s.n, J_DECODED));
    for (size_t i = 0; i < s.n; i++) {
        uint8_t ch = (uint8_t)s.s[i];
        bool plain = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
                     (ch && strchr(query ? "_.-~" : "_.-~/", ch));
        bool plus = query && ch == ' ';
        char text[3] = {'%', hex[ch >> 4], hex[ch & 15]};
        MF__TRY(mf__j_put_text(c, out, plus ? "+" : plain ? s.s + i : text, plain || plus ? 1 : 3));
    }
    return MF_OK;
}

static mf_status url_pair(jctx *c, const jlist *pair, mf__strbuf *out) {
    jvalue part;
    if (pair->n != 2) return mf__j_fail(c, MF_E_INVALID, "urlencode needs pairs");
    for (size_t k = 0; k < 2; k++) {
        MF__TRY(mf__j_str(c, pair->items[k], &part));
        MF__TRY(url_into(c, part, true, out));
        if (k == 0) MF__TRY(mf__j_puts(c, out, "="));
    }
    return MF_OK;
}

static mf_status x_urlencode(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    mf__strbuf b = {0};
    (void)a;
    if (in.kind != J_DICT && !mf__j_is_list(in)) {
        MF__TRY(mf__j_str(c, in, &in));
        return mf__j_take(c, url_into(c, in, false, &b), &b, out);
    }
    const jlist *items, *pair;
    mf_status status = MF_OK;
    if (in.kind == J_DICT) MF__TRY(mf__j_apply(c, "filter", mf__j_method(in, "items", 5), in, &(jargs){0}, &in));
    MF__TRY(mf__j_iterate(c, in, &items));
    for (size_t i = 0; status == MF_OK && i < items->n; i++) {
        if (i) status = mf__j_puts(c, &b, "&");
        if (status == MF_OK) status = mf__j_iterate(c, items->items[i], &pair);
        if (status == MF_OK) status = url_pair(c, pair, &b);
    }
    return mf__j_take(c, status, &b, out);
}

const jentry mf__j_text_filters[] = {
    {"join", "d?,attribute?", x_join},
    {"tojson", "ensure_ascii?,indent?,separators?,sort_keys?", x_tojson},
    {"string", "", x_string},
    {"safe", "", x_safe},
    {"escape", "", x_escape},
    {"e", "", x_escape},
    {"forceescape", "", x_forceescape},
    {"upper", "", mf__j_upper},
    {"lower", "", mf__j_lower},
    {"capitalize", "", mf__j_capitalize},
    {"title", "", x_title},
    {"trim", "chars?", x_trim},
    {"replace", "old,new,count?", x_replace},
    {"format", "*", x_format},
    {"indent", "width?,first?,blank?", x_indent},
    {"center", "width?", x_center},
    {"wordcount", "", x_wordcount},
    {"truncate", "length?,killwords?,end?,leeway?", x_truncate},
    {"urlencode", "", x_urlencode},
    {0},
};
