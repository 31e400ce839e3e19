/* GGUF: key-value metadata, a table of tensors, aligned data. Reading untrusted files; one file or a split model. */
#ifndef MF_WEIGHTS_GGUF_H
#define MF_WEIGHTS_GGUF_H

#include <jansson.h>

#include "weights/catalog.h"

typedef struct mf__gguf {
    mf__catalog *catalog; /* names and types as in the file; axes in our order (the contiguous one last) */
    json_t *meta;         /* key -> value of the first file; strings that are not UTF-8 are null */
} mf__gguf;

bool mf__gguf_is(const char *path); /* a regular file that begins with "GGUF" */

/* path: the file, or the first of a split model (…-00001-of-00009.gguf), whose others lie beside it. A tensor of a type
 * that is not decoded is MF_E_UNSUPPORTED and names both. After a failure *out is zeroed. */
mf_status mf__gguf_open(const char *path, mf__gguf *out, mf_error *err);
void mf__gguf_close(mf__gguf *g); /* zeroed ones are fine; zeroes it */

/* One file, from memory: what the fuzzer calls. data must outlive *out. */
mf_status mf__gguf_parse(const char *name, const uint8_t *data, size_t size, mf__gguf *out, mf_error *err);

#endif
