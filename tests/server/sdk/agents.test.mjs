// What agents and the helpers of newer clients send besides the plain request, as Claude Code, Codex and the SDKs' tool
// runners were seen to do it, against `moeflux serve` with the story model.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const anthropic = new Anthropic({ baseURL: process.env.MOEFLUX_URL, apiKey: 'key-for-tests', maxRetries: 0 });
const openai = new OpenAI({ baseURL: process.env.MOEFLUX_URL + '/v1', apiKey: 'key-for-tests', maxRetries: 0 });
const model = 'any', messages = [{ role: 'user', content: 'Tell me a story about a dog.' }];
const Place = z.object({ city: z.enum(['Paris', 'Rome']), days: z.number().int().min(1).max(7) });
const parameters = { type: 'object', properties: { city: { type: 'string', enum: ['Paris', 'Rome'] } }, required: ['city'], additionalProperties: false };
const weather = { type: 'function', name: 'get_weather', parameters, strict: true };
const timeTool = { ...weather, name: 'get_time' };

const refused = (status, part) => (e) => {
  assert.equal(e.status, status, e.message);
  assert.ok(JSON.stringify(e.error).includes(part), JSON.stringify(e.error));
  return true;
};

// ---- Anthropic

const tokens = async (more, list = messages) => (await anthropic.beta.messages.countTokens({ model, messages: list, ...more })).input_tokens;

test('system messages in the course of a conversation are read', async () => {
  const said = (...more) => [...messages, ...more];
  const system = { role: 'system', content: 'Only about small dogs.' };
  const plain = await tokens({});
  assert.ok((await tokens({}, said(system))) > plain + 5);
  const blocks = { role: 'system', content: [{ type: 'text', text: 'Only about small dogs.', cache_control: { type: 'ephemeral' } }] };
  assert.equal(await tokens({}, said(blocks)), await tokens({}, said(system)));
  // one for a turn that is over is not
  const later = [{ role: 'assistant', content: 'Yes.' }, { role: 'user', content: 'Go on.' }];
  assert.equal(await tokens({}, said({ ...system, clear_at: 'next_user_message' }, ...later)), await tokens({}, said(...later)));
  const r = await anthropic.beta.messages.create({ model, max_tokens: 2, messages: said(system), system: 'You tell stories.' });
  assert.equal(r.stop_reason, 'max_tokens');
});

test('fields of newer clients', async () => {
  const r = await anthropic.beta.messages.create({
    model, max_tokens: 2, messages, betas: ['a-beta-2026-01-01'], speed: 'standard', diagnostics: null, fallbacks: 'default', container: null,
    thinking: { type: 'adaptive', display: 'summarized' }, output_config: { effort: 'max' }, mcp_servers: [], thread: null, compaction: null,
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] }, metadata: { user_id: 'u' }, inference_geo: 'eu',
  });
  assert.equal(r.usage.output_tokens, 2);
  const bad = (more, part) => assert.rejects(anthropic.beta.messages.create({ model, max_tokens: 2, messages, ...more }), refused(400, part));
  await bad({ output_config: { effort: 'huge' } }, 'output_config.effort');
  await bad({ output_config: 5 }, 'output_config');
  await bad({ compaction: { type: 'x' } }, 'compaction');
  await bad({ tools: [{ type: 'bash_20250124', name: 'bash' }] }, "tools.0: tools of type 'bash_20250124'");
});

test('documents of text are read, others refused', async () => {
  const text = { type: 'text', text: 'What is it about?' }, plain = await tokens({}, [{ role: 'user', content: [text] }]);
  const ask = (block) => tokens({}, [{ role: 'user', content: [block, text] }]);
  const document = { type: 'document', title: 'A tale', source: { type: 'text', media_type: 'text/plain', data: 'There was a dog.' } };
  const n = await ask(document);
  assert.ok(n > plain + 5);
  assert.equal(await ask({ ...document, source: { type: 'content', content: [{ type: 'text', text: 'There was a dog.' }] } }), n);
  assert.equal(await ask({ type: 'search_result', source: 'x', title: 'A tale', content: [{ type: 'text', text: 'There was a dog.' }] }), n);
  const call = [{ role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'x', input: {} }] }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: [document] }] }];
  assert.ok((await tokens({}, [...messages, ...call])) > (await tokens({}, messages)) + 5);
  const pdf = { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: 'AAAA' } };
  await assert.rejects(ask(pdf), refused(400, "documents of source 'base64'"));
  await assert.rejects(ask({ type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }), refused(400, "blocks of type 'image'"));
});

