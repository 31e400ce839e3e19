/* A request made fit for the model's template. */
#ifndef MF_REPLY_REQUEST_H
#define MF_REPLY_REQUEST_H

#include "text/text.h"

typedef struct mf__request {
    json_t *root;          /* as the template takes it; without a message that is to be continued */
    const json_t *tools;   /* of root or of what it was; NULL: none */
    json_t *own_tools;     /* tools that are not in root, kept for that pointer */
    mf__notation notation; /* of the answer */
    mf__call_style style;
    json_t *last;    /* the assistant's message that is to be continued; NULL: none */
    mf__fence fence; /* its places are in the messages, where marks were asked for */
    int n_places;
} mf__request;

/* Takes root over, also when it fails. What is no request is MF_E_FORMAT. */
mf_status mf__request_prepare(const mf_text *text, const mf_reply_options *opt, json_t *root, mf__request *out,
                              mf_error *err);
void mf__request_free(mf__request *r);

#endif
