/* Methods of strings that look for something or tell something. */
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

/* ---- find, count, startswith ----------------------------------------------------------------------------------- */

/* s[start:end] for methods that take both; *before is the number of characters left out in front. */
static mf_status limits(jctx *c, jvalue s, const jbound *a, jvalue *out, size_t *before) {
    jvalue bounds[3] = {mf__j_none(), mf__j_none(), mf__j_none()};
    *before = 0;
    *out = s;
    if (!a->at[1] && !a->at[2]) return MF_OK;
    if (a->at[1]) bounds[0] = *a->at[1];
    if (a->at[2]) bounds[1] = *a->at[2];
    MF__TRY(mf__j_slice(c, s, bounds, out));
    *before = mf__j_utf8_count(s.s, (size_t)(out->s - s.s));
    return MF_OK;
}

static mf_status find_first(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    jvalue part;
    size_t before;
    MF__TRY(mf__j_need_string(c, a->at[0], "find"));
    MF__TRY(limits(c, s, a, &part, &before));
    const char *p = mf__j_search(part, *a->at[0]);
    MF__TRY(mf__j_pay_bytes(c, p ? (size_t)(p - part.s) : part.n, J_SEARCHED));
    *out = mf__j_int(p ? (int64_t)(before + mf__j_utf8_count(part.s, (size_t)(p - part.s))) : -1);
    return MF_OK;
}

static mf_status find_last(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    jvalue part, what;
    size_t before;
    MF__TRY(mf__j_need_string(c, a->at[0], "rfind"));
    MF__TRY(limits(c, s, a, &part, &before));
    what = *a->at[0];
    *out = mf__j_int(-1);
    for (size_t at = part.n >= what.n ? part.n - what.n + 1 : 0; at-- > 0;) {
        MF__TRY(mf__j_pay(c, 1 + what.n / J_COPIED));
        if (at < part.n && ((uint8_t)part.s[at] & 0xC0) == 0x80) continue; /* in the middle of a character */
        if (what.n && memcmp(part.s + at, what.s, what.n) != 0) continue;
        *out = mf__j_int((int64_t)(before + mf__j_utf8_count(part.s, at)));
        return MF_OK;
    }
    return MF_OK;
}

static mf_status there(jctx *c, mf_status status, const jvalue *out) {
    if (status != MF_OK || out->i >= 0) return status;
    return mf__j_fail(c, MF_E_INVALID, "index: the text is not there");
}
static mf_status f_index(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return there(c, find_first(c, s, a, out), out);
}
static mf_status f_rindex(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return there(c, find_last(c, s, a, out), out);
}

static mf_status f_count(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    size_t before;
    int64_t n = 0;
    MF__TRY(mf__j_need_string(c, a->at[0], "count"));
    MF__TRY(limits(c, s, a, &s, &before));
    MF__TRY(mf__j_pay_bytes(c, s.n, J_SEARCHED));
    jvalue what = *a->at[0];
    if (what.n == 0) return *out = mf__j_int((int64_t)mf__j_utf8_count(s.s, s.n) + 1), MF_OK;
    for (const char *p; (p = mf__j_search(s, what)); n++) {
        MF__TRY(mf__j_pay(c, 1));
        s = mf__j_string(p + what.n, s.n - (size_t)(p - s.s) - what.n);
    }
    *out = mf__j_int(n);
    return MF_OK;
}

static mf_status is_affix(jctx *c, jvalue s, jvalue affix, bool end, bool *out) {
    *out = affix.n <= s.n;
    if (!*out || !affix.n) return MF_OK;
    MF__TRY(mf__j_pay_bytes(c, affix.n, J_COPIED));
    *out = memcmp(end ? s.s + s.n - affix.n : s.s, affix.s, affix.n) == 0;
    return MF_OK;
}

/* A text, or a tuple of texts of which one must fit. */
static mf_status has_affix(jctx *c, jvalue s, const jbound *a, bool end, jvalue *out) {
    const char *name = end ? "endswith" : "startswith";
    const jvalue *affix = a->at[0];
    size_t before;
    bool holds = false;
    MF__TRY(limits(c, s, a, &s, &before));
    size_t n = affix->kind == J_TUPLE ? affix->list->n : 1;
    for (size_t i = 0; i < n && !holds; i++) {
        const jvalue *one = affix->kind == J_TUPLE ? &affix->list->items[i] : affix;
        MF__TRY(mf__j_pay(c, 1));
        if (one->kind != J_STRING)
            return mf__j_fail(c, MF_E_INVALID, "%s needs a str or a tuple of str, not %s%s", name,
                              one == affix ? "" : "a tuple with ", mf__j_type(*one));
        MF__TRY(is_affix(c, s, *one, end, &holds));
    }
    *out = mf__j_bool(holds);
    return MF_OK;
}
static mf_status f_startswith(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return has_affix(c, s, a, false, out);
}
static mf_status f_endswith(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    return has_affix(c, s, a, true, out);
}

