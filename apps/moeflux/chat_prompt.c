/* From a conversation to token ids.
 *
 * What people write may hold a marker, say in a question about <|im_end|>. Before rendering, every marker in such a
 * content is put between two noncharacters; afterwards the rendered text is cut at these, and what lies between them is
 * encoded as ordinary text. */
#include <stdlib.h>
#include <string.h>

#include "chat_prompt.h"

#define OPEN "\xEF\xB7\x90"  /* U+FDD0 */
#define CLOSE "\xEF\xB7\x91" /* U+FDD1 */
#define FENCE 3              /* bytes of each */

#define MARKED_TURNS 5 /* of the latest, whose ends are marked */

/* The rendered text without fences, and the stretches that are ordinary text whatever they look like. */
typedef struct stretch {
    size_t from, to;
} stretch;

typedef struct rendering {
    mf__strbuf text;
    stretch *plain;
    size_t n_plain;
} rendering;

static void free_rendering(rendering *r) {
    mf__strbuf_free(&r->text);
    free(r->plain);
}

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for the prompt");
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

/* ---- fences ----------------------------------------------------------------------------------------------------- */

/* The content with its markers fenced in; *out stays NULL when there are none. Noncharacters are not for interchange:
 * a content that has some of its own is refused. */
static mf_status fence_text(const mf__tokenizer *tok, const json_t *content, json_t **out, mf_error *err) {
    const char *bytes_in = json_string_value(content);
    size_t n_in = json_string_length(content), n, n_markers = 0;
    int32_t *ids;
    mf__strbuf text = {0};
    *out = NULL;
    if (memmem(bytes_in, n_in, OPEN, FENCE) || memmem(bytes_in, n_in, CLOSE, FENCE))
        return mf__fail(err, MF_E_INVALID, "a message contains U+FDD0 or U+FDD1, which are not characters");
    MF__TRY(mf__tokenizer_encode(tok, bytes_in, n_in, true, &ids, &n, err));
    mf_status st = MF_OK;
    for (size_t i = 0; i < n && st == MF_OK; i++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(tok, ids[i], &size);
        bool marker = is_marker(tok, ids[i]);
        n_markers += marker;
        if (marker) st = mf__strbuf_append(&text, OPEN, FENCE, err);
        if (st == MF_OK) st = mf__strbuf_append(&text, bytes, size, err);
        if (st == MF_OK && marker) st = mf__strbuf_append(&text, CLOSE, FENCE, err);
    }
    free(ids);
    if (st == MF_OK && n_markers && !(*out = json_stringn(text.data, text.size))) st = no_memory(err);
    mf__strbuf_free(&text);
    return st;
}

/* A copy of the messages with fences in everything but the assistant's own words. */
static mf_status fence_messages(const mf__tokenizer *tok, const json_t *messages, json_t **out, mf_error *err) {
    size_t i;
    json_t *message, *copy = json_array();
    mf_status st = copy ? MF_OK : no_memory(err);
    json_array_foreach((json_t *)messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        const json_t *content = json_object_get(message, "content");
        json_t *fenced = NULL;
        if (st == MF_OK && role && strcmp(role, "assistant") && json_is_string(content))
            st = fence_text(tok, content, &fenced, err);
        if (st != MF_OK) break;
        json_t *m = fenced ? json_copy(message) : json_incref(message);
        if (fenced) json_object_set_new(m, "content", fenced);
        if (json_array_append_new(copy, m)) st = no_memory(err);
    }
    if (st != MF_OK) {
        json_decref(copy);
        copy = NULL;
    }
    *out = copy;
    return st;
}

