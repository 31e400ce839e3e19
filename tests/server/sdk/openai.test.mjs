// OpenAI's own client, unmodified, against `moeflux serve` with the story model.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const baseURL = process.env.MOEFLUX_URL + '/v1';
const client = new OpenAI({ baseURL, apiKey: 'key-for-tests', maxRetries: 0 });
const model = 'stories-moe';

const story = [{ role: 'user', content: 'Tell me a story about a dog.' }];

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', enum: ['Paris', 'Rome'] }, days: { type: 'integer', minimum: 1, maximum: 7 } },
      required: ['city', 'days'],
      additionalProperties: false,
    },
  },
};
const timeTool = {
  type: 'function',
  function: { name: 'get_time', parameters: { type: 'object', properties: { zone: { type: 'string', enum: ['UTC'] } }, required: ['zone'], additionalProperties: false } },
};

const collect = async (stream) => {
  const chunks = [];
  for await (const c of stream) chunks.push(c);
  return chunks;
};
const textOf = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? '').join('');

test('models', async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, model);
  assert.equal((await client.models.retrieve(model)).object, 'model');
});

test('chat', async () => {
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 24, temperature: 0 });
  assert.equal(r.object, 'chat.completion');
  assert.equal(r.choices.length, 1);
  assert.equal(r.choices[0].message.role, 'assistant');
  assert.ok(r.choices[0].message.content.length > 10);
  assert.equal(r.choices[0].finish_reason, 'length');
  assert.equal(r.usage.completion_tokens, 24);
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + 24);
  assert.match(r._request_id, /^req_/);
});

test('chat with parts of text and a system message', async () => {
  const r = await client.chat.completions.create({
    model,
    max_completion_tokens: 4,
    temperature: 0,
    messages: [
      { role: 'developer', content: 'You tell stories.' },
      { role: 'user', content: [{ type: 'text', text: 'Tell me ' }, { type: 'text', text: 'one.' }] },
    ],
  });
  assert.equal(r.usage.completion_tokens, 4);
});

test('a stream says what the whole says', async () => {
  const ask = { model, messages: story, max_tokens: 30, temperature: 0 };
  const whole = await client.chat.completions.create(ask);
  const chunks = await collect(await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(textOf(chunks), whole.choices[0].message.content);
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, 30);
  const reasons = chunks.map((c) => c.choices[0]?.finish_reason).filter(Boolean);
  assert.deepEqual(reasons, ['length']);
  assert.ok(chunks.every((c) => c.id === chunks[0].id));
});

test('a stream without usage has none', async () => {
  const chunks = await collect(await client.chat.completions.create({ model, messages: story, max_tokens: 3, stream: true }));
  assert.ok(chunks.every((c) => !c.usage));
});

test('abort: the answer ends and the server is free again', async () => {
  const stream = await client.chat.completions.create({ model, messages: story, max_tokens: 1500, stream: true, ignore_eos: true });
  let n = 0;
  for await (const _ of stream) if (++n === 5) stream.controller.abort();
  assert.ok(n < 1500, 'all of it came'); // some were on their way
  for (let i = 0; ; i++) {
    const h = await (await fetch(process.env.MOEFLUX_URL + '/health')).json();
    if (h.running === 0) break;
    assert.ok(i < 200, 'the aborted answer still runs');
    await new Promise((r) => setTimeout(r, 25));
  }
});

test('n answers, each of its own seed', async () => {
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 20, temperature: 1, n: 4, seed: 7 });
  assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2, 3]);
  assert.equal(r.usage.completion_tokens, r.choices.length * 20);
  assert.ok(new Set(r.choices.map((c) => c.message.content)).size > 1);
});

test('n in a stream', async () => {
  const chunks = await collect(await client.chat.completions.create({ model, messages: story, max_tokens: 5, n: 2, seed: 1, stream: true }));
  assert.deepEqual([...new Set(chunks.map((c) => c.choices[0].index))].sort(), [0, 1]);
  assert.equal(chunks.filter((c) => c.choices[0].finish_reason).length, 2);
});

test('the same seed, the same text', async () => {
  const ask = { model, messages: story, max_tokens: 24, temperature: 1, seed: 42 };
  const [a, b] = [await client.chat.completions.create(ask), await client.chat.completions.create(ask)];
  assert.equal(a.choices[0].message.content, b.choices[0].message.content);
  const c = await client.chat.completions.create({ ...ask, seed: 43 });
  assert.notEqual(a.choices[0].message.content, c.choices[0].message.content);
});

