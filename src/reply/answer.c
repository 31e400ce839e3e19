/* The stream: finds markers across pieces and switches between answer, reasoning and tool calls. See answer.h. */
#include "reply/answer.h"

#include <stdlib.h>
#include <string.h>

#include "reply/calls.h"

#define MAX_BLOCK ((size_t)4 << 20)

typedef enum state { ANSWER, REASONING, TOOL, HEADER } state;
typedef enum action { THINK, THINK_END, CALL, CALL_END, MESSAGE, MESSAGE_END } action;

typedef struct marker {
    const char *text;
    action action;
} marker;

struct mf_answer {
    mf__answer_setup opt;
    state state;
    bool fresh;         /* nothing of this stretch came out yet: leading white space is dropped */
    mf__strbuf held;    /* not looked at yet: may begin a marker */
    mf__strbuf space;   /* white space that comes out if more text follows */
    mf__strbuf block;   /* the inside of a tool call, or a harmony header */
    mf__strbuf name;    /* harmony: the tool that is called */
    const char *opened; /* the marker that began the block */
    int n_calls;
};

/* ---- what to look for ------------------------------------------------------------------------------------------ */

static const char *tool_open(mf__notation f) {
    switch (f) {
    case MF__NOTATION_TAGS: return "<tool_call>";
    case MF__NOTATION_DEEPSEEK: return "<｜tool▁calls▁begin｜>";
    case MF__NOTATION_KIMI: return "<|tool_calls_section_begin|>";
    case MF__NOTATION_MINIMAX: return "<minimax:tool_call>";
    default: return NULL;
    }
}

static const char *tool_close(mf__notation f) {
    switch (f) {
    case MF__NOTATION_TAGS: return "</tool_call>";
    case MF__NOTATION_DEEPSEEK: return "<｜tool▁calls▁end｜>";
    case MF__NOTATION_KIMI: return "<|tool_calls_section_end|>";
    default: return "</minimax:tool_call>";
    }
}

static int markers(const mf_answer *p, marker out[5]) {
    int n = 0;
    if (p->state == HEADER) {
        out[n++] = (marker){"<|message|>", MESSAGE};
    } else if (p->opt.notation == MF__NOTATION_HARMONY) {
        out[n++] = (marker){"<|end|>", MESSAGE_END};
        out[n++] = (marker){"<|return|>", MESSAGE_END};
        out[n++] = (marker){"<|call|>", MESSAGE_END};
        out[n++] = (marker){"<|start|>", MESSAGE_END};
        out[n++] = (marker){"<|channel|>", MESSAGE_END};
    } else if (p->state == TOOL) {
        out[n++] = (marker){tool_close(p->opt.notation), CALL_END};
    } else if (p->state == REASONING) {
        out[n++] = (marker){"</think>", THINK_END};
    } else {
        out[n++] = (marker){"<think>", THINK};
        if (tool_open(p->opt.notation)) out[n++] = (marker){tool_open(p->opt.notation), CALL};
    }
    return n;
}

/* ---- giving out ------------------------------------------------------------------------------------------------ */

