/* The stream: finds markers across pieces and switches between answer, reasoning and tool calls.
 *
 *                <think>                       </think>
 *      ANSWER ------------> REASONING -----------------------> ANSWER
 *        |                      |
 *        +--- <tool_call> ------+--> BLOCK --- </tool_call> --> calls, ANSWER
 *                                      |
 *                                      +--- is no call: back, the marker is text and the block is looked at again
 *
 * A call inside reasoning is a thought where the reasoning is closed later, and a call where it never is: from such a
 * call on all waits (PENDING) for </think> or the end.
 *
 * harmony (gpt-oss) has messages with headers instead: HEADER --- <|message|> --> ANSWER, REASONING or BLOCK. */
#include "reply/answer.h"

#include <stdlib.h>
#include <string.h>

#include "reply/calls.h"
#include "reply/pieces.h"
#include "reply/values.h"

#define MAX_BLOCK ((size_t)4 << 20)
#define MAX_GIVEN_UP 256 /* blocks that were none; then text is text */
#define MAX_CLOSINGS 256 /* closing markers inside a block's values */

typedef enum state { ANSWER, REASONING, BLOCK, PENDING, HEADER } state;
typedef enum action { THINK, THINK_END, CALL, CALL_END, ABORT, MESSAGE, MESSAGE_END, NOTHING, WRAP, WRAP_END } action;

typedef struct marker {
    const char *text;
    action action;
} marker;

#define MAX_MARKERS 12

struct mf_answer {
    mf__answer_setup opt;
    state state, origin; /* origin: where the block began */
    bool fresh;          /* nothing of this stretch came out yet: leading white space is dropped */
    bool begun;          /* something came out: the time to begin to think is over */
    bool final;          /* the answer is over, and its reasoning was not closed */
    bool wrapped;        /* in the tags around the answer */
    bool bare;           /* a call without its outer tag came: the closing one may still come */
    mf__strbuf held;     /* not looked at yet: may begin a marker */
    mf__strbuf again;    /* what held becomes after a block that was none */
    mf__strbuf space;    /* white space that comes out if more text follows */
    mf__strbuf block;    /* the inside of a tool call, or a harmony header */
    mf__strbuf name;     /* harmony: the tool that is called */
    bool to_function;    /* ... is one of the request's */
    const char *opened;  /* the marker that began the block */
    bool sure;           /* a constraint holds blocks to their form */
    mf__pieces pieces;   /* what has come out of such a block already */
    int n_calls, n_given_up, n_closings;
};

/* ---- what to look for ------------------------------------------------------------------------------------------ */

/* The markers around calls. A model may leave the outer ones out: then the inner one begins the block, and is a part of
 * it. */
typedef struct call_markers {
    const char *open[2], *close[2], *inner, *inner_close;
} call_markers;

