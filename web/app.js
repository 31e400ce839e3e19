// The page: what is shown and what happens. Conversations are in store.js, the server in api.js.
import { answer } from '/api.js';
import { markdown } from '/markdown.js';
import { livePanel } from '/panel.js';
import * as store from '/store.js';

const $ = (id) => document.getElementById(id);
const log = $('log'), input = $('input'), status = $('status');
let conversation = store.fresh();
let running = null; // the AbortController of the answer under way
let attached = [];

// ---- settings

const defaults = { system: '', temperature: '', top_p: '', max_tokens: '', seed: '', thinking: '', key: '', schema: '' };
const read = (name, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
let settings = { ...defaults, ...read('settings', {}) };

function schemaOf(text) {
  if (!text.trim()) return null;
  const schema = JSON.parse(text);
  if (typeof schema !== 'object' || schema === null) throw new Error('A schema is an object.');
  return schema;
}

function openSettings() {
  for (const [k, v] of Object.entries(settings)) $('settings-form').elements[k].value = v;
  $('settings').showModal();
}

$('open-settings').addEventListener('click', openSettings);
$('settings-form').addEventListener('submit', (event) => {
  const form = $('settings-form').elements;
  try {
    schemaOf(form.schema.value);
    $('schema-problem').textContent = '';
  } catch (e) {
    event.preventDefault();
    $('schema-problem').textContent = `The schema is not JSON: ${e.message}`;
    form.schema.focus();
    return;
  }
  for (const k of Object.keys(defaults)) settings[k] = form[k].value;
  localStorage.setItem('settings', JSON.stringify(settings));
  loadModel();
});

const THEMES = ['system', 'light', 'dark'];
function setTheme(theme) {
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $('theme').textContent = `Theme: ${theme}`;
  localStorage.setItem('theme', JSON.stringify(theme));
}
$('theme').addEventListener('click', () => setTheme(THEMES[(THEMES.indexOf(read('theme', 'system')) + 1) % 3]));

// ---- messages

const button = (text, label, onClick) => {
  const b = document.createElement('button');
  b.type = 'button';
  b.textContent = text;
  if (label) b.setAttribute('aria-label', label);
  b.addEventListener('click', onClick);
  return b;
};

function branchButtons(node) {
  const list = store.siblings(conversation, node);
  if (list.length < 2) return [];
  const at = list.indexOf(node);
  const go = (i) => () => {
    store.show(conversation, list[i]);
    store.save(conversation);
    render();
  };
  const where = document.createElement('span');
  where.className = 'meta';
  where.textContent = `${at + 1} of ${list.length}`;
  const before = button('‹', 'The branch before', go(Math.max(0, at - 1))), after = button('›', 'The next branch', go(Math.min(list.length - 1, at + 1)));
  before.disabled = at === 0;
  after.disabled = at === list.length - 1;
  return [before, where, after];
}

function edit(node, article) {
  const field = document.createElement('textarea');
  field.className = 'edit';
  field.rows = 4;
  field.value = node.content;
  field.setAttribute('aria-label', 'Edit the message');
  const send = button('Send the edited message', '', () => {
    const changed = store.add(conversation, node.parent, 'user', field.value);
    render();
    speak(changed);
  });
  article.replaceChildren(field, send, button('Cancel', '', render));
  field.focus();
}

function fill(article, node) {
  const parts = [];
  if (node.reasoning) {
    const details = document.createElement('details'), summary = document.createElement('summary'), inside = document.createElement('div');
    summary.textContent = 'Thinking';
    details.open = article.querySelector('details')?.open ?? false;
    inside.append(markdown(node.reasoning));
    details.append(summary, inside);
    parts.push(details);
  }
  const head = document.createElement('h2');
  head.textContent = node.role === 'user' ? 'You' : 'Answer';
  const body = document.createElement('div');
  body.className = 'body';
  body.append(markdown(node.content));
  const tools = document.createElement('div');
  tools.className = 'tools row';
  if (!running) {
    tools.append(...branchButtons(node));
    if (node.role === 'user') tools.append(button('Edit', '', () => edit(node, article)));
    else tools.append(button('Retry', 'Retry: another answer', () => speak(conversation.nodes[node.parent])));
    tools.append(button('Copy', 'Copy the message', () => navigator.clipboard?.writeText(node.content)));
  }
  if (node.note) {
    const note = document.createElement('span');
    note.className = 'meta';
    note.textContent = node.note;
    tools.append(note);
  }
  article.className = node.role;
  article.replaceChildren(head, ...parts, body, tools);
}

function render() {
  log.replaceChildren(...store.path(conversation).map((node) => {
    const article = document.createElement('article');
    article.dataset.id = node.id;
    fill(article, node);
    return article;
  }));
  $('title').textContent = conversation.title;
  log.scrollTop = log.scrollHeight;
}

// ---- speaking

function say(text, bad = false) {
  status.textContent = text;
  status.classList.toggle('bad', bad);
}

function request(node) {
  const messages = store.path(conversation, node.id).map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: 'system', content: settings.system });
  const body = { messages };
  for (const k of ['temperature', 'top_p', 'max_tokens', 'seed']) if (settings[k] !== '') body[k] = Number(settings[k]);
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  const schema = schemaOf(settings.schema);
  if (schema) body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
  return body;
}

function setRunning(controller) {
  running = controller;
  $('stop').hidden = !controller;
  $('send').disabled = Boolean(controller);
  log.setAttribute('aria-busy', String(Boolean(controller)));
}

