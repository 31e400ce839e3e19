/* Functions: methods of strings, lists, dictionaries and loops, and the global ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

typedef mf_status function_fn(jctx *c, jvalue self, const jargs *args, jvalue *out);

/* ---- strings --------------------------------------------------------------------------------------------------- */

static mf_status need_string(jctx *c, const jvalue *v, const char *what) {
    if (v && v->kind == J_STRING) return MF_OK;
    return jfail(c, MF_E_INVALID, "%s needs a str, not %s", what, v ? j_type(*v) : "nothing");
}

static bool strippable(const jvalue *chars, const char *s, size_t n) {
    uint32_t c;
    if (!chars || chars->kind != J_STRING) return mf__utf8_decode(s, &c), j_is_space(c);
    for (size_t i = 0; i < chars->n;) {
        size_t k = j_utf8_offset(chars->s + i, chars->n - i, 1);
        if (k == n && memcmp(chars->s + i, s, n) == 0) return true;
        i += k;
    }
    return false;
}

mf_status j_strip(jctx *c, jvalue s, const jvalue *chars, int sides, jvalue *out) {
    if (chars && chars->kind != J_STRING && chars->kind != J_NONE) return need_string(c, chars, "strip");
    while ((sides & 1) && s.n) {
        size_t k = j_utf8_offset(s.s, s.n, 1);
        if (!strippable(chars, s.s, k)) break;
        s.s += k;
        s.n -= k;
    }
    while ((sides & 2) && s.n) {
        size_t start = s.n - 1;
        while (start > 0 && ((uint8_t)s.s[start] & 0xC0) == 0x80) start--;
        if (!strippable(chars, s.s + start, s.n - start)) break;
        s.n = start;
    }
    *out = s;
    return MF_OK;
}

static mf_status f_strip(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    return j_strip(c, self, j_arg(args, 0, NULL), 3, out);
}
static mf_status f_lstrip(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    return j_strip(c, self, j_arg(args, 0, NULL), 1, out);
}
static mf_status f_rstrip(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    return j_strip(c, self, j_arg(args, 0, NULL), 2, out);
}

static mf_status split_spaces(jctx *c, jvalue s, int64_t limit, jvalue *out) {
    MF__TRY(j_strip(c, s, NULL, 1, &s));
    while (s.n) {
        size_t end = 0;
        uint32_t ch;
        if (limit == 0) {
            MF__TRY(j_strip(c, s, NULL, 2, &s));
            return j_append(c, *out, s);
        }
        while (end < s.n) {
            size_t k = (size_t)mf__utf8_decode(s.s + end, &ch);
            if (j_is_space(ch)) break;
            end += k;
        }
        MF__TRY(j_append(c, *out, j_string(s.s, end)));
        s = j_string(s.s + end, s.n - end);
        MF__TRY(j_strip(c, s, NULL, 1, &s));
        limit--;
    }
    return MF_OK;
}

static mf_status f_split(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *sep = j_arg(args, 0, "sep"), *max = j_arg(args, 1, "maxsplit");
    int64_t limit = max && max->kind == J_INT && max->i >= 0 ? max->i : INT64_MAX;
    MF__TRY(j_list(c, J_LIST, 0, out));
    if (!sep || sep->kind == J_NONE) return split_spaces(c, s, limit, out);
    MF__TRY(need_string(c, sep, "split"));
    if (sep->n == 0) return jfail(c, MF_E_INVALID, "split by an empty text");
    for (; limit > 0; limit--) {
        const char *p = s.n >= sep->n ? memmem(s.s, s.n, sep->s, sep->n) : NULL;
        if (!p) break;
        size_t k = (size_t)(p - s.s);
        MF__TRY(j_append(c, *out, j_string(s.s, k)));
        s = j_string(p + sep->n, s.n - k - sep->n);
    }
    return j_append(c, *out, s);
}

static mf_status f_rsplit(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *sep = j_arg(args, 0, "sep"), *max = j_arg(args, 1, "maxsplit");
    if (!max || max->kind != J_INT || max->i < 0) return f_split(c, s, args, out);
    MF__TRY(need_string(c, sep, "rsplit"));
    if (sep->n == 0) return jfail(c, MF_E_INVALID, "split by an empty text");
    jvalue parts;
    MF__TRY(j_list(c, J_LIST, 0, &parts));
    for (int64_t limit = max->i; limit > 0; limit--) {
        size_t at = s.n >= sep->n ? s.n - sep->n + 1 : 0;
        while (at > 0 && memcmp(s.s + at - 1, sep->s, sep->n) != 0) at--;
        if (at == 0) break;
        MF__TRY(j_append(c, parts, j_string(s.s + at - 1 + sep->n, s.n - (at - 1) - sep->n)));
        s.n = at - 1;
    }
    MF__TRY(j_append(c, parts, s));
    MF__TRY(j_list(c, J_LIST, parts.list->n, out));
    for (size_t i = parts.list->n; i-- > 0;) MF__TRY(j_append(c, *out, parts.list->items[i]));
    return MF_OK;
}