test('logprobs', async () => {
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 5, temperature: 0, logprobs: true, top_logprobs: 3 });
  const list = r.choices[0].logprobs.content;
  assert.equal(list.length, 5);
  for (const t of list) {
    assert.equal(t.top_logprobs.length, 3);
    assert.ok(t.logprob <= 0 && t.logprob === t.top_logprobs[0].logprob);
    assert.equal(Buffer.from(t.bytes).toString(), t.token);
  }
  assert.equal(list.map((t) => t.token).join(''), r.choices[0].message.content);
});

test('logprobs in a stream', async () => {
  const chunks = await collect(await client.chat.completions.create({ model, messages: story, max_tokens: 5, temperature: 0, logprobs: true, stream: true }));
  const tokens = chunks.flatMap((c) => c.choices[0].logprobs?.content ?? []);
  assert.equal(tokens.map((t) => t.token).join(''), textOf(chunks));
});

test('stop sequences do not come out', async () => {
  const ask = { model, messages: story, max_tokens: 60, temperature: 0 };
  const free = (await client.chat.completions.create(ask)).choices[0].message.content;
  const stop = free.slice(12, 18);
  const r = await client.chat.completions.create({ ...ask, stop: [stop, 'never said'] });
  assert.equal(r.choices[0].message.content, free.slice(0, free.indexOf(stop)));
  assert.equal(r.choices[0].finish_reason, 'stop');
  const chunks = await collect(await client.chat.completions.create({ ...ask, stop, stream: true }));
  assert.equal(textOf(chunks), r.choices[0].message.content);
});

test('logit_bias forbids and forces', async () => {
  const ask = { model, messages: story, max_tokens: 1, temperature: 0, logprobs: true };
  const first = (await client.chat.completions.create(ask)).choices[0].message.content;
  const { tokens } = await (await fetch(process.env.MOEFLUX_URL + '/tokenize', {
    method: 'POST', headers: { authorization: 'Bearer key-for-tests' }, body: JSON.stringify({ content: first }) })).json();
  const r = await client.chat.completions.create({ ...ask, logit_bias: { [tokens[0]]: -100 } });
  assert.notEqual(r.choices[0].message.content, first);
});

test('penalties change the text', async () => {
  const ask = { model, messages: story, max_tokens: 60, temperature: 0 };
  const plain = (await client.chat.completions.create(ask)).choices[0].message.content;
  const r = await client.chat.completions.create({ ...ask, frequency_penalty: 2, presence_penalty: 2 });
  assert.notEqual(r.choices[0].message.content, plain);
});

test('a prefilled answer goes on', async () => {
  const r = await client.chat.completions.create({
    model, max_tokens: 8, temperature: 0, messages: [...story, { role: 'assistant', content: 'Once upon a' }],
  });
  assert.match(r.choices[0].message.content, /^ time/);
});

test('tool_choice required gives a call with valid arguments', async () => {
  const r = await client.chat.completions.create({ model, messages: story, tools: [weather, timeTool], tool_choice: 'required', max_tokens: 200, temperature: 0 });
  const calls = r.choices[0].message.tool_calls;
  assert.ok(calls.length >= 1);
  assert.equal(r.choices[0].finish_reason, 'tool_calls');
  for (const c of calls) {
    assert.ok(['get_weather', 'get_time'].includes(c.function.name));
    JSON.parse(c.function.arguments);
  }
});

test('a named tool is called', async () => {
  const r = await client.chat.completions.create({
    model, messages: story, tools: [timeTool, weather], tool_choice: { type: 'function', function: { name: 'get_weather' } }, max_tokens: 200,
  });
  const [call] = r.choices[0].message.tool_calls;
  assert.equal(r.choices[0].message.tool_calls.length, 1);
  assert.equal(call.function.name, 'get_weather');
  const args = JSON.parse(call.function.arguments);
  assert.ok(['Paris', 'Rome'].includes(args.city) && Number.isInteger(args.days));
});

test('a tool call in a stream, put together by the client', async () => {
  const ask = { model, messages: story, tools: [weather], tool_choice: 'required', parallel_tool_calls: false, max_tokens: 200, temperature: 0 };
  const stream = client.chat.completions.stream(ask);
  const r = await stream.finalChatCompletion();
  const whole = await client.chat.completions.create(ask);
  assert.equal(r.choices[0].message.tool_calls[0].function.arguments, whole.choices[0].message.tool_calls[0].function.arguments);
  assert.equal(r.choices[0].message.tool_calls.length, 1);
});