static mf_status f_removeprefix(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    bool holds;
    MF__TRY(mf__j_need_string(c, a->at[0], "removeprefix"));
    MF__TRY(is_affix(c, s, *a->at[0], false, &holds));
    *out = s;
    if (holds) out->s += a->at[0]->n, out->n -= a->at[0]->n;
    return MF_OK;
}
static mf_status f_removesuffix(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    bool holds;
    MF__TRY(mf__j_need_string(c, a->at[0], "removesuffix"));
    MF__TRY(is_affix(c, s, *a->at[0], true, &holds));
    *out = s;
    if (holds) out->n -= a->at[0]->n;
    return MF_OK;
}

/* ---- isdigit and its kin --------------------------------------------------------------------------------------- */

static bool is_alpha(uint32_t ch) {
    return mf__j_category(ch)[0] == 'L';
}
static bool is_decimal(uint32_t ch) {
    return strcmp(mf__j_category(ch), "Nd") == 0;
}
static bool is_alnum(uint32_t ch) {
    return is_alpha(ch) || mf__j_is_numeric(ch);
}
static bool is_ascii(uint32_t ch) {
    return ch < 0x80;
}
static bool is_word(uint32_t ch) {
    const char *k = mf__j_category(ch);
    return k[0] == 'L' || ch == '_' || strcmp(k, "Nl") == 0 || strcmp(k, "Nd") == 0 || strcmp(k, "Mn") == 0 ||
           strcmp(k, "Mc") == 0 || strcmp(k, "Pc") == 0;
}

static mf_status all_are(jctx *c, jvalue s, bool (*holds)(uint32_t), bool empty, jvalue *out) {
    bool all = s.n > 0 || empty;
    MF__TRY(mf__j_pay(c, s.n));
    for (size_t i = 0; i < s.n && all;) {
        uint32_t ch;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        all = holds(ch);
    }
    *out = mf__j_bool(all);
    return MF_OK;
}

#define ALL_ARE(name, holds, empty)                                                                                    \
    static mf_status f_##name(jctx *c, jvalue s, const jbound *a, jvalue *out) {                                       \
        (void)a;                                                                                                       \
        return all_are(c, s, holds, empty, out);                                                                       \
    }
ALL_ARE(isalpha, is_alpha, false)
ALL_ARE(isdecimal, is_decimal, false)
ALL_ARE(isdigit, mf__j_is_digit, false)
ALL_ARE(isnumeric, mf__j_is_numeric, false)
ALL_ARE(isalnum, is_alnum, false)
ALL_ARE(isspace, mf__j_is_space, false)
ALL_ARE(isascii, is_ascii, true)
ALL_ARE(isprintable, mf__j_printable, true)

static mf_status f_isidentifier(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    uint32_t ch = 0;
    (void)a;
    MF__TRY(all_are(c, s, is_word, false, out));
    if (s.n) mf__utf8_decode(s.s, &ch);
    if (s.n && ch != '_' && !is_alpha(ch) && strcmp(mf__j_category(ch), "Nl") != 0) *out = mf__j_bool(false);
    return MF_OK;
}

/* Some letter has a case, and all that have one have this one. */
static mf_status one_case(jctx *c, jvalue s, bool (*right)(uint32_t), jvalue *out) {
    bool some = false, all = true;
    MF__TRY(mf__j_pay(c, s.n));
    for (size_t i = 0; i < s.n && all;) {
        uint32_t ch;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        if (!mf__j_is_cased(ch)) continue;
        some = true;
        all = right(ch);
    }
    *out = mf__j_bool(some && all);
    return MF_OK;
}
static mf_status f_islower(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    (void)a;
    return one_case(c, s, mf__j_is_lower, out);
}
static mf_status f_isupper(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    (void)a;
    return one_case(c, s, mf__j_is_upper, out);
}

static mf_status f_istitle(jctx *c, jvalue s, const jbound *a, jvalue *out) {
    bool some = false, all = true, after = false;
    (void)a;
    MF__TRY(mf__j_pay(c, s.n));
    for (size_t i = 0; i < s.n && all;) {
        uint32_t ch;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        bool cased = mf__j_is_cased(ch), lower = mf__j_is_lower(ch);
        if (cased) all = lower == after;
        some = some || cased;
        after = cased;
    }
    *out = mf__j_bool(some && all);
    return MF_OK;
}

const jentry mf__j_string_search[] = {
    {"find", "/sub,start?,end?", find_first},
    {"rfind", "/sub,start?,end?", find_last},
    {"index", "/sub,start?,end?", f_index},
    {"rindex", "/sub,start?,end?", f_rindex},
    {"count", "/sub,start?,end?", f_count},
    {"startswith", "/prefix,start?,end?", f_startswith},
    {"endswith", "/suffix,start?,end?", f_endswith},
    {"removeprefix", "/prefix", f_removeprefix},
    {"removesuffix", "/suffix", f_removesuffix},
    {"isalpha", "", f_isalpha},
    {"isdecimal", "", f_isdecimal},
    {"isdigit", "", f_isdigit},
    {"isnumeric", "", f_isnumeric},
    {"isalnum", "", f_isalnum},
    {"isspace", "", f_isspace},
    {"isascii", "", f_isascii},
    {"isprintable", "", f_isprintable},
    {"isidentifier", "", f_isidentifier},
    {"islower", "", f_islower},
    {"isupper", "", f_isupper},
    {"istitle", "", f_istitle},
    {"format", "*", mf__j_format},
    {"format_map", "*", mf__j_format_map},
    {0},
};