static mf_status f_splitlines(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *keep = j_arg(args, 0, "keepends");
    MF__TRY(j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < s.n;) {
        size_t end = i;
        while (end < s.n && s.s[end] != '\n' && s.s[end] != '\r') end++;
        size_t next = end + (end < s.n) + (end + 1 < s.n && s.s[end] == '\r' && s.s[end + 1] == '\n');
        MF__TRY(j_append(c, *out, j_string(s.s + i, (keep && j_truth(*keep) ? next : end) - i)));
        i = next;
    }
    return MF_OK;
}

static mf_status has_affix(jctx *c, jvalue s, const jvalue *affix, bool end, bool *out) {
    *out = false;
    if (affix && affix->kind == J_TUPLE) {
        for (size_t i = 0; i < affix->list->n && !*out; i++) MF__TRY(has_affix(c, s, &affix->list->items[i], end, out));
        return MF_OK;
    }
    MF__TRY(need_string(c, affix, end ? "endswith" : "startswith"));
    *out = affix->n <= s.n && memcmp(end ? s.s + s.n - affix->n : s.s, affix->s, affix->n) == 0;
    return MF_OK;
}

static mf_status f_startswith(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    bool holds;
    MF__TRY(has_affix(c, s, j_arg(args, 0, NULL), false, &holds));
    *out = j_bool(holds);
    return MF_OK;
}
static mf_status f_endswith(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    bool holds;
    MF__TRY(has_affix(c, s, j_arg(args, 0, NULL), true, &holds));
    *out = j_bool(holds);
    return MF_OK;
}
static mf_status f_removeprefix(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *affix = j_arg(args, 0, NULL);
    bool holds;
    MF__TRY(need_string(c, affix, "removeprefix"));
    MF__TRY(has_affix(c, s, affix, false, &holds));
    *out = holds ? j_string(s.s + affix->n, s.n - affix->n) : s;
    return MF_OK;
}
static mf_status f_removesuffix(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *affix = j_arg(args, 0, NULL);
    bool holds;
    MF__TRY(need_string(c, affix, "removesuffix"));
    MF__TRY(has_affix(c, s, affix, true, &holds));
    *out = holds ? j_string(s.s, s.n - affix->n) : s;
    return MF_OK;
}

mf_status j_change_case(jctx *c, jvalue s, char how, jvalue *out) {
    void *text;
    size_t n = 0;
    bool in_word = false, first = true;
    MF__TRY(j_alloc(c, s.n * 3 + 4, &text)); /* a simple mapping never needs more than three times the bytes */
    for (size_t i = 0; i < s.n; first = false) {
        uint32_t ch;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        bool upper = how == 'u' || (how == 't' && !in_word) || (how == 'c' && first);
        int32_t lower_ch = utf8proc_tolower((int32_t)ch), upper_ch = utf8proc_toupper((int32_t)ch);
        in_word = lower_ch != upper_ch;
        if (ch == 0xDF && upper) { /* the one common letter that becomes two */
            memcpy((char *)text + n, how == 'u' ? "SS" : "Ss", 2);
            n += 2;
            in_word = true;
            continue;
        }
        n += (size_t)mf__utf8_encode((uint32_t)(upper ? upper_ch : lower_ch), (char *)text + n);
    }
    *out = j_string(text, n);
    return MF_OK;
}

static mf_status f_upper(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    (void)args;
    return j_change_case(c, s, 'u', out);
}
static mf_status f_lower(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    (void)args;
    return j_change_case(c, s, 'l', out);
}
static mf_status f_title(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    (void)args;
    return j_change_case(c, s, 't', out);
}
static mf_status f_capitalize(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    (void)args;
    return j_change_case(c, s, 'c', out);
}

