/* Anthropic's /v1/messages and /v1/messages/count_tokens: how the answer is written. anthropic_request.c reads what is
 * asked. */
#include <string.h>

#include "anthropic.h"

/* ---- the parts of an answer -------------------------------------------------------------------------------------- */

static const char *stop_reason(const out_choice *c) {
    switch (c->result.end) {
    case MF_END_LENGTH: return "max_tokens";
    case MF_END_CONTEXT: return "model_context_window_exceeded";
    case MF_END_STOP_TEXT: return "stop_sequence";
    default: return c->result.n_calls ? "tool_use" : "end_turn";
    }
}

static json_t *stop_sequence(const job *j, const out_choice *c) {
    bool by_text = c->result.end == MF_END_STOP_TEXT && c->result.stop >= 0 && c->result.stop < j->n_stops;
    return by_text ? json_string(j->stops[c->result.stop]) : json_null();
}

/* What was read from the cache and what was put there count up to the last breakpoint; without one there is neither. */
static json_t *usage(const job *j, const out_choice *c, int64_t n_output) {
    int64_t read = c->n_reused < j->cache_mark ? c->n_reused : j->cache_mark;
    int64_t created = j->cache_mark - read, hour = j->cache_1h ? created : 0;
    return json_pack("{s:I,s:I,s:I,s:{s:I,s:I},s:I,s:s}", "input_tokens", (json_int_t)(c->n_prompt - j->cache_mark),
                     "cache_creation_input_tokens", (json_int_t)created, "cache_read_input_tokens", (json_int_t)read,
                     "cache_creation", "ephemeral_5m_input_tokens", (json_int_t)(created - hour),
                     "ephemeral_1h_input_tokens", (json_int_t)hour, "output_tokens", (json_int_t)n_output,
                     "service_tier", "standard");
}

static json_t *message(const job *j, json_t *content, const char *reason, json_t *sequence, json_t *use) {
    char id[64];
    snprintf(id, sizeof id, "msg_%s", j->id);
    return json_pack("{s:s,s:s,s:s,s:s,s:o,s:o,s:o,s:o}", "id", id, "type", "message", "role", "assistant", "model",
                     j->model, "content", content, "stop_reason", reason ? json_string(reason) : json_null(),
                     "stop_sequence", sequence, "usage", use);
}

static json_t *tool_use(const out_call *call, bool empty) {
    json_t *input = empty ? NULL
                          : json_loadb(call->arguments.data ? call->arguments.data : "{}",
                                       call->arguments.data ? call->arguments.size : 2, 0, NULL);
    return json_pack("{s:s,s:s,s:s,s:o}", "type", "tool_use", "id", call->id, "name", call->name, "input",
                     input ? input : json_object());
}

