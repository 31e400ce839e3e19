/* Cutting text by patterns: see splitter.h.
 *
 * The alphabet is the coarsest partition of Unicode that every set in the patterns is a union of: two characters in
 * the same class are indistinguishable to all patterns. Real tokenizers need 10 to 60 classes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/splitter.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "text/pattern.h"

#define PAGES (MF__UNICODE_END >> 8)
#define MAX_STEPS 16
#define JIT_STACK_MAX ((size_t)1 << 20)

typedef uint64_t signature[MF__PATTERN_MAX_SETS / 64]; /* which sets a class lies in */

typedef struct step {
    pcre2_code *code; /* NULL: no pattern */
    bool jit, invert, prefix;
    mf__split_behavior behavior;
} step;

struct mf__splitter {
    char *where;
    uint16_t page[PAGES]; /* index of a page of 256 classes */
    uint8_t (*classes)[256];
    uint8_t space_class;
    step steps[MAX_STEPS];
    int n_steps;
};

/* ---- the alphabet ---------------------------------------------------------------------------------------------- */

typedef struct alphabet {
    signature signatures[256];
    int n_classes;
    uint32_t *cuts; /* ascending code points where membership in some set changes */
    size_t n_cuts;
} alphabet;

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static mf_status find_cuts(const mf__pattern_sets *sets, alphabet *a, mf_error *err) {
    size_t n = 1;
    for (int i = 0; i < sets->n; i++) n += 2 * (size_t)sets->sets[i].n;
    a->cuts = malloc(n * sizeof *a->cuts);
    if (!a->cuts) return mf__fail(err, MF_E_NOMEM, "no memory for %zu character ranges", n);
    n = 0;
    a->cuts[n++] = 0;
    for (int i = 0; i < sets->n; i++)
        for (int k = 0; k < sets->sets[i].n; k++) {
            a->cuts[n++] = sets->sets[i].ranges[k].first;
            a->cuts[n++] = sets->sets[i].ranges[k].last + 1;
        }
    qsort(a->cuts, n, sizeof *a->cuts, compare_u32);
    for (size_t i = 0; i < n; i++)
        if (a->cuts[i] < MF__UNICODE_END && (a->n_cuts == 0 || a->cuts[i] != a->cuts[a->n_cuts - 1]))
            a->cuts[a->n_cuts++] = a->cuts[i];
    return MF_OK;
}

/* The class of the characters from cut i to the next. `cursor[s]` is set s's first range that does not end before. */
static mf_status class_of_cut(const mf__splitter *sp, const mf__pattern_sets *sets, alphabet *a, uint32_t c,
                              int *cursor, uint8_t *out, mf_error *err) {
    signature sig = {0};
    for (int s = 0; s < sets->n; s++) {
        const mf__uset *set = &sets->sets[s];
        while (cursor[s] < set->n && set->ranges[cursor[s]].last < c) cursor[s]++;
        if (cursor[s] < set->n && set->ranges[cursor[s]].first <= c) sig[s / 64] |= (uint64_t)1 << s % 64;
    }
    int k = 0;
    while (k < a->n_classes && memcmp(a->signatures[k], sig, sizeof sig) != 0) k++;
    if (k == 256)
        return mf__fail(err, MF_E_LIMIT, "%s: the patterns tell more than 256 classes of characters apart", sp->where);
    if (k == a->n_classes) memcpy(a->signatures[a->n_classes++], sig, sizeof sig);
    *out = (uint8_t)k;
    return MF_OK;
}

static mf_status add_page(mf__splitter *sp, const uint8_t page[256], uint32_t index, int *n_pages, mf_error *err) {
    /* Neighbours repeat (CJK, private use, unassigned planes), so looking a few pages back finds almost all. */
    for (int k = *n_pages - 1; k >= 0 && k >= *n_pages - 32; k--)
        if (memcmp(sp->classes[k], page, 256) == 0) return sp->page[index] = (uint16_t)k, MF_OK;
    if (*n_pages % 64 == 0) {
        void *more = realloc(sp->classes, (size_t)(*n_pages + 64) * 256);
        if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for character classes");
        sp->classes = more;
    }
    memcpy(sp->classes[*n_pages], page, 256);
    sp->page[index] = (uint16_t)(*n_pages)++;
    return MF_OK;
}

static mf_status build_alphabet(mf__splitter *sp, const mf__pattern_sets *sets, alphabet *a, mf_error *err) {
    MF__TRY(find_cuts(sets, a, err));
    int cursor[MF__PATTERN_MAX_SETS] = {0}, n_pages = 0;
    uint8_t page[256], current = 0;
    size_t next = 0;
    for (uint32_t index = 0; index < PAGES; index++) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = index << 8 | i;
            if (next < a->n_cuts && a->cuts[next] == c) {
                MF__TRY(class_of_cut(sp, sets, a, c, cursor, &current, err));
                next++;
            }
            page[i] = current;
        }
        MF__TRY(add_page(sp, page, index, &n_pages, err));
    }
    sp->space_class = sp->classes[sp->page[0]][' '];
    return MF_OK;
}

