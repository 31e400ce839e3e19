/* Upper and lower case as Python has them: the full mappings of Unicode, in which one letter may become several. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja/casing_data.h"
#include "text/jinja/run.h"
#include "text/unicode.h"

static const special *find_special(const special *table, size_t n, uint32_t ch) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid].ch < ch)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && table[lo].ch == ch ? &table[lo] : NULL;
}

static bool has_property(const char *name, uint32_t ch) {
    for (int i = 0; i < mf__unicode_n_properties; i++)
        if (strcmp(mf__unicode_properties[i].name, name) == 0)
            return mf__ranges_have(mf__unicode_properties[i].ranges, mf__unicode_properties[i].n_ranges, ch);
    return false;
}

bool mf__j_is_lower(uint32_t ch) {
    return ch < 0x80 ? ch >= 'a' && ch <= 'z' : has_property("Lowercase", ch);
}

bool mf__j_is_upper(uint32_t ch) {
    return ch < 0x80 ? ch >= 'A' && ch <= 'Z' : has_property("Uppercase", ch);
}

static bool is_title(uint32_t ch) {
    return ch >= 0x80 && strcmp(mf__j_category(ch), "Lt") == 0;
}

bool mf__j_is_cased(uint32_t ch) {
    return mf__j_is_lower(ch) || mf__j_is_upper(ch) || is_title(ch);
}

const char *mf__j_category(uint32_t ch) {
    int lo = 0, hi = mf__unicode_n_category_runs;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (mf__unicode_category_runs[mid] >> 8 <= ch)
            lo = mid;
        else
            hi = mid;
    }
    return mf__unicode_category_names[mf__unicode_category_runs[lo] & 0xFF];
}

bool mf__j_is_digit(uint32_t ch) {
    return strcmp(mf__j_category(ch), "Nd") == 0 || mf__ranges_have(other_digits, (int)MF__COUNT(other_digits), ch);
}

bool mf__j_is_numeric(uint32_t ch) {
    return mf__j_category(ch)[0] == 'N' || mf__ranges_have(letter_numbers, (int)MF__COUNT(letter_numbers), ch);
}

/* Letters that stand between cased ones without counting: marks, formats, modifiers and some punctuation. */
static bool ignorable(uint32_t ch) {
    static const uint32_t marks[] = {'\'', '.',  ':',  '^',    '`',    0xA8,   0xAD,  0xAF,
                                     0xB4, 0xB7, 0xB8, 0x2018, 0x2019, 0x2024, 0x2027};
    for (size_t i = 0; i < MF__COUNT(marks); i++)
        if (marks[i] == ch) return true;
    const char *k = mf__j_category(ch);
    return strcmp(k, "Mn") == 0 || strcmp(k, "Me") == 0 || strcmp(k, "Cf") == 0 || strcmp(k, "Lm") == 0 ||
           strcmp(k, "Sk") == 0;
}

/* A capital sigma at the end of a word has a small form of its own. */
static mf_status final_sigma(jctx *c, jvalue s, size_t at, bool *out) {
    uint32_t ch = 0;
    size_t i = at;
    bool before = false;
    while (i > 0) {
        do i--;
        while (i > 0 && ((uint8_t)s.s[i] & 0xC0) == 0x80);
        mf__utf8_decode(s.s + i, &ch);
        MF__TRY(mf__j_pay(c, 1));
        if (!ignorable(ch)) {
            before = mf__j_is_cased(ch);
            break;
        }
    }
    *out = before;
    for (i = at + 2; before && i < s.n;) {
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        MF__TRY(mf__j_pay(c, 1));
        if (!ignorable(ch)) return *out = !mf__j_is_cased(ch), MF_OK;
    }
    return MF_OK;
}

/* Writes the mapped form; at most 12 bytes. */
static size_t map_one(uint32_t ch, char how, char *out) {
    const special *p = NULL;
    if (ch >= 0x80) {
        if (how == 'u') p = find_special(upper_specials, MF__COUNT(upper_specials), ch);
        if (how == 't') p = find_special(title_specials, MF__COUNT(title_specials), ch);
        if (how == 'l' && ch == 0x130) return memcpy(out, "i\xCC\x87", 3), 3;
    }
    if (p) return memcpy(out, p->to, strlen(p->to)), strlen(p->to);
    int32_t to = how == 'u'   ? utf8proc_toupper((int32_t)ch)
                 : how == 't' ? utf8proc_totitle((int32_t)ch)
                              : utf8proc_tolower((int32_t)ch);
    return (size_t)mf__utf8_encode((uint32_t)to, out);
}

/* What becomes of a character: 'u', 'l', 't', or 0 for nothing. */
static char mapping(char how, uint32_t ch, bool first, bool after_cased) {
    switch (how) {
    case 't': return after_cased ? 'l' : 't';
    case 'c': return first ? 't' : 'l';
    case 's': return mf__j_is_upper(ch) ? 'l' : mf__j_is_lower(ch) ? 'u' : 0;
    default: return how;
    }
}

mf_status mf__j_change_case(jctx *c, jvalue s, char how, jvalue *out) {
    mf__strbuf b = {0};
    char text[512];
    size_t n = 0;
    mf_status status = mf__j_pay_bytes(c, s.n, J_DECODED);
    bool after_cased = false;
    for (size_t i = 0; status == MF_OK && i < s.n;) {
        uint32_t ch;
        size_t at = i;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        char to = mapping(how, ch, at == 0, after_cased);
        bool sigma = false;
        if (ch >= 0x80) status = mf__j_pay(c, 3);
        if (status == MF_OK && to == 'l' && ch == 0x3A3) status = final_sigma(c, s, at, &sigma);
        if (how == 't') after_cased = mf__j_is_cased(ch);
        if (!to || sigma)
            n += (size_t)mf__utf8_encode(sigma ? 0x3C2 : ch, text + n);
        else if (ch < 0x80)
            text[n++] = (char)(to == 'l'                ? (ch >= 'A' && ch <= 'Z' ? ch + 32 : ch)
                               : ch >= 'a' && ch <= 'z' ? ch - 32
                                                        : ch);
        else
            n += map_one(ch, to, text + n);
        if (status == MF_OK && (n > sizeof text - 16 || i == s.n)) {
            status = mf__j_put_text(c, &b, text, n);
            n = 0;
        }
    }
    MF__TRY(mf__j_take(c, status, &b, out));
    out->form = s.form;
    return MF_OK;
}

mf_status mf__j_casefold(jctx *c, jvalue s, jvalue *out) {
    mf__strbuf b = {0};
    mf_status status = mf__j_pay_bytes(c, s.n, J_DECODED);
    for (size_t i = 0; status == MF_OK && i < s.n;) {
        int32_t folded[8];
        char text[4];
        uint32_t ch;
        i += (size_t)mf__utf8_decode(s.s + i, &ch);
        int last = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)ch, folded, 8, UTF8PROC_CASEFOLD, &last);
        for (utf8proc_ssize_t k = 0; status == MF_OK && k < n && k < 8; k++)
            status = mf__j_put_text(c, &b, text, (size_t)mf__utf8_encode((uint32_t)folded[k], text));
    }
    return mf__j_take(c, status, &b, out);
}
