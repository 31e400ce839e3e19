/* Errors: a code and a sentence. Every fallible function ends with `return mf__fail(err, MF_E_..., "...", ...)`. */
#ifndef MF_BASE_STATUS_H
#define MF_BASE_STATUS_H

#include "moeflux.h"

#if defined(__GNUC__)
#define MF__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define MF__PRINTF(f, a)
#endif

/* Writes status and text into err (which may be NULL) and returns status. Text that does not fit is cut. */
mf_status mf__fail(mf_error *err, mf_status status, const char *fmt, ...) MF__PRINTF(3, 4);

/* The same for a failed system call: "FMT: strerror(errnum)"; ENOSPC, ENOENT, ENOMEM and EEXIST choose their codes. */
mf_status mf__fail_errno(mf_error *err, int errnum, const char *fmt, ...) MF__PRINTF(3, 4);

/* Puts "PREFIX: " before the text already in err; returns err's status (or status when err is NULL). */
mf_status mf__fail_prefix(mf_error *err, mf_status status, const char *fmt, ...) MF__PRINTF(3, 4);

#define MF__TRY(expr)                                                                                                  \
    do {                                                                                                               \
        mf_status mf__try_status = (expr);                                                                             \
        if (mf__try_status != MF_OK) return mf__try_status;                                                            \
    } while (0)

#define MF__COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