static json_t *whole_content(const out_choice *c) {
    json_t *content = json_array();
    if (c->reasoning.size)
        json_array_append_new(content, json_pack("{s:s,s:o,s:s}", "type", "thinking", "thinking",
                                                 json_text(c->reasoning.data, c->reasoning.size), "signature", ""));
    if (c->text.size || !c->n_calls)
        json_array_append_new(content,
                              json_pack("{s:s,s:o}", "type", "text", "text", json_text(c->text.data, c->text.size)));
    for (int i = 0; i < c->n_calls; i++) json_array_append_new(content, tool_use(&c->calls[i], false));
    return content;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* message_start tells how much of the prompt was cached, so it waits until the prompt is being read. */
static void start(job *j, out_choice *c) {
    if (c->n_blocks >= 0) return;
    c->n_blocks = 0;
    job_sse(j, "message_start",
            json_pack("{s:s,s:o}", "type", "message_start", "message",
                      message(j, json_array(), NULL, json_null(), usage(j, c, 1))));
    job_sse(j, "ping", json_pack("{s:s}", "type", "ping"));
}

static void close_block(job *j, out_choice *c) {
    if (c->block < 0) return;
    if (c->block_kind == MF_EVENT_REASONING)
        job_sse(j, "content_block_delta",
                json_pack("{s:s,s:i,s:{s:s,s:s}}", "type", "content_block_delta", "index", c->block, "delta", "type",
                          "signature_delta", "signature", ""));
    job_sse(j, "content_block_stop", json_pack("{s:s,s:i}", "type", "content_block_stop", "index", c->block));
    c->block = -1;
}

static void open_block(job *j, out_choice *c, mf_event_kind kind, json_t *block) {
    close_block(j, c);
    c->block = c->n_blocks++;
    c->block_kind = (int)kind;
    job_sse(j, "content_block_start",
            json_pack("{s:s,s:i,s:o}", "type", "content_block_start", "index", c->block, "content_block", block));
}

static void delta(job *j, out_choice *c, const char *type, const char *key, const mf_event *m) {
    job_sse(j, "content_block_delta",
            json_pack("{s:s,s:i,s:{s:s,s:o}}", "type", "content_block_delta", "index", c->block, "delta", "type", type,
                      key, json_text(m->text, m->n_text)));
}

static void begin(job *j) {
    j->out[0].block = -1;
    j->out[0].n_blocks = -1;
}

static void reply_event(job *j, out_choice *c, const mf_event *m) {
    if (m->kind == MF_EVENT_TEXT) {
        if (c->block < 0 || c->block_kind != MF_EVENT_TEXT)
            open_block(j, c, m->kind, json_pack("{s:s,s:s}", "type", "text", "text", ""));
        delta(j, c, "text_delta", "text", m);
    } else if (m->kind == MF_EVENT_REASONING) {
        if (c->block < 0 || c->block_kind != MF_EVENT_REASONING)
            open_block(j, c, m->kind, json_pack("{s:s,s:s,s:s}", "type", "thinking", "thinking", "", "signature", ""));
        delta(j, c, "thinking_delta", "thinking", m);
    } else if (m->kind == MF_EVENT_CALL) {
        open_block(j, c, m->kind, tool_use(&c->calls[m->call], true));
    } else if (m->kind == MF_EVENT_ARGUMENTS) {
        delta(j, c, "input_json_delta", "partial_json", m);
    } else if (m->kind == MF_EVENT_CALL_END) {
        close_block(j, c);
    }
}

static void event(job *j, out_choice *c, const sched_event *e) {
    start(j, c);
    if (e->kind == SCHED_REPLY) reply_event(j, c, e->reply);
    if (e->kind != SCHED_ENDED) return;
    if (!c->n_blocks) open_block(j, c, MF_EVENT_TEXT, json_pack("{s:s,s:s}", "type", "text", "text", ""));
    close_block(j, c);
    json_t *use = usage(j, c, c->result.n_made);
    json_object_del(use, "service_tier");
    job_sse(j, "message_delta",
            json_pack("{s:s,s:{s:s,s:o},s:o}", "type", "message_delta", "delta", "stop_reason", stop_reason(c),
                      "stop_sequence", stop_sequence(j, c), "usage", use));
    job_sse(j, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static void end(job *j) {
    const out_choice *c = &j->out[0];
    if (j->stream) return;
    job_respond(j, message(j, whole_content(c), stop_reason(c), stop_sequence(j, c), usage(j, c, c->result.n_made)));
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void prepare(job *j, json_t *body) {
    gen g;
    mf_reply_prompt p;
    if (gen_init(&g, j) && anthropic_request(&g, j, body, true) && gen_start(&g, j)) {
        mf_reply_prompt_get(j->seqs[0]->reply, &p);
        for (int i = 0; i < g.opt.n_marks; i++) {
            bool at_end = g.opt.continue_last && (size_t)g.marks[i].message + 1 == json_array_size(g.messages);
            int64_t at = at_end ? (int64_t)p.n_ids : p.asked[i];
            if (at > j->cache_mark) j->cache_mark = at;
        }
    }
    gen_free(&g);
}

/* The tokens are those of the request's prompt: it is written out, and no more. */
static void prepare_count(job *j, json_t *body) {
    gen g;
    mf_reply_prompt p;
    if (gen_init(&g, j) && anthropic_request(&g, j, body, false)) {
        g.opt.n_ctx = 0;
        if (gen_start(&g, j)) {
            mf_reply_prompt_get(j->seqs[0]->reply, &p);
            job_whole(j, json_pack("{s:I}", "input_tokens", (json_int_t)p.n_ids));
        }
    }
    gen_free(&g);
}

const api api_messages = {"/v1/messages", FAMILY_ANTHROPIC, prepare, begin, event, end, NULL};
const api api_count_tokens = {"/v1/messages/count_tokens", FAMILY_ANTHROPIC, prepare_count, NULL, NULL, NULL, NULL};
