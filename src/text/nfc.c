/* NFC: stretches that normalization cannot touch are copied; the rest goes through utf8proc.
 *
 * A stretch to normalize begins at the character before a touched one and ends before the next untouched character:
 * form C never reaches across such a boundary. utf8proc orders marks by swapping neighbours, which is quadratic in a
 * run of marks, so they are put in order here first. */
#include "text/nfc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/unicode.h"

static bool touched(uint32_t c) {
    return c >= 0x300 && mf__ranges_have(mf__unicode_nfc_touched, mf__unicode_n_nfc_touched, c);
}

/* Sorts buf[0..n), all of non-zero combining class, stably by class: counting sort when the run is long. */
static mf_status order_marks(int32_t *buf, size_t n, mf_error *err) {
    if (n < 2) return MF_OK;
    size_t count[256] = {0};
    bool ordered = true;
    int last = 0;
    for (size_t i = 0; i < n; i++) {
        int k = utf8proc_get_property(buf[i])->combining_class & 0xFF;
        ordered = ordered && k >= last;
        last = k;
        count[k]++;
    }
    if (ordered) return MF_OK;
    int32_t *sorted = malloc(n * sizeof *sorted);
    if (!sorted) return mf__fail(err, MF_E_NOMEM, "no memory to normalize %zu marks", n);
    for (size_t k = 0, at = 0; k < 256; k++) {
        size_t m = count[k];
        count[k] = at;
        at += m;
    }
    for (size_t i = 0; i < n; i++) sorted[count[utf8proc_get_property(buf[i])->combining_class & 0xFF]++] = buf[i];
    memcpy(buf, sorted, n * sizeof *buf);
    free(sorted);
    return MF_OK;
}

/* Decomposes, orders and composes one stretch of n_chars characters. */
static mf_status normalize(const char *text, size_t size, mf__strbuf *out, mf_error *err) {
    size_t n = 0, capacity = size * 4 + 8; /* no canonical decomposition has more than four characters */
    int32_t *buf = malloc(capacity * sizeof *buf);
    if (!buf) return mf__fail(err, MF_E_NOMEM, "no memory to normalize %zu bytes", size);
    mf_status status = MF_OK;
    for (size_t i = 0; i < size;) {
        uint32_t c;
        i += (size_t)mf__utf8_decode(text + i, &c);
        int boundclass = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char((int32_t)c, buf + n, (utf8proc_ssize_t)(capacity - n),
                                                     UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundclass);
        if (k < 0 || (size_t)k > capacity - n) {
            status = mf__fail(err, MF_E_INTERNAL, "utf8proc cannot decompose U+%04X", (unsigned)c);
            break;
        }
        n += (size_t)k;
    }
    for (size_t i = 0; status == MF_OK && i < n;) {
        size_t end = i;
        while (end < n && utf8proc_get_property(buf[end])->combining_class) end++;
        status = order_marks(buf + i, end - i, err);
        i = end + 1;
    }
    if (status == MF_OK) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(buf, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (k < 0) status = mf__fail(err, MF_E_INTERNAL, "utf8proc cannot compose %zu characters", n);
        for (utf8proc_ssize_t i = 0; status == MF_OK && i < k; i++) {
            char utf8[4];
            status = mf__strbuf_append(out, utf8, (size_t)mf__utf8_encode((uint32_t)buf[i], utf8), err);
        }
    }
    free(buf);
    return status;
}

mf_status mf__nfc(const char *text, size_t size, bool *same, mf__strbuf *out, mf_error *err) {
    size_t copied = 0, before = 0; /* text[copied..] is not in out yet; `before`: where the last character began */
    *same = true;
    for (size_t i = 0; i < size;) {
        uint32_t c;
        if ((uint8_t)text[i] < 0xCC) { /* below U+0300 */
            before = i;
            i += (uint8_t)text[i] < 0x80 ? 1 : 2;
            continue;
        }
        size_t n = (size_t)mf__utf8_decode(text + i, &c);
        if (!touched(c)) {
            before = i;
            i += n;
            continue;
        }
        *same = false;
        size_t end = i + n;
        while (end < size) {
            n = (size_t)mf__utf8_decode(text + end, &c);
            if (!touched(c)) break;
            end += n;
        }
        MF__TRY(mf__strbuf_append(out, text + copied, before - copied, err));
        MF__TRY(normalize(text + before, end - before, out, err));
        copied = before = i = end;
    }
    return *same ? MF_OK : mf__strbuf_append(out, text + copied, size - copied, err);
}