static mf_status take_down_fences(const mf__strbuf *fenced, rendering *out, mf_error *err) {
    const char *at = fenced->data ? fenced->data : "", *end = at + fenced->size;
    while (at < end) {
        const char *open = memmem(at, (size_t)(end - at), OPEN, FENCE);
        const char *close = open ? memmem(open, (size_t)(end - open), CLOSE, FENCE) : NULL;
        if (!close) return mf__strbuf_append(&out->text, at, (size_t)(end - at), err);
        MF__TRY(mf__strbuf_append(&out->text, at, (size_t)(open - at), err));
        stretch *more = realloc(out->plain, (out->n_plain + 1) * sizeof *more);
        if (!more) return no_memory(err);
        out->plain = more;
        more[out->n_plain].from = out->text.size;
        MF__TRY(mf__strbuf_append(&out->text, open + FENCE, (size_t)(close - open - FENCE), err));
        more[out->n_plain++].to = out->text.size;
        at = close + FENCE;
    }
    return MF_OK;
}

static mf_status render(const mf__chat *f, const mf__chat_request *r, rendering *out, mf_error *err) {
    mf__strbuf fenced = {0};
    mf_status st = mf__chat_render(f, r, &fenced, err);
    if (st == MF_OK) st = take_down_fences(&fenced, out, err);
    mf__strbuf_free(&fenced);
    return st;
}

/* ---- ids -------------------------------------------------------------------------------------------------------- */

static mf_status append_ids(chat_prompt *p, const int32_t *ids, size_t n, mf_error *err) {
    int32_t *more = realloc(p->ids, (p->n_ids + n + 1) * sizeof *more);
    if (!more) return no_memory(err);
    p->ids = more;
    if (n) memcpy(more + p->n_ids, ids, n * sizeof *ids);
    p->n_ids += n;
    return MF_OK;
}

static mf_status encode(const mf__tokenizer *tok, const char *text, size_t size, bool special, chat_prompt *p,
                        mf_error *err) {
    int32_t *ids;
    size_t n;
    if (!size) return MF_OK;
    MF__TRY(mf__tokenizer_encode(tok, text, size, special, &ids, &n, err));
    mf_status st = append_ids(p, ids, n, err);
    free(ids);
    return st;
}

/* Everything from an offset on. */
static mf_status encode_rest(const mf__tokenizer *tok, const rendering *r, size_t from, chat_prompt *p, mf_error *err) {
    for (size_t i = 0; i < r->n_plain; i++) {
        const stretch *s = &r->plain[i];
        if (s->from < from) continue;
        MF__TRY(encode(tok, r->text.data + from, s->from - from, true, p, err));
        MF__TRY(encode(tok, r->text.data + s->from, s->to - s->from, false, p, err));
        from = s->to;
    }
    return encode(tok, r->text.data + from, r->text.size - from, true, p, err);
}

static size_t size_of(const mf__tokenizer *tok, int32_t id) {
    size_t n = 0;
    if (id >= 0) mf__tokenizer_bytes(tok, id, &n);
    return n;
}

/* How many of the known tokens spell the beginning of the text. p has the text's own tokens: where these have a marker
 * the known ones must have it too, and nowhere else. */