// An answer to the user's message `node`.
async function speak(node) {
  if (running) return;
  const reply = store.add(conversation, node.id, 'assistant', '');
  setRunning(new AbortController());
  render();
  const article = log.querySelector(`[data-id="${reply.id}"]`), start = performance.now();
  let pending = false, usage = null;
  const refresh = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      const below = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      fill(article, reply);
      if (below) log.scrollTop = log.scrollHeight;
    });
  };
  const quiet = () => { $('progress').hidden = true; say(''); };
  const on = {
    text: (t) => { quiet(); reply.content += t; refresh(); },
    reasoning: (t) => { quiet(); reply.reasoning += t; refresh(); },
    usage: (u) => { usage = u; },
    progress: (done, all, megabytes, seconds) => {
      $('progress').hidden = false;
      $('progress').value = done / all;
      say([`Reading ${all} tokens`, megabytes >= 1 && `${megabytes.toFixed(0)} MB to fetch`, seconds > 0 && `about ${seconds.toFixed(0)} s to go`].filter(Boolean).join(', '));
    },
  };
  try {
    say('Waiting for the server');
    await answer(request(node), { key: settings.key, signal: running.signal, on });
    quiet();
    if (usage) reply.note = `${usage.completion_tokens} tokens, ${(usage.completion_tokens / ((performance.now() - start) / 1000)).toFixed(1)}/s`;
  } catch (e) {
    $('progress').hidden = true;
    if (e.name === 'AbortError') say('Stopped');
    else say(e.message, true);
    if (e.name === 'AbortError') reply.note = 'stopped';
  }
  setRunning(null);
  await store.save(conversation);
  render();
  list();
  input.focus();
}

// Nothing here waits before the answer is under way: a second click finds it running.
function send() {
  const text = [...attached.map((f) => `File ${f.name}:\n\`\`\`\n${f.text}\n\`\`\``), input.value.trim()].filter(Boolean).join('\n\n');
  if (!text || running) return;
  const node = store.add(conversation, conversation.leaf, 'user', text);
  if (Object.keys(conversation.nodes).length === 1) conversation.title = (input.value.trim() || attached[0].name).slice(0, 60);
  input.value = '';
  attached = [];
  showFiles();
  localStorage.setItem('open', JSON.stringify(conversation.id));
  store.save(conversation).then(list, (e) => say(`The conversation cannot be kept: ${e.message}`, true));
  speak(node);
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
input.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$('stop').addEventListener('click', () => running?.abort());
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && running && !$('settings').open) running.abort();
});

// ---- files

function showFiles() {
  $('files').replaceChildren(...attached.map((f, i) => {
    const item = document.createElement('li');
    item.append(`${f.name} (${f.text.length} characters) `, button('Remove', `Remove ${f.name}`, () => {
      attached.splice(i, 1);
      showFiles();
    }));
    return item;
  }));
}

$('attach').addEventListener('change', async () => {
  for (const file of $('attach').files) {
    if (file.size > 1 << 20) {
      say(`${file.name} is larger than 1 MB.`, true);
      continue;
    }
    const text = await file.text();
    if (text.includes('\u0000')) say(`${file.name} is not a text.`, true);
    else attached.push({ name: file.name, text });
  }
  $('attach').value = '';
  showFiles();
});

// ---- conversations

async function list() {
  const items = (await store.all()).map((c) => {
    const item = document.createElement('li');
    const open = button(c.title, '', () => {
      if (running) return;
      conversation = c;
      localStorage.setItem('open', JSON.stringify(c.id));
      closeMenu();
      render();
      list();
    });
    open.setAttribute('aria-current', String(c.id === conversation.id));
    item.append(open, button('×', `Delete ${c.title}`, async () => {
      await store.remove(c.id);
      if (c.id === conversation.id) startNew();
      list();
    }));
    return item;
  });
  $('list').replaceChildren(...items);
}

function startNew() {
  if (running) return;
  conversation = store.fresh();
  localStorage.removeItem('open');
  render();
  list();
  closeMenu();
  input.focus();
}
$('new').addEventListener('click', startNew);

function closeMenu() {
  $('side').classList.remove('open');
  $('menu').setAttribute('aria-expanded', 'false');
}
$('menu').addEventListener('click', () => {
  const open = $('side').classList.toggle('open');
  $('menu').setAttribute('aria-expanded', String(open));
  if (open) $('new').focus();
});

// ---- the live panel

let panelTimer = 0;
$('show-panel').addEventListener('click', () => {
  const panel = $('panel'), open = panel.hidden;
  panel.hidden = !open;
  $('show-panel').setAttribute('aria-expanded', String(open));
  clearInterval(panelTimer);
  if (!open) return;
  const refresh = livePanel(panel, () => settings.key);
  const tick = () => refresh().catch(() => {});
  tick();
  panelTimer = setInterval(tick, 1000);
});

// ---- the beginning

async function loadModel() {
  try {
    const headers = settings.key ? { authorization: `Bearer ${settings.key}` } : {};
    const response = await fetch('/v1/models', { headers });
    if (response.status === 401) {
      say('This server needs an API key: it goes into the settings.', true);
      return;
    }
    $('model').textContent = (await response.json()).data[0].id;
  } catch {
    say('The server cannot be reached.', true);
  }
}

setTheme(read('theme', 'system'));
loadModel();
const known = await store.all();
conversation = known.find((c) => c.id === read('open', null)) ?? conversation;
render();
list();
input.focus();
