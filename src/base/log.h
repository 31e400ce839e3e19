/* Logging through the caller's sink. Below apps/ nothing prints. */
#ifndef MF_BASE_LOG_H
#define MF_BASE_LOG_H

#include "moeflux.h"

void mf__log(const mf_log_sink *sink, mf_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
