/* Model output of any kind: the parser must neither crash nor lose its way, however the text is cut. The first byte
 * chooses the format, the second the size of the pieces. */
#include <stdlib.h>
#include <string.h>

#include "text/outparse/outparse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mf_status add(void *user, const mf__out_event *e) {
    mf__strbuf *all = user;
    if (e->kind == MF__OUT_TOOL_CALL) mf__strbuf_append(all, e->name, strlen(e->name), NULL);
    return mf__strbuf_append(all, e->text, e->n_text, NULL);
}

static void run(const uint8_t *data, size_t size, int format, size_t piece, mf__strbuf *all) {
    mf__outparse *p;
    mf_error err;
    mf__out_options opt = {.format = (mf__out_format)(format % 6), .in_reasoning = format & 8, .fn = add, .user = all};
    if (mf__outparse_create(&opt, &p, &err) != MF_OK) abort();
    for (size_t i = 0; i < size; i += piece)
        if (mf__outparse_push(p, (const char *)data + i, size - i < piece ? size - i : piece, &err) != MF_OK) break;
    mf__outparse_finish(p, &err);
    mf__outparse_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    mf__strbuf whole = {0}, cut = {0};
    run(data + 2, size - 2, data[0], size, &whole);
    run(data + 2, size - 2, data[0], 1 + data[1] % 16, &cut);
    if (whole.size != cut.size || (whole.size && memcmp(whole.data, cut.data, whole.size) != 0)) abort();
    mf__strbuf_free(&whole);
    mf__strbuf_free(&cut);
    return 0;
}