test('tools there and back', async () => {
  const ask = { model, messages: [{ role: 'user', content: 'The weather?' }], tools: [weather], tool_choice: 'required', max_tokens: 200 };
  const first = await client.chat.completions.create(ask);
  const said = first.choices[0].message;
  const messages = [...ask.messages, said, ...said.tool_calls.map((c) => ({ role: 'tool', tool_call_id: c.id, content: 'sunny' }))];
  const r = await client.chat.completions.create({ model, messages, tools: [weather], tool_choice: 'none', max_tokens: 12, temperature: 0 });
  assert.equal(r.choices[0].message.tool_calls, undefined);
  assert.ok(r.usage.prompt_tokens > first.usage.prompt_tokens);
});

test('response_format json_schema holds', async () => {
  const schema = { type: 'object', properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 120 } }, required: ['name', 'age'], additionalProperties: false };
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 200, response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } } });
  const o = JSON.parse(r.choices[0].message.content);
  assert.deepEqual(Object.keys(o).sort(), ['age', 'name']);
  assert.ok(Number.isInteger(o.age));
});

// Names whose order is neither that of the alphabet nor of their lengths.
const ordered = {
  type: 'object',
  properties: {
    verdict: { type: 'boolean' }, age: { type: 'integer', minimum: 0, maximum: 99 }, z: { enum: ['one', 'two'] },
    inner: { type: 'object', properties: { y: { type: 'boolean' }, x: { type: 'boolean' } }, required: ['x', 'y'], additionalProperties: false },
    b: { type: 'null' },
  },
  required: ['b', 'inner', 'z', 'age', 'verdict'],
  additionalProperties: false,
};
const inOrder = (text) => {
  const o = JSON.parse(text);
  assert.deepEqual(Object.keys(o), ['verdict', 'age', 'z', 'inner', 'b']);
  assert.deepEqual(Object.keys(o.inner), ['y', 'x']);
};

test('members come in the order of the schema: whole, streamed, in responses, in arguments', async () => {
  const ask = { model, messages: story, max_tokens: 200, temperature: 1, response_format: { type: 'json_schema', json_schema: { name: 'x', strict: true, schema: ordered } } };
  for (const seed of [1, 2, 3]) inOrder((await client.chat.completions.create({ ...ask, seed })).choices[0].message.content);
  inOrder(textOf(await collect(await client.chat.completions.create({ ...ask, stream: true }))));
  inOrder((await client.responses.create({ model, input: 'Go', max_output_tokens: 200, text: { format: { type: 'json_schema', name: 'x', schema: ordered, strict: true } } })).output_text);
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 200, tools: [{ type: 'function', function: { name: 'f', parameters: ordered } }], tool_choice: 'required', parallel_tool_calls: false });
  inOrder(r.choices[0].message.tool_calls[0].function.arguments);
});

test('response_format json_object gives an object', async () => {
  const r = await client.chat.completions.create({ model, messages: story, max_tokens: 80, response_format: { type: 'json_object' } });
  assert.equal(typeof JSON.parse(r.choices[0].message.content), 'object');
});

test('markers in what people write are text', async () => {
  const plain = await client.chat.completions.create({ model, messages: [{ role: 'user', content: 'ab' }], max_tokens: 1 });
  const marked = await client.chat.completions.create({ model, messages: [{ role: 'user', content: 'a<|im_end|>b' }], max_tokens: 1 });
  assert.ok(marked.usage.prompt_tokens > plain.usage.prompt_tokens + 2);
});

test('the second time the prompt is known', async () => {
  const messages = [{ role: 'system', content: 'You are a teller of old tales, ' + Math.random() }, { role: 'user', content: 'Go on.' }];
  const a = await client.chat.completions.create({ model, messages, max_tokens: 2, temperature: 0 });
  const b = await client.chat.completions.create({ model, messages, max_tokens: 2, temperature: 0 });
  assert.equal(a.usage.prompt_tokens_details.cached_tokens, 0);
  assert.ok(b.usage.prompt_tokens_details.cached_tokens > 0);
  assert.equal(a.choices[0].message.content, b.choices[0].message.content);
});

test('completions', async () => {
  const r = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 5, temperature: 0 });
  assert.equal(r.object, 'text_completion');
  assert.equal(r.usage.completion_tokens, 5);
  const list = await client.completions.create({ model, prompt: ['Once upon', 'One day'], max_tokens: 3, n: 2, seed: 3 });
  assert.deepEqual(list.choices.map((c) => c.index), [0, 1, 2, 3]);
});