static inline uint8_t class_of(const mf__splitter *sp, uint32_t c) {
    return sp->classes[sp->page[c >> 8]][c & 0xFF];
}

/* ---- compiling ------------------------------------------------------------------------------------------------- */

/* Spells a set as the bytes of its classes. */
static mf_status put_classes(const alphabet *a, int set, mf__strbuf *out, mf_error *err) {
    int n = 0;
    for (int k = 0; k < a->n_classes; k++) n += a->signatures[k][set / 64] >> set % 64 & 1;
    if (n == 0) return mf__strbuf_append(out, "[^\\x00-\\xff]", 12, err); /* an empty set: never matches */
    if (n > 1) MF__TRY(mf__strbuf_append(out, "[", 1, err));
    for (int k = 0; k < a->n_classes; k++)
        if (a->signatures[k][set / 64] >> set % 64 & 1) MF__TRY(mf__strbuf_printf(out, err, "\\x%02x", k));
    return n > 1 ? mf__strbuf_append(out, "]", 1, err) : MF_OK;
}

static mf_status compile(const mf__splitter *sp, const alphabet *a, const mf__strbuf *read, step *st, mf_error *err) {
    mf__strbuf regex = {0};
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < read->size; i++)
        if (read->data[i] == MF__PATTERN_SET)
            status = put_classes(a, (uint8_t)read->data[++i], &regex, err);
        else
            status = mf__strbuf_append(&regex, &read->data[i], 1, err);
    if (status == MF_OK) {
        int code;
        PCRE2_SIZE offset;
        st->code = pcre2_compile((PCRE2_SPTR)(regex.data ? regex.data : ""), regex.size, PCRE2_NEVER_UTF, &code,
                                 &offset, NULL);
        if (!st->code) {
            char text[160] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            status = mf__fail(err, code == PCRE2_ERROR_NOMEMORY ? MF_E_NOMEM : MF_E_FORMAT,
                              "%s: a pattern does not compile: %s", sp->where, text);
        } else {
            st->jit = pcre2_jit_compile(st->code, PCRE2_JIT_COMPLETE) == 0;
        }
    }
    mf__strbuf_free(&regex);
    return status;
}

static mf_status build(mf__splitter *sp, const mf__split_step *steps, mf__pattern_sets *sets, alphabet *a,
                       mf__strbuf *read, mf_error *err) {
    for (int i = 0; i < sp->n_steps; i++) {
        MF__TRY(mf__pattern_read(sp->where, steps[i].pattern, steps[i].size, steps[i].literal, sets, &read[i], err));
        sp->steps[i].invert = steps[i].invert;
        sp->steps[i].prefix = steps[i].prefix;
        sp->steps[i].behavior = steps[i].behavior;
    }
    MF__TRY(build_alphabet(sp, sets, a, err));
    for (int i = 0; i < sp->n_steps; i++)
        if (read[i].size) MF__TRY(compile(sp, a, &read[i], &sp->steps[i], err));
    return MF_OK;
}

mf_status mf__splitter_create(const char *where, const mf__split_step *steps, int n_steps, mf__splitter **out,
                              mf_error *err) {
    *out = NULL;
    if (n_steps > MAX_STEPS)
        return mf__fail(err, MF_E_LIMIT, "%s: %d pre-tokenizer steps; the limit is %d", where, n_steps, MAX_STEPS);
    mf__splitter *sp = calloc(1, sizeof *sp);
    mf__pattern_sets *sets = calloc(1, sizeof *sets);
    alphabet *a = calloc(1, sizeof *a);
    mf__strbuf read[MAX_STEPS] = {{0}};
    mf_status status;
    if (sp) sp->n_steps = n_steps, sp->where = strdup(where);
    if (!sp || !sets || !a || !sp->where)
        status = mf__fail(err, MF_E_NOMEM, "%s: no memory for the pre-tokenizer", where);
    else
        status = build(sp, steps, sets, a, read, err);
    for (int i = 0; i < MAX_STEPS; i++) mf__strbuf_free(&read[i]);
    if (sets) mf__pattern_sets_free(sets);
    if (a) free(a->cuts);
    free(sets);
    free(a);
    if (status != MF_OK)
        mf__splitter_free(sp);
    else
        *out = sp;
    return status;
}

