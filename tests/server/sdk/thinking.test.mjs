// A model that reasons first: the story model with a template that opens <think>. Both official clients, unmodified.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const openai = new OpenAI({ baseURL: process.env.MOEFLUX_URL + '/v1', apiKey: 'key-for-tests', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: process.env.MOEFLUX_URL, apiKey: 'key-for-tests', maxRetries: 0 });
const model = 'thinker';
const messages = [{ role: 'user', content: 'Tell me a story about a dog.' }];
const collect = async (stream) => {
  const list = [];
  for await (const e of stream) list.push(e);
  return list;
};

test('chat: reasoning has a field of its own, whole and streamed', async () => {
  const ask = { model, messages, max_tokens: 20, temperature: 0, ignore_eos: true };
  const whole = await openai.chat.completions.create(ask);
  assert.ok(whole.choices[0].message.reasoning_content.length > 10);
  assert.equal(whole.choices[0].message.content, '');
  assert.equal(whole.usage.completion_tokens_details.reasoning_tokens, 20);
  const chunks = await collect(await openai.chat.completions.create({ ...ask, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0].delta.reasoning_content ?? '').join(''), whole.choices[0].message.reasoning_content);
});

test('chat: reasoning_effort none, enable_thinking false: there is none', async () => {
  for (const how of [{ reasoning_effort: 'none' }, { chat_template_kwargs: { enable_thinking: false } }]) {
    const r = await openai.chat.completions.create({ model, messages, max_tokens: 10, temperature: 0, ...how });
    assert.equal(r.choices[0].message.reasoning_content, undefined);
    assert.ok(r.choices[0].message.content.length > 5);
  }
});

test('responses: an item of reasoning, put together by the client', async () => {
  const ask = { model, input: messages, max_output_tokens: 20, temperature: 0, ignore_eos: true };
  const stream = openai.responses.stream(ask);
  const events = [];
  stream.on('event', (e) => events.push(e));
  const final = await stream.finalResponse();
  const types = events.map((e) => e.type);
  assert.deepEqual(types.slice(0, 4), ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added']);
  assert.deepEqual(types.slice(-4), ['response.reasoning_text.done', 'response.content_part.done', 'response.output_item.done', 'response.incomplete']);
  assert.ok(types.slice(4, -4).every((t) => t === 'response.reasoning_text.delta'));
  const whole = await openai.responses.create(ask);
  assert.equal(whole.output[0].type, 'reasoning');
  assert.equal(final.output[0].content[0].text, whole.output[0].content[0].text);
  assert.equal(whole.usage.output_tokens_details.reasoning_tokens, 20);
  // and what came can be sent back
  await openai.responses.create({ ...ask, input: [...messages, ...final.output, { role: 'user', content: 'Go on.' }] });
});

// Greedy, since a sampled answer may end where its text would begin.
const greedy = { model, messages, temperature: 0 };
const thinking = { type: 'enabled', budget_tokens: 8 };

test('messages: a block of thinking, then one of text', async () => {
  const r = await anthropic.messages.create({ ...greedy, max_tokens: 40, thinking });
  assert.deepEqual(r.content.map((b) => b.type), ['thinking', 'text']);
  assert.ok(r.content[0].thinking.length > 5 && r.content[1].text.length > 5);
  assert.equal(typeof r.content[0].signature, 'string');
  // and back, as clients send it
  const back = await anthropic.messages.create({ ...greedy, max_tokens: 30, thinking, messages: [...messages, { role: 'assistant', content: r.content }, { role: 'user', content: 'Go on.' }] });
  assert.equal(back.content[0].type, 'thinking');
});

test('messages: thinking in a stream, the events in order', async () => {
  const events = await collect(await anthropic.messages.create({ ...greedy, max_tokens: 40, thinking, stream: true }));
  const names = events.filter((e) => e.type !== 'ping').map((e) => (e.type === 'content_block_delta' ? e.delta.type : e.type === 'content_block_start' ? `start ${e.content_block.type}` : e.type));
  const short = names.filter((n, i) => n !== names[i - 1]);
  assert.deepEqual(short, ['message_start', 'start thinking', 'thinking_delta', 'signature_delta', 'content_block_stop', 'start text', 'text_delta', 'content_block_stop', 'message_delta', 'message_stop']);
  const final = await anthropic.messages.stream({ ...greedy, max_tokens: 40, thinking }).finalMessage();
  assert.deepEqual(final.content.map((b) => b.type), ['thinking', 'text']);
});

test('messages: thinking disabled', async () => {
  const r = await anthropic.messages.create({ ...greedy, max_tokens: 10, thinking: { type: 'disabled' } });
  assert.deepEqual(r.content.map((b) => b.type), ['text']);
});

test('messages: a tool behind the thinking', async () => {
  const tools = [{ name: 'get_time', input_schema: { type: 'object', properties: { zone: { enum: ['UTC'] } }, required: ['zone'], additionalProperties: false } }];
  const r = await anthropic.messages.create({ ...greedy, max_tokens: 200, thinking, tools, tool_choice: { type: 'any' } });
  assert.equal(r.stop_reason, 'tool_use');
  assert.equal(r.content[0].type, 'thinking');
  assert.deepEqual(r.content.at(-1).input, { zone: 'UTC' });
});