test('completions in a stream', async () => {
  const ask = { model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(ask);
  const chunks = await collect(await client.completions.create({ ...ask, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0]?.text ?? '').join(''), whole.choices[0].text);
});

test('echo with logprobs, as harnesses score a text', async () => {
  const prompt = 'Once upon a time, there was a little girl.';
  const r = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 2, temperature: 0 });
  const { tokens, token_logprobs, top_logprobs, text_offset } = r.choices[0].logprobs;
  assert.equal(r.choices[0].text, prompt);
  assert.equal(tokens.join(''), prompt);
  assert.equal(tokens.length, token_logprobs.length);
  assert.equal(token_logprobs[0], null);
  assert.equal(top_logprobs[0], null);
  assert.ok(token_logprobs.slice(1).every((x) => x <= 0));
  text_offset.forEach((o, i) => assert.equal(prompt.slice(o, o + tokens[i].length), tokens[i]));
  assert.equal(r.usage.completion_tokens, 0);
});

// What lm-evaluation-harness (local-completions) sends, and how it reads the answer.
test('echo with logprobs, by token ids in batches, as lm-evaluation-harness does', async () => {
  const tokenize = async (content) => (await (await fetch(process.env.MOEFLUX_URL + '/tokenize', {
    method: 'POST', headers: { authorization: 'Bearer key-for-tests' }, body: JSON.stringify({ content }) })).json()).tokens;
  const texts = [['Once upon a time, there was', ' a little girl'], ['The dog ran to the', ' tree and barked'], ['One day', ',']];
  const pairs = await Promise.all(texts.map(async ([a, b]) => ({ context: await tokenize(a), whole: await tokenize(a + b) })));
  const r = await client.completions.create({ model, prompt: pairs.map((p) => p.whole), temperature: 0, max_tokens: 1, logprobs: 1, seed: 1234, echo: true });
  assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2]);
  for (const [i, choice] of r.choices.entries()) {
    const { token_logprobs, top_logprobs, tokens } = choice.logprobs, from = pairs[i].context.length;
    assert.equal(token_logprobs.length, pairs[i].whole.length + 1); // and the token that was made
    const own = token_logprobs.slice(from, -1), top = top_logprobs.slice(from, -1);
    assert.equal(own.length, pairs[i].whole.length - from);
    assert.ok(own.every((x) => Number.isFinite(x) && x <= 0));
    top.forEach((t, k) => assert.ok(own[k] <= Math.max(...Object.values(t)))); // equal where the token is the likeliest
    assert.equal(tokens.join(''), choice.text);
    // the same numbers as one text at a time
    const alone = await client.completions.create({ model, prompt: texts[i].join(''), temperature: 0, max_tokens: 0, logprobs: 1, echo: true });
    assert.deepEqual(alone.choices[0].logprobs.token_logprobs, token_logprobs.slice(0, -1));
  }
});

test('completions of token ids', async () => {
  const auth = { authorization: 'Bearer key-for-tests' };
  const post = async (path, body) => (await fetch(process.env.MOEFLUX_URL + path, { method: 'POST', headers: auth, body: JSON.stringify(body) })).json();
  const { tokens } = await post('/tokenize', { content: 'Once upon a time' });
  assert.equal((await post('/detokenize', { tokens })).content, 'Once upon a time');
  const a = await client.completions.create({ model, prompt: tokens, max_tokens: 5, temperature: 0 });
  const b = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 5, temperature: 0 });
  assert.equal(a.choices[0].text, b.choices[0].text);
});

test('responses', async () => {
  const r = await client.responses.create({ model, input: 'Tell me a story.', instructions: 'Be brief.', max_output_tokens: 10, temperature: 0 });
  assert.equal(r.object, 'response');
  assert.equal(r.status, 'incomplete');
  assert.equal(r.incomplete_details.reason, 'max_output_tokens');
  assert.ok(r.output_text.length > 5);
  assert.equal(r.usage.output_tokens, 10);
});

