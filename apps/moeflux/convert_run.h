/* A conversion with its progress on standard error, for `convert` and for whoever finds that one is needed. */
#ifndef MOEFLUX_CONVERT_RUN_H
#define MOEFLUX_CONVERT_RUN_H

#include "app.h"
#include "convert/convert.h"

/* Converts, and says how it went: sizes, error, time. why: how the widths were chosen, or "". */
mf_status convert_run(const char *src, const char *dst, mf__convert_options *opt, const char *why, mf_error *err);

/* The sizes and forms that a conversion would give, on standard output. */
mf_status convert_show_plan(const char *src, const mf__convert_options *opt, const char *why, mf_error *err);

#endif
