/* Methods of strings that make other strings. What a method makes of markup is markup. */
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

static jvalue part_of(jvalue s, size_t at, size_t n) {
    jvalue part = mf__j_string(s.s + at, n);
    part.form = s.form;
    return part;
}

/* ---- strip ----------------------------------------------------------------------------------------------------- */

static mf_status strippable(jctx *c, const jvalue *chars, const char *s, size_t n, bool *out) {
    uint32_t ch;
    *out = false;
    if (!chars || chars->kind != J_STRING) {
        mf__utf8_decode(s, &ch);
        *out = mf__j_is_space(ch);
        return mf__j_pay(c, 1);
    }
    MF__TRY(mf__j_pay_bytes(c, chars->n, J_DECODED));
    for (size_t i = 0; i < chars->n && !*out;) {
        size_t k = mf__j_utf8_offset(chars->s + i, chars->n - i, 1);
        *out = k == n && memcmp(chars->s + i, s, n) == 0;
        i += k;
    }
    return mf__j_pay(c, 1);
}

mf_status mf__j_strip(jctx *c, jvalue s, const jvalue *chars, int sides, jvalue *out) {
    bool holds = true;
    if (chars && chars->kind != J_NONE) MF__TRY(mf__j_need_string(c, chars, "strip"));
    while ((sides & 1) && s.n) {
        size_t k = mf__j_utf8_offset(s.s, s.n, 1);
        MF__TRY(strippable(c, chars, s.s, k, &holds));
        if (!holds) break;
        s.s += k;
        s.n -= k;
    }
    while ((sides & 2) && s.n) {
        size_t start = s.n - 1;
        while (start > 0 && ((uint8_t)s.s[start] & 0xC0) == 0x80) start--;
        MF__TRY(strippable(c, chars, s.s + start, s.n - start, &holds));
        if (!holds) break;
        s.n = start;
    }
    *out = s;
    return MF_OK;
}

static mf_status f_strip(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return mf__j_strip(c, s, a->at[0], 3, out);
}
static mf_status f_lstrip(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return mf__j_strip(c, s, a->at[0], 1, out);
}
static mf_status f_rstrip(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return mf__j_strip(c, s, a->at[0], 2, out);
}

/* ---- split ----------------------------------------------------------------------------------------------------- */

static size_t word_end(jvalue s) {
    size_t end = 0;
    while (end < s.n) {
        uint32_t ch;
        size_t k = (size_t)mf__utf8_decode(s.s + end, &ch);
        if (mf__j_is_space(ch)) break;
        end += k;
    }
    return end;
}

mf_status mf__j_split_spaces(jctx *c, jvalue s, int64_t limit, jvalue *out) {
    MF__TRY(mf__j_strip(c, s, NULL, 1, &s));
    for (; s.n && limit != 0; limit--) {
        size_t end = word_end(s);
        MF__TRY(mf__j_pay_bytes(c, end, J_DECODED));
        MF__TRY(mf__j_append(c, *out, part_of(s, 0, end)));
        MF__TRY(mf__j_strip(c, part_of(s, end, s.n - end), NULL, 1, &s));
    }
    return s.n ? mf__j_append(c, *out, s) : MF_OK;
}