test('what a tool returned that is no text is said to be left out', async () => {
  const returned = (more) => [...messages, { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'x', input: {} }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', ...more }] }];
  const count = (...content) => tokens({}, returned({ content }));
  const say = (text) => ({ type: 'text', text }), source = { type: 'base64', media_type: 'image/png', data: 'AAAA' };
  assert.equal(await count(say('Here:'), { type: 'image', source }), await count(say('Here:'), say('[image left out: this model reads text only]')));
  assert.equal(await count({ type: 'document', title: 'A tale', source }), await count(say('A tale'), say('[document left out: this model reads text only]')));
  await assert.rejects(count({ type: 'picture', source }), refused(400, "blocks of type 'picture'"));
  const r = await anthropic.messages.create({ model, max_tokens: 2, messages: returned({ content: [{ type: 'image', source }] }) });
  assert.equal(r.usage.output_tokens, 2);
  // the same of OpenAI's
  const part = (text) => ({ type: 'input_text', text }), image = { type: 'input_image', image_url: 'data:image/png;base64,AAAA' };
  const read = async (...output) => (await openai.responses.create({ model, max_output_tokens: 2,
    input: [{ role: 'user', content: 'Hm' }, { type: 'function_call', call_id: 'c', name: 'x', arguments: '{}' }, { type: 'function_call_output', call_id: 'c', output }] })).usage.input_tokens;
  assert.equal(await read(part('Here:'), image), await read(part('Here:'), part('[image left out: this model reads text only]')));
  await assert.rejects(openai.responses.create({ model, input: [{ role: 'user', content: [image] }] }), refused(400, "parts of type 'input_image'"));
});

test('a tool that failed is said to have', async () => {
  const count = (more) => tokens({}, [...messages, { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'x', input: {} }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', ...more }] }]);
  const say = (...texts) => ({ content: texts.map((text) => ({ type: 'text', text })) });
  assert.equal(await count({ ...say('no such file'), is_error: true }), await count(say('The tool failed.', 'no such file')));
  assert.equal(await count({ is_error: true }), await count(say('The tool failed.')));
  assert.equal(await count({ ...say('fine'), is_error: false }), await count(say('fine')));
  await assert.rejects(count({ ...say('fine'), is_error: 'yes' }), refused(400, 'is_error'));
});

test('the tool runner goes on where no threads are stored', async () => {
  let n = 0;
  const tool = betaZodTool({ name: 'get_weather', description: 'The weather', inputSchema: Place, run: () => (n++, 'sunny') });
  const runner = anthropic.beta.messages.toolRunner({ model, max_tokens: 200, messages, tools: [tool], max_iterations: 2, temperature: 0, tool_choice: { type: 'any', disable_parallel_tool_use: true } });
  const last = await runner;
  assert.equal(last.stop_reason, 'tool_use');
  assert.ok(n >= 1);
  await assert.rejects(anthropic.post('/v1/messages', { body: { model, max_tokens: 2, messages, thread: { type: 'create' } } }), (e) => {
    assert.deepEqual(e.error.error.details, { error_code: 'thread_unsupported_request', unsupported: ['thread'] });
    return e.status === 400;
  });
});

test('a prompt that is too long is said so in the words that agents know', async () => {
  const long = [{ role: 'user', content: 'dog '.repeat(4000) }];
  await assert.rejects(anthropic.messages.create({ model, max_tokens: 2, messages: long }), (e) => {
    const found = e.error.error.message.match(/prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)/i); // as Claude Code reads it
    assert.ok(found && +found[1] > 4000 && +found[2] === 2048, e.error.error.message);
    assert.match(e.error.request_id, /^req_/);
    return e.status === 400;
  });
});

test('places that there are not, in the shape of who asks', async () => {
  await assert.rejects(anthropic.get('/v1/files'), (e) => e.status === 404 && e.error.type === 'error' && e.error.error.type === 'not_found_error');
  await assert.rejects(openai.files.list(), (e) => e.status === 404 && e.type === 'invalid_request_error');
  await assert.rejects(openai.responses.retrieve('resp_x'), refused(404, 'not stored'));
  let asked = 0;
  const patient = openai.withOptions({ maxRetries: 2, fetch: (...of) => ++asked && fetch(...of) });
  await assert.rejects(patient.embeddings.create({ model, input: 'x' }), refused(501, 'no embeddings'));
  assert.equal(asked, 1); // other 5xx are tried again
  const stranger = new Anthropic({ baseURL: process.env.MOEFLUX_URL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), (e) => e.status === 401 && e.error.error.type === 'authentication_error');
});

// ---- OpenAI

test('a request of Codex', async () => {
  const say = (role, text) => ({ type: 'message', role, content: [{ type: 'input_text', text }] });
  const body = {
    model, max_output_tokens: 200, temperature: 0, stream: true, store: false, tool_choice: 'auto', parallel_tool_calls: true, prompt_cache_key: 'k',
    include: ['reasoning.encrypted_content'], client_metadata: { session_id: 's' }, reasoning: { summary: 'auto' }, text: { verbosity: 'low' }, truncation: 'auto',
    input: [say('developer', 'You are an agent.'), say('developer', 'You may do all.'), say('user', 'The folder is empty.'), say('user', 'Tell me a story.')],
    tools: [weather, { type: 'namespace', name: 'agents', description: '', tools: [weather] }, { type: 'web_search', external_web_access: true }, { type: 'custom', name: 'patch' }],
  };
  let last;
  for await (const e of await openai.responses.create({ ...body, max_output_tokens: 4 })) last = e;
  assert.equal(last.type, 'response.incomplete');
  assert.deepEqual(last.response.tools, [weather]); // what was offered to the model
  assert.deepEqual(last.response.output.map((o) => o.status), ['incomplete']);
  const alone = await openai.responses.create({ model, max_output_tokens: 2, input: 'x', tool_choice: 'auto', tools: [{ type: 'web_search' }] });
  assert.deepEqual(alone.tools, []);
  const bad = (more, part) => assert.rejects(openai.responses.create({ model, input: 'x', ...more }), refused(400, part));
  await bad({ tools: [{ type: 'web_search' }], tool_choice: 'required' }, 'tool_choice');
  await bad({ tools: [{ type: 'custom', name: 'patch' }, weather], tool_choice: { type: 'custom', name: 'patch' } }, "'patch' not found");
  await bad({ tools: 5 }, 'tools');
  await bad({ tools: [{ name: 'x' }] }, 'tools[0].type');
  await bad({ conversation: 'conv_x' }, 'conversation');
  await bad({ prompt: { id: 'pmpt_x' } }, 'prompt');
  await bad({ truncation: 'some' }, 'truncation');
  await bad({ reasoning: 'high' }, "Invalid type for 'reasoning'");
  await bad({ text: 'json' }, "Invalid type for 'text'");
  await bad({ include: ['message.output_text.logprobs'] }, 'Logprobs are not given');
});

test('allowed tools', async () => {
  const chat = await openai.chat.completions.create({
    model, messages, max_tokens: 200, temperature: 0, parallel_tool_calls: false, tools: [weather, timeTool].map(({ type, ...f }) => ({ type, function: f })),
    tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'required', tools: [{ type: 'function', function: { name: 'get_time' } }] } },
  });
  assert.deepEqual(chat.choices[0].message.tool_calls.map((c) => c.function.name), ['get_time']);
  const ask = (tools, mode = 'required') => openai.responses.create({
    model, input: 'x', max_output_tokens: 200, temperature: 0, parallel_tool_calls: false, tools: [weather, timeTool], tool_choice: { type: 'allowed_tools', mode, tools },
  });
  assert.deepEqual((await ask([{ type: 'function', name: 'get_time' }])).output.map((o) => o.name), ['get_time']);
  await assert.rejects(ask([{ type: 'function', name: 'other' }]), refused(400, 'none of the allowed tools'));
  await assert.rejects(ask([], 'maybe'), refused(400, "'mode'"));
  await assert.rejects(ask(Array(129).fill({ type: 'function', name: 'get_time' })), refused(400, 'at most 128')); // each is compared with each tool
});