static const call_markers all_markers[MF__NOTATIONS] = {
    [MF__NOTATION_TAGS] =
        {{"<tool_call>", "<tool_calls>"}, {"</tool_call>", "</tool_calls>"}, "<function=", "</function>"},
    [MF__NOTATION_DEEPSEEK] = {{"<｜tool▁calls▁begin｜>"},
                               {"<｜tool▁calls▁end｜>"},
                               "<｜tool▁call▁begin｜>",
                               "<｜tool▁calls▁end｜>"},
    [MF__NOTATION_KIMI] = {{"<|tool_calls_section_begin|>"},
                           {"<|tool_calls_section_end|>"},
                           "<|tool_call_begin|>",
                           "<|tool_calls_section_end|>"},
    [MF__NOTATION_MINIMAX] = {{"<minimax:tool_call>"}, {"</minimax:tool_call>"}, NULL, NULL},
    [MF__NOTATION_DSML] = {{"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"},
                           {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"},
                           NULL,
                           NULL},
    [MF__NOTATION_HY3] = {{"<tool_calls:opensource>"}, {"</tool_calls:opensource>"}, NULL, NULL},
    [MF__NOTATION_MINIMAX3] = {{"]<]minimax[>[<tool_call>"}, {"]<]minimax[>[</tool_call>"}, NULL, NULL},
    [MF__NOTATION_MISTRAL] = {{"[TOOL_CALLS]"}, {NULL}, NULL, NULL}, /* ends with the answer */
    [MF__NOTATION_GEMMA] = {{"<|tool_call>"}, {"<tool_call|>"}, NULL, NULL},
};

static const call_markers *call_markers_of(const mf_answer *p) {
    return &all_markers[p->opt.notation];
}

static bool is_bare(const mf_answer *p) {
    return p->opened && p->opened == call_markers_of(p)->inner;
}

static int add_call_markers(const mf_answer *p, marker *out) {
    const call_markers *c = call_markers_of(p);
    bool tags = p->opt.notation == MF__NOTATION_TAGS;
    int n = 0;
    if (p->opt.no_calls || p->n_given_up >= MAX_GIVEN_UP) return 0;
    for (int i = 0; i < 2; i++)
        if (c->open[i]) out[n++] = (marker){c->open[i], CALL};
    /* "<function=" alone is a word of people, too: only where there are tools */
    if (c->inner && (!tags || json_array_size(p->opt.tools))) out[n++] = (marker){c->inner, CALL};
    return n;
}

static const char *closing_of(const mf_answer *p) {
    const call_markers *c = call_markers_of(p);
    if (is_bare(p)) return c->inner_close;
    return c->open[1] && p->opened == c->open[1] ? c->close[1] : c->close[0];
}

/* Reasoning comes before all else; Gemma's markers are tokens of their own, and mean it wherever they stand. */
static bool may_think(const mf_answer *p) {
    return !p->begun || p->opt.notation == MF__NOTATION_GEMMA;
}

/* Reasoning may be closed that was not opened: there is none. */
static bool has_stray_marks(const mf_answer *p) {
    return p->opt.notation == MF__NOTATION_GEMMA || p->opt.notation == MF__NOTATION_MINIMAX3;
}

static int markers(const mf_answer *p, marker out[MAX_MARKERS]) {
    static const marker ends[] = {{"<|end|>", MESSAGE_END},
                                  {"<|return|>", MESSAGE_END},
                                  {"<|call|>", MESSAGE_END},
                                  {"<|start|>", MESSAGE_END},
                                  {"<|channel|>", MESSAGE_END}};
    const mf__think *think = mf__think_of(p->opt.notation);
    int n = 0;
    if (p->state == HEADER) {
        out[n++] = (marker){"<|message|>", MESSAGE};
    } else if (p->opt.notation == MF__NOTATION_HARMONY) {
        memcpy(out, ends, sizeof ends);
        n = (int)MF__COUNT(ends);
    } else if (p->state == BLOCK) {
        if (closing_of(p)) out[n++] = (marker){closing_of(p), CALL_END};
        if (p->origin == REASONING) out[n++] = (marker){think->close, ABORT};
    } else if (p->state == PENDING) {
        out[n++] = (marker){think->close, THINK_END};
    } else if (p->state == REASONING) {
        out[n++] = (marker){think->close, THINK_END};
        n += add_call_markers(p, out + n);
    } else {
        if (may_think(p)) out[n++] = (marker){think->open, THINK};
        if (may_think(p) && has_stray_marks(p)) out[n++] = (marker){think->close, THINK_END};
        if (p->bare) out[n++] = (marker){call_markers_of(p)->close[0], NOTHING};
        if (p->opt.wrap && p->fresh && !p->wrapped) out[n++] = (marker){p->opt.wrap[0], WRAP};
        if (p->opt.wrap && p->wrapped) out[n++] = (marker){p->opt.wrap[1], WRAP_END};
        n += add_call_markers(p, out + n);
    }
    return n;
}

/* ---- giving out ------------------------------------------------------------------------------------------------ */

static mf_status emit(mf_answer *p, mf_event_kind kind, const char *text, size_t n) {
    if (n == 0) return MF_OK;
    return p->opt.fn(p->opt.user, &(mf_event){.kind = kind, .text = text, .n_text = n});
}

/* Text of the current stretch: leading white space goes, trailing white space waits. */
static mf_status say(mf_answer *p, const char *text, size_t n, mf_error *err) {
    mf_event_kind kind = p->state == REASONING ? MF_EVENT_REASONING : MF_EVENT_TEXT;
    while (p->fresh && n && mf__is_space(*text)) text++, n--;
    if (n == 0) return MF_OK;
    p->fresh = false;
    size_t body = n;
    while (body && mf__is_space(text[body - 1])) body--;
    if (body) {
        p->begun = true;
        p->bare = false;
        MF__TRY(emit(p, kind, p->space.data, p->space.size));
        mf__strbuf_clear(&p->space);
        MF__TRY(emit(p, kind, text, body));
    }
    return mf__strbuf_append(&p->space, text + body, n - body, err);
}

static mf_status begin_call(mf_answer *p, const char *name, const char *id) {
    p->begun = true;
    return p->opt.fn(p->opt.user, &(mf_event){.kind = MF_EVENT_CALL, .call = p->n_calls, .name = name, .id = id});
}

static mf_status say_arguments(mf_answer *p, const char *text, size_t n) {
    if (!n) return MF_OK;
    return p->opt.fn(p->opt.user,
                     &(mf_event){.kind = MF_EVENT_ARGUMENTS, .call = p->n_calls, .text = text, .n_text = n});
}

static mf_status end_call(mf_answer *p) {
    return p->opt.fn(p->opt.user, &(mf_event){.kind = MF_EVENT_CALL_END, .call = p->n_calls++});
}

/* The calls of a block that was read: all that has not come out yet. */
static mf_status say_calls(mf_answer *p, const mf__calls *calls) {
    size_t begun = (size_t)p->pieces.n_begun, given = p->pieces.n_given;
    for (size_t i = begun ? begun - 1 : 0; i < calls->n; i++) {
        const mf__call *call = &calls->calls[i];
        size_t skip = i + 1 != begun ? 0 : given < call->arguments.size ? given : call->arguments.size;
        if (i + 1 != begun) MF__TRY(begin_call(p, call->name.data, call->id.data));
        MF__TRY(say_arguments(p, call->arguments.data + skip, call->arguments.size - skip));
        MF__TRY(end_call(p));
    }
    return MF_OK;
}

/* A name that no tool can have: it is left to the block as a whole. */
static void leave_to_block(mf__pieces *p) {
    p->n_begun--;
    p->n_given = SIZE_MAX; /* all of the call before */
    p->inside = false;
    p->blind = true;
}

static mf_status begin_piece(mf_answer *p, const mf__piece *piece, mf_error *err) {
    mf__strbuf name = {0}, id = {0};
    mf_status st = piece->quoted ? mf__json_unquote(&name, piece->name, err)
                                 : mf__strbuf_append(&name, piece->name.s, piece->name.n, err);
    bool good = mf__calls_is_name((mf__span){name.data, name.size});
    if (!good) leave_to_block(&p->pieces);
    if (st == MF_OK && piece->id.n) st = mf__strbuf_append(&id, piece->id.s, piece->id.n, err);
    if (st == MF_OK && good && p->pieces.n_begun > 1) st = end_call(p);
    if (st == MF_OK && good) st = begin_call(p, name.data, id.data);
    mf__strbuf_free(&name);
    mf__strbuf_free(&id);
    return st;
}

/* What of the calls in an open block is certain already. */
static mf_status say_pieces(mf_answer *p, mf_error *err) {
    mf__piece piece;
    mf__pieces_event e;
    if (!p->sure || p->state != BLOCK || p->origin == REASONING || is_bare(p) || !p->block.size) return MF_OK;
    mf__span name = {p->name.data ? p->name.data : "", p->name.size}, block = {p->block.data, p->block.size};
    while ((e = mf__pieces_next(&p->pieces, p->opt.notation, name, block, &piece)) != MF__PIECES_WAIT)
        MF__TRY(e == MF__PIECES_BEGIN ? begin_piece(p, &piece, err) : say_arguments(p, piece.text.s, piece.text.n));
    return MF_OK;
}

static void enter(mf_answer *p, state to) {
    p->state = to;
    p->fresh = true;
    mf__strbuf_clear(&p->space);
    mf__strbuf_clear(&p->block);
    p->pieces = (mf__pieces){0};
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void begin_block(mf_answer *p, const char *opened) {
    p->opened = opened;
    p->origin = p->state;
    p->state = BLOCK; /* the white space before it is still due, should this be no call */
    p->n_closings = 0;
    p->pieces = (mf__pieces){0};
    mf__strbuf_clear(&p->block);
}

/* The block was none: its marker is text, and what follows is looked at again, `rest` behind it. Of one that calls came
 * out of already nothing is said twice: the last of them has no end. */
static mf_status give_up_block(mf_answer *p, const char *rest, size_t n_rest, mf_error *err) {
    bool begun = p->pieces.n_begun > 0;
    p->state = p->origin;
    p->n_given_up++;
    p->n_calls += begun;
    if (!begun) MF__TRY(say(p, p->opened, strlen(p->opened), err));
    mf__strbuf_clear(&p->again);
    if (!begun) MF__TRY(mf__strbuf_append(&p->again, p->block.data, p->block.size, err));
    MF__TRY(mf__strbuf_append(&p->again, rest, n_rest, err));
    mf__strbuf_clear(&p->block);
    p->pieces = (mf__pieces){0};
    mf__strbuf held = p->held;
    p->held = p->again;
    p->again = held;
    return MF_OK;
}

/* A call without its outer tag counts if the request has such a tool. */
static bool is_known(const mf_answer *p, const mf__calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        const mf__strbuf *name = &calls->calls[i].name;
        if (!mf__tool_find(p->opt.tools, (mf__span){name->data, name->size})) return false;
    }
    return true;
}

/* Reads the block; with `closing` (NULL at the end of the answer) a marker was found that may end it. */
static mf_status read_block(mf_answer *p, const char *closing, mf__calls *calls, mf__calls_verdict *verdict,
                            mf_error *err) {
    mf__strbuf whole = {0};
    mf__span block = {p->block.data ? p->block.data : "", p->block.size};
    bool bare = is_bare(p), tags = p->opt.notation == MF__NOTATION_TAGS;
    mf_status st = MF_OK;
    if (bare) {
        st = mf__strbuf_append(&whole, p->opened, strlen(p->opened), err);
        if (st == MF_OK) st = mf__strbuf_append(&whole, block.s, block.n, err);
        if (st == MF_OK && closing && tags) st = mf__strbuf_append(&whole, closing, strlen(closing), err);
        block = (mf__span){whole.data, whole.size};
    }
    if (st == MF_OK) st = mf__calls_read(p->opt.notation, p->opt.tools, block, calls, verdict, err);
    if (st == MF_OK && bare && tags && *verdict == MF__CALLS_READ && !is_known(p, calls)) {
        mf__calls_free(calls);
        *verdict = MF__CALLS_NONE;
    }
    mf__strbuf_free(&whole);
    return st;
}

/* From here on the text of the call, and what follows, waits in the block. */
static mf_status wait_for_end(mf_answer *p, const char *closing, mf_error *err) {
    mf__strbuf_clear(&p->again);
    MF__TRY(mf__strbuf_append(&p->again, p->opened, strlen(p->opened), err));
    MF__TRY(mf__strbuf_append(&p->again, p->block.data, p->block.size, err));
    if (closing) MF__TRY(mf__strbuf_append(&p->again, closing, strlen(closing), err));
    mf__strbuf block = p->block;
    p->block = p->again;
    p->again = block;
    p->state = PENDING;
    return MF_OK;
}

/* The reasoning was closed: it was a thought. */
static mf_status say_pending(mf_answer *p, mf_error *err) {
    if (p->state != PENDING) return MF_OK;
    p->state = REASONING;
    return say(p, p->block.data, p->block.size, err);
}

typedef enum outcome { ENDED, GOES_ON, IS_NONE } outcome;

/* A closing marker, or the end. GOES_ON: the marker is inside a value and a part of the block. */
static mf_status end_block(mf_answer *p, const char *closing, outcome *out, mf_error *err) {
    mf__calls calls = {0};
    mf__calls_verdict verdict;
    MF__TRY(read_block(p, closing, &calls, &verdict, err));
    *out = verdict == MF__CALLS_READ ? ENDED : verdict == MF__CALLS_OPEN && closing ? GOES_ON : IS_NONE;
    if (*out == GOES_ON) {
        p->n_closings++;
        return mf__strbuf_append(&p->block, closing, strlen(closing), err);
    }
    if (*out == IS_NONE) return MF_OK;
    bool wait = p->origin == REASONING && !p->final;
    mf_status st = wait ? wait_for_end(p, closing, err) : say_calls(p, &calls);
    mf__calls_free(&calls);
    if (wait) return st;
    p->bare = is_bare(p);
    enter(p, p->origin);
    return st;
}

/* ---- harmony --------------------------------------------------------------------------------------------------- */

/* The last of several, as "<|channel|>commentary to=assistant<|channel|>analysis". */
static mf__span channel_of(mf__span header) {
    mf__span before, channel = header;
    while (mf__span_cut(&header, "<|channel|>", &before)) channel = header;
    channel = mf__span_trim(channel);
    size_t n = 0;
    while (n < channel.n && !mf__is_space(channel.s[n]) && channel.s[n] != '<') n++;
    return (mf__span){channel.s, n};
}

/* A header is complete: "<|channel|>commentary to=functions.f <|constrain|>json". */
static mf_status begin_message(mf_answer *p, mf_error *err) {
    mf__span header = {p->block.data ? p->block.data : "", p->block.size}, rest = header, before, to = {"", 0};
    while (mf__span_cut(&rest, "to=", &before)) to = rest;
    size_t n = 0;
    while (n < to.n && !mf__is_space(to.s[n]) && to.s[n] != '<') n++;
    to.n = n;
    if (mf__span_is(to, "assistant") || mf__span_is(to, "user")) to.n = 0;
    p->to_function = mf__span_begins(to, "functions.");
    if (p->to_function) mf__span_skip(&to, strlen("functions."));
    bool analysis = mf__span_is(channel_of(header), "analysis");
    mf__strbuf_clear(&p->name);
    MF__TRY(mf__strbuf_append(&p->name, to.s, to.n, err));
    enter(p, to.n ? BLOCK : analysis ? REASONING : ANSWER);
    return MF_OK;
}

/* What is said to a tool that is no function, and is no JSON (code for a built-in interpreter), is for nobody here. */
static mf_status end_message(mf_answer *p, mf_error *err) {
    if (p->state == BLOCK) {
        mf__calls calls = {0};
        mf__calls_verdict verdict;
        mf_status st = mf__calls_add(&calls, (mf__span){p->name.data, p->name.size},
                                     (mf__span){p->block.data ? p->block.data : "", p->block.size}, &verdict, err);
        if (st == MF_OK && verdict == MF__CALLS_READ) st = say_calls(p, &calls);
        if (st == MF_OK && verdict != MF__CALLS_READ && p->to_function && !p->pieces.n_begun) {
            p->state = ANSWER;
            st = say(p, p->block.data, p->block.size, err);
        }
        mf__calls_free(&calls);
        MF__TRY(st);
    }
    enter(p, HEADER);
    return MF_OK;
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

static mf_status consume(mf_answer *p, const char *text, size_t n, mf_error *err) {
    if (p->state == ANSWER || p->state == REASONING) return say(p, text, n, err);
    MF__TRY(mf__strbuf_append(&p->block, text, n, err));
    if (p->state == PENDING && p->block.size > MAX_BLOCK) {
        MF__TRY(say_pending(p, err));
        mf__strbuf_clear(&p->block);
    }
    MF__TRY(say_pieces(p, err));
    if (p->block.size <= MAX_BLOCK || p->opt.notation != MF__NOTATION_HARMONY) return MF_OK;
    return mf__fail(err, MF_E_LIMIT, "a tool call of more than %zu bytes", MAX_BLOCK);
}

static bool block_is_hopeless(const mf_answer *p) {
    if (p->state != BLOCK || p->opt.notation == MF__NOTATION_HARMONY) return false;
    if (p->block.size > MAX_BLOCK || p->n_closings >= MAX_CLOSINGS) return true;
    return !is_bare(p) && !mf__calls_may_be(p->opt.notation, (mf__span){p->block.data, p->block.size});
}

/* What a marker does. *restart: p->held was changed, and is to be looked at from its beginning; `rest` is what follows
 * the marker in it. */
static mf_status act(mf_answer *p, marker m, mf__span rest, bool *restart, mf_error *err) {
    outcome out = IS_NONE;
    switch (m.action) {
    case THINK: enter(p, REASONING); return MF_OK;
    case THINK_END:
        MF__TRY(say_pending(p, err));
        p->begun = true;
        enter(p, ANSWER);
        return MF_OK;
    case CALL: begin_block(p, m.text); return MF_OK;
    case CALL_END:
        MF__TRY(end_block(p, m.text, &out, err));
        if (out != IS_NONE) return MF_OK;
        break;
    case ABORT: break;
    case MESSAGE: return begin_message(p, err);
    case MESSAGE_END: return end_message(p, err);
    case NOTHING: return MF_OK;
    case WRAP: p->wrapped = true; return MF_OK;
    case WRAP_END:
        p->wrapped = false;
        mf__strbuf_clear(&p->space);
        return MF_OK;
    }
    *restart = true;
    size_t n = strlen(m.text);
    return give_up_block(p, rest.s - n, rest.n + n, err); /* the marker too is looked at again */
}

/* How many bytes at the end of s may be the beginning of a marker. */
static size_t partial(const char *s, size_t n, const marker *m, int n_markers) {
    size_t best = 0;
    for (int i = 0; i < n_markers; i++) {
        size_t k = strlen(m[i].text) - 1;
        if (k > n) k = n;
        for (; k > best; k--)
            if (memcmp(s + n - k, m[i].text, k) == 0) best = k;
    }
    return best;
}

/* The first marker in s; of two that begin at the same place the longer. */
static const char *find_marker(mf__span s, const marker *m, int n_markers, marker *hit) {
    const char *first = NULL;
    for (int i = 0; i < n_markers; i++) {
        const char *q = memmem(s.s, s.n, m[i].text, strlen(m[i].text));
        if (q && (!first || q < first || (q == first && strlen(m[i].text) > strlen(hit->text)))) first = q, *hit = m[i];
    }
    return first;
}

static mf_status scan(mf_answer *p, mf_error *err) {
    size_t at = 0;
    while (at < p->held.size) {
        mf__span s = {p->held.data + at, p->held.size - at};
        marker m[MAX_MARKERS], hit = {0};
        bool restart = false;
        int n_markers = markers(p, m);
        const char *first = find_marker(s, m, n_markers, &hit);
        size_t n = first ? (size_t)(first - s.s) : s.n - partial(s.s, s.n, m, n_markers);
        MF__TRY(consume(p, s.s, n, err));
        mf__span rest = {s.s + n, s.n - n};
        if (block_is_hopeless(p)) {
            MF__TRY(give_up_block(p, rest.s, rest.n, err));
            at = 0;
            continue;
        }
        if (!first) {
            at += n;
            break;
        }
        at += n;
        bool thinks = hit.action == THINK || (hit.action == THINK_END && p->state == ANSWER);
        if ((thinks && !may_think(p)) || (hit.action == NOTHING && !p->bare) || (hit.action == WRAP && !p->fresh))
            continue; /* the text before it says that it is none */
        mf__span_skip(&rest, strlen(hit.text));
        at += strlen(hit.text);
        MF__TRY(act(p, hit, rest, &restart, err));
        if (restart) at = 0;
    }
    if (at) memmove(p->held.data, p->held.data + at, p->held.size - at);
    p->held.size -= at;
    return MF_OK;
}

mf_status mf_answer_push(mf_answer *p, const char *text, size_t n, mf_error *err) {
    if (!p || (n && !text) || n > MF__MAX_BYTES)
        return mf__fail(err, MF_E_INVALID, "mf_answer_push: an argument is NULL or too large");
    MF__TRY(mf__strbuf_append(&p->held, text, n, err));
    return p->held.size ? scan(p, err) : MF_OK;
}

/* What was held back is looked at for the last time. */
static mf_status scan_rest(mf_answer *p, mf_error *err) {
    MF__TRY(scan(p, err));
    MF__TRY(consume(p, p->held.data, p->held.size, err));
    mf__strbuf_clear(&p->held);
    return MF_OK;
}

/* The end of the answer, where a block may be open: it is a call, or looked at again as text. */
static mf_status finish_blocks(mf_answer *p, mf_error *err) {
    p->final = true;
    if (p->state == PENDING) {
        p->state = REASONING;
        mf__strbuf_clear(&p->held);
        MF__TRY(mf__strbuf_append(&p->held, p->block.data, p->block.size, err));
        MF__TRY(scan_rest(p, err));
    }
    while (p->state == BLOCK) {
        outcome out;
        MF__TRY(end_block(p, NULL, &out, err));
        if (out == ENDED) return MF_OK;
        MF__TRY(give_up_block(p, "", 0, err));
        MF__TRY(scan_rest(p, err));
    }
    return MF_OK;
}

mf_status mf_answer_finish(mf_answer *p, mf_error *err) {
    if (!p) return mf__fail(err, MF_E_INVALID, "mf_answer_finish: answer is NULL");
    MF__TRY(consume(p, p->held.data, p->held.size, err));
    mf__strbuf_clear(&p->held);
    bool harmony = p->opt.notation == MF__NOTATION_HARMONY;
    if (p->state == HEADER) {
        p->state = ANSWER; /* a header without a message is all there was: show it unless it is only markers */
        if (p->block.size && p->block.data[0] != '<') MF__TRY(say(p, p->block.data, p->block.size, err));
    } else if (harmony) {
        if (p->state == BLOCK) MF__TRY(end_message(p, err));
    } else {
        MF__TRY(finish_blocks(p, err));
    }
    if (!p->fresh && (p->state == ANSWER || p->state == REASONING))
        MF__TRY(emit(p, p->state == REASONING ? MF_EVENT_REASONING : MF_EVENT_TEXT, p->space.data, p->space.size));
    enter(p, harmony ? HEADER : ANSWER);
    return MF_OK;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

mf_status mf__answer_create(const mf__answer_setup *opt, mf_answer **out, mf_error *err) {
    mf_answer *p = *out = calloc(1, sizeof *p);
    if (!p) return mf__fail(err, MF_E_NOMEM, "no memory for the answer");
    p->opt = *opt;
    p->opt.tools = json_incref((json_t *)opt->tools);
    enter(p, opt->notation == MF__NOTATION_HARMONY ? HEADER : opt->in_reasoning ? REASONING : ANSWER);
    return MF_OK;
}

mf_status mf_answer_create(const mf_text *text, const mf_answer_options *opt, mf_answer **out, mf_error *err) {
    json_t *tools = NULL;
    json_error_t why;
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_answer_create: out is NULL");
    *out = NULL;
    if (!text || !opt || !opt->fn || (opt->n_tools && !opt->tools) || opt->n_tools > MF__MAX_BYTES)
        return mf__fail(err, MF_E_INVALID, "mf_answer_create: an argument is NULL or too large");
    if (opt->tools && !(tools = json_loadb(opt->tools, opt->n_tools, JSON_ALLOW_NUL, &why)))
        return mf__fail(err, MF_E_FORMAT, "tools are not JSON: %s (column %d)", why.text, why.column);
    mf__answer_setup setup = {.notation = text->chat.notation,
                              .wrap = text->chat.wrap,
                              .in_reasoning = opt->in_reasoning,
                              .tools = tools,
                              .fn = opt->fn,
                              .user = opt->user};
    mf_status st = mf__answer_create(&setup, out, err);
    json_decref(tools);
    return st;
}

mf_event_kind mf__answer_part(const mf_answer *p) {
    return p->state == REASONING ? MF_EVENT_REASONING : p->state == ANSWER ? MF_EVENT_TEXT : MF_EVENT_ARGUMENTS;
}

bool mf__answer_opens_block(const mf_answer *p) {
    return p->state == BLOCK && p->opt.notation != MF__NOTATION_HARMONY && !p->block.size && !p->held.size &&
           !is_bare(p);
}

const char *mf__answer_called(const mf_answer *p) {
    bool begins = p->state == BLOCK && !p->block.size && !p->held.size;
    return begins && p->opt.notation == MF__NOTATION_HARMONY && p->to_function ? p->name.data : NULL;
}

void mf__answer_sure(mf_answer *p, bool sure) {
    p->sure = sure;
}

void mf__answer_begin_here(mf_answer *p) {
    mf__strbuf_clear(&p->space);
}

void mf_answer_free(mf_answer *p) {
    if (!p) return;
    json_decref((json_t *)p->opt.tools);
    mf__strbuf_free(&p->held);
    mf__strbuf_free(&p->again);
    mf__strbuf_free(&p->space);
    mf__strbuf_free(&p->block);
    mf__strbuf_free(&p->name);
    free(p);
}
