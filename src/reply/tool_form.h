/* Calls of tools as a form, in the model's own notation with the tool's schema inside. */
#ifndef MF_REPLY_TOOL_FORM_H
#define MF_REPLY_TOOL_FORM_H

#include "text/chat.h"
#include "text/grammar/grammar.h"

typedef struct mf__tool_form {
    mf__call_style style;
    const json_t *tools;
    const char *only; /* this tool alone; NULL: any */
    bool one_call;    /* one, not several */
    bool inside;      /* what follows the opening marker of a block that is open already */
    bool arguments;   /* those of the only tool, and nothing else */
} mf__tool_form;

/* MF_E_INVALID where there is no such tool. A schema that cannot be enforced leaves its arguments to be any object. */
mf_status mf__tool_form_compile(const mf__tool_form *f, mf__grammar **out, mf_error *err);

/* The texts in it that may be tokens of their own. */
#define MF__MAX_CALL_MARKERS 32
int mf__tool_form_markers(mf__call_style style, const char *out[MF__MAX_CALL_MARKERS]);

/* The marker after which a block of calls is open. */
const char *mf__tool_form_opening(mf__call_style style);

#endif
