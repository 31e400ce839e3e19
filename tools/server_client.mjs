// Requests to a server with OpenAI's API, for tools/measure_server.sh and tools/load_server.sh. Needs node and no package.
//
//   server_client.mjs throughput URL STREAMS PROMPT MADE IDS   STREAMS prompts of PROMPT random tokens that go on for MADE
//   server_client.mjs first URL LONG IDS                       first token of a short request while LONG tokens are read
//   server_client.mjs streams URL STREAMS SECONDS [PID]        chats that begin again as they end
//   server_client.mjs attack URL IDLE DRIPPING                 ordinary requests while others misbehave
//   server_client.mjs prefix URL                               one request with a long system prompt: cached tokens, text
//   server_client.mjs same URL N                               N different requests alone, then together: the same text
//
// IDS is LOW:HIGH, the token ids to draw from. Every mode ends by itself and prints NAME VALUE lines.
import http from 'node:http';
import net from 'node:net';
import { readFileSync } from 'node:fs';

const [mode, base, ...rest] = process.argv.slice(2);
const url = new URL(base);
const agent = new http.Agent({ keepAlive: false });
const now = () => performance.now() / 1000;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const say = (name, value) => console.log(name, typeof value === 'number' ? +value.toFixed(4) : value);
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const key = process.env.MOEFLUX_API_KEY;

// POSTs and gives each event of a stream to `each`; resolves to {status, text} at the end.
const ask = (path, body, each) => new Promise((resolve, reject) => {
  const text = body && JSON.stringify(body);
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...(text && { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }) };
  const request = http.request(new URL(path, url), { method: body ? 'POST' : 'GET', agent, headers }, (answer) => {
    let all = '', line = '';
    answer.setEncoding('utf8');
    answer.on('data', (part) => {
      if (!each) return (all += part);
      line += part;
      for (let at; (at = line.indexOf('\n')) >= 0; line = line.slice(at + 1)) {
        const data = line.slice(0, at).trim();
        if (data.startsWith('data: {')) each(JSON.parse(data.slice(6)));
      }
    });
    answer.on('end', () => resolve({ status: answer.statusCode, text: all || line }));
    answer.on('error', reject);
  });
  request.on('error', reject);
  request.end(text);
});

const metric = async (name) => {
  const { text } = await ask('/metrics');
  const line = text.split('\n').find((l) => l.startsWith(`moeflux_${name} `));
  return line ? +line.split(' ')[1] : NaN;
};

const randomIds = (n, ids) => {
  const [low, high] = ids.split(':').map(Number);
  return Array.from({ length: n }, () => low + Math.floor(Math.random() * (high - low)));
};

// One stream of the completions endpoint: when its first and its last token came. Tokens are the server's own count: an
// event may hold several, or a piece of one.
const complete = async (prompt, max_tokens) => {
  const began = now();
  let first = 0, last = 0, made = 0;
  const { status, text } = await ask('/v1/completions',
    { model: 'any', prompt, max_tokens, temperature: 0, ignore_eos: true, cache_prompt: false, stream: true, stream_options: { include_usage: true } },
    (e) => {
      if (e.error) throw new Error(JSON.stringify(e.error));
      if (e.choices?.length) first ||= now(), (last = now());
      if (e.usage) made = e.usage.completion_tokens;
    });
  if (status !== 200) throw new Error(`HTTP ${status}: ${text}`);
  return { began, first, last, made };
};

// How long STREAMS random prompts at once take that go on for `made` tokens each.
const together = async (streams, prompt, made, ids) => {
  const began = now();
  const list = await Promise.all(Array.from({ length: streams }, () => complete(randomIds(prompt, ids), made)));
  const tokens = list.reduce((n, r) => n + r.made, 0);
  if (tokens !== streams * made) throw new Error(`${tokens} tokens came, not ${streams * made}`);
  return Math.max(...list.map((r) => r.last)) - began;
};

// Decoding is what all of it takes longer than the prompts and one token each: a model of random weights may say tokens
// without a text, for which no event comes.
const throughput = async (streams, prompt, made, ids) => {
  const [n, read, tokens] = [+streams, +prompt, +made];
  const prompts = await together(n, read, 1, ids), all = await together(n, read, tokens, ids);
  say('seconds', all);
  say('all_tok_s', n * (read + tokens) / all);
  say('prompt_tok_s', n * read / prompts);
  if (tokens > 1) say('decode_tok_s', n * (tokens - 1) / (all - prompts));
};

const first = async (long, ids) => {
  const before = [await metric('passes_total'), await metric('pass_seconds_total')];
  await complete(randomIds(+long, ids), 1);
  const pass = ((await metric('pass_seconds_total')) - before[1]) / ((await metric('passes_total')) - before[0]);
  const reading = complete(randomIds(+long, ids), 1);
  const times = [];
  let done = false;
  reading.then(() => { done = true; });
  await sleep(0.2);
  while (!done) {
    const r = await complete(randomIds(8, ids), 1);
    if (!done) times.push(r.first - r.began);
  }
  await reading;
  if (!times.length) throw new Error('the long prompt was read before a short request was answered: make it longer');
  say('pass_s', pass); // of the long prompt alone
  say('short_first_token_s', median(times));
  say('short_first_token_passes', median(times) / pass);
  say('short_first_token_passes_most', Math.max(...times) / pass);
  say('short_requests', times.length);
};

