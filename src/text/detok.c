/* Streaming detokenizer: bytes in, whole characters out. */
#include <string.h>

#include "text/tokenizer.h"

/* How many bytes lead byte b begins a sequence of; 0: it begins none. */
static int sequence_length(uint8_t b) {
    return b < 0x80 ? 1 : b >= 0xC2 && b <= 0xDF ? 2 : (b & 0xF0) == 0xE0 ? 3 : b >= 0xF0 && b <= 0xF4 ? 4 : 0;
}

/* May b follow as byte number `at` (1, 2 or 3) of a sequence that begins with lead? */
static bool may_follow(uint8_t lead, int at, uint8_t b) {
    uint8_t lo = 0x80, hi = 0xBF;
    if (at == 1) {
        if (lead == 0xE0) lo = 0xA0;
        if (lead == 0xED) hi = 0x9F;
        if (lead == 0xF0) lo = 0x90;
        if (lead == 0xF4) hi = 0x8F;
    }
    return b >= lo && b <= hi;
}

static mf_status put_replacement(mf__strbuf *out, mf_error *err) {
    return mf__strbuf_append(out, "\xEF\xBF\xBD", 3, err);
}

static mf_status push_byte(mf__detok *d, uint8_t b, mf__strbuf *out, mf_error *err) {
    if (d->n_held && !may_follow(d->held[0], d->n_held, b)) {
        d->n_held = 0; /* a maximal subpart ends here; b is looked at afresh */
        MF__TRY(put_replacement(out, err));
    }
    if (d->n_held == 0 && sequence_length(b) == 0) return put_replacement(out, err);
    d->held[d->n_held++] = b;
    if (d->n_held < sequence_length(d->held[0])) return MF_OK;
    int n = d->n_held;
    d->n_held = 0;
    return mf__strbuf_append(out, d->held, (size_t)n, err);
}

void mf__detok_init(mf__detok *d, const mf__tokenizer *tok) {
    *d = (mf__detok){.tok = tok};
}

mf_status mf__detok_push(mf__detok *d, int32_t id, mf__strbuf *out, mf_error *err) {
    size_t n;
    const char *bytes = mf__tokenizer_bytes(d->tok, id, &n);
    return mf__detok_bytes(d, bytes, n, out, err);
}

mf_status mf__detok_bytes(mf__detok *d, const char *bytes, size_t n, mf__strbuf *out, mf_error *err) {
    for (size_t i = 0; i < n; i++) MF__TRY(push_byte(d, (uint8_t)bytes[i], out, err));
    return MF_OK;
}

mf_status mf__detok_flush(mf__detok *d, mf__strbuf *out, mf_error *err) {
    if (d->n_held == 0) return MF_OK;
    d->n_held = 0;
    return put_replacement(out, err);
}
