#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *mf_status_name(mf_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                                        \
    case MF_##name: return #name;
        MF_STATUS_LIST(CASE)
#undef CASE
    }
    return "E_UNKNOWN";
}

const char *mf_status_text(mf_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                                        \
    case MF_##name: return text;
        MF_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown status";
}

static mf_status set_text(mf_error *err, mf_status status, const char *fmt, va_list ap) {
    if (err) {
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
    }
    return status;
}

mf_status mf__fail(mf_error *err, mf_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_text(err, status, fmt, ap);
    va_end(ap);
    return status;
}

mf_status mf__fail_errno(mf_error *err, int errnum, const char *fmt, ...) {
    mf_status status = errnum == ENOSPC || errnum == EDQUOT      ? MF_E_NO_SPACE
                       : errnum == ENOENT || errnum == ENOTDIR   ? MF_E_NOT_FOUND
                       : errnum == ENOMEM                        ? MF_E_NOMEM
                       : errnum == EEXIST || errnum == ENOTEMPTY ? MF_E_EXISTS
                                                                 : MF_E_IO;
    va_list ap;
    va_start(ap, fmt);
    set_text(err, status, fmt, ap);
    va_end(ap);
    if (err) {
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errnum));
    }
    return status;
}

mf_status mf__fail_prefix(mf_error *err, mf_status status, const char *fmt, ...) {
    if (!err) return status;
    char old[MF_ERROR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    set_text(err, status, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", old);
    return status;
}
