/* Characters as bytes: UTF-8, and the escapes of JSON strings. */
#include <string.h>

#include "text/grammar/nfa.h"

/* States that read n more continuation bytes and then are at the end of the character; made when needed. */
typedef struct tails {
    uint32_t state[4];
    bool made[4];
} tails;

static mf_status tail(mf__nfa *n, tails *t, int left, uint32_t *out) {
    if (!t->made[left]) {
        uint32_t next;
        MF__TRY(tail(n, t, left - 1, &next));
        MF__TRY(mf__nfa_state(n, &t->state[left]));
        MF__TRY(mf__nfa_bytes(n, t->state[left], 0x80, 0xBF, next));
        t->made[left] = true;
    }
    *out = t->state[left];
    return MF_OK;
}

/* Characters lo..hi, all with `size` bytes left. Ranges that fill whole blocks of continuation bytes share their tails.
 */
static mf_status add_block(mf__nfa *n, tails *t, uint32_t from, uint32_t lo, uint32_t hi, int size, bool lead) {
    static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    uint32_t next;
    uint8_t base = lead ? leads[size] : 0x80;
    if (size == 1) return mf__nfa_bytes(n, from, (uint8_t)(base + lo), (uint8_t)(base + hi), t->state[0]);
    uint32_t shift = (uint32_t)(6 * (size - 1)), mask = (1u << shift) - 1, first = lo >> shift, last = hi >> shift;
    if ((lo & mask) != 0 && first < last) { /* a head that begins inside a block */
        MF__TRY(add_block(n, t, from, lo, (first << shift) | mask, size, lead));
        return add_block(n, t, from, (first + 1) << shift, hi, size, lead);
    }
    if ((hi & mask) != mask && first < last) {
        MF__TRY(add_block(n, t, from, lo, (last << shift) - 1, size, lead));
        return add_block(n, t, from, last << shift, hi, size, lead);
    }
    if ((lo & mask) == 0 && (hi & mask) == mask) {
        MF__TRY(tail(n, t, size - 1, &next));
    } else {
        MF__TRY(mf__nfa_state(n, &next));
        MF__TRY(add_block(n, t, next, lo & mask, hi & mask, size - 1, false));
    }
    return mf__nfa_bytes(n, from, (uint8_t)(base + first), (uint8_t)(base + last), next);
}

static mf_status add_range(mf__nfa *n, tails *t, uint32_t from, uint32_t lo, uint32_t hi) {
    static const uint32_t limits[][3] = {{0, 0x7F, 1},
                                         {0x80, 0x7FF, 2},
                                         {0x800, 0xD7FF, 3},
                                         {0xE000, 0xFFFF, 3},
                                         {0x10000, 0x10FFFF, 4}}; /* surrogates are no characters */
    for (size_t i = 0; i < MF__COUNT(limits); i++) {
        uint32_t a = lo > limits[i][0] ? lo : limits[i][0], b = hi < limits[i][1] ? hi : limits[i][1];
        if (a <= b) MF__TRY(add_block(n, t, from, a, b, (int)limits[i][2], true));
    }
    return MF_OK;
}

/* ---- escapes ----------------------------------------------------------------------------------------------------- */

/* Hexadecimal digits lo..hi (0 to 15) in both cases. */
static mf_status add_hex(mf__nfa *n, uint32_t from, int lo, int hi, uint32_t to) {
    if (lo <= 9) MF__TRY(mf__nfa_bytes(n, from, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 9 ? hi : 9)), to));
    int a = lo > 10 ? lo : 10;
    if (a > hi) return MF_OK;
    MF__TRY(mf__nfa_bytes(n, from, (uint8_t)('a' + a - 10), (uint8_t)('a' + hi - 10), to));
    return mf__nfa_bytes(n, from, (uint8_t)('A' + a - 10), (uint8_t)('A' + hi - 10), to);
}

/* \u00XX for all controls but NUL, which many readers refuse. u: behind "\u". */
static mf_status add_controls(mf__nfa *n, uint32_t u, uint32_t to) {
    uint32_t zero, high[2];
    MF__TRY(mf__nfa_state(n, &zero));
    MF__TRY(mf__nfa_text(n, u, "00", 2, zero));
    for (int i = 0; i < 2; i++) {
        MF__TRY(mf__nfa_state(n, &high[i]));
        MF__TRY(add_hex(n, zero, i, i, high[i]));
        MF__TRY(add_hex(n, high[i], i == 0, 15, to));
    }
    return MF_OK;
}

