/* Fences: see fence.h. */
#include "text/fence.h"

#include <stdlib.h>
#include <string.h>

#include "text/nfc.h"
#include "text/tokenizer_int.h"

#define MAX_DEPTH 512
#define N_NONCHARACTERS 32 /* U+FDD0 .. U+FDEF */

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for the request");
}

/* ---- which noncharacters ---------------------------------------------------------------------------------------- */

static uint32_t found_in(const char *s, size_t n) {
    uint32_t found = 0;
    for (const char *p = s; n >= 3 && (p = memmem(p, n - (size_t)(p - s), "\xEF\xB7", 2)); p += 2)
        if (p + 2 < s + n && (uint8_t)p[2] >= 0x90 && (uint8_t)p[2] < 0x90 + N_NONCHARACTERS)
            found |= 1u << ((uint8_t)p[2] - 0x90);
    return found;
}

static uint32_t all_found(const json_t *value, int depth) {
    const char *key;
    json_t *v;
    size_t i;
    uint32_t found = 0;
    if (depth > MAX_DEPTH) return 0;
    if (json_is_string(value)) return found_in(json_string_value(value), json_string_length(value));
    json_array_foreach((json_t *)value, i, v) found |= all_found(v, depth + 1);
    size_t n_key;
    json_object_keylen_foreach((json_t *)value, key, n_key, v) {
        found |= found_in(key, n_key) | all_found(v, depth + 1);
    }
    return found;
}

static void write_noncharacter(int i, char out[MF__FENCE_BYTES + 1]) {
    memcpy(out, "\xEF\xB7\x90", MF__FENCE_BYTES + 1);
    out[2] = (char)(0x90 + i);
}

mf_status mf__fence_choose(const json_t *value, int n_places, mf__fence *out, mf_error *err) {
    uint32_t found = all_found(value, 0);
    int n = -1; /* the fence, then the places */
    *out = (mf__fence){.n_places = n_places};
    for (int i = 0; i < N_NONCHARACTERS && n < n_places; i++) {
        if (found >> i & 1) continue;
        write_noncharacter(i, n < 0 ? out->fence : out->places[n]);
        n++;
    }
    if (n < n_places)
        return mf__fail(err, MF_E_INVALID,
                        "the request has too many of the code points U+FDD0 to U+FDEF in it, which are no characters");
    return MF_OK;
}

int mf__fence_is(const mf__fence *f, const char *s) {
    if (!memcmp(s, f->fence, MF__FENCE_BYTES)) return -1;
    for (int i = 0; i < f->n_places; i++)
        if (!memcmp(s, f->places[i], MF__FENCE_BYTES)) return i;
    return -2;
}

/* ---- where fences go --------------------------------------------------------------------------------------------- */

/* Words that templates compare with; alone they are no marker, though a marker may be made of one. */
static bool is_known_word(const char *s, size_t n) {
    static const char *const words[] = {"system", "user",    "assistant", "tool",   "developer", "function",
                                        "model",  "string",  "number",    "object", "integer",   "array",
                                        "null",   "boolean", "text",      "image",  "video",     "audio",
                                        "low",    "medium",  "high",      "json",   "ipython",   "observation"};
    for (size_t i = 0; i < MF__COUNT(words); i++)
        if (strlen(words[i]) == n && !memcmp(words[i], s, n)) return true;
    return false;
}

typedef struct piece {
    const char *s;
    uint32_t n;
} piece;

/* Sorted by their bytes: all markers, and all that can be the end of one, whole markers left out. */
struct mf__fencer {
    const mf__tokenizer *tok;
    piece *whole, *ends;
    size_t n_whole, n_ends;
};

static int compare(const void *a, const void *b) {
    const piece *x = a, *y = b;
    int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return d ? d : x->n < y->n ? -1 : x->n > y->n;
}

mf_status mf__fencer_create(const mf__tokenizer *tok, mf__fencer **out, mf_error *err) {
    size_t bytes = 0, n = tok->added[0].n + tok->added[1].n;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) bytes += tok->added[k].tokens[i].size;
    mf__fencer *f = *out = calloc(1, sizeof *f);
    if (!f) return no_memory(err);
    f->tok = tok;
    f->whole = malloc((n + 1) * sizeof *f->whole);
    f->ends = malloc((bytes + 1) * sizeof *f->ends);
    if (!f->whole || !f->ends) {
        mf__fencer_free(f);
        *out = NULL;
        return no_memory(err);
    }
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) {
            const mf__added_token *t = &tok->added[k].tokens[i];
            if (t->size) f->whole[f->n_whole++] = (piece){t->text, t->size};
            for (uint32_t j = 1; j < t->size; j++) f->ends[f->n_ends++] = (piece){t->text + j, t->size - j};
        }
    qsort(f->whole, f->n_whole, sizeof *f->whole, compare);
    qsort(f->ends, f->n_ends, sizeof *f->ends, compare);
    return MF_OK;
}

