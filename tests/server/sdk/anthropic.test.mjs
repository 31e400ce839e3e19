// Anthropic's own client, unmodified, against `moeflux serve` with the story model.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({ baseURL: process.env.MOEFLUX_URL, apiKey: 'key-for-tests', maxRetries: 0 });
const model = 'stories-moe';

const messages = [{ role: 'user', content: 'Tell me a story about a dog.' }];
const weather = {
  name: 'get_weather',
  description: 'The weather in a city',
  input_schema: { type: 'object', properties: { city: { type: 'string', enum: ['Paris', 'Rome'] } }, required: ['city'], additionalProperties: false },
};
const timeTool = { name: 'get_time', input_schema: { type: 'object', properties: {}, additionalProperties: false } };

const collect = async (stream) => {
  const list = [];
  for await (const e of stream) list.push(e);
  return list;
};

test('a message', async () => {
  const r = await client.messages.create({ model, max_tokens: 20, messages, temperature: 0, system: 'You tell stories.' });
  assert.equal(r.type, 'message');
  assert.equal(r.role, 'assistant');
  assert.equal(r.content[0].type, 'text');
  assert.equal(r.stop_reason, 'max_tokens');
  assert.equal(r.stop_sequence, null);
  assert.equal(r.usage.output_tokens, 20);
  assert.match(r._request_id, /^req_/);
});

test('count_tokens agrees with usage', async () => {
  const ask = { model, messages, system: [{ type: 'text', text: 'You tell stories.' }] };
  const { input_tokens } = await client.messages.countTokens(ask);
  const r = await client.messages.create({ ...ask, max_tokens: 1 });
  assert.equal(r.usage.input_tokens, input_tokens);
});

test('a stream: the events in order', async () => {
  const ask = { model, max_tokens: 12, messages, temperature: 0 };
  const whole = await client.messages.create(ask);
  const events = await collect(await client.messages.create({ ...ask, stream: true }));
  const types = events.map((e) => e.type).filter((t) => t !== 'ping');
  assert.deepEqual(types.slice(0, 2), ['message_start', 'content_block_start']);
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
  assert.ok(types.slice(2, -3).every((t) => t === 'content_block_delta'));
  assert.equal(events.map((e) => e.delta?.text ?? '').join(''), whole.content[0].text);
  const delta = events.find((e) => e.type === 'message_delta');
  assert.equal(delta.delta.stop_reason, 'max_tokens');
  assert.equal(delta.usage.output_tokens, 12);
  assert.equal(events[0].message.usage.input_tokens, whole.usage.input_tokens);
});

test('the client puts a stream together', async () => {
  const stream = client.messages.stream({ model, max_tokens: 12, messages, temperature: 0 });
  const final = await stream.finalMessage();
  const whole = await client.messages.create({ model, max_tokens: 12, messages, temperature: 0 });
  assert.deepEqual(final.content[0].text, whole.content[0].text);
});

test('abort', async () => {
  const stream = client.messages.stream({ model, max_tokens: 1500, temperature: 0, messages: [{ role: 'user', content: 'A long story, please.' }] });
  let n = 0;
  await assert.rejects(async () => {
    for await (const _ of stream) if (++n === 4) stream.abort();
  }, Anthropic.APIUserAbortError);
});

test('stop sequences are named', async () => {
  const ask = { model, max_tokens: 60, messages, temperature: 0 };
  const free = (await client.messages.create(ask)).content[0].text;
  const stop = free.slice(12, 18);
  const r = await client.messages.create({ ...ask, stop_sequences: ['never said', stop] });
  assert.equal(r.stop_reason, 'stop_sequence');
  assert.equal(r.stop_sequence, stop);
  assert.equal(r.content[0].text, free.slice(0, free.indexOf(stop)));
});

test('tool_choice any, and tools there and back', async () => {
  const ask = { model, max_tokens: 200, messages, tools: [weather, timeTool], tool_choice: { type: 'any' } };
  const r = await client.messages.create(ask);
  assert.equal(r.stop_reason, 'tool_use');
  const uses = r.content.filter((b) => b.type === 'tool_use');
  assert.ok(uses.length >= 1);
  assert.match(uses[0].id, /^toolu_/);
  const back = await client.messages.create({
    model, max_tokens: 8, tools: [weather, timeTool], tool_choice: { type: 'none' },
    messages: [...messages, { role: 'assistant', content: r.content },
      { role: 'user', content: uses.map((u) => ({ type: 'tool_result', tool_use_id: u.id, content: [{ type: 'text', text: 'sunny' }] })) }],
  });
  assert.ok(back.content.every((b) => b.type === 'text'));
});

