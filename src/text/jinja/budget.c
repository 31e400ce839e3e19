/* The budget: steps, depth, memory, text buffers. */
#include "text/jinja/budget.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja/value.h"

/* 20 million steps take less than a second, and are a hundred times what a long conversation needs. */
#define MAX_STEPS 20000000
#define MAX_MEMORY ((size_t)160 << 20)
#define MAX_OUTPUT ((size_t)32 << 20)
#define MAX_DEPTH 600 /* of C calls into themselves: 0.5 MB of stack, with AddressSanitizer 2 MB */
#define STEPS_BETWEEN_CHECKS 50000

void mf__j_begin(jctx *c) {
    if (c->opt.max_steps <= 0) c->opt.max_steps = MAX_STEPS;
    if (!c->opt.max_memory) c->opt.max_memory = MAX_MEMORY;
    if (!c->opt.max_output) c->opt.max_output = MAX_OUTPUT;
    c->check_at = 0;
}

mf_status mf__j_fail(jctx *c, mf_status status, const char *fmt, ...) {
    char text[MF_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mf__fail(c->err, status, "%s: line %d: %s", c->name, c->line, text);
}

mf_status mf__j_check(jctx *c) {
    uint64_t most = (uint64_t)c->opt.max_steps;
    if (c->steps > most)
        return mf__j_fail(c, MF_E_LIMIT, "the template takes more than %llu steps", (unsigned long long)most);
    if (c->opt.cancel && c->opt.cancel(c->opt.cancel_data))
        return mf__j_fail(c, MF_E_CANCELLED, "stopped while the template was running");
    c->check_at = c->steps + STEPS_BETWEEN_CHECKS;
    if (c->check_at > most + 1) c->check_at = most + 1;
    return MF_OK;
}

mf_status mf__j_enter(jctx *c) {
    if (++c->depth > MAX_DEPTH) return mf__j_fail(c, MF_E_LIMIT, "nested deeper than %d", MAX_DEPTH);
    return MF_OK;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

mf_status mf__j_hold(jctx *c, size_t size) {
    if (size > c->opt.max_memory || c->memory > c->opt.max_memory - size)
        return mf__j_fail(c, MF_E_LIMIT, "the template uses more than %zu bytes of memory", c->opt.max_memory);
    c->memory += size;
    return mf__j_pay_bytes(c, size, J_COPIED);
}

mf_status mf__j_alloc(jctx *c, size_t size, void **out) {
    *out = NULL;
    if (size > c->opt.max_memory) size = SIZE_MAX - 64; /* so that the sum cannot wrap */
    MF__TRY(mf__j_hold(c, size + 16));
    *out = mf__arena_alloc(&c->arena, size ? size : 1);
    return *out ? MF_OK : mf__j_fail(c, MF_E_NOMEM, "no memory for %zu bytes", size);
}

mf_status mf__j_alloc_array(jctx *c, size_t count, size_t size, void **out) {
    return mf__j_alloc(c, count > SIZE_MAX / size ? SIZE_MAX : count * size, out);
}

/* ---- texts ----------------------------------------------------------------------------------------------------- */

mf_status mf__j_put_text(jctx *c, mf__strbuf *out, const char *s, size_t n) {
    size_t before = out->capacity;
    MF__TRY(mf__j_pay_bytes(c, n, J_COPIED));
    if (n >= before - out->size || before == 0) { /* it will grow, at most to twice what is needed */
        size_t most = n > SIZE_MAX / 4 || out->size > SIZE_MAX / 8 ? SIZE_MAX : (out->size + n + 64) * 2;
        if (most > c->opt.max_memory || c->memory > c->opt.max_memory - most)
            return mf__j_fail(c, MF_E_LIMIT, "the template uses more than %zu bytes of memory", c->opt.max_memory);
    }
    MF__TRY(mf__strbuf_append(out, s, n, c->err));
    c->memory += out->capacity - before;
    return MF_OK;
}

mf_status mf__j_puts(jctx *c, mf__strbuf *out, const char *s) {
    return mf__j_put_text(c, out, s, strlen(s));
}

mf_status mf__j_put_many(jctx *c, mf__strbuf *out, char ch, size_t n) {
    char block[256];
    memset(block, ch, sizeof block);
    for (; n > sizeof block; n -= sizeof block) MF__TRY(mf__j_put_text(c, out, block, sizeof block));
    return mf__j_put_text(c, out, block, n);
}

void mf__j_drop(jctx *c, mf__strbuf *b) {
    c->memory -= b->capacity;
    mf__strbuf_free(b);
}

mf_status mf__j_take(jctx *c, mf_status status, mf__strbuf *b, jvalue *out) {
    if (status == MF_OK) status = mf__j_copy(c, b->data, b->size, out);
    mf__j_drop(c, b);
    return status;
}
