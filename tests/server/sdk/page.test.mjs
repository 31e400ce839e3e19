// The page in a real browser (chromium through playwright-core): what people do, keys alone, dark, a phone, axe-core.
// Screenshots are kept beside this file in the build directory.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const url = process.env.MOEFLUX_URL, executablePath = process.env.CHROMIUM;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let browser, context, page;
const problems = [], elsewhere = [];

const watch = (p) => {
  p.on('console', (m) => { if (m.type() === 'error') problems.push(m.text()); });
  p.on('pageerror', (e) => problems.push(String(e)));
  p.on('request', (r) => { if (!r.url().startsWith(url) && !r.url().startsWith('blob:')) elsewhere.push(r.url()); });
  return p;
};
const shot = (name) => page.screenshot({ path: `shots/${name}.png` });
// axe goes in by the debugger, which the page's policy does not bind.
const serious = async (p) => {
  const session = await p.context().newCDPSession(p);
  await session.send('Runtime.evaluate', { expression: axe });
  const { result } = await session.send('Runtime.evaluate', { expression: 'axe.run().then((r) => JSON.stringify(r.violations))', awaitPromise: true, returnByValue: true });
  return JSON.parse(result.value).filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id}: ${v.nodes[0].html} ${v.nodes[0].failureSummary}`);
};
const idle = () => page.waitForFunction(() => document.getElementById('stop').hidden);
const settings = async (values) => {
  await page.click('#open-settings');
  for (const [k, v] of Object.entries(values)) await page.fill(`#settings-form [name=${k}]`, v);
  await page.click('#settings-form button[type=submit]');
};
const say = async (text) => {
  await page.fill('#input', text);
  await page.click('#send');
};
const answers = () => page.$$eval('article.assistant .body', (l) => l.map((e) => e.textContent));

before(async () => {
  mkdirSync('shots', { recursive: true });
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
  context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
  page = watch(await context.newPage());
  await page.goto(url);
});
after(async () => { await browser?.close(); });

test('send, and an answer streams in', async () => {
  await settings({ max_tokens: '40', temperature: '0' });
  await say('Tell me a story about a dog.');
  await page.waitForFunction(() => document.querySelector('article.assistant .body')?.textContent.length > 0);
  await idle();
  assert.ok((await answers())[0].length > 40);
  assert.match(await page.textContent('article.assistant .tools'), /40 tokens/);
  await shot('answer');
});

test('reload, and the conversation is there', async () => {
  const [text] = await answers();
  await page.reload();
  await page.waitForSelector('article.assistant');
  assert.deepEqual(await answers(), [text]);
  assert.match(await page.textContent('#list'), /story about a dog/);
});

test('a second click while an answer comes sends nothing', async () => {
  const before = (await page.$$('article.user')).length;
  await page.fill('#input', 'Twice?');
  await page.evaluate(() => {
    document.getElementById('send').click();
    document.getElementById('input').value = 'Twice?';
    document.getElementById('composer').requestSubmit();
  });
  await idle();
  assert.equal((await page.$$('article.user')).length, before + 1);
  await page.fill('#input', '');
});

test('stop', async () => {
  await settings({ max_tokens: '1500' });
  await page.click('#new');
  await say('A very long story, please, with many animals.');
  await page.waitForFunction(() => document.querySelector('article.assistant .body')?.textContent.length > 20);
  await page.click('#stop');
  await idle();
  assert.equal(await page.textContent('#status'), 'Stopped');
  assert.ok((await answers())[0].length > 20);
});

test('retry and edit make branches', async () => {
  await settings({ max_tokens: '10', temperature: '1' });
  await page.click('#new');
  await say('Say something.');
  await idle();
  await page.click('article.assistant button:has-text("Retry")');
  await idle();
  assert.match(await page.textContent('article.assistant .tools'), /2 of 2/);
  const second = (await answers())[0];
  await page.click('article.assistant button[aria-label="The branch before"]');
  assert.match(await page.textContent('article.assistant .tools'), /1 of 2/);
  await page.click('article.user button:has-text("Edit")');
  await page.fill('article.user textarea', 'Say something else.');
  await page.click('button:has-text("Send the edited message")');
  await idle();
  assert.match(await page.textContent('article.user .tools'), /2 of 2/);
  await page.click('article.user button[aria-label="The branch before"]');
  assert.match(await page.textContent('article.user .body'), /Say something\./);
  assert.deepEqual(await answers(), [second]);
  await shot('branches');
});

