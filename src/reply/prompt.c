/* From a request to token ids.
 *
 *   request -> fences in its strings -> template -> text with fences -> ids
 *                                                        |
 *                                 known tokens, marks: compared with the text without fences */
#include "reply/prompt.h"

#include <stdlib.h>
#include <string.h>

#define MARKED_TURNS 5 /* of the latest, whose ends are marked */

typedef struct rendering {
    mf__strbuf fenced, plain; /* the same text with and without fences */
    size_t *fences;           /* where they were, as offsets in the plain text, rising */
    size_t n_fences, capacity;
    size_t places[MF__MAX_PLACES]; /* offsets in the plain text; 0: nowhere */
} rendering;

/* Everything that one prompt is made from. */
typedef struct making {
    const mf_text *text;
    const mf__tokenizer *tok;
    mf__fence fence;
    json_t *request; /* with fences */
    rendering whole;
    mf__prompt *p;
    mf_error *err;
} making;

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for the prompt");
}

static void free_rendering(rendering *r) {
    mf__strbuf_free(&r->fenced);
    mf__strbuf_free(&r->plain);
    free(r->fences);
    *r = (rendering){0};
}

static bool is_marker(const mf__tokenizer *tok, int32_t id) {
    char text[128];
    size_t n;
    const char *bytes = mf__tokenizer_bytes(tok, id, &n);
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, bytes, n);
    text[n] = '\0';
    return mf__tokenizer_id(tok, text) == id;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static mf_status note_fence(rendering *r, mf_error *err) {
    if (r->n_fences == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 16;
        size_t *more = realloc(r->fences, capacity * sizeof *more);
        if (!more) return no_memory(err);
        r->fences = more;
        r->capacity = capacity;
    }
    r->fences[r->n_fences++] = r->plain.size;
    return MF_OK;
}

/* Takes fences and places out of the text that was rendered. */
static mf_status sort_out(const mf__fence *f, const mf__strbuf *raw, rendering *out, mf_error *err) {
    const char *at = raw->data ? raw->data : "", *end = at + raw->size, *found = at;
    while ((found = memmem(found, (size_t)(end - found), "\xEF\xB7", 2))) {
        int is = end - found >= MF__FENCE_BYTES ? mf__fence_is(f, found) : -2;
        if (is == -2) {
            found += 2;
            continue;
        }
        size_t n = (size_t)(found - at);
        MF__TRY(mf__strbuf_append(&out->plain, at, n, err));
        MF__TRY(mf__strbuf_append(&out->fenced, at, n + (is < 0 ? MF__FENCE_BYTES : 0), err));
        if (is < 0) MF__TRY(note_fence(out, err));
        if (is >= 0 && !out->places[is]) out->places[is] = out->plain.size;
        at = found += MF__FENCE_BYTES;
    }
    MF__TRY(mf__strbuf_append(&out->plain, at, (size_t)(end - at), err));
    return mf__strbuf_append(&out->fenced, at, (size_t)(end - at), err);
}

static mf_status render(const making *m, const json_t *request, rendering *out, mf_error *err) {
    mf__strbuf raw = {0};
    mf_status st = mf__chat_render(&m->text->chat, request, &raw, err);
    if (st == MF_OK) st = sort_out(&m->fence, &raw, out, err);
    mf__strbuf_free(&raw);
    return st;
}

/* ---- ids -------------------------------------------------------------------------------------------------------- */

mf_status mf__prompt_append(mf__prompt *p, const int32_t *ids, size_t n, mf_error *err) {
    int32_t *more = realloc(p->ids, (p->n_ids + n + 1) * sizeof *more);
    if (!more) return no_memory(err);
    p->ids = more;
    if (n) memcpy(more + p->n_ids, ids, n * sizeof *ids);
    p->n_ids += n;
    return MF_OK;
}

mf_status mf__prompt_copy(const mf__prompt *from, size_t n_ids, mf__prompt *out, mf_error *err) {
    *out = *from;
    out->ids = NULL;
    out->n_ids = 0;
    return mf__prompt_append(out, from->ids, n_ids, err);
}