void mf__splitter_free(mf__splitter *sp) {
    if (!sp) return;
    for (int i = 0; i < sp->n_steps; i++) pcre2_code_free(sp->steps[i].code);
    free(sp->classes);
    free(sp->where);
    free(sp);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

void mf__split_run_free(mf__split_run *run) {
    pcre2_match_data_free(run->match_data);
    pcre2_match_context_free(run->match_context);
    pcre2_jit_stack_free(run->jit_stack);
    free(run->pieces);
    free(run->spare);
    free(run->classes);
    free(run->prefixed);
    *run = (mf__split_run){0};
}

static mf_status no_memory(const mf__splitter *sp, mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "%s: no memory to split the text", sp->where);
}

static mf_status push_piece(const mf__splitter *sp, mf__split_run *run, uint32_t start, uint32_t end, mf_error *err) {
    if (run->n_pieces == run->pieces_capacity) {
        size_t capacity = run->pieces_capacity ? run->pieces_capacity * 2 : 256;
        void *pieces = realloc(run->pieces, capacity * sizeof *run->pieces);
        if (!pieces) return no_memory(sp, err);
        run->pieces = pieces;
        run->pieces_capacity = capacity;
    }
    run->pieces[run->n_pieces++] = (mf__piece){start, end};
    return MF_OK;
}

/* Class bytes of run->text. Returns their number. */
static mf_status classify(const mf__splitter *sp, mf__split_run *run, size_t size, size_t *n_classes, mf_error *err) {
    if (size > run->classes_capacity) {
        free(run->classes);
        run->classes = malloc(size);
        run->classes_capacity = run->classes ? size : 0;
        if (!run->classes) return no_memory(sp, err);
    }
    const uint8_t *ascii = sp->classes[sp->page[0]];
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        uint32_t c;
        if ((uint8_t)run->text[i] < 0x80) {
            run->classes[n++] = ascii[(uint8_t)run->text[i++]];
        } else {
            i += (size_t)mf__utf8_decode(run->text + i, &c);
            run->classes[n++] = class_of(sp, c);
        }
    }
    *n_classes = n;
    return MF_OK;
}

