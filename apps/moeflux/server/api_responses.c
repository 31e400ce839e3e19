/* OpenAI's /v1/responses: how the answer is written, whole and as events. responses_request.c reads what is asked.
 *
 * Nothing is stored: every request brings its whole conversation (store is false in every answer). */
#include "responses.h"

#include <stdlib.h>
#include <string.h>

/* ---- items of the output ----------------------------------------------------------------------------------------- */

static void item_id(const job *j, const char *prefix, int index, char out[64]) {
    snprintf(out, 64, "%s_%s%02d", prefix, j->id, index);
}

static json_t *text_part(const char *text, size_t n) {
    return json_pack("{s:s,s:o,s:[],s:[]}", "type", "output_text", "text", json_text(text, n), "annotations",
                     "logprobs");
}

static json_t *reasoning_part(const char *text, size_t n) {
    return json_pack("{s:s,s:o}", "type", "reasoning_text", "text", json_text(text, n));
}

static json_t *message_item(const job *j, int index, const char *status, json_t *parts) {
    char id[64];
    item_id(j, "msg", index, id);
    return json_pack("{s:s,s:s,s:s,s:s,s:o}", "id", id, "type", "message", "status", status, "role", "assistant",
                     "content", parts);
}

static json_t *reasoning_item(const job *j, int index, json_t *parts) {
    char id[64];
    item_id(j, "rs", index, id);
    return json_pack("{s:s,s:s,s:[],s:o}", "id", id, "type", "reasoning", "summary", "content", parts);
}

static json_t *call_item(const job *j, int index, const out_call *call, const char *status, bool empty) {
    char id[64];
    item_id(j, "fc", index, id);
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:o}", "id", id, "type", "function_call", "status", status, "call_id",
                     call->id, "name", call->name, "arguments",
                     empty ? json_string("") : json_text(call->arguments.data, call->arguments.size));
}

static bool is_cut(const out_choice *c) {
    return c->result.end == MF_END_LENGTH || c->result.end == MF_END_CONTEXT;
}

/* Of the item at hand: the last one of an answer that was cut is not whole. */
static const char *item_status(const out_choice *c, bool last) {
    return last && c->ended && is_cut(c) ? "incomplete" : "completed";
}

static json_t *all_items(const job *j, const out_choice *c) {
    json_t *items = json_array();
    int n = 0;
    if (c->reasoning.size)
        json_array_append_new(
            items, reasoning_item(j, n++, json_pack("[o]", reasoning_part(c->reasoning.data, c->reasoning.size))));
    if (c->text.size || !c->n_calls) {
        json_array_append_new(items, message_item(j, n, item_status(c, !c->n_calls),
                                                  json_pack("[o]", text_part(c->text.data, c->text.size))));
        n++;
    }
    for (int i = 0; i < c->n_calls; i++, n++)
        json_array_append_new(items, call_item(j, n, &c->calls[i], item_status(c, i + 1 == c->n_calls), false));
    return items;
}

/* ---- the response ------------------------------------------------------------------------------------------------ */

static json_t *usage(const out_choice *c) {
    return json_pack("{s:I,s:{s:I},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)c->n_prompt, "input_tokens_details",
                     "cached_tokens", (json_int_t)c->n_reused, "output_tokens", (json_int_t)c->result.n_made,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)c->result.n_reasoning, "total_tokens",
                     (json_int_t)(c->n_prompt + c->result.n_made));
}

