#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#define LINE_BYTES 1024 /* longer lines are cut */

void mf__log(const mf_log_sink *sink, mf_log_level level, const char *fmt, ...) {
    if (!sink || !sink->write) return;
    char line[LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    sink->write(sink->user, level, line);
}