static size_t same_text(const mf__tokenizer *tok, const rendering *r, const chat_prompt *p, const int32_t *known,
                        size_t n, size_t *offset) {
    size_t at = 0, own = 0, own_at = 0, i = 0;
    for (; i < n; i++) {
        size_t size = size_of(tok, known[i]);
        if (!size || size > r->text.size - at ||
            memcmp(r->text.data + at, mf__tokenizer_bytes(tok, known[i], &size), size))
            break;
        bool marker = false, crossed = false;
        for (; own < p->n_ids && own_at < at + size; own_at += size_of(tok, p->ids[own++]))
            if (own_at >= at && is_marker(tok, p->ids[own])) {
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
static mf_status make_ids(const mf__tokenizer *tok, const rendering *r, const int32_t *known, size_t n_known,
                          chat_prompt *p, mf_error *err) {
    MF__TRY(encode_rest(tok, r, 0, p, err));
    size_t offset, n = same_text(tok, r, p, known, n_known, &offset);
    for (; n && n < n_known && !is_marker(tok, known[n - 1]); n--) offset -= size_of(tok, known[n - 1]);
    if (!n) return MF_OK;
    p->n_ids = 0;
    MF__TRY(append_ids(p, known, n, err));
    return encode_rest(tok, r, offset, p, err);
}

/* ---- marks ------------------------------------------------------------------------------------------------------ */

/* The number of tokens that make up the first `offset` bytes; 0 when no token ends there. */
static int64_t tokens_of(const mf__tokenizer *tok, const rendering *r, const chat_prompt *p, size_t offset) {
    size_t at = 0;
    for (size_t i = 0; i < p->n_ids && at < offset; i++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(tok, p->ids[i], &size);
        if (size > offset - at || memcmp(r->text.data + at, bytes, size)) return 0; /* a normalized text is another */
        at += size;
        if (at == offset) return (int64_t)i + 1;
    }
    return 0;
}

static void add_mark(chat_prompt *p, int64_t at) {
    if (at > 0 && p->n_marks < CHAT_MAX_MARKS && (!p->n_marks || at > p->marks[p->n_marks - 1]))
        p->marks[p->n_marks++] = at;
}

/* The end of the first n messages. A template may refuse the shorter conversation or write it otherwise: then there is
 * no such place, which costs time and nothing else. */
static void mark_after(const mf__chat *f, const mf__tokenizer *tok, const mf__chat_request *r, size_t n,
                       const rendering *whole, chat_prompt *p) {
    mf_error err;
    rendering part = {0};
    json_t *messages = json_array();
    for (size_t i = 0; messages && i < n; i++) json_array_append(messages, json_array_get(r->messages, i));
    mf__chat_request shorter = {.messages = messages, .tools = r->tools, .think = r->think};
    if (messages && render(f, &shorter, &part, &err) == MF_OK && part.text.size && part.text.size <= whole->text.size &&
        !memcmp(part.text.data, whole->text.data, part.text.size))
        add_mark(p, tokens_of(tok, whole, p, part.text.size));
    free_rendering(&part);
    json_decref(messages);
}

static void make_marks(const mf__chat *f, const mf__tokenizer *tok, const mf__chat_request *r, const rendering *whole,
                       chat_prompt *p) {
    size_t n = json_array_size(r->messages), first = n > MARKED_TURNS ? n - MARKED_TURNS + 1 : 1;
    const char *role = json_string_value(json_object_get(json_array_get(r->messages, 0), "role"));
    if (first > 1 && role && !strcmp(role, "system")) mark_after(f, tok, r, 1, whole, p);
    for (size_t i = first; i <= n; i++) mark_after(f, tok, r, i, whole, p);
    add_mark(p, (int64_t)p->n_ids);
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static bool ends_in_think(const mf__strbuf *text) {
    static const char think[] = "<think>";
    size_t n = text->size, k = sizeof think - 1;
    while (n && strchr(" \n\t\r", text->data[n - 1])) n--;
    return n >= k && !memcmp(text->data + n - k, think, k);
}

mf_status chat_prompt_make(const mf__chat *f, const mf__tokenizer *tok, const mf__chat_request *r, const int32_t *known,
                           size_t n_known, chat_prompt *out, mf_error *err) {
    rendering whole = {0};
    json_t *fenced = NULL;
    *out = (chat_prompt){0};
    mf_status st = fence_messages(tok, r->messages, &fenced, err);
    mf__chat_request inner = *r;
    inner.messages = fenced;
    if (st == MF_OK) st = render(f, &inner, &whole, err);
    if (st == MF_OK && !whole.text.size) st = mf__fail(err, MF_E_INVALID, "the chat template gives an empty prompt");
    if (st == MF_OK) st = make_ids(tok, &whole, known, known ? n_known : 0, out, err);
    if (st == MF_OK) {
        make_marks(f, tok, &inner, &whole, out);
        out->in_reasoning = ends_in_think(&whole.text);
    } else
        chat_prompt_free(out);
    free_rendering(&whole);
    json_decref(fenced);
    return st;
}

void chat_prompt_free(chat_prompt *p) {
    free(p->ids);
    *p = (chat_prompt){0};
}