static json_t *response(const job *j, bool done) {
    const out_choice *c = &j->out[0];
    const char *status = !done ? "in_progress" : is_cut(c) ? "incomplete" : "completed";
    char id[64];
    item_id(j, "resp", 0, id);
    json_t *r = json_pack(
        "{s:s,s:s,s:I,s:s,s:b,s:n,s:o,s:s,s:o,s:n,s:b,s:s}", "id", id, "object", "response", "created_at",
        (json_int_t)j->created, "status", status, "background", 0, "error", "incomplete_details",
        done && is_cut(c) ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "model", j->model,
        "output", done ? all_items(j, c) : json_array(), "previous_response_id", "store", 0, "truncation", "disabled");
    json_object_update(r, j->about);
    json_object_set_new(r, "usage", done ? usage(c) : json_null());
    return r;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void tell(job *j, const char *type, json_t *data) {
    json_object_set_new(data, "type", json_string(type));
    json_object_set_new(data, "sequence_number", json_integer((json_int_t)j->n_events++));
    job_sse(j, type, data);
}

static void begin(job *j) {
    j->out[0].block = -1;
    tell(j, "response.created", json_pack("{s:o}", "response", response(j, false)));
    tell(j, "response.in_progress", json_pack("{s:o}", "response", response(j, false)));
}

/* Where a delta belongs: the item, its place and its part. */
static json_t *place(const job *j, const out_choice *c, const char *prefix) {
    char id[64];
    item_id(j, prefix, c->block, id);
    return json_pack("{s:s,s:i,s:i}", "item_id", id, "output_index", c->block, "content_index", 0);
}

static const char *prefix_of(int kind) {
    return kind == MF_EVENT_TEXT ? "msg" : kind == MF_EVENT_REASONING ? "rs" : "fc";
}

static void item_done(job *j, out_choice *c, json_t *item) {
    tell(j, "response.output_item.done", json_pack("{s:i,s:o}", "output_index", c->block, "item", item));
    c->block = -1;
}

static void close_text(job *j, out_choice *c) {
    json_t *at = place(j, c, "msg");
    const char *text = c->text.data ? c->text.data + c->offset : "";
    size_t n = c->text.size - c->offset;
    json_t *done = json_copy(at);
    json_object_set_new(done, "text", json_text(text, n));
    json_object_set_new(done, "logprobs", json_array());
    tell(j, "response.output_text.done", done);
    json_object_set_new(at, "part", text_part(text, n));
    tell(j, "response.content_part.done", at);
    item_done(j, c, message_item(j, c->block, item_status(c, true), json_pack("[o]", text_part(text, n))));
}

static void close_reasoning(job *j, out_choice *c) {
    const char *text = c->reasoning.data;
    size_t n = c->reasoning.size;
    json_t *at = place(j, c, "rs"), *done = json_copy(at);
    json_object_set_new(done, "text", json_text(text, n));
    tell(j, "response.reasoning_text.done", done);
    json_object_set_new(at, "part", reasoning_part(text, n));
    tell(j, "response.content_part.done", at);
    item_done(j, c, reasoning_item(j, c->block, json_pack("[o]", reasoning_part(text, n))));
}

static void close_call(job *j, out_choice *c) {
    const out_call *call = &c->calls[c->n_calls - 1];
    json_t *done = place(j, c, "fc");
    json_object_del(done, "content_index");
    json_object_set_new(done, "name", json_string(call->name));
    json_object_set_new(done, "arguments", json_text(call->arguments.data, call->arguments.size));
    tell(j, "response.function_call_arguments.done", done);
    item_done(j, c, call_item(j, c->block, call, item_status(c, true), false));
}

static void close_item(job *j, out_choice *c) {
    if (c->block < 0) return;
    if (c->block_kind == MF_EVENT_TEXT)
        close_text(j, c);
    else if (c->block_kind == MF_EVENT_REASONING)
        close_reasoning(j, c);
    else
        close_call(j, c);
}

static void open_item(job *j, out_choice *c, mf_event_kind kind, const mf_event *m) {
    if (c->block >= 0 && c->block_kind == (int)kind && kind != MF_EVENT_CALL) return;
    close_item(j, c);
    c->block = c->n_blocks++;
    c->block_kind = (int)kind;
    c->offset = kind == MF_EVENT_TEXT && m ? c->text.size - m->n_text : c->text.size;
    json_t *item = kind == MF_EVENT_TEXT ? message_item(j, c->block, "in_progress", json_array())
                   : kind == MF_EVENT_REASONING
                       ? reasoning_item(j, c->block, json_array())
                       : call_item(j, c->block, &c->calls[c->n_calls - 1], "in_progress", true);
    tell(j, "response.output_item.added", json_pack("{s:i,s:o}", "output_index", c->block, "item", item));
    if (kind == MF_EVENT_CALL) return;
    json_t *part = place(j, c, prefix_of((int)kind));
    json_object_set_new(part, "part", kind == MF_EVENT_TEXT ? text_part("", 0) : reasoning_part("", 0));
    tell(j, "response.content_part.added", part);
}

static void delta(job *j, out_choice *c, const char *type, const mf_event *m) {
    json_t *data = place(j, c, prefix_of(c->block_kind));
    json_object_set_new(data, "delta", json_text(m->text, m->n_text));
    if (c->block_kind == MF_EVENT_TEXT) json_object_set_new(data, "logprobs", json_array());
    if (c->block_kind == MF_EVENT_CALL) json_object_del(data, "content_index");
    tell(j, type, data);
}

static void event(job *j, out_choice *c, const sched_event *e) {
    const mf_event *m = e->kind == SCHED_REPLY ? e->reply : NULL;
    if (e->kind == SCHED_ENDED) {
        if (!c->n_blocks) open_item(j, c, MF_EVENT_TEXT, NULL);
        close_item(j, c);
        return;
    }
    if (!m) return;
    if (m->kind == MF_EVENT_TEXT || m->kind == MF_EVENT_REASONING) {
        open_item(j, c, m->kind, m);
        delta(j, c, m->kind == MF_EVENT_TEXT ? "response.output_text.delta" : "response.reasoning_text.delta", m);
    } else if (m->kind == MF_EVENT_CALL) {
        open_item(j, c, m->kind, m);
    } else if (m->kind == MF_EVENT_ARGUMENTS) {
        delta(j, c, "response.function_call_arguments.delta", m);
    } else if (m->kind == MF_EVENT_CALL_END) {
        close_item(j, c);
    }
}

static void end(job *j) {
    if (j->stream)
        tell(j, is_cut(&j->out[0]) ? "response.incomplete" : "response.completed",
             json_pack("{s:o}", "response", response(j, true)));
    else
        job_respond(j, response(j, true));
}

static void problem_event(job *j) {
    const problem *p = &j->problem;
    tell(j, "error",
         json_pack("{s:o,s:s,s:o}", "code", p->code[0] ? json_string(p->code) : json_string("server_error"), "message",
                   p->text, "param", p->param[0] ? json_string(p->param) : json_null()));
}

static void prepare(job *j, json_t *body) {
    gen g;
    if (gen_init(&g, j) && responses_request(&g, j, body)) gen_start(&g, j);
    gen_free(&g);
}

const api api_responses = {"/v1/responses", FAMILY_OPENAI, prepare, begin, event, end, problem_event};