test('responses in a stream: the events in order', async () => {
  const ask = { model, input: [{ role: 'user', content: 'Tell me a story.' }], max_output_tokens: 10, temperature: 0 };
  const whole = await client.responses.create(ask);
  const events = await collect(await client.responses.create({ ...ask, stream: true }));
  const types = events.map((e) => e.type);
  assert.deepEqual(types.slice(0, 4), ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added']);
  assert.deepEqual(types.slice(-4), ['response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.incomplete']);
  assert.ok(types.slice(4, -4).every((t) => t === 'response.output_text.delta'));
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  assert.equal(events.filter((e) => e.delta).map((e) => e.delta).join(''), whole.output_text);
  assert.equal(events.at(-1).response.output[0].content[0].text, whole.output_text);
});

test('responses: the client helper, a schema, a tool', async () => {
  const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'], additionalProperties: false };
  const r = await client.responses.create({ model, input: 'Yes?', max_output_tokens: 60, text: { format: { type: 'json_schema', name: 'x', schema, strict: true } } });
  assert.equal(typeof JSON.parse(r.output_text).ok, 'boolean');
  const final = await client.responses.stream({ model, input: 'Hm', max_output_tokens: 200, tools: [{ type: 'function', name: 'get_time', strict: true, parameters: timeTool.function.parameters }], tool_choice: 'required' }).finalResponse();
  const call = final.output.find((o) => o.type === 'function_call');
  assert.equal(call.name, 'get_time');
  assert.deepEqual(JSON.parse(call.arguments), { zone: 'UTC' });
  const back = await client.responses.create({ model, input: [{ role: 'user', content: 'Hm' }, ...final.output, { type: 'function_call_output', call_id: call.call_id, output: 'noon' }], max_output_tokens: 5, ignore_eos: true });
  assert.equal(back.usage.output_tokens, 5);
});

test('responses: a named tool in a stream, the events in order', async () => {
  const tools = [{ type: 'function', name: 'get_time', parameters: timeTool.function.parameters }, { type: 'function', name: 'get_weather', parameters: weather.function.parameters }];
  const events = await collect(await client.responses.create({ model, input: 'Hm', max_output_tokens: 200, tools, tool_choice: { type: 'function', name: 'get_weather' }, stream: true }));
  const types = events.map((e) => e.type);
  assert.deepEqual(types.slice(0, 3), ['response.created', 'response.in_progress', 'response.output_item.added']);
  assert.deepEqual(types.slice(-3), ['response.function_call_arguments.done', 'response.output_item.done', 'response.completed']);
  assert.ok(types.length > 6 && types.slice(3, -3).every((t) => t === 'response.function_call_arguments.delta'));
  const done = events.at(-3);
  assert.equal(events.filter((e) => e.delta).map((e) => e.delta).join(''), done.arguments);
  assert.equal(events.at(-2).item.name, 'get_weather');
  assert.deepEqual(events.at(-1).response.output, [events.at(-2).item]);
  assert.ok(['Paris', 'Rome'].includes(JSON.parse(done.arguments).city));
});

test('n answers: the prompt is counted once, and each is what it is alone', async () => {
  const one = await client.chat.completions.create({ model, messages: story, max_tokens: 3, temperature: 0 });
  const many = await client.chat.completions.create({ model, messages: story, max_tokens: 3, temperature: 0, n: 5 });
  assert.equal(many.usage.prompt_tokens, one.usage.prompt_tokens);
  for (const c of many.choices) assert.equal(c.message.content, one.choices[0].message.content);
});

// ---- errors

const refused = (cls, check) => (e) => {
  assert.ok(e instanceof cls, `${e.constructor.name}: ${e.message}`);
  check?.(e);
  return true;
};

test('400: what is wrong is named', async () => {
  const bad = (body, param) => assert.rejects(client.chat.completions.create(body), refused(OpenAI.BadRequestError, (e) => {
    assert.equal(e.type, 'invalid_request_error');
    assert.equal(e.param, param);
  }));
  await bad({ model }, 'messages');
  await bad({ model, messages: [] }, 'messages');
  await bad({ model, messages: [{ role: 'wizard', content: 'x' }] }, 'messages[0].role');
  await bad({ model, messages: story, temperature: 3 }, 'temperature');
  await bad({ model, messages: story, max_tokens: -1 }, 'max_tokens');
  await bad({ model, messages: story, no_such_field: 1 }, 'no_such_field');
  await bad({ model, messages: story, top_logprobs: 2 }, 'top_logprobs');
  await bad({ model, messages: story, tool_choice: 'required' }, 'tool_choice');
  await bad({ model, messages: story, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'nonsense' } } } }, 'response_format');
  await bad({ model, messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] }] }, 'messages[0].content[0]');
});

test('400: too long for the context', async () => {
  await assert.rejects(client.chat.completions.create({ model, messages: [{ role: 'user', content: 'dog '.repeat(4000) }] }),
    refused(OpenAI.BadRequestError, (e) => assert.equal(e.code, 'context_length_exceeded')));
});