static mf_status emit(mf_answer *p, mf_event_kind kind, const char *text, size_t n) {
    if (n == 0) return MF_OK;
    return p->opt.fn(p->opt.user, &(mf_event){.kind = kind, .text = text, .n_text = n});
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Text of the current stretch: leading white space goes, trailing white space waits. */
static mf_status say(mf_answer *p, const char *text, size_t n, mf_error *err) {
    mf_event_kind kind = p->state == REASONING ? MF_EVENT_REASONING : MF_EVENT_TEXT;
    while (p->fresh && n && is_space(*text)) text++, n--;
    if (n == 0) return MF_OK;
    p->fresh = false;
    size_t body = n;
    while (body && is_space(text[body - 1])) body--;
    if (body) {
        MF__TRY(emit(p, kind, p->space.data, p->space.size));
        mf__strbuf_clear(&p->space);
        MF__TRY(emit(p, kind, text, body));
    }
    return mf__strbuf_append(&p->space, text + body, n - body, err);
}

static mf_status say_call(mf_answer *p, const mf__call *call) {
    mf_event e = {.kind = MF_EVENT_CALL, .call = p->n_calls, .name = call->name.data};
    MF__TRY(p->opt.fn(p->opt.user, &e));
    e = (mf_event){
        .kind = MF_EVENT_ARGUMENTS, .call = p->n_calls, .text = call->arguments.data, .n_text = call->arguments.size};
    MF__TRY(p->opt.fn(p->opt.user, &e));
    e = (mf_event){.kind = MF_EVENT_CALL_END, .call = p->n_calls++};
    return p->opt.fn(p->opt.user, &e);
}

static mf_status say_calls(mf_answer *p, const mf__calls *calls) {
    for (size_t i = 0; i < calls->n; i++) MF__TRY(say_call(p, &calls->calls[i]));
    return MF_OK;
}

static void enter(mf_answer *p, state to) {
    p->state = to;
    p->fresh = true;
    mf__strbuf_clear(&p->space);
    mf__strbuf_clear(&p->block);
}

/* A block that is no call is text after all, markers included. */
static mf_status give_up_block(mf_answer *p, const char *close, mf_error *err) {
    p->state = ANSWER;
    MF__TRY(say(p, p->opened, strlen(p->opened), err));
    MF__TRY(say(p, p->block.data, p->block.size, err));
    MF__TRY(say(p, close, strlen(close), err));
    mf__strbuf_clear(&p->block);
    return MF_OK;
}

static mf_status end_block(mf_answer *p, const char *close, mf_error *err) {
    mf__calls calls;
    bool readable;
    MF__TRY(mf__calls_read(p->opt.notation, p->opt.tools, p->block.data ? p->block.data : "", p->block.size, &calls,
                           &readable, err));
    mf_status status = readable ? say_calls(p, &calls) : give_up_block(p, close, err);
    mf__calls_free(&calls);
    if (status == MF_OK && readable) enter(p, ANSWER);
    return status;
}

/* ---- harmony --------------------------------------------------------------------------------------------------- */

static bool header_has(const mf_answer *p, const char *word) {
    return p->block.size && memmem(p->block.data, p->block.size, word, strlen(word));
}

/* A header is complete: "<|channel|>commentary to=functions.f <|constrain|>json". */
static mf_status begin_message(mf_answer *p, mf_error *err) {
    const char *to = p->block.size ? memmem(p->block.data, p->block.size, "to=", 3) : NULL;
    bool analysis = header_has(p, "analysis");
    mf__strbuf_clear(&p->name);
    if (to) {
        const char *end = to += 3, *stop = p->block.data + p->block.size;
        while (end < stop && !is_space(*end) && *end != '<') end++;
        if (end - to > 10 && memcmp(to, "functions.", 10) == 0) to += 10;
        MF__TRY(mf__strbuf_append(&p->name, to, (size_t)(end - to), err));
    }
    enter(p, to ? TOOL : analysis ? REASONING : ANSWER);
    return MF_OK;
}

static mf_status end_message(mf_answer *p, mf_error *err) {
    if (p->state == TOOL) {
        mf__calls calls = {0};
        bool readable = false;
        mf_status status = mf__calls_add(&calls, p->name.data ? p->name.data : "", p->name.size,
                                         p->block.data ? p->block.data : "", p->block.size, &readable, err);
        if (status == MF_OK && readable) status = say_calls(p, &calls);
        if (status == MF_OK && !readable) {
            p->state = ANSWER;
            status = say(p, p->block.data, p->block.size, err);
        }
        mf__calls_free(&calls);
        MF__TRY(status);
    }
    enter(p, HEADER);
    return MF_OK;
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

static mf_status consume(mf_answer *p, const char *text, size_t n, mf_error *err) {
    if (p->state == ANSWER || p->state == REASONING) return say(p, text, n, err);
    MF__TRY(mf__strbuf_append(&p->block, text, n, err));
    if (p->block.size <= MAX_BLOCK) return MF_OK;
    if (p->opt.notation == MF__NOTATION_HARMONY)
        return mf__fail(err, MF_E_LIMIT, "a tool call of more than %zu bytes", MAX_BLOCK);
    return give_up_block(p, "", err);
}

static mf_status act(mf_answer *p, marker m, mf_error *err) {
    switch (m.action) {
    case THINK: enter(p, REASONING); return MF_OK;
    case THINK_END: enter(p, ANSWER); return MF_OK;
    case CALL:
        p->opened = m.text;
        p->state = TOOL; /* the white space before it is still due, should this be no call */
        mf__strbuf_clear(&p->block);
        return MF_OK;
    case CALL_END: return end_block(p, m.text, err);
    case MESSAGE: return begin_message(p, err);
    case MESSAGE_END: return end_message(p, err);
    }
    return MF_OK;
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

static mf_status scan(mf_answer *p, mf_error *err) {
    size_t at = 0;
    mf_status status = MF_OK;
    while (status == MF_OK && at < p->held.size) {
        const char *s = p->held.data + at, *first = NULL;
        size_t n = p->held.size - at;
        marker m[5], hit = {0};
        int n_markers = markers(p, m);
        for (int i = 0; i < n_markers; i++) {
            const char *q = memmem(s, n, m[i].text, strlen(m[i].text));
            if (q && (!first || q < first)) first = q, hit = m[i];
        }
        if (!first) {
            size_t keep = partial(s, n, m, n_markers);
            status = consume(p, s, n - keep, err);
            at += n - keep;
            break;
        }
        at += (size_t)(first - s) + strlen(hit.text);
        status = consume(p, s, (size_t)(first - s), err);
        if (status == MF_OK) status = act(p, hit, err);
    }
    memmove(p->held.data, p->held.data + at, p->held.size - at);
    p->held.size -= at;
    return status;
}

mf_status mf_answer_push(mf_answer *p, const char *text, size_t n, mf_error *err) {
    if (!p || (n && !text) || n > MF__MAX_BYTES)
        return mf__fail(err, MF_E_INVALID, "mf_answer_push: an argument is NULL or too large");
    MF__TRY(mf__strbuf_append(&p->held, text, n, err));
    return p->held.size ? scan(p, err) : MF_OK;
}

mf_status mf_answer_finish(mf_answer *p, mf_error *err) {
    if (!p) return mf__fail(err, MF_E_INVALID, "mf_answer_finish: answer is NULL");
    MF__TRY(consume(p, p->held.data, p->held.size, err));
    mf__strbuf_clear(&p->held);
    bool harmony = p->opt.notation == MF__NOTATION_HARMONY;
    if (p->state == HEADER) {
        p->state = ANSWER; /* a header without a message is all there was: show it unless it is only markers */
        if (p->block.size && p->block.data[0] != '<') MF__TRY(say(p, p->block.data, p->block.size, err));
    } else if (p->state == TOOL) {
        MF__TRY(harmony ? end_message(p, err) : end_block(p, "", err));
    }
    if (!p->fresh && (p->state == ANSWER || p->state == REASONING))
        MF__TRY(emit(p, p->state == REASONING ? MF_EVENT_REASONING : MF_EVENT_TEXT, p->space.data, p->space.size));
    enter(p, harmony ? HEADER : ANSWER);
    return MF_OK;
}

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
        return mf__fail(err, MF_E_INVALID, "mf_answer_create: an argument is NULL");
    if (opt->tools && !(tools = json_loadb(opt->tools, opt->n_tools, JSON_ALLOW_NUL, &why)))
        return mf__fail(err, MF_E_FORMAT, "tools are not JSON: %s (column %d)", why.text, why.column);
    mf__answer_setup setup = {.notation = text->chat.notation,
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

void mf_answer_free(mf_answer *p) {
    if (!p) return;
    json_decref((json_t *)p->opt.tools);
    mf__strbuf_free(&p->held);
    mf__strbuf_free(&p->space);
    mf__strbuf_free(&p->block);
    mf__strbuf_free(&p->name);
    free(p);
}
