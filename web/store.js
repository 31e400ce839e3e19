// Conversations, kept in the browser (IndexedDB). A conversation is a tree of messages, so that an edited question or a
// second answer is a branch beside the first; `leaf` says which way is shown.

const NAME = 'moeflux', STORE = 'conversations';
let opened;

function db() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: 'id' });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function run(mode, fn) {
  const store = (await db()).transaction(STORE, mode).objectStore(STORE);
  return new Promise((resolve, reject) => {
    const request = fn(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const all = async () => (await run('readonly', (s) => s.getAll())).sort((a, b) => b.changed - a.changed);
export const save = (c) => run('readwrite', (s) => s.put({ ...c, changed: (c.changed = Date.now()) }));
export const remove = (id) => run('readwrite', (s) => s.delete(id));

export const fresh = () => ({ id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: 'New conversation', changed: Date.now(), nodes: {}, leaf: null });

export function add(c, parent, role, content) {
  const id = String(Object.keys(c.nodes).length + 1);
  c.nodes[id] = { id, parent, role, content, reasoning: '' };
  c.leaf = id;
  return c.nodes[id];
}

// From the first message to the leaf.
export function path(c, leaf = c.leaf) {
  const list = [];
  for (let n = c.nodes[leaf]; n; n = c.nodes[n.parent]) list.unshift(n);
  return list;
}

export const siblings = (c, node) => Object.values(c.nodes).filter((n) => n.parent === node.parent);

// Shows the branch through this node: down to its newest leaf.
export function show(c, node) {
  let n = node;
  for (;;) {
    const children = Object.values(c.nodes).filter((k) => k.parent === n.id);
    if (!children.length) break;
    n = children.at(-1);
  }
  c.leaf = n.id;
}