/* Finds the next match at or behind `at` in one piece. *found is false when there is none. */
static mf_status find(const mf__splitter *sp, const step *st, mf__split_run *run, const uint8_t *classes, size_t n,
                      size_t at, bool *found, size_t *start, size_t *end, mf_error *err) {
    int rc = st->jit ? pcre2_jit_match(st->code, classes, n, at, 0, run->match_data, run->match_context)
                     : pcre2_match(st->code, classes, n, at, 0, run->match_data, run->match_context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(st->code, classes, n, at, PCRE2_NO_JIT, run->match_data, run->match_context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return MF_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return no_memory(sp, err);
    if (rc < 0) {
        char text[160] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
        return mf__fail(err, MF_E_LIMIT, "%s: splitting the text with the tokenizer's pattern failed: %s", sp->where,
                        text);
    }
    const PCRE2_SIZE *where = pcre2_get_ovector_pointer(run->match_data);
    *start = where[0];
    *end = where[1];
    return MF_OK;
}

/* One stretch of a piece, a match or not, in order: joins or adds it as the behaviour says. `last` is the stretch
 * before it (-1: none, 0: between matches, 1: a match). */
static mf_status place(const mf__splitter *sp, const step *st, mf__split_run *run, size_t first_piece, size_t start,
                       size_t end, bool match, int *last, mf_error *err) {
    if (st->invert) match = !match;
    bool join = false;
    switch (st->behavior) {
    case MF__SPLIT_ISOLATED: break;
    case MF__SPLIT_REMOVED:
        if (match) return *last = match, MF_OK;
        break;
    case MF__SPLIT_CONTIGUOUS: join = *last == (int)match; break;
    case MF__SPLIT_MERGED_WITH_PREVIOUS: join = match && *last == 0; break;
    case MF__SPLIT_MERGED_WITH_NEXT: join = !match && *last == 1; break;
    }
    *last = match;
    if (join && run->n_pieces > first_piece) return run->pieces[run->n_pieces - 1].end = (uint32_t)end, MF_OK;
    return push_piece(sp, run, (uint32_t)start, (uint32_t)end, err);
}

static mf_status split_piece(const mf__splitter *sp, const step *st, mf__split_run *run, mf__piece p, mf_error *err) {
    const uint8_t *classes = run->classes + p.start;
    size_t n = p.end - p.start, at = 0, done = 0, first_piece = run->n_pieces;
    int last = -1;
    while (at <= n) {
        bool found;
        size_t start, end;
        MF__TRY(find(sp, st, run, classes, n, at, &found, &start, &end, err));
        if (!found) break;
        if (start > done) MF__TRY(place(sp, st, run, first_piece, p.start + done, p.start + start, false, &last, err));
        if (end > start) MF__TRY(place(sp, st, run, first_piece, p.start + start, p.start + end, true, &last, err));
        if (end >= done) done = end;
        at = end > start ? end : end + 1; /* an empty match cuts and moves on */
    }
    if (done < n) MF__TRY(place(sp, st, run, first_piece, p.start + done, p.start + n, false, &last, err));
    return MF_OK;
}

static mf_status run_step(const mf__splitter *sp, const step *st, mf__split_run *run, mf_error *err) {
    mf__piece *pieces = run->pieces;
    size_t n = run->n_pieces, capacity = run->pieces_capacity;
    run->pieces = run->spare;
    run->pieces_capacity = run->spare_capacity;
    run->spare = pieces;
    run->spare_capacity = capacity;
    run->n_pieces = 0;
    for (size_t i = 0; i < n; i++) MF__TRY(split_piece(sp, st, run, pieces[i], err));
    return MF_OK;
}

/* Turns pieces of classes into pieces of bytes: walks the text once. */
static void to_bytes(mf__split_run *run) {
    size_t chars = 0, bytes = 0;
    for (size_t i = 0; i < run->n_pieces; i++) {
        mf__piece *p = &run->pieces[i];
        for (int edge = 0; edge < 2; edge++) {
            uint32_t *pos = edge ? &p->end : &p->start;
            for (; chars < *pos; chars++) {
                uint8_t b = (uint8_t)run->text[bytes];
                bytes += b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
            }
            *pos = (uint32_t)bytes;
        }
    }
}

/* Puts a space before every piece that does not begin with one. The text is a new one afterwards, the class bytes too;
 * what lay between pieces is gone. */
static mf_status insert_spaces(const mf__splitter *sp, mf__split_run *run, mf_error *err) {
    mf__strbuf b = {0};
    mf_status status = MF_OK;
    to_bytes(run);
    for (size_t i = 0; status == MF_OK && i < run->n_pieces; i++) {
        mf__piece *p = &run->pieces[i];
        size_t start = b.size;
        if (run->text[p->start] != ' ') status = mf__strbuf_append(&b, " ", 1, err);
        if (status == MF_OK) status = mf__strbuf_append(&b, run->text + p->start, p->end - p->start, err);
        *p = (mf__piece){(uint32_t)start, (uint32_t)b.size};
    }
    if (status != MF_OK) return mf__strbuf_free(&b), status;
    free(run->prefixed);
    run->text = run->prefixed = b.data;
    size_t n, chars = 0, bytes = 0;
    MF__TRY(classify(sp, run, b.size, &n, err));
    for (size_t i = 0; i < run->n_pieces; i++) { /* back to classes; pieces follow each other without gaps */
        uint32_t end = run->pieces[i].end;
        run->pieces[i].start = (uint32_t)chars;
        for (; bytes < end; chars++) {
            uint8_t lead = (uint8_t)run->text[bytes];
            bytes += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        }
        run->pieces[i].end = (uint32_t)chars;
    }
    return MF_OK;
}

static mf_status prepare(const mf__splitter *sp, mf__split_run *run, size_t size, mf_error *err) {
    if (!run->match_data) {
        run->match_data = pcre2_match_data_create(1, NULL);
        run->match_context = pcre2_match_context_create(NULL);
        run->jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_MAX, NULL);
        if (!run->match_data || !run->match_context) return no_memory(sp, err);
        if (run->jit_stack) pcre2_jit_stack_assign(run->match_context, NULL, run->jit_stack);
    }
    /* Honest patterns backtrack over a run of characters a few times at most. */
    pcre2_set_match_limit(run->match_context, (uint32_t)(1000000 + 2 * size));
    return MF_OK;
}

mf_status mf__splitter_run(const mf__splitter *sp, const char *text, size_t size, mf__split_run *run, mf_error *err) {
    run->text = text;
    run->n_pieces = 0;
    if (size == 0) return MF_OK;
    if (size > MF__SPLIT_MAX_TEXT)
        return mf__fail(err, MF_E_LIMIT, "%s: a text of %zu bytes; at most %zu are encoded at once", sp->where, size,
                        MF__SPLIT_MAX_TEXT);
    MF__TRY(prepare(sp, run, size, err));
    size_t n;
    MF__TRY(classify(sp, run, size, &n, err));
    MF__TRY(push_piece(sp, run, 0, (uint32_t)n, err));
    for (int i = 0; i < sp->n_steps; i++) {
        if (sp->steps[i].prefix) MF__TRY(insert_spaces(sp, run, err));
        if (sp->steps[i].code) MF__TRY(run_step(sp, &sp->steps[i], run, err));
    }
    to_bytes(run);
    return MF_OK;
}