/* Everything from an offset of the plain text on. */
static mf_status encode_rest(making *m, size_t from) {
    const rendering *r = &m->whole;
    size_t n_before = 0, n;
    int32_t *ids;
    while (n_before < r->n_fences && r->fences[n_before] < from) n_before++;
    from += n_before * MF__FENCE_BYTES;
    if (from == r->fenced.size) return MF_OK;
    MF__TRY(mf__tokenizer_encode_fenced(m->tok, r->fenced.data + from, r->fenced.size - from, m->fence.fence, &ids, &n,
                                        m->err));
    mf_status st = mf__prompt_append(m->p, ids, n, m->err);
    free(ids);
    return st;
}

static size_t size_of(const mf__tokenizer *tok, int32_t id) {
    size_t n = 0;
    if (id >= 0) mf__tokenizer_bytes(tok, id, &n);
    return n;
}

/* How many of the known tokens spell the beginning of the text. The prompt has the text's own tokens: where these have
 * a marker the known ones must have it too, and nowhere else. */
static size_t same_text(const making *m, const int32_t *known, size_t n, size_t *offset) {
    const mf__tokenizer *tok = m->tok;
    const mf__strbuf *text = &m->whole.plain;
    size_t at = 0, own = 0, own_at = 0, i = 0;
    for (; i < n; i++) {
        size_t size = size_of(tok, known[i]);
        if (!size || size > text->size - at || memcmp(text->data + at, mf__tokenizer_bytes(tok, known[i], &size), size))
            break;
        bool marker = false, crossed = false;
        for (; own < m->p->n_ids && own_at < at + size; own_at += size_of(tok, m->p->ids[own++]))
            if (own_at >= at && is_marker(tok, m->p->ids[own])) {
                marker = own_at == at;
                crossed = crossed || own_at > at;
            }
        if (crossed || marker != is_marker(tok, known[i])) break;
        at += size;
    }
    *offset = at;
    return i;
}

/* All known tokens if their text is the beginning of this one; else up to the last marker before the difference, since
 * no token reaches across a marker. */
static mf_status make_ids(making *m, const int32_t *known, size_t n_known) {
    MF__TRY(encode_rest(m, 0));
    size_t offset, n = same_text(m, known, n_known, &offset);
    for (; n && n < n_known && !is_marker(m->tok, known[n - 1]); n--) offset -= size_of(m->tok, known[n - 1]);
    if (!n) return MF_OK;
    m->p->n_ids = 0;
    MF__TRY(mf__prompt_append(m->p, known, n, m->err));
    return encode_rest(m, offset);
}

/* ---- marks ------------------------------------------------------------------------------------------------------ */

/* The number of tokens that make up the first `offset` bytes; 0 when no token ends there. */
static int64_t tokens_of(const making *m, size_t offset) {
    size_t at = 0;
    for (size_t i = 0; i < m->p->n_ids && at < offset; i++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(m->tok, m->p->ids[i], &size);
        if (size > offset - at || memcmp(m->whole.plain.data + at, bytes, size))
            return 0; /* a normalized text is another */
        at += size;
        if (at == offset) return (int64_t)i + 1;
    }
    return 0;
}

/* The tokens that lie before an offset as a whole. */
static int64_t tokens_before(const making *m, size_t offset) {
    size_t at = 0, i = 0;
    for (; i < m->p->n_ids; i++) {
        at += size_of(m->tok, m->p->ids[i]);
        if (at > offset) break;
    }
    return (int64_t)i;
}

/* Keeps marks in rising order. */
static void add_mark(mf__prompt *p, int64_t at) {
    size_t i = p->n_marks;
    if (at <= 0 || i == MF__COUNT(p->marks)) return;
    while (i && p->marks[i - 1] > at) i--;
    if (i && p->marks[i - 1] == at) return;
    memmove(p->marks + i + 1, p->marks + i, (p->n_marks - i) * sizeof *p->marks);
    p->marks[i] = at;
    p->n_marks++;
}

/* The end of the first n messages. A template may refuse the shorter conversation or write it otherwise: then there is
 * no such place, which costs time and nothing else. */
