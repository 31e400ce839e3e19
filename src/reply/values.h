/* Arguments that models write without quotes, typed by the schema of the tool that is called. */
#ifndef MF_REPLY_VALUES_H
#define MF_REPLY_VALUES_H

#include "base/json.h"
#include "reply/span.h"

/* The request's tool of that name, with its "name" and "parameters"; NULL: there is none. */
const json_t *mf__tool_find(const json_t *tools, mf__span name);

/* Appends the value of an argument as JSON. tool may be NULL: then the value's looks decide. */
mf_status mf__value_put(mf__strbuf *out, const json_t *tool, mf__span key, mf__span raw, mf_error *err);

#endif
