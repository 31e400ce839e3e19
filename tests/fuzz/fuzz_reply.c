/* A request of any kind, put to a small chat template: it is refused, or becomes a prompt whose special tokens are the
 * template's own, and a reply that ends. The first bytes choose options; the rest is the request, and what the model
 * then says. */
#include <stdlib.h>
#include <string.h>

#include "../unit/reply/make_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char source[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% if enable_thinking %}<think>\n{% endif %}";

static mf_status look(void *user, const mf_event *e) {
    size_t *n = user;
    for (size_t i = 0; i < e->n_text; i++) *n += (unsigned char)e->text[i];
    return MF_OK;
}

static void reply(const made *m, const mf_reply_options *o, const uint8_t *words, size_t n_words) {
    mf_model_info info = make_info(m);
    mf_reply *r;
    mf_error err;
    mf_reply_prompt p;
    float *logits = calloc((size_t)info.n_vocab, sizeof *logits);
    const int32_t *ids;
    size_t n = 1, at = 0;
    if (mf_reply_create(m->text, &info, o, &r, &err) != MF_OK) {
        free(logits);
        return;
    }
    mf_reply_prompt_get(r, &p);
    for (size_t i = 1; i < p.n_marks; i++)
        if (p.marks[i - 1] >= p.marks[i] || p.marks[i] > (int64_t)p.n_ids) abort();
    while (n) {
        uint8_t word = n_words ? words[at++ % n_words] : 0;
        for (int32_t i = 0; i < info.n_vocab; i++) logits[i] = (float)((i * 7 + word) % 31) / 31;
        logits[(word * 3 + (int)at) % info.n_vocab] = 9;
        if (mf_reply_step(r, logits, &ids, &n, &err) != MF_OK) break;
        if (at > 400) mf_reply_finish(r, &err);
    }
    mf_reply_free(r);
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static made m;
    static const char *const stops[] = {"ab", "\n"};
    static const mf_reply_mark marks[] = {{0, -1}, {1, 0}, {1, 7}};
    size_t said = 0;
    if (!m.text) m = make_text(source);
    if (size < 3) return 0;
    mf_reply_options o;
    mf_reply_options_init(&o);
    o.request = (const char *)data + 3;
    o.request_size = size - 3;
    o.max_tokens = 64;
    o.tool_choice = (mf_tool_choice)(data[0] % 4);
    o.tool_name = "f";
    o.one_call = data[0] & 4;
    o.continue_last = data[0] & 8;
    o.reasoning = (mf_switch)(data[1] % 3);
    o.max_reasoning = data[1] & 4 ? 5 : 0;
    o.stops = stops;
    o.n_stops = data[1] & 8 ? 2 : 0;
    o.marks = marks;
    o.n_marks = data[1] & 16 ? 3 : 0;
    o.tokens = data[2] & 1;
    o.n_logprobs = data[2] % 5 - 1;
    o.sampling.temperature = data[2] & 2 ? 0 : 1;
    o.fn = look;
    o.user = &said;
    reply(&m, &o, data + 3, size - 3);
    return 0;
}