static mf_status reverse_list(jctx *c, jlist *l) {
    MF__TRY(mf__j_pay(c, l->n / 2));
    for (size_t i = 0; i < l->n / 2; i++) {
        jvalue v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return MF_OK;
}

static mf_status rsplit_spaces(jctx *c, jvalue s, int64_t limit, jvalue *out) {
    MF__TRY(mf__j_strip(c, s, NULL, 2, &s));
    for (; s.n && limit != 0; limit--) {
        size_t start = s.n;
        while (start > 0) {
            size_t k = start - 1;
            uint32_t ch;
            while (k > 0 && ((uint8_t)s.s[k] & 0xC0) == 0x80) k--;
            mf__utf8_decode(s.s + k, &ch);
            if (mf__j_is_space(ch)) break;
            start = k;
        }
        MF__TRY(mf__j_pay_bytes(c, s.n - start, J_DECODED));
        MF__TRY(mf__j_append(c, *out, part_of(s, start, s.n - start)));
        MF__TRY(mf__j_strip(c, part_of(s, 0, start), NULL, 2, &s));
    }
    if (s.n) MF__TRY(mf__j_append(c, *out, s));
    return reverse_list(c, out->list);
}

static mf_status need_separator(jctx *c, const jvalue *sep) {
    MF__TRY(mf__j_need_string(c, sep, "split"));
    return sep->n ? MF_OK : mf__j_fail(c, MF_E_INVALID, "split by an empty text");
}

static mf_status f_split(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    const jvalue *sep = a->at[0];
    int64_t limit;
    MF__TRY(mf__j_int_arg(c, a->at[1], "split", -1, &limit));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    if (!sep || sep->kind == J_NONE) return mf__j_split_spaces(c, s, limit, out);
    MF__TRY(need_separator(c, sep));
    for (; limit != 0; limit--) {
        const char *p = mf__j_search(s, *sep);
        size_t k = p ? (size_t)(p - s.s) : s.n;
        MF__TRY(mf__j_pay_bytes(c, k, J_SEARCHED));
        if (!p) break;
        MF__TRY(mf__j_append(c, *out, part_of(s, 0, k)));
        s = part_of(s, k + sep->n, s.n - k - sep->n);
    }
    return mf__j_append(c, *out, s);
}

/* The last occurrence; SIZE_MAX: none. */
static mf_status search_back(jctx *c, jvalue s, jvalue what, size_t *out) {
    size_t at = s.n >= what.n ? s.n - what.n + 1 : 0;
    *out = SIZE_MAX;
    while (at > 0) {
        at--;
        if (what.n && s.s[at] != what.s[0]) {
            if ((at & 15) == 0) MF__TRY(mf__j_pay(c, 1));
            continue;
        }
        MF__TRY(mf__j_pay(c, 1 + what.n / J_COPIED));
        if (what.n == 0 || memcmp(s.s + at, what.s, what.n) == 0) return *out = at, MF_OK;
    }
    return MF_OK;
}

static mf_status f_rsplit(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    const jvalue *sep = a->at[0];
    int64_t limit;
    MF__TRY(mf__j_int_arg(c, a->at[1], "rsplit", -1, &limit));
    if (limit < 0) return f_split(c, s, a, out);
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    if (!sep || sep->kind == J_NONE) return rsplit_spaces(c, s, limit, out);
    MF__TRY(need_separator(c, sep));
    for (; limit > 0; limit--) {
        size_t at;
        MF__TRY(search_back(c, s, *sep, &at));
        if (at == SIZE_MAX) break;
        MF__TRY(mf__j_append(c, *out, part_of(s, at + sep->n, s.n - at - sep->n)));
        s.n = at;
    }
    MF__TRY(mf__j_append(c, *out, s));
    return reverse_list(c, out->list);
}

static bool ends_line(uint32_t ch) {
    return (ch >= 10 && ch <= 13) || (ch >= 0x1C && ch <= 0x1E) || ch == 0x85 || ch == 0x2028 || ch == 0x2029;
}

static mf_status f_splitlines(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    bool keep = mf__j_truth_arg(a->at[0], false);
    size_t start = 0;
    MF__TRY(mf__j_pay_bytes(c, s.n, J_DECODED));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < s.n;) {
        uint32_t ch;
        size_t next = i + (size_t)mf__utf8_decode(s.s + i, &ch);
        if (ends_line(ch)) {
            if (ch == '\r' && next < s.n && s.s[next] == '\n') next++;
            MF__TRY(mf__j_append(c, *out, part_of(s, start, (keep ? next : i) - start)));
            start = next;
        }
        i = next;
    }
    return start < s.n ? mf__j_append(c, *out, part_of(s, start, s.n - start)) : MF_OK;
}

static mf_status three(jctx *c, jvalue x, jvalue y, jvalue z, jvalue *out) {
    MF__TRY(mf__j_pair(c, x, y, out));
    return mf__j_append(c, *out, z);
}

static mf_status f_partition(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    MF__TRY(need_separator(c, a->at[0]));
    const char *p = mf__j_search(s, *a->at[0]);
    size_t k = p ? (size_t)(p - s.s) : s.n, n = a->at[0]->n;
    MF__TRY(mf__j_pay_bytes(c, k, J_SEARCHED));
    if (!p) return three(c, s, part_of(s, s.n, 0), part_of(s, s.n, 0), out);
    return three(c, part_of(s, 0, k), part_of(s, k, n), part_of(s, k + n, s.n - k - n), out);
}

static mf_status f_rpartition(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    size_t k, n = a->at[0]->n;
    MF__TRY(need_separator(c, a->at[0]));
    MF__TRY(search_back(c, s, *a->at[0], &k));
    if (k == SIZE_MAX) return three(c, part_of(s, 0, 0), part_of(s, 0, 0), s, out);
    return three(c, part_of(s, 0, k), part_of(s, k, n), part_of(s, k + n, s.n - k - n), out);
}

/* ---- replace, join, pad ---------------------------------------------------------------------------------------- */

