// One answer from the server, as it comes.

export async function answer(body, { key, signal, on }) {
  const headers = { 'content-type': 'application/json' };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch('/v1/chat/completions', { method: 'POST', headers, body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }), signal });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new Error(problem?.error?.message ?? `The server answered ${response.status}.`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) take(line, on);
  }
}

// Comments carry how far the prompt is; data are chunks.
function take(line, on) {
  const m = /^: prompt (\d+)\/(\d+) tokens, ([\d.]+) MB to fetch(?:, about ([\d.]+) s)?/.exec(line);
  if (m) on.progress?.(...m.slice(1).map(Number));
  if (!line.startsWith('data: ') || line === 'data: [DONE]') return;
  const data = JSON.parse(line.slice(6));
  if (data.error) throw new Error(data.error.message);
  if (data.usage) on.usage?.(data.usage);
  const choice = data.choices?.[0];
  if (choice?.delta?.content) on.text(choice.delta.content);
  if (choice?.delta?.reasoning_content) on.reasoning(choice.delta.reasoning_content);
  if (choice?.finish_reason) on.end?.(choice.finish_reason);
}