test('a named tool, in a stream', async () => {
  const stream = client.messages.stream({ model, max_tokens: 200, messages, tools: [timeTool, weather], tool_choice: { type: 'tool', name: 'get_weather', disable_parallel_tool_use: true } });
  const events = [];
  stream.on('streamEvent', (e) => events.push(e));
  const final = await stream.finalMessage();
  const uses = final.content.filter((b) => b.type === 'tool_use');
  assert.equal(uses.length, 1);
  assert.ok(['Paris', 'Rome'].includes(uses[0].input.city));
  assert.ok(events.some((e) => e.type === 'content_block_delta' && e.delta.type === 'input_json_delta'));
  assert.equal(final.stop_reason, 'tool_use');
});

test('a prefilled answer goes on', async () => {
  const r = await client.messages.create({ model, max_tokens: 6, temperature: 0, messages: [...messages, { role: 'assistant', content: 'Once upon a' }] });
  assert.match(r.content[0].text, /^ time/);
});

test('prompt caching: created once, read afterwards', async () => {
  const system = [{ type: 'text', text: 'You know many tales of the sea. '.repeat(8) + Math.random(), cache_control: { type: 'ephemeral' } }];
  const ask = (text) => client.messages.create({ model, max_tokens: 2, system, messages: [{ role: 'user', content: text }] });
  const a = await ask('One.');
  assert.equal(a.usage.cache_read_input_tokens, 0);
  assert.ok(a.usage.cache_creation_input_tokens > 40);
  const b = await ask('Another.');
  assert.equal(b.usage.cache_read_input_tokens, a.usage.cache_creation_input_tokens);
  assert.equal(b.usage.cache_creation_input_tokens, 0);
  assert.ok(b.usage.input_tokens > 0);
});

const mark = { cache_control: { type: 'ephemeral' } };
const tale = () => 'You know many tales of the sea. '.repeat(8) + Math.random();

test('prompt caching within a message: the breakpoint is where it is', async () => {
  const first = tale();
  const ask = (text) => client.messages.create({ model, max_tokens: 2, messages: [{ role: 'user', content: [{ type: 'text', text: first, ...mark }, { type: 'text', text }] }] });
  const a = await ask('And so on, at some length, ' + Math.random());
  const b = await ask('Something else ' + Math.random());
  assert.ok(a.usage.cache_creation_input_tokens > 40 && a.usage.input_tokens > 10);
  assert.equal(a.usage.cache_read_input_tokens, 0);
  assert.equal(b.usage.cache_read_input_tokens, a.usage.cache_creation_input_tokens);
  assert.equal(b.usage.cache_creation_input_tokens, 0);
  const { input_tokens } = await client.messages.countTokens({ model, messages: [{ role: 'user', content: [{ type: 'text', text: first, ...mark }, { type: 'text', text: 'x' }] }] });
  assert.ok(input_tokens > a.usage.cache_creation_input_tokens);
});

test('prompt caching along a conversation: each turn reads the one before', async () => {
  const messages = [{ role: 'user', content: [{ type: 'text', text: tale(), ...mark }] }];
  const ask = () => client.messages.create({ model, max_tokens: 2, messages });
  let known = 0;
  for (let i = 0; i < 3; i++) {
    const { usage } = await ask();
    assert.ok(usage.cache_read_input_tokens >= known); // ends of turns are kept as well
    assert.ok(usage.cache_creation_input_tokens > 0);
    known = usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
    delete messages.at(-1).content[0].cache_control;
    messages.push({ role: 'assistant', content: 'I see.' }, { role: 'user', content: [{ type: 'text', text: 'Go on with number ' + i, ...mark }] });
  }
});

test('prompt caching of tools, with and without a system prompt', async () => {
  const tools = [weather, { ...timeTool, description: tale(), ...mark }];
  for (const system of [undefined, [{ type: 'text', text: tale(), ...mark }]]) {
    const ask = (text) => client.messages.create({ model, max_tokens: 2, tools, ...(system && { system }), messages: [{ role: 'user', content: text }] });
    const a = await ask('One ' + Math.random()), b = await ask('Another ' + Math.random());
    assert.ok(a.usage.cache_creation_input_tokens > 100);
    assert.equal(b.usage.cache_read_input_tokens, a.usage.cache_creation_input_tokens);
    assert.ok(b.usage.input_tokens > 0 && b.usage.input_tokens < 60);
  }
});

test('prompt caching up to a prefilled answer, for an hour', async () => {
  const ask = { model, max_tokens: 2, messages: [{ role: 'user', content: tale() }, { role: 'assistant', content: [{ type: 'text', text: 'Once upon a', cache_control: { type: 'ephemeral', ttl: '1h' } }] }] };
  const a = await client.messages.create(ask);
  assert.equal(a.usage.input_tokens, 0);
  assert.equal(a.usage.cache_creation.ephemeral_1h_input_tokens, a.usage.cache_creation_input_tokens);
});

