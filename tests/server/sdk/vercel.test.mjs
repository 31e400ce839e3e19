// The Vercel ai package with @ai-sdk/openai-compatible: text and an object, streamed.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Output, generateText, jsonSchema, streamText } from 'ai';

const provider = createOpenAICompatible({ name: 'moeflux', baseURL: process.env.MOEFLUX_URL + '/v1', apiKey: 'key-for-tests', supportsStructuredOutputs: true, includeUsage: true });
const model = provider('stories-moe');
const prompt = 'Tell me a story about a dog.';

test('text, whole and streamed', async () => {
  const whole = await generateText({ model, prompt, maxOutputTokens: 16, temperature: 0 });
  const stream = streamText({ model, prompt, maxOutputTokens: 16, temperature: 0 });
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, 16);
});

test('an object, streamed', async () => {
  const schema = jsonSchema({ type: 'object', properties: { name: { type: 'string', maxLength: 12 }, good: { type: 'boolean' } }, required: ['name', 'good'], additionalProperties: false });
  const stream = streamText({ model, prompt, maxOutputTokens: 120, output: Output.object({ schema }) });
  let last;
  for await (const part of stream.partialOutputStream) last = part;
  assert.equal(typeof last.good, 'boolean');
  assert.deepEqual(await stream.output, last);
});