test('fields and helpers of newer clients', async () => {
  const r = await openai.chat.completions.create({
    model, messages: [...messages, { role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] }, ...messages], max_completion_tokens: 2, reasoning_effort: 'max',
    prediction: { type: 'content', content: 'x' }, verbosity: 'low', store: true, service_tier: 'auto', safety_identifier: 's', audio: null, functions: null, web_search_options: null,
  });
  assert.equal(r.usage.completion_tokens, 2);
  const bad = (more, part) => assert.rejects(openai.chat.completions.create({ model, messages, ...more }), refused(400, part));
  await bad({ functions: [{ name: 'x' }] }, "Use 'tools'");
  await bad({ web_search_options: {} }, 'web_search_options');
  await bad({ enable_thinking: 'no' }, 'enable_thinking');
  await bad({ stream: true, stream_options: 5 }, 'stream_options');
  const most = { model, messages, max_completion_tokens: 200, temperature: 0, parallel_tool_calls: false };
  const parsed = await openai.chat.completions.parse({ ...most, response_format: zodResponseFormat(Place, 'place') });
  assert.ok(Place.safeParse(parsed.choices[0].message.parsed).success);
  const called = await openai.chat.completions.parse({ ...most, tools: [zodFunction({ name: 'f', parameters: Place })], tool_choice: 'required' });
  assert.ok(Place.safeParse(called.choices[0].message.tool_calls[0].function.parsed_arguments).success);
  const response = await openai.responses.parse({ model, input: 'x', max_output_tokens: 200, temperature: 0, text: { format: zodTextFormat(Place, 'place'), verbosity: 'low' } });
  assert.ok(Place.safeParse(response.output_parsed).success);
});
