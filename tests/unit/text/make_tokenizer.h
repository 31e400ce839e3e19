/* Builds small tokenizer.json texts for tests: all 256 bytes, the merges given, and whatever else is asked for. */
#ifndef TEST_MAKE_TOKENIZER_H
#define TEST_MAKE_TOKENIZER_H

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "text/unicode.h"

typedef struct make_options {
    const char *merges;     /* pairs separated by newlines, each "left right", in byte-level spelling; NULL: none */
    const char *extra;      /* more members of "model", with a leading comma; NULL: none */
    const char *pre;        /* pre_tokenizer JSON; NULL: ByteLevel without regex */
    const char *normalizer; /* NULL: null */
    const char *added;      /* added_tokens JSON array; NULL: [] */
    const char *vocab;      /* more vocabulary entries, with a leading comma; NULL: none */
} make_options;

static inline void make_name(int byte, char out[5]) {
    int next = 256, c = 0;
    for (int b = 0; b <= byte; b++) c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++;
    memset(out, 0, 5);
    mf__utf8_encode((uint32_t)c, out);
}

/* Byte b has id b; merge i makes id 256 + i. */
static inline void make_tokenizer(const make_options *o, mf__strbuf *out) {
    mf__strbuf merges = {0};
    mf__strbuf_printf(out, NULL, "{\"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, ",
                      o->added ? o->added : "[]", o->normalizer ? o->normalizer : "null",
                      o->pre ? o->pre : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}");
    mf__strbuf_printf(out, NULL, "\"decoder\": {\"type\":\"ByteLevel\"}, \"model\": {\"type\":\"BPE\", \"vocab\": {");
    for (int b = 0; b < 256; b++) {
        char name[5];
        make_name(b, name);
        const char *escape = b == '"' || b == '\\' ? "\\" : "";
        mf__strbuf_printf(out, NULL, "%s\"%s%s\": %d", b ? ", " : "", escape, name, b);
    }
    int id = 256;
    for (const char *p = o->merges; p && *p; id++) {
        const char *end = strchr(p, '\n');
        int n = end ? (int)(end - p) : (int)strlen(p);
        const char *space = memchr(p, ' ', (size_t)n);
        mf__strbuf_printf(out, NULL, ", \"%.*s%.*s\": %d", (int)(space - p), p, n - (int)(space - p) - 1, space + 1,
                          id);
        mf__strbuf_printf(&merges, NULL, "%s\"%.*s\"", id > 256 ? ", " : "", n, p);
        p += end ? n + 1 : n;
    }
    mf__strbuf_printf(out, NULL, "%s}, \"merges\": [%s]%s}}", o->vocab ? o->vocab : "", merges.data ? merges.data : "",
                      o->extra ? o->extra : "");
    mf__strbuf_free(&merges);
}

#endif