static int64_t place_after(const making *m, size_t n) {
    mf_error err;
    rendering part = {0};
    int64_t at = 0;
    const json_t *all = json_object_get(m->request, "messages");
    json_t *shorter = json_copy(m->request), *messages = json_array();
    for (size_t i = 0; messages && i < n; i++) json_array_append(messages, json_array_get(all, i));
    int bad = !shorter || !messages || json_object_set(shorter, "messages", messages) ||
              json_object_set_new(shorter, "add_generation_prompt", json_false());
    const mf__strbuf *whole = &m->whole.plain;
    if (!bad && render(m, shorter, &part, &err) == MF_OK && part.plain.size && part.plain.size <= whole->size &&
        !memcmp(part.plain.data, whole->data, part.plain.size))
        at = tokens_of(m, part.plain.size);
    free_rendering(&part);
    json_decref(messages);
    json_decref(shorter);
    return at;
}

static void make_marks(making *m, int n_marks) {
    const json_t *messages = json_object_get(m->request, "messages");
    size_t n = json_array_size(messages), first = n > MARKED_TURNS ? n - MARKED_TURNS + 1 : 1;
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    if (first > 1 && role && !strcmp(role, "system")) add_mark(m->p, place_after(m, 1));
    for (size_t i = first; i <= n; i++) add_mark(m->p, place_after(m, i));
    for (int i = 0; i < n_marks; i++) {
        if (m->whole.places[i]) m->p->asked[i] = tokens_before(m, m->whole.places[i]);
        add_mark(m->p, m->p->asked[i]);
    }
    add_mark(m->p, (int64_t)m->p->n_ids);
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static mf_status make_text(making *m, const json_t *request) {
    const mf__fencer *fencer;
    MF__TRY(mf__text_fencer(m->text, &fencer, m->err));
    MF__TRY(mf__fence_value(fencer, &m->fence, m->text->chat.splits_reasoning, request, &m->request, m->err));
    MF__TRY(render(m, m->request, &m->whole, m->err));
    if (!m->whole.plain.size) return mf__fail(m->err, MF_E_INVALID, "the chat template gives an empty prompt");
    return MF_OK;
}

static void free_making(making *m) {
    free_rendering(&m->whole);
    json_decref(m->request);
}

mf_status mf__prompt_make(const mf_text *text, const mf__request *request, int n_marks, const int32_t *known,
                          size_t n_known, mf__prompt *out, mf_error *err) {
    making m = {.text = text, .tok = text->tok, .fence = request->fence, .p = out, .err = err};
    *out = (mf__prompt){0};
    mf_status st = make_text(&m, request->root);
    if (st == MF_OK) st = make_ids(&m, known, known ? n_known : 0);
    if (st == MF_OK) {
        make_marks(&m, n_marks);
        out->in_reasoning = mf__text_opens_reasoning(m.whole.plain.data, m.whole.plain.size);
        out->closed_reasoning = mf__text_closes_reasoning(m.whole.plain.data, m.whole.plain.size);
    } else {
        mf__prompt_free(out);
    }
    free_making(&m);
    return st;
}

void mf__prompt_free(mf__prompt *p) {
    free(p->ids);
    *p = (mf__prompt){0};
}

mf_status mf_text_chat(const mf_text *t, const char *request, size_t size, int32_t *ids, size_t max, size_t *n,
                       mf_error *err) {
    json_t *root;
    mf__prompt p = {0};
    if (!t || !request || !n || (max && !ids)) return mf__fail(err, MF_E_INVALID, "mf_text_chat: an argument is NULL");
    if (size > MF__MAX_BYTES) return mf__fail(err, MF_E_INVALID, "mf_text_chat: a request of %zu bytes", size);
    MF__TRY(mf__chat_parse(request, size, &root, err));
    making m = {.text = t, .tok = t->tok, .p = &p, .err = err};
    mf_status st = t->chat.jinja ? mf__fence_choose(root, 0, &m.fence, err)
                                 : mf__fail(err, MF_E_NOT_FOUND,
                                            "the model has no chat template: neither chat_template.jinja nor "
                                            "chat_template in tokenizer_config.json");
    if (st == MF_OK) st = make_text(&m, root);
    if (st == MF_OK) st = encode_rest(&m, 0);
    if (st == MF_OK) {
        *n = p.n_ids;
        if (p.n_ids && max) memcpy(ids, p.ids, (p.n_ids < max ? p.n_ids : max) * sizeof *ids);
    }
    mf__prompt_free(&p);
    free_making(&m);
    json_decref(root);
    return st;
}
