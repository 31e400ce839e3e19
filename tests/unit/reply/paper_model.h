/* A model made of paper for tests of replies: it says what a script says, or whatever a die says. */
#ifndef TEST_PAPER_MODEL_H
#define TEST_PAPER_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "make_text.h"

static mf_error err;

#define CHATML                                                                                                         \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"                         \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define THINKING CHATML "{% if enable_thinking %}<think>\n{% endif %}{# tools <tool_call> </think> #}"

#define WEATHER                                                                                                        \
    "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\", "       \
    "\"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 8}, \"days\": {\"type\": \"integer\", "          \
    "\"minimum\": 1, "                                                                                                 \
    "\"maximum\": 9}}, \"required\": [\"city\", \"days\"], \"additionalProperties\": false}}}"
#define PING                                                                                                           \
    "{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"parameters\": {\"type\": \"object\", "              \
    "\"properties\": {\"on\": {\"type\": \"boolean\"}}, \"additionalProperties\": false}}}"
#define ASK "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"
#define ASK_TOOLS "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tools\": [" WEATHER ", " PING "]}"

/* ---- what came -------------------------------------------------------------------------------------------------- */

typedef struct heard {
    mf__strbuf text, reasoning, arguments;
    char name[64];
    json_t *calls;          /* [[name, arguments]] */
    int n_tokens, n_pieces; /* pieces: of arguments */
    float logprobs;
} heard;

static inline mf_status hear(void *user, const mf_event *e) {
    heard *h = user;
    switch (e->kind) {
    case MF_EVENT_TEXT: return mf__strbuf_append(&h->text, e->text, e->n_text, NULL);
    case MF_EVENT_REASONING: return mf__strbuf_append(&h->reasoning, e->text, e->n_text, NULL);
    case MF_EVENT_CALL:
        snprintf(h->name, sizeof h->name, "%s", e->name);
        mf__strbuf_clear(&h->arguments);
        return MF_OK;
    case MF_EVENT_ARGUMENTS: h->n_pieces++; return mf__strbuf_append(&h->arguments, e->text, e->n_text, NULL);
    case MF_EVENT_CALL_END:
        if (!h->calls) h->calls = json_array();
        json_array_append_new(h->calls, json_pack("[s, s%]", h->name, h->arguments.data, h->arguments.size));
        return MF_OK;
    case MF_EVENT_TOKEN:
        h->n_tokens++;
        h->logprobs += e->logprob;
        assert_true(e->n_text > 0 && e->n_top <= 3);
        return MF_OK;
    }
    return MF_E_INTERNAL;
}

static inline void forget(heard *h) {
    mf__strbuf_free(&h->text);
    mf__strbuf_free(&h->reasoning);
    mf__strbuf_free(&h->arguments);
    json_decref(h->calls);
    *h = (heard){0};
}

#define SAID(h) ((h).text.data ? (h).text.data : "")
#define THOUGHT(h) ((h).reasoning.data ? (h).reasoning.data : "")

/* ---- the model -------------------------------------------------------------------------------------------------- */

static uint64_t die = 1;

static inline float throw(void) {
    die = die * 6364136223846793005u + 1442695040888963407u;
    return (float)(die >> 40) / (float)(1 << 24);
}

typedef struct run {
    const made *m;
    mf_reply_options o;
    const char *script; /* NULL: a die */
    mf_reply_result result;
    size_t n_prompt;
    int64_t asked[4];
    bool in_reasoning;
} run;

static inline run ask(const made *m, const char *request) {
    run r = {.m = m};
    mf_reply_options_init(&r.o);
    r.o.request = request;
    r.o.request_size = request ? strlen(request) : 0;
    r.o.sampling.temperature = 0;
    r.o.max_tokens = 4000;
    return r;
}

/* Evaluates: the script's next token is far likelier than the rest; at its end, the end. What is forced comes out of
 * nobody's script. */
static inline void say(run *r, heard *h) {
    mf_model_info info = make_info(r->m);
    mf_reply *reply;
    mf_reply_prompt p;
    const int32_t *ids;
    int32_t script[4096];
    size_t n = 1, n_script = 0, at = 0;
    float *logits = calloc((size_t)info.n_vocab, sizeof *logits);
    r->o.fn = hear;
    r->o.user = h;
    if (mf_reply_create(r->m->text, &info, &r->o, &reply, &err) != MF_OK) fail_msg("%s", err.text);
    mf_reply_prompt_get(reply, &p);
    r->n_prompt = p.n_ids;
    r->in_reasoning = p.in_reasoning;
    for (int i = 0; i < r->o.n_marks && i < 4; i++) r->asked[i] = p.asked[i];
    if (r->script)
        mf_text_encode(r->m->text, r->script, strlen(r->script), true, script, MF__COUNT(script), &n_script, &err);
    while (n) {
        for (int32_t i = 0; i < info.n_vocab; i++) logits[i] = r->script ? 0 : 8 * throw();
        if (r->script) logits[at < n_script ? script[at] : info.eos[0]] = 20;
        mf_status st = mf_reply_step(reply, logits, &ids, &n, &err);
        if (st != MF_OK) fail_msg("%s", err.text);
        if (r->script && n == 1 && at < n_script && ids[0] == script[at]) at++;
    }
    mf_reply_result_get(reply, &r->result);
    mf_reply_free(reply);
    free(logits);
}

#endif
