// The list of the chats that this browser keeps.
import { apiKey, confirmed, element, find, quietButton, shown } from "./common.js";
import { Store, chatsIn } from "./history.js";

const PAGE = 50; // chats that are shown at once

let opened; // the store, as a promise, and its key
let saving = Promise.resolve(); // the last change of the store
let heads = [];
let most = PAGE;
let numDrawn = 0; // drawings so far: a search that takes longer than the next one is dropped
let actions; // of the playground: isOpen(id), open(id), close()

/** Says why chats are not kept. */
function showUnkept(error) {
  const reason = error.name === "QuotaExceededError" ? "the browser has no room left for this page" : error.message;
  find("unkept").textContent = `Chats are not kept: ${reason}.`;
  find("unkept").hidden = false;
}

const open = (key) =>
  Store.open(key).catch((error) => showUnkept(globalThis.indexedDB ? error : new Error("the browser keeps no data of this page")));

/** The store of the present key, as a promise; of undefined: this browser keeps nothing. */
export function storeOfKey() {
  if (opened?.key !== apiKey()) opened = { key: apiKey(), store: open(apiKey()) };
  return opened.store;
}

/** Changes a store after the changes before, and draws the list; returns the change's result, undefined if it failed. */
function change(make, opening = storeOfKey()) {
  saving = saving.then(async () => {
    const store = await opening;
    if (!store) return undefined;
    try {
      const result = await make(store);
      await showChats();
      return result;
    } catch (error) {
      return showUnkept(error);
    }
  });
  return saving;
}

/** Keeps a chat; returns whether it is kept. */
export const keep = (chat, body) => change(async (store) => (await store.save(chat, body), (chat.isKept = true)), chat.store);

/** Removes a chat, unless another tab has changed it. */
export const forget = (chat) =>
  change(async (store) => (await store.remove(chat), (chat.isKept = chat.changedAt = undefined)), chat.store);

/** A kept chat, with all changes so far; undefined: there is none. */
export async function kept(id) {
  await saving;
  return (await storeOfKey())?.read(id);
}

/** Reads the list again. */
export async function showChats() {
  heads = (await (await storeOfKey())?.heads()) ?? [];
  for (const id of ["export", "clear"]) find(id).disabled = !heads.length;
  await draw();
}

/** Shows the first chats that have the text of the search. */
export async function draw() {
  const serial = ++numDrawn;
  const text = find("search").value.trim().toLowerCase();
  const ids = text && (await (await storeOfKey())?.search(text));
  if (serial !== numDrawn) return;
  const found = ids ? heads.filter(({ id }) => ids.has(id)) : heads;
  replaceItems(find("list"), found.slice(0, most).map(item));
  find("more").hidden = found.length <= most;
  const news = text ? `${shown(found.length)} of ${shown(heads.length)} chats` : heads.length ? "" : "No chats yet";
  if (find("found").textContent !== news) find("found").textContent = news; // the same one is not read aloud again
}

/** Shows these items; the focus stays, and a list of the same items is left alone. */
function replaceItems(list, items) {
  const isSame = (node, place) => node.isEqualNode(list.children[place]);
  if (items.length === list.children.length && items.every(isSame)) return;
  const focused = document.activeElement.closest("#list li")?.dataset.id;
  list.replaceChildren(...items);
  items.find((node) => node.dataset.id === focused)?.firstChild.focus();
}

function item({ id, title, changedAt }) {
  const choose = quietButton(title, () => actions.open(id));
  choose.title = `${title}\n${new Date(changedAt).toLocaleDateString()}`;
  if (actions.isOpen(id)) choose.setAttribute("aria-current", "true");
  const rename = quietButton("Rename", () => askForTitle(id, title));
  const remove = quietButton("Delete", () => askToRemove(id, title));
  for (const each of [rename, remove]) each.setAttribute("aria-label", `${each.textContent} ${title}`);
  const node = element("li", {}, choose, element("span", {}, rename, remove));
  node.dataset.id = id;
  return node;
}

async function askForTitle(id, title) {
  const field = element("input", { id: "title", value: title, required: true });
  const label = element("label", { htmlFor: "title", textContent: "Title" });
  if (await confirmed("Rename the chat", "Rename", label, field)) change((store) => store.rename(id, field.value.trim() || title));
}

async function askToRemove(id, title) {
  if (!(await confirmed("Delete this chat?", "Delete", element("p", { textContent: title })))) return;
  if (actions.isOpen(id)) actions.close();
  change((store) => store.remove({ id }));
}

async function askToClear() {
  const text = `Their number is ${shown(heads.length)}. Chats of other API keys stay.`;
  if (!(await confirmed("Delete all chats?", "Delete all", element("p", { textContent: text })))) return;
  if (heads.some(({ id }) => actions.isOpen(id))) actions.close();
  change((store) => store.clear());
}

async function download() {
  const url = URL.createObjectURL(await (await storeOfKey()).exported());
  element("a", { href: url, download: `conch-chats-${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // some browsers begin to read it later
}

async function upload([file]) {
  let text;
  try {
    const chats = chatsIn(await file.text());
    const num = await change((store) => store.add(chats));
    if (num === undefined) return;
    text = `Imported: ${shown(num)}. Already here: ${shown(chats.length - num)}.`;
  } catch (error) {
    text = error.message;
  }
  find("found").textContent = text;
}

/** Makes the list work; `given` are the actions of the playground. */
export function setUpChats(given) {
  actions = given;
  find("search").addEventListener("input", () => ((most = PAGE), draw()));
  find("more").addEventListener("click", () => ((most += PAGE), draw()));
  find("export").addEventListener("click", download);
  find("import").addEventListener("change", async ({ target }) => (await upload(target.files), (target.value = "")));
  find("clear").addEventListener("click", askToClear);
  document.addEventListener("visibilitychange", () => document.hidden || showChats()); // another tab may have changed them
}
