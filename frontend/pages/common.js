// What all pages share: DOM nodes, calls of the API with a key, streams, metrics and numbers.

/** Returns a new element. `attributes` are properties, or attributes if the element has no such property. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const find = (id) => document.getElementById(id);

/** The text of a number for people: 12,345 or 1.2. */
export const shown = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });

export const milliseconds = (ms) => (ms < 1000 ? `${shown(ms, ms < 10 ? 1 : 0)} ms` : `${shown(ms / 1000, 2)} s`);

/** An error of the API: its status, its code, the field at fault, and its message. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `HTTP status ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
    this.param = error?.param;
  }
}

let key = ""; // the last one that the server has accepted, in memory only: gone with the page

/** Fetches a path of this server. If it wants a key, the reader is asked for one, until it fits or is refused. */
export async function call(path, body, signal) {
  for (let given; ; ) {
    const headers = given || key ? { Authorization: `Bearer ${given || key}` } : {};
    const request = body ? { method: "POST", body: JSON.stringify(body) } : {};
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(path, { ...request, headers, signal, cache: "no-store" });
    if (given && response.status !== 401) key = given;
    if (response.ok) return response;
    const error = (await response.json().catch(() => ({}))).error;
    given = response.status === 401 && (await askForKey(error?.message));
    if (!given) throw new ApiError(response.status, error);
  }
}

export const json = async (path, body) => (await call(path, body)).json();

/** The API key that the server has accepted; empty: there is none. */
export const apiKey = () => key;

/** Asks in a dialog with these nodes; returns whether the reader chose `label`. */
export function confirmed(title, label, ...nodes) {
  const send = element("button", { textContent: label, className: "primary" });
  const cancel = element("button", { textContent: "Cancel", type: "button" });
  const row = element("div", { className: "row" }, send, cancel);
  const form = element("form", { method: "dialog" }, element("h2", { textContent: title }), ...nodes, row);
  const dialog = element("dialog", { "aria-label": title }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => (event.preventDefault(), dialog.close("yes")));
    cancel.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => (dialog.remove(), resolve(dialog.returnValue === "yes")));
  });
}

let asking; // the open question, shared by all calls that wait for its answer

/** Asks for an API key; returns it, empty if the reader gives none. */
function askForKey(reason) {
  const ask = async () => {
    const field = element("input", { type: "password", autocomplete: "off", id: "key", required: true });
    const label = element("label", { htmlFor: "key", textContent: "Key. It stays in the memory of this page." });
    const isGiven = await confirmed("API key", "Continue", element("p", { textContent: reason ?? "", className: "muted" }), label, field);
    asking = undefined;
    return isGiven ? field.value.trim() : "";
  };
  return (asking ??= ask());
}

const NEWS = ": keepalive: "; // begins a comment that says why the answer has not begun

/** Yields the JSON objects of a stream of server-sent events, until [DONE]. Its news go to `tell`. */
export async function* events(response, tell) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith(NEWS)) tell(line.slice(NEWS.length));
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

/** The samples of Prometheus' text format: a list of name, labels and value. */
export function samples(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]\w*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    found.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return found;
}

/** Sums the samples that have this name and these labels; undefined: there is none. */
export function total(found, name, labels = {}) {
  const fits = (sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value);
  const values = found.filter((each) => each.name === name && fits(each)).map((each) => each.value);
  return values.length ? values.reduce((sum, value) => sum + value) : undefined;
}

/** The tokens in the KV caches of a model's engines, and those that fit; NaN: not known. */
export function kvTokens(found, model) {
  let used = 0;
  for (const { name, labels, value } of found) {
    if (name !== "conch_kv_cache_usage_ratio" || labels.model !== model) continue;
    used += value * total(found, "conch_kv_cache_max_tokens", labels);
  }
  return { used, most: total(found, "conch_kv_cache_max_tokens", { model }) ?? NaN };
}

/** A bar that shows a part of a whole, with its text. */
export function meter(label, text, share) {
  const bar = element("progress", { max: 1, value: Math.min(1, share || 0), "aria-label": label });
  return element("div", { className: "meter" }, element("span", { textContent: label }), element("span", { textContent: text }), bar);
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(language, text) {
  const code = element("code", { textContent: text });
  const head = element("div", { className: "code-head" }, language, copyButton(code));
  return element("div", { className: "code" }, head, element("pre", { tabIndex: 0 }, code));
}

export function quietButton(label, action) {
  const button = element("button", { type: "button", className: "quiet", textContent: label });
  button.addEventListener("click", action);
  return button;
}

/** A button that copies the text of a node, or another form of it. */
export function copyButton(node, text = node.textContent) {
  const button = quietButton("Copy", async () => {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      getSelection().selectAllChildren(node); // over plain HTTP to another machine there is no clipboard
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
