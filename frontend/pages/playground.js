// The playground: a conversation with a model, and what the server knows about each answer.
import { AnswerView } from "./answer.js";
import { attach, attachedParts, partView, setAttached } from "./attachments.js";
import { draw, forget, keep, kept, setUpChats, showChats, storeOfKey } from "./chats.js";
import { call, confirmed, element, events, find, quietButton } from "./common.js";
import { newId, textOf } from "./history.js";
import { showDefaults, showMemory, showModels } from "./models.js";
import { bodyFor, readSettings, setUpSettings, showSettings } from "./settings.js";

const SUGGESTIONS = ["What is the capital of France?", "Count from 1 to 20.", "How do you say cat in Japanese?"];
const TOP_LOGPROBS = 5;
const KEEP_MS = 2000; // between two writes of an answer that is coming

let turns = []; // messages of the conversation, each with the node that shows it; answers are views
let second; // another answer in place of the last one, until one of both is picked
let chat = { id: newId() }; // the conversation among the kept chats: its id, its time, and its store
let edited = -1; // the place of the message that the next one replaces
let running; // the AbortController of the running answer
let isAtEnd = true; // whether the end of the page is seen, so that it follows the answer

const followEnd = () => isAtEnd && scrollTo(0, 1e9);
const announce = (text) => (find("announcement").textContent = text);