/* An empty `from` is found before every character and at the end. */
static mf_status next_match(jctx *c, jvalue s, jvalue from, bool first, size_t *before, size_t *taken, bool *found) {
    if (from.n == 0) {
        *found = first || s.n > 0;
        *before = first ? 0 : mf__j_utf8_offset(s.s, s.n, 1);
        *taken = *before;
        return mf__j_pay(c, 1);
    }
    const char *p = mf__j_search(s, from);
    *found = p != NULL;
    *before = p ? (size_t)(p - s.s) : s.n;
    *taken = *before + from.n;
    return mf__j_pay_bytes(c, *before + 2 * J_SEARCHED, J_SEARCHED);
}

mf_status mf__j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t count, jvalue *out) {
    mf__strbuf b = {0};
    mf_status status = MF_OK;
    jvalue whole = s;
    for (bool first = true; status == MF_OK && count != 0; count--, first = false) {
        size_t before, taken;
        bool found;
        status = next_match(c, s, from, first, &before, &taken, &found);
        if (status != MF_OK || !found) break;
        status = mf__j_put_text(c, &b, s.s, before);
        if (status == MF_OK) status = mf__j_put_text(c, &b, to.s, to.n);
        s = mf__j_string(s.s + taken, s.n - taken);
    }
    if (status == MF_OK && b.size == 0 && s.n == whole.n) return *out = whole, MF_OK; /* nothing to replace */
    if (status == MF_OK) status = mf__j_put_text(c, &b, s.s, s.n);
    MF__TRY(mf__j_take(c, status, &b, out));
    out->form = whole.form;
    return MF_OK;
}

static mf_status f_replace(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    int64_t count;
    jvalue from, to;
    MF__TRY(mf__j_need_string(c, a->at[0], "replace"));
    MF__TRY(mf__j_need_string(c, a->at[1], "replace"));
    MF__TRY(mf__j_int_arg(c, a->at[2], "replace", -1, &count));
    from = *a->at[0];
    to = *a->at[1];
    if (s.form == JF_MARKUP) {
        MF__TRY(mf__j_escape(c, from, &from));
        MF__TRY(mf__j_escape(c, to, &to));
    }
    return mf__j_replace(c, s, from, to, count, out);
}

mf_status mf__j_escape(jctx *c, jvalue v, jvalue *out) {
    mf__strbuf b = {0};
    if (v.kind == J_STRING && v.form == JF_MARKUP) return *out = v, MF_OK;
    MF__TRY(mf__j_str(c, v, &v));
    mf_status status = mf__j_pay_bytes(c, v.n, J_DECODED);
    size_t start = 0;
    for (size_t i = 0; status == MF_OK && i < v.n; i++) {
        char ch = v.s[i];
        const char *to = ch == '&'    ? "&amp;"
                         : ch == '<'  ? "&lt;"
                         : ch == '>'  ? "&gt;"
                         : ch == '\'' ? "&#39;"
                         : ch == '"'  ? "&#34;"
                                      : NULL;
        if (!to) continue;
        status = mf__j_put_text(c, &b, v.s + start, i - start);
        if (status == MF_OK) status = mf__j_puts(c, &b, to);
        start = i + 1;
    }
    *out = v;
    if (status == MF_OK && start < v.n && b.size) status = mf__j_put_text(c, &b, v.s + start, v.n - start);
    if (status != MF_OK || b.size) status = mf__j_take(c, status, &b, out);
    out->form = JF_MARKUP;
    return status;
}

static mf_status f_join(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    const jlist *list;
    mf__strbuf b = {0};
    MF__TRY(mf__j_iterate(c, *a->at[0], &list));
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < list->n; i++) {
        jvalue v = list->items[i];
        status = s.form == JF_MARKUP ? mf__j_escape(c, v, &v) : mf__j_need_string(c, &v, "join");
        if (status == MF_OK && i) status = mf__j_print(c, s, &b);
        if (status == MF_OK) status = mf__j_print(c, v, &b);
    }
    MF__TRY(mf__j_take(c, status, &b, out));
    out->form = s.form;
    return MF_OK;
}

