/* An mf_text from a template alone: a tokenizer of bytes, and every marker that the template writes as a token. */
#ifndef TEST_MAKE_TEXT_H
#define TEST_MAKE_TEXT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../text/make_tokenizer.h"
#include "base/file.h"
#include "text/text.h"

#define MAKE_MAX_MARKERS 512

typedef struct made {
    mf_text *text;
    char *markers[MAKE_MAX_MARKERS]; /* marker i is token 256 + i */
    int n;
} made;

static inline void make_marker(made *m, const char *s, size_t n) {
    if (m->n == MAKE_MAX_MARKERS) return;
    for (int i = 0; i < m->n; i++)
        if (strlen(m->markers[i]) == n && !memcmp(m->markers[i], s, n)) return;
    m->markers[m->n++] = strndup(s, n);
}

/* <...>, [...] without spaces or quotes inside, as templates write them. */
static inline void make_find_markers(made *m, const char *source) {
    static const char *const always[] = {"<|im_start|>",  "<|im_end|>",  "<think>",     "</think>",
                                         "<|end|>",       "<|message|>", "<tool_call>", "</tool_call>",
                                         "<|constrain|>", "<|call|>",    "<|return|>"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) make_marker(m, always[i], strlen(always[i]));
    for (const char *p = source; *p; p++) {
        if (*p != '<' && *p != '[') continue;
        char close = *p == '<' ? '>' : ']';
        size_t n = 1;
        while (p[n] && p[n] != close && n < 64 && !strchr(" \n\t'\"{}<[(", p[n])) n++;
        if (p[n] == close && n > 1 && (close == '>' || (p[1] >= 'A' && p[1] <= 'Z') || p[1] == '/'))
            make_marker(m, p, n + 1);
    }
}

static inline void make_write(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

/* The template's source; the folder is gone when the text is open. */
static inline made make_text(const char *source) {
    made m = {0};
    mf__strbuf added = {0}, json = {0};
    mf_error err = {0};
    char dir[] = "made_text_XXXXXX", path[64];
    make_find_markers(&m, source);
    mf__strbuf_append(&added, "[", 1, NULL);
    for (int i = 0; i < m.n; i++) {
        json_t *token = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 256 + i, "content", m.markers[i],
                                  "special", 1, "normalized", 0, "lstrip", 0, "rstrip", 0, "single_word", 0);
        char *text = json_dumps(token, 0);
        mf__strbuf_printf(&added, NULL, "%s%s", i ? ", " : "", text);
        free(text);
        json_decref(token);
    }
    mf__strbuf_append(&added, "]", 1, NULL);
    make_tokenizer(&(make_options){.added = added.data}, &json);
    if (!mkdtemp(dir)) abort();
    make_write(dir, "tokenizer.json", json.data);
    make_write(dir, "chat_template.jinja", source);
    make_write(dir, "tokenizer_config.json", "{\"bos_token\": \"<|im_start|>\", \"eos_token\": \"<|im_end|>\"}");
    if (mf_text_open(dir, &m.text, &err) != MF_OK) fprintf(stderr, "%s\n", err.text);
    static const char *const names[] = {"tokenizer.json", "chat_template.jinja", "tokenizer_config.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    mf__strbuf_free(&added);
    mf__strbuf_free(&json);
    return m;
}

static inline void make_free(made *m) {
    mf_text_close(m->text);
    for (int i = 0; i < m->n; i++) free(m->markers[i]);
    *m = (made){0};
}

static inline mf_model_info make_info(const made *m) {
    mf_model_info info = {.n_vocab = 256 + m->n, .n_eos = 1};
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->markers[i], "<|im_end|>")) info.eos[0] = 256 + i;
    return info;
}

#endif
