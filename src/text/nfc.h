/* Unicode normalization form C. */
#ifndef MF_TEXT_NFC_H
#define MF_TEXT_NFC_H

#include "base/strbuf.h"

/* text is valid UTF-8. *same: it is in form C already and out is untouched; otherwise out receives the form.
 * Linear in time, also for long runs of combining marks. */
mf_status mf__nfc(const char *text, size_t size, bool *same, mf__strbuf *out, mf_error *err);

#endif