static mf_status pad(jctx *c, jvalue s, const jbound *a, char side, jvalue *out) {
    jvalue fill = a->at[1] ? *a->at[1] : mf__j_string(" ", 1);
    int64_t width;
    size_t n;
    mf__strbuf b = {0};
    MF__TRY(mf__j_int_arg(c, a->at[0], "width", 0, &width));
    MF__TRY(mf__j_need_string(c, &fill, "the fill character"));
    if (mf__j_utf8_count(fill.s, fill.n) != 1)
        return mf__j_fail(c, MF_E_INVALID, "the fill character must be one character");
    MF__TRY(mf__j_length(c, s, &n));
    if (width <= (int64_t)n) return *out = s, MF_OK;
    uint64_t more = (uint64_t)width - n;
    uint64_t left = side == 'l' ? 0 : side == 'r' ? more : more / 2 + (more & (uint64_t)width & 1);
    mf_status status = MF_OK;
    for (uint64_t i = 0; status == MF_OK && i < more; i++) {
        if (i == left) status = mf__j_put_text(c, &b, s.s, s.n);
        if (status == MF_OK) status = mf__j_pay(c, 1);
        if (status == MF_OK) status = mf__j_put_text(c, &b, fill.s, fill.n);
    }
    if (status == MF_OK && left == more) status = mf__j_put_text(c, &b, s.s, s.n);
    MF__TRY(mf__j_take(c, status, &b, out));
    out->form = s.form;
    return MF_OK;
}
static mf_status f_center(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return pad(c, s, a, 'c', out);
}
static mf_status f_ljust(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return pad(c, s, a, 'l', out);
}
static mf_status f_rjust(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return pad(c, s, a, 'r', out);
}

/* Zeros go behind a sign. */
static mf_status f_zfill(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    int64_t width;
    size_t n, sign = s.n && (s.s[0] == '-' || s.s[0] == '+');
    mf__strbuf b = {0};
    MF__TRY(mf__j_int_arg(c, a->at[0], "zfill", 0, &width));
    MF__TRY(mf__j_length(c, s, &n));
    mf_status status = mf__j_put_text(c, &b, s.s, sign);
    if (status == MF_OK && width > (int64_t)n) status = mf__j_put_many(c, &b, '0', (size_t)width - n);
    if (status == MF_OK) status = mf__j_put_text(c, &b, s.s + sign, s.n - sign);
    return mf__j_take(c, status, &b, out);
}

static mf_status f_expandtabs(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    int64_t size, column = 0;
    mf__strbuf b = {0};
    MF__TRY(mf__j_int_arg(c, a->at[0], "expandtabs", 8, &size));
    mf_status status = mf__j_pay_bytes(c, s.n, J_DECODED);
    for (size_t i = 0; status == MF_OK && i < s.n; i++) {
        bool tab = s.s[i] == '\t';
        if (tab && size > 0) status = mf__j_put_many(c, &b, ' ', (size_t)(size - column % size));
        if (tab && size > 0) column += size - column % size;
        if (!tab && status == MF_OK) status = mf__j_put_text(c, &b, s.s + i, 1);
        if (!tab && ((uint8_t)s.s[i] & 0xC0) != 0x80) column++;
        if (s.s[i] == '\n' || s.s[i] == '\r') column = 0;
    }
    return mf__j_take(c, status, &b, out);
}

/* Of a value as its text: filters as well as methods. */
static mf_status change_case(jctx *c, jvalue v, char how, jvalue *out) {
    MF__TRY(mf__j_str(c, v, &v));
    return mf__j_change_case(c, v, how, out);
}
mf_status mf__j_upper(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return change_case(c, v, 'u', out);
}
mf_status mf__j_lower(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return change_case(c, v, 'l', out);
}
mf_status mf__j_capitalize(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return change_case(c, v, 'c', out);
}
static mf_status f_title(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    (void)a;
    return mf__j_change_case(c, s, 't', out);
}
static mf_status f_swapcase(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    (void)a;
    return mf__j_change_case(c, s, 's', out);
}
static mf_status f_casefold(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    (void)a;
    return mf__j_casefold(c, s, out);
}

const jentry mf__j_string_methods[] = {
    {"strip", "/chars?", f_strip},
    {"lstrip", "/chars?", f_lstrip},
    {"rstrip", "/chars?", f_rstrip},
    {"split", "sep?,maxsplit?", f_split},
    {"rsplit", "sep?,maxsplit?", f_rsplit},
    {"splitlines", "keepends?", f_splitlines},
    {"partition", "/sep", f_partition},
    {"rpartition", "/sep", f_rpartition},
    {"replace", "/old,new,count?", f_replace},
    {"join", "/iterable", f_join},
    {"center", "/width,fillchar?", f_center},
    {"ljust", "/width,fillchar?", f_ljust},
    {"rjust", "/width,fillchar?", f_rjust},
    {"zfill", "/width", f_zfill},
    {"expandtabs", "tabsize?", f_expandtabs},
    {"upper", "", mf__j_upper},
    {"lower", "", mf__j_lower},
    {"title", "", f_title},
    {"capitalize", "", mf__j_capitalize},
    {"swapcase", "", f_swapcase},
    {"casefold", "", f_casefold},
    {0},
};