function tell(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

// --- the request -----------------------------------------------------------------------------------------------------

/** What the page asks for in addition, to show it. */
function streamed(body) {
  const probabilities = find("probabilities").checked ? { logprobs: true, top_logprobs: TOP_LOGPROBS } : {};
  const options = { include_usage: true, continuous_usage_stats: true, include_timing: true };
  return { ...probabilities, ...body, stream: true, stream_options: options };
}

/** Asks for an answer; without probabilities if the model has none. */
async function ask(body, signal) {
  try {
    return await call("v1/chat/completions", streamed(body), signal);
  } catch (error) {
    if (!find("probabilities").checked || !["logprobs", "top_logprobs"].includes(error.param)) throw error;
    find("probabilities").checked = false;
    return ask(body, signal);
  }
}

// --- the conversation ------------------------------------------------------------------------------------------------

function addTurn(turn) {
  turns.push(turn);
  find("welcome").hidden = true;
  find("conversation").append(turn.node);
}

/** Removes the turns from this place on. */
function cutAt(place) {
  for (const { node } of turns.splice(place)) node.closest("#conversation > *").remove();
  second = undefined;
  find("welcome").hidden = turns.length > 0;
}

function userTurn(message) {
  const parts = Array.isArray(message.content) ? message.content.filter((part) => part.type !== "text") : [];
  const edit = quietButton("Edit", () => beginEdit(turns.findIndex((turn) => turn.message === message), parts));
  const said = element("p", { className: "said", textContent: textOf(message) });
  return { message, node: element("article", { className: "user", "aria-label": "You" }, ...parts.map(partView), said, edit) };
}

/** The result of a call that the reader has typed. */
function resultTurn(message) {
  const view = turns.findLast((turn) => turn.calls?.some(({ id }) => id === message.tool_call_id));
  const name = view?.showResult(message.tool_call_id, message.content);
  const said = element("p", { className: "said", textContent: `${name ?? message.tool_call_id}: ${message.content}` });
  return { message, node: element("article", { className: "user", "aria-label": "Result" }, said) };
}

function beginEdit(place, parts) {
  edited = place;
  setAttached(parts);
  find("editing").hidden = false;
  find("input").value = textOf(turns[place].message);
  resize();
  find("input").focus();
}

function endEdit() {
  edited = -1;
  find("editing").hidden = true;
  setAttached([]);
  find("input").value = "";
  resize();
}

/** Answers the conversation, and shows the answer while it comes. */
function answer() {
  const messages = turns.map((turn) => turn.message);
  const view = new AnswerView(find("model").value, actions);
  addTurn(view);
  return fill(view, messages);
}

/** Asks for the answer to these messages. `changes` are fields of the request. */
async function fill(view, messages, changes) {
  const own = chat;
  running = new AbortController();
  showRunning();
  announce("Answering");
  keepChat();
  let write; // the one that has not ended
  const writes = setInterval(() => own === chat && (write ??= keepChat().finally(() => (write = undefined))), KEEP_MS);
  followEnd();
  try {
    const body = { ...bodyFor(messages, view.model), ...changes };
    view.begin(body);
    const response = await ask(body, running.signal);
    own.store ??= storeOfKey(); // of the key that is accepted
    keepChat();
    view.ignored = response.headers.get("x-ignored-params");
    for await (const event of events(response, (news) => view.tell(news))) {
      if (event.error) throw new Error(event.error.message);
      view.add(event);
    }
    if (!view.finishReason) throw new Error("The connection broke before the answer was complete.");
    announce("The answer is complete.");
  } catch (error) {
    if (error.status && error.status !== 401) own.store ??= storeOfKey();
    if (running.signal.aborted) announce("Stopped");
    else announce(view.fail(error));
  }
  running = undefined;
  clearInterval(writes);
  view.end();
  if (view.calls.length && view.finishReason) view.askForResults().focus();
  followEnd();
  showRunning();
  showMemory(view);
  if (own === chat) keepChat();
}

/** Shows the second answer beside the last one. */
function showSecond(view) {
  const { node } = turns.at(-1);
  const pair = element("div", { className: "pair" });
  node.replaceWith(pair);
  pair.append(node, view.node);
  second = view;
}

/** Goes on with one of two answers. */
function pick(view) {
  running?.abort();
  view.node.parentNode.replaceWith(view.node);
  turns.splice(-1, 1, view);
  second = undefined;
  tell("");
  keepChat();
  find("input").focus();
}

/** What the buttons of an answer do. */
const actions = {
  followEnd,
  pick,
  retry(view) {
    if (running) return;
    cutAt(turns.indexOf(view));
    answer();
  },
  askBeside(model) {
    if (running) return;
    const seed = find("seed").value;
    showSecond(new AnswerView(model, actions));
    // The same seed would give the same text.
    fill(second, turns.slice(0, -1).map((turn) => turn.message), seed && { seed: Number(seed) + 1 });
  },
  sendResults(view, results) {
    if (running) return;
    if (second) pick(view);
    view.calls.forEach(({ id }, index) => addTurn(resultTurn({ role: "tool", tool_call_id: id, content: results[index] })));
    answer();
  },
};

// --- kept chats ------------------------------------------------------------------------------------------------------

/** Keeps the conversation as it is now, once the server has accepted its first message. */
async function keepChat() {
  const own = chat;
  if (!turns.length || !own.store || find("private").checked) return;
  const record = ({ message, model }) => ({ message, model });
  const body = { settings: readSettings(), turns: turns.map(record), second: second && record(second) };
  own.isKept = (await keep(own, body)) && !find("private").checked;
  if (!own.isKept || own !== chat) return;
  history.replaceState({ chat: own.id }, "");
  find("unkept").hidden = true;
}

/** Begins a chat, or goes on with a kept one. */
function show(record) {
  running?.abort();
  cutAt(0);
  if (edited >= 0) endEdit();
  tell("");
  find("private").checked = false;
  chat = { id: record?.id ?? newId(), changedAt: record?.changedAt, store: record?.store, isKept: Boolean(record) };
  history.replaceState(record && { chat: chat.id }, "");
  if (record) showRecord(record);
  draw();
}

function showRecord({ settings, turns: records, second: other }) {
  showSettings(settings);
  if (settings.model && settings.model !== find("model").value) tell(`The model of this chat, ${settings.model}, is not served now.`);
  showDefaults();
  isAtEnd = false; // until all are there
  for (const record of records) addTurn(turnOf(record));
  if (other) showSecond(turnOf(other));
  isAtEnd = true;
  followEnd();
}

/** The turn of a kept message. */
function turnOf({ message, model }) {
  if (message.role === "user") return userTurn(message);
  if (message.role === "tool") return resultTurn(message);
  const view = new AnswerView(model, actions);
  view.restore(message);
  return view;
}

/** Leaves the chat, with the text so far of an answer that is running. One that cannot be kept is asked about. */
async function leave(record) {
  if (!chat.isKept) await keepChat();
  else if (running) keepChat();
  if (!turns.length || chat.isKept || (await confirmed("Leave this chat?", "Leave", element("p", { textContent: "It is not kept." })))) show(record);
}

async function open(id) {
  closePanels();
  if (id === chat.id) return;
  const record = await kept(id);
  if (record) leave(record);
  else showChats(); // another tab has deleted it
}

/** Keeps nothing of a private chat, also of one that was kept. */
function setPrivate() {
  if (!find("private").checked) return keepChat();
  history.replaceState(null, "");
  chat.isKept = false;
  return forget(chat);
}

// --- the composer ----------------------------------------------------------------------------------------------------

function showRunning() {
  find("send").hidden = Boolean(running);
  find("stop").hidden = !running;
}

function resize() {
  const input = find("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`; // with its border
}

async function submit() {
  const parts = await attachedParts();
  const text = find("input").value.trim();
  if (running || (!text && !parts.length)) return;
  if (second && edited < 0) return tell("Go on with one of the two answers first.");
  if (edited >= 0) cutAt(edited);
  isAtEnd = true;
  addTurn(userTurn({ role: "user", content: parts.length ? [...parts, { type: "text", text }] : text }));
  endEdit();
  tell("");
  answer();
}

/** Attaches the files of a drop, of the clipboard or of the file field. */
function attachFrom(event, files) {
  if (!files.length) return;
  event.preventDefault();
  tell("");
  attach(files, tell);
}

function setUpComposer() {
  find("suggestions").append(
    ...SUGGESTIONS.map((text) => quietButton(text, () => ((find("input").value = text), submit()))),
  );
  find("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
  find("stop").addEventListener("click", () => running?.abort());
  find("unedit").addEventListener("click", endEdit);
  find("input").addEventListener("input", resize);
  find("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  find("input").addEventListener("paste", (event) => event.clipboardData.types.includes("text/plain") || attachFrom(event, event.clipboardData.files)); // a spreadsheet's text has its picture beside it
  addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  addEventListener("drop", (event) => attachFrom(event, event.dataTransfer.files));
  find("file").addEventListener("change", (event) => (attachFrom(event, [...find("file").files]), (find("file").value = "")));
}

// --- the frame -------------------------------------------------------------------------------------------------------

/** Closes the panels that cover a small screen, but for one. */
function closePanels(but) {
  for (const button of document.querySelectorAll(".toggle")) {
    const isOpen = button === but && button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(isOpen));
    find(button.getAttribute("aria-controls")).classList.toggle("open", isOpen);
  }
}

async function setUp() {
  setUpSettings();
  setUpComposer();
  setUpChats({ isOpen: (id) => id === chat.id, open, close: () => show() });
  find("model").addEventListener("change", () => (showDefaults(), keepChat()));
  find("settings").addEventListener("change", keepChat);
  find("private").addEventListener("change", setPrivate);
  find("new").addEventListener("click", async () => (closePanels(), await leave(), find("input").focus()));
  for (const button of document.querySelectorAll(".toggle")) button.addEventListener("click", () => closePanels(button));
  addEventListener("beforeunload", (event) => turns.length && (running || !chat.isKept) && event.preventDefault()); // the browser asks first
  addEventListener("scroll", () => (isAtEnd = innerHeight + scrollY > document.body.scrollHeight - 120));
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (running) running.abort();
    else if (edited >= 0) endEdit();
    else closePanels();
  });
  await showModels();
  await showChats();
  const record = history.state?.chat && (await kept(history.state.chat));
  if (record && !turns.length) show(record);
}

setUp();