test('a schema', async () => {
  await settings({ schema: '{oops' }).catch(() => {});
  assert.match(await page.textContent('#schema-problem'), /not JSON/);
  await page.fill('#settings-form [name=schema]', '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}');
  await page.fill('#settings-form [name=max_tokens]', '60');
  await page.click('#settings-form button[type=submit]');
  await page.click('#new');
  await say('Is it so?');
  await idle();
  assert.equal(typeof JSON.parse((await answers())[0]).ok, 'boolean');
  await settings({ schema: '' });
});

test('a file goes along', async () => {
  writeFileSync('note.txt', 'The bear lives in the wood.');
  await settings({ max_tokens: '5' });
  await page.click('#new');
  await page.setInputFiles('#attach', 'note.txt');
  await page.waitForSelector('#files li');
  await say('What does it say?');
  await idle();
  assert.match(await page.textContent('article.user .body'), /The bear lives/);
});

// A server that says what we want: how far a long prompt is, then reasoning, then text.
test('a bar while a prompt is read, thinking folded', async () => {
  const data = (delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`;
  const body = ': prompt 0/4096 tokens, 812.0 MB to fetch\n\n: prompt 1024/4096 tokens, 609.4 MB to fetch, about 12.3 s to go\n\n' +
    data({ role: 'assistant', content: '' }) + data({ reasoning_content: 'Which dog?' }) + data({ content: 'The **brown** one.' }) + 'data: [DONE]\n\n';
  await page.route('**/v1/chat/completions', (r) => r.fulfill({ status: 200, contentType: 'text/event-stream', body }));
  await page.click('#new');
  await page.evaluate(() => {
    window.seen = [];
    const bar = document.getElementById('progress'), status = document.getElementById('status');
    const note = () => window.seen.push(`${bar.hidden ? 'hidden' : bar.value} ${status.textContent}`);
    new MutationObserver(note).observe(status, { childList: true, characterData: true, subtree: true });
    const say = Object.getOwnPropertyDescriptor(Node.prototype, 'textContent');
    Object.defineProperty(status, 'textContent', { configurable: true, get() { return say.get.call(this); }, set(v) { say.set.call(this, v); note(); } });
  });
  await say('Which one?');
  await idle();
  await page.unroute('**/v1/chat/completions');
  const seen = await page.evaluate(() => { delete document.getElementById('status').textContent; return window.seen; });
  assert.ok(seen.includes('0 Reading 4096 tokens, 812 MB to fetch'), String(seen));
  assert.ok(seen.includes('0.25 Reading 4096 tokens, 609 MB to fetch, about 12 s to go'), String(seen));
  assert.ok(await page.isHidden('#progress'));
  assert.equal(await page.textContent('article.assistant .body'), 'The brown one.');
  assert.equal(await page.$eval('article.assistant details', (d) => d.open), false);
  await page.click('article.assistant summary');
  assert.ok(await page.isVisible('article.assistant details div'));
  assert.match(await page.textContent('article.assistant details div'), /Which dog/);
  await shot('thinking');
});

test('what a model writes stays text', async () => {
  await page.evaluate(async () => {
    const { markdown } = await import('/markdown.js');
    const box = document.createElement('div');
    box.id = 'trial';
    box.append(markdown('# Title\n\n<img src=x onerror="window.broken=1"> **bold** `code` [a](javascript:alert(1)) [b](https://x.example)\n\n```js\nlet a = 1;\n```\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |'));
    document.querySelector('main').append(box);
  });
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.equal(await page.$('#trial img'), null);
  assert.equal((await page.$$('#trial a')).length, 1);
  assert.equal(await page.textContent('#trial pre'), 'let a = 1;');
  assert.equal((await page.$$('#trial li')).length, 2);
  assert.equal((await page.$$('#trial td')).length, 2);
  assert.ok(await page.$('#trial .fence button'));
  await page.evaluate(() => document.getElementById('trial').remove());
});

test('the live panel', async () => {
  await page.click('#show-panel');
  await settings({ max_tokens: '60' });
  await say('And more?');
  await idle();
  await page.waitForFunction(() => document.querySelectorAll('#panel polyline[points]').length >= 3);
  const painted = await page.$eval('#panel canvas', (c) => c.width > 1 && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0));
  assert.ok(painted);
  await shot('panel');
  assert.deepEqual(await serious(page), []);
  await page.click('#show-panel');
});

test('axe-core, light and dark, with the settings open', async () => {
  assert.deepEqual(await serious(page), []);
  while (!(await page.textContent('#theme')).includes('dark')) await page.click('#theme');
  assert.notEqual(await page.$eval('body', (b) => getComputedStyle(b).backgroundColor), 'rgb(255, 255, 255)');
  assert.deepEqual(await serious(page), []);
  await shot('dark');
  await page.click('#open-settings');
  assert.deepEqual(await serious(page), []);
  await shot('settings');
  await page.keyboard.press('Escape');
});

test('keys alone', async () => {
  const p = watch(await context.newPage());
  await p.goto(url);
  await p.waitForSelector('#list li');
  const focus = (id) => p.evaluate((x) => document.activeElement.id === x, id);
  assert.ok(await focus('input'));
  await p.keyboard.press('Shift+Tab'); // into the log, and back
  await p.keyboard.press('Tab');
  assert.ok(await focus('input'));
  await p.keyboard.type('One');
  await p.keyboard.press('Shift+Enter');
  await p.keyboard.type('two');
  await p.keyboard.press('Enter');
  await p.waitForFunction(() => document.getElementById('stop').hidden && !document.getElementById('input').value);
  await p.waitForFunction(() => document.activeElement.id === 'input');
  const tabTo = async (want, key = 'Tab') => {
    for (let i = 0; i < 60; i++) {
      if (await p.evaluate((s) => document.activeElement.matches(s), want)) return;
      await p.keyboard.press(key);
    }
    assert.fail(`no way to ${want} by ${key}`);
  };
  await tabTo('article.assistant button[aria-label^="Retry"]', 'Shift+Tab');
  await p.keyboard.press('Enter');
  await p.waitForFunction(() => document.getElementById('stop').hidden && /2 of 2/.test(document.querySelector('article.assistant:last-child .tools')?.textContent));
  await tabTo('#open-settings', 'Shift+Tab');
  await p.keyboard.press('Enter');
  assert.ok(await p.isVisible('#settings'));
  await tabTo('[name=seed]');
  await p.keyboard.type('7');
  await tabTo('#settings-form button[type=submit]');
  await p.keyboard.press('Enter');
  assert.ok(!(await p.isVisible('#settings')));
  assert.equal(await p.evaluate(() => JSON.parse(localStorage.getItem('settings')).seed), '7');
  await tabTo('#new');
  await p.keyboard.press('Enter');
  assert.equal((await p.$$('article')).length, 0);
  await p.close();
});

test('a phone', async () => {
  const phone = await browser.newContext({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
  const p = watch(await phone.newPage());
  await p.goto(url);
  await p.waitForSelector('#input');
  assert.ok(await p.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'wider than the screen');
  await p.click('#menu');
  assert.ok(await p.isVisible('#new'));
  await p.click('#new');
  assert.ok(!(await p.isVisible('#new')));
  await p.fill('#input', 'Hello');
  await p.click('#send');
  await p.waitForFunction(() => document.querySelector('article.assistant .body')?.textContent.length > 3);
  assert.deepEqual(await serious(p), []);
  await p.screenshot({ path: 'shots/phone.png' });
  await phone.close();
});

test('nothing was said in the console, nothing left the machine', () => {
  assert.deepEqual(problems, []);
  assert.deepEqual(elsewhere, []);
});
