/* Forms of tool calls by what they were made from: an agent sends the same tools with every request. */
#ifndef MF_REPLY_FORM_CACHE_H
#define MF_REPLY_FORM_CACHE_H

#include "reply/form.h"
#include "reply/tool_form.h"

/* The form, from the text's cache or made now; one more owner. */
mf_status mf__form_cache_get(const mf_text *text, const mf__tool_form *f, const mf_form **out, mf_error *err);

#endif
