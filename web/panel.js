// The live panel: small charts of what /metrics says, and which experts were asked for, once a second while it is open.

const KEEP = 60;
const charts = [
  ['Generated tokens/s', (d, s) => d('decoded_tokens_total') / s, (v) => v.toFixed(1)],
  ['Running answers', (_d, _s, g) => g('sequences_running'), (v) => String(v)],
  ['Experts found in memory', (d) => (d('expert_wanted_total') ? d('expert_hits_total') / d('expert_wanted_total') : null), (v) => `${(100 * v).toFixed(1)} %`],
  ['Read from disk', (d, s) => (d('expert_read_bytes_total') + d('expert_prefetched_bytes_total')) / s / 1e6, (v) => `${v.toFixed(1)} MB/s`],
  ['Experts in memory', (_d, _s, g) => g('memory_bytes{part="experts"}') / 1e6, (v) => `${v.toFixed(0)} MB`],
];

function parse(text) {
  const values = new Map();
  for (const line of text.split('\n')) {
    const m = /^moeflux_(\S+) (\S+)$/.exec(line);
    if (m) values.set(m[1], Number(m[2]));
  }
  return values;
}

const SVG = 'http://www.w3.org/2000/svg';

function makeChart(title) {
  const box = document.createElement('section'), head = document.createElement('h2'), number = document.createElement('p');
  const svg = document.createElementNS(SVG, 'svg'), line = document.createElementNS(SVG, 'polyline');
  head.textContent = title;
  number.className = 'number';
  number.textContent = '–';
  svg.setAttribute('viewBox', `0 0 ${KEEP} 30`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(line);
  box.append(head, number, svg);
  return { box, number, line, values: [] };
}

function draw(chart, value, format) {
  if (value === null || !Number.isFinite(value)) return;
  chart.values = [...chart.values, value].slice(-KEEP);
  const top = Math.max(...chart.values, 1e-9);
  chart.number.textContent = format(value);
  chart.line.setAttribute('points', chart.values.map((v, i) => `${i + KEEP - chart.values.length},${29 - (28 * v) / top}`).join(' '));
}

// One cell per expert, one row per layer; darker was asked for more often.
function drawExperts(canvas, data) {
  if (!data.layers?.length) return;
  canvas.width = data.layers[0].length;
  canvas.height = data.layers.length;
  canvas.style.height = `${Math.min(16, Math.max(3, data.layers.length * 0.6))}rem`;
  const context = canvas.getContext('2d');
  const hot = getComputedStyle(document.documentElement).getPropertyValue('--hot');
  const top = Math.max(1, ...data.layers.flat());
  context.clearRect(0, 0, canvas.width, canvas.height);
  data.layers.forEach((row, y) => row.forEach((n, x) => {
    context.fillStyle = `rgba(${hot}, ${Math.sqrt(n / top)})`;
    context.fillRect(x, y, 1, 1);
  }));
}

export function livePanel(root, key) {
  const made = charts.map(([title]) => makeChart(title));
  const map = document.createElement('section'), head = document.createElement('h2'), canvas = document.createElement('canvas');
  head.textContent = 'Experts by layer';
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', 'Heat map: how often each expert of each layer was asked for');
  map.append(head, canvas);
  root.replaceChildren(...made.map((c) => c.box), map);
  let before = null, then = 0;
  return async () => {
    const headers = key() ? { authorization: `Bearer ${key()}` } : {};
    const [metrics, experts] = await Promise.all([fetch('/metrics', { headers }), fetch('/experts', { headers })]);
    if (!metrics.ok) return;
    const now = parse(await metrics.text()), time = performance.now();
    const seconds = (time - then) / 1000;
    const last = before;
    before = now;
    then = time;
    if (last) charts.forEach(([, value, format], i) => draw(made[i], value((k) => now.get(k) - last.get(k), seconds, (k) => now.get(k)), format));
    if (experts.ok) drawExperts(canvas, await experts.json());
  };
}