/* \uXXXX for U+0080 and up, those beyond U+FFFF as pairs; ascii: also U+0020 to U+007F. u: behind "\u". */
static mf_status add_codes(mf__nfa *n, uint32_t u, bool ascii, uint32_t to) {
    uint32_t left[3] = {to}, zero[2], d, high[3];
    for (int i = 1; i < 3; i++) { /* left[i]: i digits left */
        MF__TRY(mf__nfa_state(n, &left[i]));
        MF__TRY(add_hex(n, left[i], 0, 15, left[i - 1]));
    }
    for (int i = 0; i < 2; i++) MF__TRY(mf__nfa_state(n, &zero[i]));
    uint32_t three;
    MF__TRY(mf__nfa_state(n, &three));
    MF__TRY(add_hex(n, three, 0, 15, left[2]));
    MF__TRY(add_hex(n, u, 1, 12, three));
    MF__TRY(add_hex(n, u, 14, 15, three));
    MF__TRY(add_hex(n, u, 0, 0, zero[0]));
    MF__TRY(add_hex(n, zero[0], 1, 15, left[2]));
    MF__TRY(add_hex(n, zero[0], 0, 0, zero[1]));
    MF__TRY(add_hex(n, zero[1], ascii ? 2 : 8, 15, left[1]));
    MF__TRY(mf__nfa_state(n, &d));
    MF__TRY(add_hex(n, u, 13, 13, d));
    MF__TRY(add_hex(n, d, 0, 7, left[2]));
    for (int i = 0; i < 3; i++) MF__TRY(mf__nfa_state(n, &high[i]));
    MF__TRY(add_hex(n, d, 8, 11, high[0]));
    MF__TRY(add_hex(n, high[0], 0, 15, high[1]));
    MF__TRY(add_hex(n, high[1], 0, 15, high[2]));
    uint32_t low;
    MF__TRY(mf__nfa_then_text(n, &high[2], "\\u", 2));
    MF__TRY(mf__nfa_state(n, &low));
    MF__TRY(add_hex(n, high[2], 13, 13, low));
    return add_hex(n, low, 12, 15, left[2]);
}

static bool has_all(const mf__uset *set, uint32_t first, uint32_t last) {
    for (int i = 0; i < set->n; i++)
        if (set->ranges[i].first <= first && set->ranges[i].last >= last) return true;
    return false;
}

static mf_status add_some_controls(mf__nfa *n, uint32_t u, const mf__uset *set, uint32_t to) {
    static const char hex[] = "0123456789abcdef";
    for (uint32_t c = 1; c < 0x20; c++)
        if (mf__uset_has(set, c))
            MF__TRY(mf__nfa_text(n, u, (const char[]){'0', '0', hex[c >> 4], hex[c & 15]}, 4, to));
    return MF_OK;
}

static mf_status add_escapes(mf__nfa *n, uint32_t from, const mf__uset *set, nfa_form form, uint32_t to) {
    static const char plain[] = "\b\f\n\r\t\"\\/", letters[] = "bfnrt\"\\/";
    bool controls = false, codes = form == NFA_JSON_ESCAPES && has_all(set, 0x80, MF__UNICODE_END - 1);
    for (uint32_t c = 1; c < 0x20 && !controls; c++) controls = mf__uset_has(set, c);
    if (!controls && !codes && !mf__uset_has(set, '"') && !mf__uset_has(set, '\\')) return MF_OK;
    uint32_t slash, u;
    MF__TRY(mf__nfa_state(n, &slash));
    MF__TRY(mf__nfa_bytes(n, from, '\\', '\\', slash));
    for (size_t i = 0; i < sizeof letters - 1; i++) {
        if (letters[i] == '/' && form != NFA_JSON_ESCAPES) continue; /* it need not be escaped */
        if (mf__uset_has(set, (uint8_t)plain[i]))
            MF__TRY(mf__nfa_bytes(n, slash, (uint8_t)letters[i], (uint8_t)letters[i], to));
    }
    if (!controls && !codes) return MF_OK;
    MF__TRY(mf__nfa_state(n, &u));
    MF__TRY(mf__nfa_bytes(n, slash, 'u', 'u', u));
    if (codes) MF__TRY(add_codes(n, u, has_all(set, 1, 0x7F), to));
    return has_all(set, 1, 0x1F) ? add_controls(n, u, to) : add_some_controls(n, u, set, to);
}

mf_status mf__nfa_chars(mf__nfa *n, uint32_t from, const mf__uset *set, nfa_form form, uint32_t to) {
    tails t = {.state = {to}, .made = {true}};
    bool json = form != NFA_PLAIN;
    if (json) MF__TRY(add_escapes(n, from, set, form, to));
    for (int i = 0; i < set->n; i++) {
        uint32_t lo = set->ranges[i].first, hi = set->ranges[i].last;
        if (json && lo < 0x20) lo = 0x20;
        while (lo <= hi) { /* runs between the characters that are escaped */
            uint32_t end = hi;
            if (json && lo <= '"' && end >= '"')
                end = '"' - 1;
            else if (json && lo > '"' && lo <= '\\' && end >= '\\')
                end = '\\' - 1;
            if (lo <= end) MF__TRY(add_range(n, &t, from, lo, end));
            lo = end == hi ? hi + 1 : end + 2;
        }
    }
    return MF_OK;
}
