/* One render, and what it may spend.
 *
 * Templates come from strangers, so everything they can make the interpreter do is paid for:
 *
 *   steps   each node, item and stretch of text that is visited costs mf__j_pay; when the steps are spent, or the
 *           caller's cancel says so, the render ends
 *   depth   whatever calls itself (expressions, macros, values in values) is between mf__j_enter and mf__j_leave
 *   memory  values live in one arena, texts under way in string buffers; both count
 *
 * Nothing below catches an error and goes on, so a function that fails need not leave the depth as it was. */
#ifndef MF_TEXT_JINJA_BUDGET_H
#define MF_TEXT_JINJA_BUDGET_H

#include "base/arena.h"
#include "text/jinja/jinja.h"

/* Bytes that one step pays for. */
#define J_COPIED 64  /* memcpy, memcmp */
#define J_SEARCHED 8 /* memmem, counting characters */
#define J_DECODED 4  /* looked at one character at a time */

typedef struct jctx {
    const mf__jinja *template;
    const char *name;
    mf__jinja_options opt;
    mf__arena arena;
    size_t memory; /* bytes of the arena and of open string buffers */
    uint64_t steps, check_at;
    int depth;
    int line; /* of the node being evaluated */
    bool autoescape;
    mf__strbuf *out;
    size_t output; /* bytes the caller's buffer held before */
    int captures;  /* how many texts are being caught: > 0 where out is not the caller's */
    struct jframe *frame, *globals;
    json_t *kept; /* JSON whose strings values borrow; NULL: none */
    mf_error *err;
} jctx;

void mf__j_begin(jctx *c);                                                              /* sets what opt left open */
mf_status mf__j_fail(jctx *c, mf_status status, const char *fmt, ...) MF__PRINTF(3, 4); /* adds name and line */

mf_status mf__j_check(jctx *c); /* the slow half of mf__j_pay */
static inline mf_status mf__j_pay(jctx *c, size_t steps) {
    c->steps += steps;
    return c->steps < c->check_at ? MF_OK : mf__j_check(c);
}
static inline mf_status mf__j_pay_bytes(jctx *c, size_t n, size_t per_step) {
    return mf__j_pay(c, n / per_step);
}

mf_status mf__j_enter(jctx *c);
static inline void mf__j_leave(jctx *c) {
    c->depth--;
}

mf_status mf__j_hold(jctx *c, size_t size); /* counts memory that is not the arena's */
mf_status mf__j_alloc(jctx *c, size_t size, void **out);
mf_status mf__j_alloc_array(jctx *c, size_t count, size_t size, void **out);

/* Text buffers. What was put into one is given back by mf__j_take, which makes it a value, or by mf__j_drop. */
mf_status mf__j_put_text(jctx *c, mf__strbuf *out, const char *s, size_t n);
mf_status mf__j_puts(jctx *c, mf__strbuf *out, const char *s);
mf_status mf__j_put_many(jctx *c, mf__strbuf *out, char ch, size_t n);
void mf__j_drop(jctx *c, mf__strbuf *b);
/* Ends a text: frees b; where status is MF_OK *out becomes a string of its content. Returns status, or what failed. */
struct jvalue;
mf_status mf__j_take(jctx *c, mf_status status, mf__strbuf *b, struct jvalue *out);

#endif
