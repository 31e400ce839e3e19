// Markdown as models write it, into elements. Only createElement and text: nothing a model says becomes markup of the page.

const el = (name, ...children) => {
  const e = document.createElement(name);
  e.append(...children);
  return e;
};

// `code`, **bold**, *italic*, [text](https://...)
const INLINE = /`([^`\n]+)`|\*\*([^*\n](?:.*?[^*\n])?)\*\*|\*([^*\s](?:[^*\n]*[^*\s])?)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/;

function inline(text, into, depth = 0) {
  for (let m; depth < 8 && (m = INLINE.exec(text)); text = text.slice(m.index + m[0].length)) {
    into.append(text.slice(0, m.index));
    if (m[1] !== undefined) into.append(el('code', m[1]));
    else if (m[2] !== undefined) into.append(inline(m[2], el('strong'), depth + 1));
    else if (m[3] !== undefined) into.append(inline(m[3], el('em'), depth + 1));
    else {
      const a = el('a', m[4]);
      a.href = m[5];
      a.rel = 'noopener noreferrer';
      a.target = '_blank';
      into.append(a);
    }
  }
  into.append(text);
  return into;
}

function fence(lines, language) {
  const code = el('code', lines.join('\n'));
  const copy = el('button', 'Copy');
  copy.type = 'button';
  copy.setAttribute('aria-label', 'Copy the code');
  copy.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = 'Selected';
    }
  });
  const pre = el('pre', code);
  pre.tabIndex = 0;
  pre.setAttribute('aria-label', language ? `Code: ${language}` : 'Code');
  pre.setAttribute('role', 'region');
  const box = el('div', copy, pre);
  box.className = 'fence';
  return box;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, '').split('|').map((c) => c.trim());

function table(rows) {
  const head = el('tr', ...cells(rows[0]).map((c) => inline(c, el('th'))));
  const body = rows.slice(2).map((r) => el('tr', ...cells(r).map((c) => inline(c, el('td')))));
  return el('table', el('thead', head), el('tbody', ...body));
}

const takeWhile = (lines, i, test) => {
  const taken = [];
  while (i + taken.length < lines.length && test(lines[i + taken.length])) taken.push(lines[i + taken.length]);
  return taken;
};

// One block that begins at line i; returns [element or null, lines used].
function block(lines, i) {
  const line = lines[i];
  let m;
  if (!line.trim()) return [null, 1];
  if ((m = /^\s*(```+|~~~+)\s*([\w+-]*)/.exec(line))) {
    const body = takeWhile(lines, i + 1, (l) => !l.trim().startsWith(m[1]));
    return [fence(body, m[2]), body.length + 2];
  }
  if ((m = /^(#{1,6})\s+(.*)/.exec(line))) return [inline(m[2], el(`h${Math.min(6, m[1].length + 2)}`)), 1];
  if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) return [el('hr'), 1];
  if (line.startsWith('>')) {
    const body = takeWhile(lines, i, (l) => l.startsWith('>'));
    return [el('blockquote', markdown(body.map((l) => l.replace(/^>\s?/, '')).join('\n'))), body.length];
  }
  if (line.includes('|') && /^\s*\|?[\s:|-]+-[\s:|-]*$/.test(lines[i + 1] ?? '')) {
    const rows = takeWhile(lines, i, (l) => l.includes('|'));
    return [table(rows), rows.length];
  }
  if ((m = /^\s*([-*+]|\d+[.)])\s+/.exec(line))) {
    const item = /^\d/.test(m[1]) ? /^\s*\d+[.)]\s+/ : /^\s*[-*+]\s+/;
    const items = takeWhile(lines, i, (l) => item.test(l));
    return [el(/^\d/.test(m[1]) ? 'ol' : 'ul', ...items.map((l) => inline(l.replace(item, ''), el('li')))), items.length];
  }
  const text = takeWhile(lines, i, (l) => l.trim() && !/^\s*(```|~~~|#{1,6}\s|>)/.test(l));
  const p = el('p');
  text.forEach((l, k) => {
    if (k) p.append(el('br'));
    inline(l, p);
  });
  return [p, Math.max(1, text.length)];
}

export function markdown(text) {
  const out = document.createDocumentFragment();
  const lines = text.split('\n');
  for (let i = 0; i < lines.length;) {
    const [element, used] = block(lines, i);
    if (element) out.append(element);
    i += used;
  }
  return out;
}