const words = ['dog', 'cat', 'king', 'ship', 'tree', 'girl', 'bear', 'moon'];
const resident = (pid) => +/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1] / 1024;

const streams = async (n, seconds, pid) => {
  const until = now() + +seconds, memory = [];
  let answers = 0, tokens = 0, errors = 0; // tokens: events
  const chat = async (i) => {
    for (let k = 0; now() < until; k++) {
      try {
        const { status } = await ask('/v1/chat/completions', {
          model: 'any', stream: true, max_tokens: 60, temperature: 1, seed: i * 1000 + k,
          messages: [{ role: 'system', content: 'You tell stories to children.' }, { role: 'user', content: `A story about a ${words[(i + k) % 8]}, number ${i * 1000 + k}.` }],
        }, (e) => { if (e.error) errors++; else tokens++; });
        if (status !== 200) errors++;
        answers++;
      } catch (e) { errors++; }
    }
  };
  const watch = async () => { while (pid && now() < until) { memory.push(resident(pid)); await sleep(1); } };
  await Promise.all([watch(), ...Array.from({ length: +n }, (_, i) => chat(i))]);
  say('answers', answers);
  say('events', tokens);
  say('errors', errors);
  if (!memory.length) return;
  const tenth = Math.ceil(memory.length / 10);
  say('resident_mb_after_a_tenth', memory[tenth]);
  say('resident_mb_half', memory[memory.length >> 1]);
  say('resident_mb_end', memory.at(-1));
  say('resident_mb_most', Math.max(...memory));
};

const ordinary = async (n) => {
  const times = [];
  for (let i = 0; i < n; i++) {
    const r = await complete(`Once upon a time ${Math.random()}`, 16);
    times.push(r.last - r.began);
  }
  return times;
};

const attack = async (idle, dripping) => {
  const dial = () => {
    const s = net.connect(+url.port, url.hostname);
    s.on('error', () => {});
    s.on('data', () => {});
    return s;
  };
  const head = 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Drip: ';
  await ordinary(5);
  const quiet = median(await ordinary(20));
  say('quiet_s', quiet);
  const idles = Array.from({ length: +idle }, dial);
  await sleep(1);
  say('with_idle', median(await ordinary(20)) / quiet);
  let stop = false;
  const drips = Array.from({ length: +dripping }, () => ({ s: dial(), at: 0 }));
  const drip = setInterval(() => {
    for (const d of drips) {
      if (d.s.writable) d.s.write(d.at < head.length ? head[d.at++] : 'x');
    }
  }, 100);
  await sleep(2);
  say('and_dripping', median(await ordinary(20)) / quiet);
  const garbage = (async () => {
    while (!stop) {
      for (let i = 0; i < 50; i++) {
        const s = dial();
        s.end(Buffer.from(Array.from({ length: 200 }, () => Math.random() * 256)));
      }
      await sleep(0.1);
    }
  })();
  const smuggled = [
    'Content-Length: 5\r\nContent-Length: 0\r\n\r\n', 'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n',
    'Content-Length: 30000000\r\n\r\n{"prompt": "', 'Transfer-Encoding: chunked\r\n\r\nfffffff\r\n{',
  ];
  const cut = setInterval(() => smuggled.forEach((h) => {
    const s = dial();
    s.write('POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n' + h);
    setTimeout(() => s.destroy(), 50);
  }), 100);
  await sleep(1);
  say('and_garbage', median(await ordinary(20)) / quiet);
  stop = true;
  clearInterval(drip);
  clearInterval(cut);
  await garbage;
  [...idles, ...drips.map((d) => d.s)].forEach((s) => s.destroy());
  say('afterwards', median(await ordinary(20)) / quiet);
};

const prefix = async () => {
  const system = 'You know many tales of the sea and of the mountains, and tell them in the evening. '.repeat(10);
  const { status, text } = await ask('/v1/chat/completions',
    { model: 'any', max_tokens: 16, temperature: 0, messages: [{ role: 'system', content: system }, { role: 'user', content: 'One of the sea.' }] });
  if (status !== 200) throw new Error(`HTTP ${status}: ${text}`);
  const r = JSON.parse(text);
  say('prompt', r.usage.prompt_tokens);
  say('cached', r.usage.prompt_tokens_details.cached_tokens);
  say('text', JSON.stringify(r.choices[0].message.content));
};

const same = async (n) => {
  const one = async (i) => {
    const content = `A story about a ${words[i % 8]}` + ` and a ${words[(i + 3) % 8]}`.repeat((i % 13) * (i % 5)) + `, number ${i}.`;
    const { text } = await ask('/v1/chat/completions', { model: 'any', max_tokens: 40, temperature: 0, messages: [{ role: 'user', content }] });
    return JSON.parse(text).choices[0].message.content;
  };
  const alone = [];
  for (let i = 0; i < +n; i++) alone.push(await one(i));
  const together = await Promise.all(alone.map((_, i) => one(i)));
  say('requests', +n);
  say('different', together.filter((t, i) => t !== alone[i]).length);
};

const modes = { throughput, first, streams, attack, prefix, same };
if (!modes[mode]) {
  console.error(readFileSync(new URL(import.meta.url), 'utf8').split('\n').filter((l) => l.startsWith('//')).map((l) => l.slice(3)).join('\n'));
  process.exit(2);
}
await modes[mode](...rest);
process.exit(0);
