/* Model output of any kind: the parser must neither crash nor lose its way, however the text is cut. The first byte
 * chooses the notation and whether calls are taken for certain, the second the size of the pieces. */
#include <stdlib.h>
#include <string.h>

#include "reply/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All events as one text; pieces of the same kind are joined. */
typedef struct record {
    mf__strbuf text;
    int kind;
} record;

static mf_status add(void *user, const mf_event *e) {
    record *r = user;
    char kind = (char)('0' + (int)e->kind);
    if ((int)e->kind != r->kind || e->kind == MF_EVENT_CALL) mf__strbuf_append(&r->text, &kind, 1, NULL);
    r->kind = (int)e->kind;
    if (e->kind == MF_EVENT_CALL) mf__strbuf_append(&r->text, e->name, strlen(e->name), NULL);
    return mf__strbuf_append(&r->text, e->text, e->n_text, NULL);
}

static void run(const uint8_t *data, size_t size, int notation, size_t piece, record *all) {
    mf_answer *p;
    mf_error err;
    mf__answer_setup setup = {
        .notation = (mf__notation)(notation % MF__NOTATIONS), .in_reasoning = notation & 128, .fn = add, .user = all};
    all->kind = -1;
    if (mf__answer_create(&setup, &p, &err) != MF_OK) abort();
    mf__answer_sure(p, notation & 64);
    for (size_t i = 0; i < size; i += piece)
        if (mf_answer_push(p, (const char *)data + i, size - i < piece ? size - i : piece, &err) != MF_OK) break;
    mf_answer_finish(p, &err);
    mf_answer_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    record whole = {0}, cut = {0};
    run(data + 2, size - 2, data[0], size, &whole);
    run(data + 2, size - 2, data[0], 1 + data[1] % 16, &cut);
    if (whole.text.size != cut.text.size ||
        (whole.text.size && memcmp(whole.text.data, cut.text.data, whole.text.size) != 0))
        abort();
    mf__strbuf_free(&whole.text);
    mf__strbuf_free(&cut.text);
    return 0;
}