void mf__fencer_free(mf__fencer *f) {
    if (!f) return;
    free(f->whole);
    free(f->ends);
    free(f);
}

/* Whether one of the pieces begins with s. */
static bool has_beginning(const piece *p, size_t n_pieces, const char *s, size_t n) {
    size_t lo = 0, hi = n_pieces;
    piece want = {s, n > UINT32_MAX ? UINT32_MAX : (uint32_t)n};
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (compare(&p[mid], &want) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n_pieces && p[lo].n >= n && !memcmp(p[lo].s, s, n);
}

/* Whether s begins with one of the pieces: what s[0..depth) is the beginning of lies in [lo, hi). */
static bool has_within(const piece *p, size_t n_pieces, const char *s, size_t n) {
    size_t lo = 0, hi = n_pieces;
    for (size_t depth = 0; lo < hi; depth++) {
        if (p[lo].n == depth) return true;
        if (depth == n) return false;
        size_t from = lo, to = hi;
        for (size_t right = hi; from < right;) { /* first with a byte >= s[depth] */
            size_t mid = (from + right) / 2;
            if ((uint8_t)p[mid].s[depth] < (uint8_t)s[depth])
                from = mid + 1;
            else
                right = mid;
        }
        for (size_t left = from; left < to;) { /* first with a byte > s[depth] */
            size_t mid = (left + to) / 2;
            if ((uint8_t)p[mid].s[depth] <= (uint8_t)s[depth])
                left = mid + 1;
            else
                to = mid;
        }
        lo = from;
        hi = to;
    }
    return false;
}

/* Whether a marker that began before s could end in it, or (inside) go on behind it. */
static bool continues(const mf__fencer *f, const char *s, size_t n, bool inside) {
    return has_within(f->ends, f->n_ends, s, n) || (inside && has_beginning(f->ends, f->n_ends, s, n));
}

/* Whether a marker could begin in s and go on behind it. */
static bool begins_at_end(const mf__fencer *f, const char *s, size_t n) {
    for (size_t k = 1; k < MF__ADDED_MAX_BYTES && k <= n; k++) {
        uint8_t first = (uint8_t)s[n - k];
        if ((f->tok->added[0].first[first] || f->tok->added[1].first[first]) &&
            has_beginning(f->whole, f->n_whole, s + n - k, k))
            return true;
    }
    return false;
}

static size_t char_length(const char *s) {
    uint8_t b = (uint8_t)*s;
    return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

typedef struct fencing {
    const mf__fencer *fencer;
    const mf__fence *f;
    bool reasoning;
    mf__strbuf out, normal;
    mf_error *err;
} fencing;

static mf_status put_fence(fencing *c) {
    return mf__strbuf_append(&c->out, c->f->fence, MF__FENCE_BYTES, c->err);
}

/* Writes s with its fences into c->out. */
static mf_status fence_string(fencing *c, const char *s, size_t n, bool is_key) {
    const mf__fencer *f = c->fencer;
    const mf__added_set *added = f->tok->added;
    bool same = true;
    mf__strbuf_clear(&c->out);
    if (n && added[1].n && f->tok->nfc) { /* such markers are looked for in normalized text */
        mf__strbuf_clear(&c->normal);
        MF__TRY(mf__nfc(s, n, &same, &c->normal, c->err));
        if (!same) s = c->normal.data, n = c->normal.size;
    }
    if (!n || is_known_word(s, n)) return mf__strbuf_append(&c->out, s, n, c->err);
    if (continues(f, s, n, !is_key)) MF__TRY(put_fence(c));
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (!added[0].first[(uint8_t)s[i]] && !added[1].first[(uint8_t)s[i]]) continue;
        if (!has_within(f->whole, f->n_whole, s + i, n - i)) continue;
        size_t to = i + char_length(s + i);
        MF__TRY(mf__strbuf_append(&c->out, s + done, to - done, c->err));
        MF__TRY(put_fence(c));
        done = to;
    }
    MF__TRY(mf__strbuf_append(&c->out, s + done, n - done, c->err));
    while (n >= MF__FENCE_BYTES && mf__fence_is(c->f, s + n - MF__FENCE_BYTES) >= 0) n -= MF__FENCE_BYTES;
    return begins_at_end(f, s, n) ? put_fence(c) : MF_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static mf_status fence_any(fencing *c, const json_t *value, int depth, json_t **out);

/* Reasoning in front of an assistant's words, "<think>...</think>": the markers stay, all else is fenced. */
static mf_status fence_reasoned(fencing *c, const json_t *value, json_t **out) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *s = json_string_value(value), *end = s + json_string_length(value), *at = s;
    mf__strbuf all = {0};
    while (at < end && strchr(" \n\r\t", *at)) at++;
    at = (size_t)(end - at) >= sizeof open - 1 && !memcmp(at, open, sizeof open - 1) ? at + sizeof open - 1 : s;
    const char *stop = at > s ? memmem(at, (size_t)(end - at), close, sizeof close - 1) : NULL;
    if (!stop) at = s;
    const char *parts[] = {s, at, stop ? stop : at, stop ? stop + sizeof close - 1 : at, end};
    mf_status st = MF_OK;
    for (int i = 0; i < 4 && st == MF_OK; i++) { /* marker, text, marker, text */
        size_t n = (size_t)(parts[i + 1] - parts[i]);
        if (i % 2 == 0) {
            st = mf__strbuf_append(&all, parts[i], n, c->err);
            continue;
        }
        st = fence_string(c, parts[i], n, false);
        if (st == MF_OK) st = mf__strbuf_append(&all, c->out.data, c->out.size, c->err);
    }
    *out = st == MF_OK ? json_stringn(all.data ? all.data : "", all.size) : NULL;
    mf__strbuf_free(&all);
    return st != MF_OK ? st : *out ? MF_OK : no_memory(c->err);
}

static mf_status fence_member(fencing *c, json_t *to, const char *key, size_t n_key, json_t *value) {
    MF__TRY(fence_string(c, key, n_key, true));
    json_t *old = json_object_getn(to, c->out.data ? c->out.data : "", c->out.size);
    if (old) return mf__fail(c->err, MF_E_INVALID, "two keys \"%.40s\" in one object", key);
    return json_object_setn_new(to, c->out.data ? c->out.data : "", c->out.size, value) ? no_memory(c->err) : MF_OK;
}

static mf_status fence_object(fencing *c, const json_t *value, int depth, json_t *to) {
    const char *role = json_string_value(json_object_get(value, "role")), *key;
    bool assistant = c->reasoning && role && !strcmp(role, "assistant");
    json_t *v, *member;
    size_t n_key;
    json_object_keylen_foreach((json_t *)value, key, n_key, v) {
        bool words = assistant && json_is_string(v) && n_key == 7 && !memcmp(key, "content", 7);
        MF__TRY(words ? fence_reasoned(c, v, &member) : fence_any(c, v, depth + 1, &member));
        mf_status st = fence_member(c, to, key, n_key, json_incref(member));
        json_decref(member);
        MF__TRY(st);
    }
    return MF_OK;
}

static mf_status fence_array(fencing *c, const json_t *value, int depth, json_t *to) {
    json_t *v, *item;
    size_t i;
    json_array_foreach((json_t *)value, i, v) {
        MF__TRY(fence_any(c, v, depth + 1, &item));
        if (json_array_append_new(to, item)) return no_memory(c->err);
    }
    return MF_OK;
}

static mf_status fence_any(fencing *c, const json_t *value, int depth, json_t **out) {
    *out = NULL;
    if (depth > MAX_DEPTH) return mf__fail(c->err, MF_E_LIMIT, "the request is nested deeper than %d", MAX_DEPTH);
    mf_status st = MF_OK;
    if (json_is_string(value)) {
        st = fence_string(c, json_string_value(value), json_string_length(value), false);
        if (st == MF_OK) *out = json_stringn(c->out.data ? c->out.data : "", c->out.size);
    } else if (json_is_object(value)) {
        *out = json_object();
        if (*out) st = fence_object(c, value, depth, *out);
    } else if (json_is_array(value)) {
        *out = json_array();
        if (*out) st = fence_array(c, value, depth, *out);
    } else {
        *out = json_incref((json_t *)value);
    }
    if (st == MF_OK) return *out ? MF_OK : no_memory(c->err);
    json_decref(*out);
    *out = NULL;
    return st;
}

mf_status mf__fence_value(const mf__fencer *fencer, const mf__fence *f, bool reasoning, const json_t *value,
                          json_t **out, mf_error *err) {
    fencing c = {.fencer = fencer, .reasoning = reasoning, .f = f, .err = err};
    mf_status st = fence_any(&c, value, 0, out);
    mf__strbuf_free(&c.out);
    mf__strbuf_free(&c.normal);
    return st;
}