mf_status j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t count, jvalue *out) {
    mf__strbuf b = {0};
    mf_status status = MF_OK;
    if (count < 0) count = INT64_MAX;
    if (from.n == 0) return *out = s, MF_OK;
    for (; status == MF_OK && count > 0 && s.n >= from.n; count--) {
        const char *p = memmem(s.s, s.n, from.s, from.n);
        if (!p) break;
        size_t k = (size_t)(p - s.s);
        if (b.size + k + to.n > c->opt.max_memory) status = jfail(c, MF_E_LIMIT, "replace makes too long a text");
        if (status == MF_OK) status = mf__strbuf_append(&b, s.s, k, c->err);
        if (status == MF_OK) status = mf__strbuf_append(&b, to.s, to.n, c->err);
        s = j_string(p + from.n, s.n - k - from.n);
    }
    if (status == MF_OK) status = mf__strbuf_append(&b, s.s, s.n, c->err);
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

static mf_status f_replace(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *from = j_arg(args, 0, "old"), *to = j_arg(args, 1, "new"), *count = j_arg(args, 2, "count");
    MF__TRY(need_string(c, from, "replace"));
    MF__TRY(need_string(c, to, "replace"));
    return j_replace(c, s, *from, *to, count && count->kind == J_INT ? count->i : -1, out);
}

static mf_status f_find(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *what = j_arg(args, 0, NULL);
    MF__TRY(need_string(c, what, "find"));
    const char *p = what->n == 0 ? s.s : s.n >= what->n ? memmem(s.s, s.n, what->s, what->n) : NULL;
    *out = j_int(p ? (int64_t)j_utf8_count(s.s, (size_t)(p - s.s)) : -1);
    return MF_OK;
}

static mf_status f_join(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    const jvalue *items = j_arg(args, 0, NULL);
    const jlist *list;
    mf__strbuf b = {0};
    if (!items) return jfail(c, MF_E_INVALID, "join needs a list");
    MF__TRY(j_iterate(c, *items, &list));
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < list->n; i++) {
        status = need_string(c, &list->items[i], "join");
        if (status == MF_OK && i) status = j_print(c, s, &b);
        if (status == MF_OK) status = j_print(c, list->items[i], &b);
    }
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

/* Counts occurrences in a string, or equal items in a list. */
static mf_status f_count(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *what = j_arg(args, 0, NULL);
    int64_t n = 0;
    if (self.kind == J_STRING) {
        MF__TRY(need_string(c, what, "count"));
        if (what->n == 0) return *out = j_int((int64_t)j_utf8_count(self.s, self.n) + 1), MF_OK;
        for (const char *p; self.n >= what->n && (p = memmem(self.s, self.n, what->s, what->n)); n++)
            self = j_string(p + what->n, self.n - (size_t)(p - self.s) - what->n);
    } else {
        for (size_t i = 0; what && i < self.list->n; i++) n += j_equal(self.list->items[i], *what);
    }
    *out = j_int(n);
    return MF_OK;
}

static mf_status f_isdigit(jctx *c, jvalue s, const jargs *args, jvalue *out) {
    (void)c, (void)args;
    bool holds = s.n > 0;
    for (size_t i = 0; i < s.n; i++) holds = holds && s.s[i] >= '0' && s.s[i] <= '9';
    *out = j_bool(holds);
    return MF_OK;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

static mf_status f_append(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *v = j_arg(args, 0, NULL);
    *out = j_none();
    return v ? j_append(c, self, *v) : jfail(c, MF_E_INVALID, "append needs a value");
}

static mf_status f_extend(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *v = j_arg(args, 0, NULL);
    const jlist *items;
    *out = j_none();
    if (!v) return jfail(c, MF_E_INVALID, "extend needs a list");
    MF__TRY(j_iterate(c, *v, &items));
    for (size_t i = 0, n = items->n; i < n; i++) MF__TRY(j_append(c, self, items->items[i]));
    return MF_OK;
}

static mf_status f_insert(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *at = j_arg(args, 0, NULL), *v = j_arg(args, 1, NULL);
    *out = j_none();
    if (!at || at->kind != J_INT || !v) return jfail(c, MF_E_INVALID, "insert needs an integer and a value");
    int64_t n = (int64_t)self.list->n, i = at->i < 0 ? at->i + n : at->i;
    if (i < 0) i = 0;
    if (i > n) i = n;
    MF__TRY(j_append(c, self, *v));
    memmove(self.list->items + i + 1, self.list->items + i, (size_t)(n - i) * sizeof(jvalue));
    self.list->items[i] = *v;
    return MF_OK;
}

static mf_status f_pop(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *at = j_arg(args, 0, NULL);
    if (self.kind == J_DICT) {
        const jvalue *other = j_arg(args, 1, NULL);
        for (size_t i = 0; at && i < self.dict->n; i++)
            if (j_equal(self.dict->pairs[i].key, *at)) {
                *out = self.dict->pairs[i].value;
                memmove(self.dict->pairs + i, self.dict->pairs + i + 1, (--self.dict->n - i) * sizeof(jpair));
                return MF_OK;
            }
        if (!other) return jfail(c, MF_E_INVALID, "pop: no such key");
        *out = *other;
        return MF_OK;
    }
    int64_t n = (int64_t)self.list->n, i = at && at->kind == J_INT ? at->i : n - 1;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return jfail(c, MF_E_INVALID, "pop from a list of %lld items", (long long)n);
    *out = self.list->items[i];
    memmove(self.list->items + i, self.list->items + i + 1, (size_t)(n - i - 1) * sizeof(jvalue));
    self.list->n--;
    return MF_OK;
}

static mf_status f_index(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *v = j_arg(args, 0, NULL);
    if (self.kind == J_STRING) {
        MF__TRY(f_find(c, self, args, out));
        return out->i >= 0 ? MF_OK : jfail(c, MF_E_INVALID, "index: the text is not there");
    }
    for (size_t i = 0; v && i < self.list->n; i++)
        if (j_equal(self.list->items[i], *v)) return *out = j_int((int64_t)i), MF_OK;
    return jfail(c, MF_E_INVALID, "index: the value is not in the list");
}

/* ---- dictionaries ---------------------------------------------------------------------------------------------- */

static mf_status f_get(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *key = j_arg(args, 0, NULL), *other = j_arg(args, 1, "default");
    if (!key) return jfail(c, MF_E_INVALID, "get needs a key");
    const jvalue *found = j_find(self.dict, *key);
    *out = found ? *found : other ? *other : j_none();
    return MF_OK;
}

static mf_status pairs_of(jctx *c, jvalue self, char what, jvalue *out) {
    MF__TRY(j_list(c, J_LIST, self.dict->n, out));
    for (size_t i = 0; i < self.dict->n; i++) {
        jvalue item = what == 'k' ? self.dict->pairs[i].key : self.dict->pairs[i].value;
        if (what == 'i') {
            MF__TRY(j_list(c, J_TUPLE, 2, &item));
            MF__TRY(j_append(c, item, self.dict->pairs[i].key));
            MF__TRY(j_append(c, item, self.dict->pairs[i].value));
        }
        MF__TRY(j_append(c, *out, item));
    }
    return MF_OK;
}
static mf_status f_items(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    (void)args;
    return pairs_of(c, self, 'i', out);
}
static mf_status f_keys(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    (void)args;
    return pairs_of(c, self, 'k', out);
}
static mf_status f_values(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    (void)args;
    return pairs_of(c, self, 'v', out);
}

static mf_status put_named(jctx *c, jvalue dict, const jargs *args) {
    const jvalue *from = j_arg(args, 0, NULL);
    if (from && from->kind != J_DICT && from->kind != J_NAMESPACE)
        return jfail(c, MF_E_INVALID, "needs a dict, not %s", j_type(*from));
    for (size_t i = 0; from && i < from->dict->n; i++)
        MF__TRY(j_put(c, dict, from->dict->pairs[i].key, from->dict->pairs[i].value));
    for (size_t i = 0; i < args->n_named; i++)
        MF__TRY(j_put(c, dict, j_string(args->named[i].name, args->named[i].n_name), args->named[i].value));
    return MF_OK;
}

static mf_status f_update(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    *out = j_none();
    return put_named(c, self, args);
}

/* ---- loops and globals ----------------------------------------------------------------------------------------- */

static mf_status f_cycle(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    if (!args->n) return jfail(c, MF_E_INVALID, "cycle needs values");
    *out = args->pos[self.loop->at % args->n];
    return MF_OK;
}

static mf_status f_changed(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *v = j_arg(args, 0, NULL);
    if (!v) return jfail(c, MF_E_INVALID, "changed needs a value");
    *out = j_bool(self.loop->at == 0 || !j_equal(self.loop->changed, *v));
    self.loop->changed = *v;
    return MF_OK;
}

static mf_status f_namespace(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    (void)self;
    MF__TRY(j_dict(c, args->n_named, out));
    MF__TRY(put_named(c, *out, args));
    out->kind = J_NAMESPACE;
    return MF_OK;
}

static mf_status f_dict(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    (void)self;
    MF__TRY(j_dict(c, args->n_named, out));
    return put_named(c, *out, args);
}

static mf_status f_range(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    int64_t v[3] = {0, 0, 1};
    (void)self;
    for (size_t i = 0; i < args->n && i < 3; i++) {
        if (args->pos[i].kind != J_INT) return jfail(c, MF_E_INVALID, "range needs integers");
        v[i] = args->pos[i].i;
    }
    if (args->n == 1) v[1] = v[0], v[0] = 0;
    if (args->n == 0 || args->n > 3 || v[2] == 0) return jfail(c, MF_E_INVALID, "range needs one to three integers");
    MF__TRY(j_list(c, J_LIST, 0, out));
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (out->list->n >= 100000) return jfail(c, MF_E_LIMIT, "a range of more than 100000 numbers");
        MF__TRY(j_append(c, *out, j_int(i)));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return MF_OK;
}

static mf_status f_raise(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *v = j_arg(args, 0, NULL);
    jvalue text = j_string("", 0);
    (void)self, (void)out;
    if (v) MF__TRY(j_str(c, *v, &text));
    return jfail(c, MF_E_INVALID, "%.*s", text.n > 500 ? 500 : (int)text.n, text.s);
}

static mf_status f_strftime(jctx *c, jvalue self, const jargs *args, jvalue *out) {
    const jvalue *format = j_arg(args, 0, NULL);
    char pattern[128], text[512];
    (void)self;
    if (c->opt.strftime_now) return *out = j_string(c->opt.strftime_now, strlen(c->opt.strftime_now)), MF_OK;
    MF__TRY(need_string(c, format, "strftime_now"));
    time_t now = c->opt.now ? (time_t)c->opt.now : time(NULL);
    struct tm tm;
    snprintf(pattern, sizeof pattern, "%.*s", format->n > 100 ? 100 : (int)format->n, format->s);
    if (!localtime_r(&now, &tm)) return jfail(c, MF_E_INVALID, "the time cannot be told");
    return j_copy(c, text, strftime(text, sizeof text, pattern, &tm), out);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *owner; /* kinds it belongs to: s, l, d, o (loop); "" for a global */
    const char *name;
    function_fn *fn;
} functions[] = {
    {"s", "strip", f_strip},
    {"s", "lstrip", f_lstrip},
    {"s", "rstrip", f_rstrip},
    {"s", "split", f_split},
    {"s", "rsplit", f_rsplit},
    {"s", "splitlines", f_splitlines},
    {"s", "startswith", f_startswith},
    {"s", "endswith", f_endswith},
    {"s", "removeprefix", f_removeprefix},
    {"s", "removesuffix", f_removesuffix},
    {"s", "upper", f_upper},
    {"s", "lower", f_lower},
    {"s", "title", f_title},
    {"s", "capitalize", f_capitalize},
    {"s", "replace", f_replace},
    {"s", "find", f_find},
    {"s", "join", f_join},
    {"sl", "count", f_count},
    {"s", "isdigit", f_isdigit},
    {"l", "append", f_append},
    {"l", "extend", f_extend},
    {"l", "insert", f_insert},
    {"ld", "pop", f_pop},
    {"sl", "index", f_index},
    {"d", "get", f_get},
    {"d", "items", f_items},
    {"d", "keys", f_keys},
    {"d", "values", f_values},
    {"d", "update", f_update},
    {"o", "cycle", f_cycle},
    {"o", "changed", f_changed},
    {"", "namespace", f_namespace},
    {"", "dict", f_dict},
    {"", "range", f_range},
    {"", "raise_exception", f_raise},
    {"", "strftime_now", f_strftime},
};

static bool find(char owner, const char *name, size_t n, size_t *function) {
    for (size_t i = 0; i < MF__COUNT(functions); i++)
        if ((owner ? strchr(functions[i].owner, owner) != NULL : !functions[i].owner[0]) &&
            strlen(functions[i].name) == n && memcmp(functions[i].name, name, n) == 0)
            return *function = i, true;
    return false;
}

bool j_find_method(jvalue self, const char *name, size_t n, size_t *function) {
    char owner = self.kind == J_STRING ? 's'
                 : self.kind == J_LIST ? 'l'
                 : self.kind == J_DICT ? 'd'
                 : self.kind == J_LOOP ? 'o'
                                       : 0;
    return owner && find(owner, name, n, function);
}

bool j_find_global(const char *name, size_t n, size_t *function) {
    return find(0, name, n, function);
}

mf_status j_call_function(jctx *c, jvalue function, const jargs *args, jvalue *out) {
    return functions[function.n].fn(c, function.self ? *function.self : j_none(), args, out);
}
