// The chats that this browser keeps: a database of its own for each API key, named by the key's hash.

const HEADS = "heads"; // the title and the time of each chat: all that the list needs
const TEXTS = "texts"; // the words of each chat, for the search: lower case, without images and files
const BODIES = "bodies"; // messages and settings
const STORES = [HEADS, TEXTS, BODIES]; // their records have the chat's id
const FORMAT = "conch-chats";
const BATCH = 100; // records in memory at a time
const MAX_TITLE = 80;

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const newId = () => hex(crypto.getRandomValues(new Uint8Array(16)));

/** The result of a request to the database. */
const resultOf = (request) =>
  new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(request.error));
  });

const completion = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.addEventListener("complete", resolve);
    transaction.addEventListener("abort", () => reject(transaction.error));
  });

async function databaseName(key) {
  if (!key) return "chats";
  if (!crypto.subtle) throw new Error("with an API key, the browser needs HTTPS for it, or a server on this machine");
  return `chats ${hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key))))}`;
}

/** The text of a message, without its images and files. */
export function textOf({ content }) {
  if (!Array.isArray(content)) return content ?? "";
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}

function titleOf({ turns }) {
  const line = turns.map(({ message }) => textOf(message).trim()).find(Boolean) ?? "Without text";
  return line.split("\n")[0].slice(0, MAX_TITLE);
}

function put(transaction, head, { settings, turns, second }) {
  const { id } = head;
  const messages = [...turns, ...(second ? [second] : [])].map(({ message }) => textOf(message));
  transaction.objectStore(HEADS).put(head);
  transaction.objectStore(TEXTS).put({ id, text: [head.title, ...messages].join("\n").toLowerCase() });
  transaction.objectStore(BODIES).put({ id, settings, turns, second });
}

const read = (transaction, id) =>
  Promise.all([HEADS, BODIES].map((name) => resultOf(transaction.objectStore(name).get(id))));

export class Store {
  constructor(database) {
    this.database = database;
  }

  static async open(key) {
    const request = indexedDB.open(await databaseName(key), 1);
    request.addEventListener("upgradeneeded", () => {
      for (const name of STORES) request.result.createObjectStore(name, { keyPath: "id" });
    });
    return new Store(await resultOf(request));
  }

  /** Yields the records of a store in lists. */
  async *#batches(name) {
    let range;
    for (;;) {
      const records = await resultOf(this.database.transaction(name).objectStore(name).getAll(range, BATCH));
      if (records.length) yield records;
      if (records.length < BATCH) return;
      range = IDBKeyRange.lowerBound(records.at(-1).id, true);
    }
  }

  /** Runs a change of all stores; it is made as a whole or not at all. */
  async #write(change) {
    const transaction = this.database.transaction(STORES, "readwrite");
    const undo = (error) => (transaction.abort(), Promise.reject(error));
    const [result] = await Promise.all([change(transaction).catch(undo), completion(transaction)]);
    return result;
  }

  /** The id, title and time of all chats, the newest first. */
  async heads() {
    const heads = await resultOf(this.database.transaction(HEADS).objectStore(HEADS).getAll());
    return heads.sort((left, right) => right.changedAt - left.changedAt);
  }

  /** The ids of the chats that have a text. */
  async search(text) {
    const ids = new Set();
    for await (const records of this.#batches(TEXTS)) {
      for (const each of records) if (each.text.includes(text)) ids.add(each.id);
    }
    return ids;
  }

  /** A chat with its messages, settings and store; undefined: it is not here. */
  async read(id) {
    const [head, body] = await read(this.database.transaction([HEADS, BODIES]), id);
    return head && { ...head, ...body, store: this };
  }

  /** Keeps a chat, unless another tab has deleted it. If one has changed it, that one stays, and this one gets a new id. */
  async save(chat, body) {
    const changedAt = Date.now();
    const id = await this.#write(async (transaction) => {
      const known = await resultOf(transaction.objectStore(HEADS).get(chat.id));
      if (!known && chat.changedAt) throw new Error("another tab has deleted this one");
      const head = { id: chat.id, title: known?.title ?? titleOf(body), changedAt };
      if (known && known.changedAt !== chat.changedAt) head.id = newId();
      put(transaction, head, body);
      return head.id;
    });
    Object.assign(chat, { id, changedAt });
  }

  rename(id, title) {
    return this.#write(async (transaction) => {
      const [head, body] = await read(transaction, id);
      if (head) put(transaction, { ...head, title: title.slice(0, MAX_TITLE) }, body);
    });
  }

  /** Removes a chat. With a time, one that has changed since stays. */
  remove({ id, changedAt }) {
    return this.#write(async (transaction) => {
      const known = await resultOf(transaction.objectStore(HEADS).get(id));
      if (!changedAt || known?.changedAt === changedAt) STORES.forEach((name) => transaction.objectStore(name).delete(id));
    });
  }

  clear() {
    return this.#write(async (transaction) => STORES.forEach((name) => transaction.objectStore(name).clear()));
  }

  /** The file with all chats. */
  async exported() {
    const heads = new Map((await this.heads()).map((head) => [head.id, head]));
    const pieces = [];
    for await (const bodies of this.#batches(BODIES)) {
      const listed = bodies.filter(({ id }) => heads.has(id)); // without those of another tab, kept since
      pieces.push(new Blob(listed.map((body) => `,\n${JSON.stringify({ ...heads.get(body.id), ...body })}`)));
    }
    const chats = new Blob(pieces).slice(1); // without the first comma
    return new Blob([`{"format": "${FORMAT}", "chats": [`, chats, "\n]}\n"], { type: "application/json" });
  }

  /** Adds the chats of an exported file that are not here; returns their number. */
  add(chats) {
    return this.#write(async (transaction) => {
      const known = new Set(await resultOf(transaction.objectStore(HEADS).getAllKeys()));
      const added = chats.filter(({ id }) => !known.has(id) && known.add(id));
      for (const { id, title, changedAt, ...body } of added) put(transaction, { id, title, changedAt }, body);
      return added.length;
    });
  }
}

// --- exported files --------------------------------------------------------------------------------------------------

const isText = (value) => typeof value === "string";
const isCall = ({ id, function: called }) => isText(id) && isText(called.name) && isText(called.arguments);
const PARTS = {
  text: ({ text }) => isText(text),
  image_url: ({ image_url: { url } }) => url.startsWith("data:"),
  file: ({ file }) => isText(file.filename) && file.file_data.startsWith("data:"),
};
const isPart = (part) => Object.hasOwn(PARTS, part.type) && PARTS[part.type](part);

function isTurn({ message: { role, content, reasoning_content, tool_calls }, model }) {
  const isContent = Array.isArray(content) ? role === "user" && content.every(isPart) : isText(content ?? "");
  const isAnswer = isText(reasoning_content ?? "") && (tool_calls ?? []).every(isCall);
  return ["user", "assistant", "tool"].includes(role) && isContent && isAnswer && isText(model ?? "");
}

function isChat({ id, title, changedAt, settings, turns, second }) {
  const isHead = isText(id) && isText(title) && Number.isFinite(changedAt);
  const isPair = () => isTurn(second) && [turns.at(-1), second].every((turn) => turn?.message.role === "assistant");
  return isHead && settings instanceof Object && turns.every(isTurn) && (!second || isPair());
}

/** The chats of an exported file. */
export function chatsIn(text) {
  try {
    const { format, chats } = JSON.parse(text);
    if (format === FORMAT && chats.every(isChat)) return chats;
  } catch {
    // the values have other types
  }
  throw new Error("The file has no chats of a Conch playground.");
}