test('400 for broken JSON, 401, 404, 405, 413, 501', async () => {
  const url = process.env.MOEFLUX_URL, auth = { authorization: 'Bearer key-for-tests' };
  const status = async (path, init) => {
    const r = await fetch(url + path, { headers: auth, ...init });
    const body = await r.json();
    assert.ok(body.error.message, path);
    return r.status;
  };
  assert.equal(await status('/v1/chat/completions', { method: 'POST', body: '{"messages": [' }), 400);
  assert.equal(await status('/v1/chat/completions', { method: 'POST', body: '[]' }), 400);
  assert.equal(await status('/v1/chat/completions', {}), 405);
  assert.equal(await status('/v1/models', { method: 'POST', body: '{}' }), 405);
  assert.equal(await status('/v1/nothing', {}), 404);
  assert.equal(await status('/v1/embeddings', { method: 'POST', body: '{}' }), 501);
  assert.equal(await status('/v1/models', { headers: {} }), 401);
  await assert.rejects(new OpenAI({ baseURL, apiKey: 'wrong', maxRetries: 0 }).models.list(), refused(OpenAI.AuthenticationError));
  await assert.rejects(client.models.retrieve('no-such-model'), refused(OpenAI.NotFoundError));
});

test('every class of error', async () => {
  await assert.rejects(client.chat.completions.create({ model }), refused(OpenAI.BadRequestError));
  await assert.rejects(client.chat.completions.create({ model, messages: story }, { headers: { Authorization: 'Bearer no' } }), refused(OpenAI.AuthenticationError));
  await assert.rejects(client.models.list({ headers: { Origin: 'http://evil.example' } }), refused(OpenAI.PermissionDeniedError));
  await assert.rejects(client.files.list(), refused(OpenAI.NotFoundError));
  await assert.rejects(client.embeddings.create({ model, input: 'x' }), refused(OpenAI.InternalServerError, (e) => assert.equal(e.status, 501)));
  await assert.rejects(new OpenAI({ baseURL: 'http://127.0.0.1:1/v1', apiKey: 'x', maxRetries: 0 }).models.list(), refused(OpenAI.APIConnectionError));
  const long = { model, messages: story, max_tokens: 1500, ignore_eos: true, temperature: 1 };
  await assert.rejects(client.chat.completions.create({ ...long, n: 8 }, { timeout: 50 }), refused(OpenAI.APIConnectionTimeoutError));
  // 32 answers run and 128 wait: 64 + 64 leave no place for 64 more
  const open = [];
  for (let i = 0; i < 2; i++) open.push(await client.chat.completions.create({ ...long, n: 64, stream: true }));
  await assert.rejects(client.chat.completions.create({ ...long, n: 64 }), refused(OpenAI.RateLimitError, (e) => {
    assert.equal(e.code, 'rate_limit_exceeded');
    assert.ok(Number(e.headers.get('retry-after')) >= 1);
  }));
  open.forEach((s) => s.controller.abort());
});

test('HEAD and OPTIONS', async () => {
  const url = process.env.MOEFLUX_URL, auth = { authorization: 'Bearer key-for-tests' };
  const ask = async (method, path) => {
    const r = await fetch(url + path, { method, headers: auth });
    return [r.status, (await r.text()).length, r.headers.get('allow')];
  };
  assert.deepEqual((await ask('HEAD', '/')).slice(0, 2), [200, 0]);
  assert.deepEqual((await ask('HEAD', '/v1/models')).slice(0, 2), [200, 0]);
  assert.deepEqual(await ask('HEAD', '/v1/responses'), [405, 0, 'POST, OPTIONS']);
  const [status, , allow] = await ask('DELETE', '/v1/models');
  assert.deepEqual([status, allow], [405, 'GET, HEAD']);
  assert.equal((await ask('OPTIONS', '/v1/chat/completions'))[0], 405); // no --cors
});

test('403: another Host, another Origin', async () => {
  const http = await import('node:http');
  const ask = (headers) => new Promise((resolve, reject) => {
    http.get(process.env.MOEFLUX_URL + '/v1/models', { headers: { authorization: 'Bearer key-for-tests', ...headers } }, (r) => { r.resume(); resolve(r.statusCode); }).on('error', reject);
  });
  assert.equal(await ask({}), 200);
  assert.equal(await ask({ host: 'rebind.example:80' }), 403);
  assert.equal(await ask({ origin: 'http://evil.example' }), 403);
  assert.equal(await ask({ host: 'localhost:1' }), 200);
});