test('markers in what people write are text', async () => {
  const count = async (content) => (await client.messages.countTokens({ model, messages: [{ role: 'user', content }] })).input_tokens;
  assert.ok((await count('a<|im_end|>b')) > (await count('ab')) + 2);
});

test('models', async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, model);
});

// ---- errors

const refused = (cls, type) => (e) => {
  assert.ok(e instanceof cls, `${e.constructor.name}: ${e.message}`);
  assert.equal(e.error.type, 'error');
  assert.equal(e.error.error.type, type);
  return true;
};

test('400, each in the shape of this API', async () => {
  const bad = (body, part) => assert.rejects(client.messages.create(body), (e) => {
    refused(Anthropic.BadRequestError, 'invalid_request_error')(e);
    assert.ok(e.error.error.message.includes(part), e.error.error.message);
    return true;
  });
  await bad({ model, messages }, 'max_tokens: Field required');
  await bad({ model, max_tokens: 5 }, 'messages: Field required');
  await bad({ model, max_tokens: 5, messages: [] }, 'at least one message');
  await bad({ model, max_tokens: 5, messages: [{ role: 'system', content: 'x' }] }, 'messages.0.role');
  await bad({ model, max_tokens: 5, messages, no_such_field: 1 }, 'Extra inputs are not permitted');
  await bad({ model, max_tokens: 5, messages, temperature: 1.5 }, 'temperature');
  await bad({ model, max_tokens: 5, messages, tools: [{ name: 'x' }] }, 'input_schema');
  await bad({ model, max_tokens: 5, messages, tool_choice: { type: 'any' } }, 'tool_choice');
  await bad({ model, max_tokens: 5, messages: [{ role: 'user', content: Array(5).fill({ type: 'text', text: 'x', ...mark }) }] }, 'A maximum of 4 blocks');
  await bad({ model, max_tokens: 5, messages: [{ role: 'user', content: [{ type: 'text', text: 'x', cache_control: { type: 'forever' } }] }] }, 'cache_control');
  await bad({ model, max_tokens: 5, messages, thinking: { type: 'enabled', budget_tokens: 10 } }, 'budget_tokens');
  await bad({ model, max_tokens: 5, messages, mcp_servers: [{ type: 'url', url: 'https://x.example', name: 'x' }] }, 'mcp_servers');
  await bad({ model, max_tokens: 5, messages, container: 'c_1' }, 'container');
});

test('every class of error', async () => {
  await assert.rejects(client.messages.create({ model, max_tokens: 1, messages }, { headers: { Origin: 'http://evil.example' } }), refused(Anthropic.PermissionDeniedError, 'permission_error'));
  await assert.rejects(client.post('/v1/messages/batches', { body: {} }), refused(Anthropic.NotFoundError, 'not_found_error'));
  await assert.rejects(client.post('/v1/messages', { body: { model, max_tokens: 1, messages: [{ role: 'user', content: 'x'.repeat(33 << 20) }] } }), (e) => {
    assert.equal(e.status, 413);
    assert.equal(e.error.error.type, 'request_too_large');
    return true;
  });
  const slow = { model, max_tokens: 1500, messages: [{ role: 'user', content: 'A long story, please.' }] };
  await assert.rejects(client.messages.create(slow, { timeout: 1 }), (e) => e instanceof Anthropic.APIConnectionTimeoutError);
  // All 160 places are taken by one who asks for 64 answers at a time. The request that was given up above may still
  // hold one of them: then a part is refused, and everything is let go and asked for again.
  const url = process.env.MOEFLUX_URL + '/v1/completions', headers = { authorization: 'Bearer key-for-tests' };
  const body = (n) => JSON.stringify({ prompt: 'Once', max_tokens: 1500, ignore_eos: true, stream: true, n });
  let places;
  for (let i = 0; ; i++) {
    places = new AbortController();
    const parts = await Promise.all([64, 64, 32].map((n) => fetch(url, { method: 'POST', headers, body: body(n), signal: places.signal })));
    if (parts.every((r) => r.status === 200)) break;
    places.abort();
    assert.ok(i < 50, 'the places are never free');
    await new Promise((r) => setTimeout(r, 100));
  }
  await assert.rejects(client.messages.create(slow), refused(Anthropic.RateLimitError, 'rate_limit_error'));
  places.abort();
});

test('401 and 404', async () => {
  const stranger = new Anthropic({ baseURL: process.env.MOEFLUX_URL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.messages.create({ model, max_tokens: 1, messages }), refused(Anthropic.AuthenticationError, 'authentication_error'));
  await assert.rejects(client.models.retrieve('no-such-model'), refused(Anthropic.NotFoundError, 'not_found_error'));
});
