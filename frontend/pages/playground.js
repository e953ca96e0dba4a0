// The playground: a conversation with a model, and what the server knows about each answer.
import { call, codeBlock, copyButton, element, events, find, json, kvTokens, meter, milliseconds, samples, shown } from "./common.js";
import { GrowingText } from "./markdown.js";
import { promptView, timeView, tokenView } from "./details.js";

const SUGGESTIONS = ["What is the capital of France?", "Count from 1 to 20.", "How do you say cat in Japanese?"];
const SAMPLING = { temperature: 0.1, top_p: 0.05, top_k: 1, min_p: 0.05, max_tokens: 1, seed: 1 }; // with their steps
const TOP_LOGPROBS = 5;
const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

let cards = {}; // the models, by name
let turns = []; // messages of the conversation, each with the node that shows it
let images = []; // data URLs of the next message
let edited = -1; // the place of the message that the next one replaces
let running; // the AbortController of the running answer
let hasMetrics = true; // whether this port may have them
let isAtEnd = true; // whether the end of the page is seen, so that it follows the answer

const followEnd = () => isAtEnd && scrollTo(0, 1e9);
const announce = (text) => (find("announcement").textContent = text);

// --- the request -----------------------------------------------------------------------------------------------------

/** Reads a field with JSON; undefined: it is empty. */
function parsed(id, label) {
  const text = find(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    find(id).closest("details").open = true;
    throw new Error(`${label}: ${error.message}`);
  }
}

/** The body of a request that continues these messages, as a client would send it. */
function bodyFor(messages) {
  const system = find("system").value.trim();
  const body = { model: find("model").value, messages: [...messages] };
  if (system) body.messages.unshift({ role: "system", content: system });
  for (const name of Object.keys(SAMPLING)) {
    if (find(name).value !== "") body[name] = Number(find(name).value);
  }
  const schema = parsed("schema", "JSON schema");
  const tools = parsed("tools", "Tools");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (tools) body.tools = tools;
  return { ...body, ...parsed("extra", "More fields") };
}

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

function addTurn(message, node) {
  turns.push({ message, node });
  find("welcome").hidden = true;
  find("conversation").append(node);
  followEnd();
}

/** Removes the turns from this place on. */
function cutAt(place) {
  for (const { node } of turns.splice(place)) node.remove();
  find("welcome").hidden = turns.length > 0;
}

function quietButton(label, action) {
  const button = element("button", { type: "button", className: "quiet", textContent: label });
  button.addEventListener("click", action);
  return button;
}

function addUserTurn(text, urls) {
  const parts = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  const message = { role: "user", content: urls.length ? [...parts, { type: "text", text }] : text };
  const edit = quietButton("Edit", () => beginEdit(turns.findIndex((turn) => turn.message === message), text, urls));
  const pictures = urls.map((url) => element("img", { src: url, alt: "Your image" }));
  const shownText = element("p", { className: "said", textContent: text });
  addTurn(message, element("article", { className: "user", "aria-label": "You" }, ...pictures, shownText, edit));
}

function beginEdit(place, text, urls) {
  edited = place;
  images = [...urls];
  showImages();
  find("editing").hidden = false;
  find("input").value = text;
  resize();
  find("input").focus();
}

function endEdit() {
  edited = -1;
  find("editing").hidden = true;
  images = [];
  showImages();
  find("input").value = "";
  resize();
}

/** Answers the conversation, and shows the answer while it comes. */
async function answer() {
  const messages = turns.map((turn) => turn.message);
  const place = turns.length;
  const message = { role: "assistant", content: "" };
  const view = new AnswerView(() => running || (cutAt(place), answer()));
  addTurn(message, view.node);
  running = new AbortController();
  showRunning();
  announce("Answering");
  try {
    const body = bodyFor(messages);
    view.begin(body);
    const response = await ask(body, running.signal);
    view.ignored = response.headers.get("x-ignored-params");
    for await (const event of events(response, (news) => view.tell(news))) {
      if (event.error) throw new Error(event.error.message);
      view.add(event);
    }
    if (!view.finishReason) throw new Error("The connection broke before the answer was complete.");
    announce("The answer is complete.");
  } catch (error) {
    if (running.signal.aborted) announce("Stopped");
    else announce(view.fail(error));
  }
  running = undefined;
  Object.assign(message, view.end());
  if (view.calls.length && view.finishReason) view.askForResults(turnOfResults);
  followEnd();
  showRunning();
  showMemory(view);
}

/** Sends the results of the calls that the reader has typed. */
function turnOfResults(calls, results) {
  const texts = calls.map((each, index) => `${each.function.name}: ${results[index]}`);
  calls.forEach((each, index) => {
    const node = element("article", { className: "user", "aria-label": "Result" });
    node.append(element("p", { className: "said", textContent: texts[index] }));
    addTurn({ role: "tool", tool_call_id: each.id, content: results[index] }, node);
  });
  answer();
}

/** The view of one answer. */
class AnswerView {
  constructor(retry) {
    this.thinking = element("details", { className: "thinking", hidden: true }, element("summary", { textContent: "Thinking" }));
    this.text = element("div", { className: "text" });
    this.figures = element("span", { className: "muted figures" });
    this.foot = element("footer", {}, this.figures);
    this.node = element("article", { className: "assistant", "aria-label": "Answer" }, this.thinking, this.text, this.foot);
    this.retry = quietButton("Retry", retry);
    this.parts = {}; // growing texts
    this.written = { content: "", reasoning_content: "" };
    this.waiting = { content: "", reasoning_content: "" }; // what the next frame will show
    this.calls = [];
    this.tokens = [];
  }

  /** Shows why the answer has not begun. */
  tell(news) {
    this.figures.textContent = `${news[0].toUpperCase()}${news.slice(1)}`;
  }

  begin(body) {
    this.body = body;
    this.startedAt = performance.now();
    this.figures.textContent = "Waiting for the first token";
  }

  add(event) {
    this.seenAt = performance.now();
    this.usage = event.usage ?? this.usage;
    this.timing = event.timing ?? this.timing;
    const choice = event.choices[0];
    if (!choice) return;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    for (const each of choice.logprobs?.content ?? []) this.tokens.push(each);
    const { content, reasoning_content, tool_calls } = choice.delta;
    if (!content && !reasoning_content && !tool_calls) return;
    this.lastAt = this.seenAt;
    this.firstAt ??= this.lastAt;
    this.waiting.content += content ?? "";
    this.waiting.reasoning_content += reasoning_content ?? "";
    for (const { index, id, function: added } of tool_calls ?? []) {
      const known = (this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
      known.function.name += added?.name ?? "";
      known.function.arguments += added?.arguments ?? "";
    }
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  /** Shows the text that has come since the last frame; the rest of the page is left alone. */
  show() {
    this.frame = undefined;
    for (const [name, parent] of [["reasoning_content", this.thinking], ["content", this.text]]) {
      const text = this.waiting[name];
      if (!text) continue;
      parent.hidden = false;
      this.written[name] += text;
      this.waiting[name] = "";
      (this.parts[name] ??= new GrowingText(parent)).add(text);
    }
    this.figures.textContent = this.#figures();
    followEnd();
  }

  #figures() {
    if (this.firstAt === undefined) return "No text";
    const parts = [`first token ${milliseconds(this.firstAt - this.startedAt)}`];
    const tokens = this.usage?.completion_tokens ?? this.tokens.length;
    const seconds = (this.timing ? this.timing.decode : this.lastAt - this.firstAt) / 1000;
    if (tokens > 1 && seconds > 0) parts.push(`${shown((tokens - 1) / seconds, seconds * 10 > tokens ? 1 : 0)} tokens/s`);
    if (tokens) parts.push(`${shown(tokens)} tokens`);
    if (this.finishReason === "length") parts.push("cut at max_tokens");
    if (this.ignored) parts.push(`ignored: ${this.ignored}`);
    return parts.join(" · ");
  }

  fail(error) {
    const text = error.code ? `${error.message} (${error.code})` : error.message;
    this.node.insertBefore(element("p", { className: "error", textContent: text }), this.foot);
    return text;
  }

  /** Shows the rest, and returns the message for the history. */
  end() {
    cancelAnimationFrame(this.frame);
    this.show();
    for (const part of Object.values(this.parts)) part.end();
    const { content, reasoning_content } = this.written;
    this.foot.append(element("span", { className: "row" }, copyButton(this.text, content), this.retry));
    if (this.body) this.#addDetails();
    return {
      content: content || (this.calls.length ? null : ""),
      ...(reasoning_content && { reasoning_content }),
      ...(this.calls.length && { tool_calls: this.calls }),
    };
  }

  #addDetails() {
    const sections = [
      ["Time", this.timing && (() => timeView(this.timing, this.seenAt - this.startedAt))],
      ["Tokens", this.tokens.length && (() => tokenView(this.tokens))],
      ["Prompt", () => promptView(this.body, this.usage?.prompt_tokens_details.cached_tokens ?? 0)],
      ["curl", () => codeBlock("curl", curl(this.body))],
      ["Python", () => codeBlock("Python", python(this.body))],
    ].filter(([, make]) => make);
    const panel = element("div", { className: "panel", hidden: true });
    const buttons = sections.map(([label, make]) => {
      const button = quietButton(label, async () => {
        const isOpen = button.getAttribute("aria-expanded") === "true";
        for (const each of buttons) each.setAttribute("aria-expanded", "false");
        panel.hidden = isOpen;
        if (isOpen) return;
        button.setAttribute("aria-expanded", "true");
        const content = await make();
        if (button.getAttribute("aria-expanded") !== "true") return; // another part was chosen meanwhile
        panel.replaceChildren(content);
        panel.scrollIntoView({ block: "nearest" });
      });
      button.setAttribute("aria-expanded", "false");
      return button;
    });
    this.node.append(element("div", { className: "row details" }, ...buttons), panel);
  }

  /** Shows the calls, with a field for each result. */
  askForResults(send) {
    const fields = this.calls.map(({ function: { name } }) =>
      element("textarea", { rows: 2, className: "source", "aria-label": `Result of ${name}`, placeholder: "Result" }),
    );
    const button = element("button", { className: "primary", textContent: "Send results" });
    const form = element("form", { className: "calls" });
    this.calls.forEach(({ function: { name, arguments: given } }, index) => {
      form.append(element("pre", { tabIndex: 0, textContent: `${name}(${given})` }), fields[index]);
    });
    form.append(button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (running) return;
      for (const each of [...fields, button]) each.disabled = true;
      send(this.calls, fields.map((each) => each.value));
    });
    this.node.insertBefore(form, this.foot);
    fields[0].focus();
  }
}

// --- copies of the request -------------------------------------------------------------------------------------------

const root = () => new URL("v1", document.baseURI).href;

function curl(body) {
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", String.raw`'\''`);
  return `curl ${root()}/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" \\\n  -H 'Content-Type: application/json' -d '${quoted}'`;
}

const OF_OPENAI = ["model", "messages", "temperature", "top_p", "max_tokens", "seed", "response_format", "tools"];

/** A JSON value as Python writes it. */
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value && typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  }
  if (typeof value === "boolean") return value ? "True" : "False";
  return value === null ? "None" : JSON.stringify(value);
}

function python(body) {
  const others = Object.entries(body).filter(([name]) => !OF_OPENAI.includes(name));
  const given = Object.entries(body).filter(([name]) => OF_OPENAI.includes(name));
  if (others.length) given.push(["extra_body", Object.fromEntries(others)]);
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${root()}", api_key=os.environ.get("OPENAI_API_KEY", "none"))
answer = client.chat.completions.create(
${given.map(([name, value]) => `    ${name}=${literal(value)},\n`).join("")})
print(answer.choices[0].message.content)`;
}

// --- the server ------------------------------------------------------------------------------------------------------

async function showModels() {
  try {
    const { data } = await json("v1/models");
    const chosen = data.filter((card) => card.task === "generate");
    if (!chosen.length) throw new Error("none of the models generates text.");
    cards = Object.fromEntries(chosen.map((card) => [card.id, card]));
    find("model").replaceChildren(...chosen.map(({ id }) => element("option", { textContent: id, value: id })));
    showDefaults();
  } catch (error) {
    find("welcome").append(element("p", { className: "error", textContent: `There is no model to chat with: ${error.message} Reload the page to try again.` }));
  }
}

/** Shows the model's own values where the reader gives none. */
function showDefaults() {
  const defaults = cards[find("model").value]?.default_parameters ?? {};
  for (const name of Object.keys(SAMPLING)) find(name).placeholder = defaults[name] ?? "default";
}

/** Shows how full the context window is, and the KV cache where the metrics are on this port. */
async function showMemory({ usage, body }) {
  const card = cards[body?.model];
  if (!usage || !card) return;
  const used = usage.total_tokens;
  const meters = [meter("Context window", `${shown(used)} of ${shown(card.max_model_len)} tokens`, used / card.max_model_len)];
  find("memory").replaceChildren(...meters);
  if (!hasMetrics) return;
  const response = await fetch("metrics").catch(() => undefined);
  hasMetrics = Boolean(response?.ok);
  if (!hasMetrics) return;
  const { used: inUse, most } = kvTokens(samples(await response.text()), card.root);
  if (most > 0) meters.push(meter("KV cache in use", `${shown(inUse)} of ${shown(most)} tokens`, inUse / most));
  find("memory").replaceChildren(...meters);
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

function showImages() {
  const nodes = images.map((url, place) => {
    const remove = quietButton("Remove", () => (images.splice(place, 1), showImages()));
    return element("figure", {}, element("img", { src: url, alt: `Image ${place + 1}` }), remove);
  });
  find("images").replaceChildren(...nodes);
}

function addFiles(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/")) continue;
    const reader = new FileReader();
    reader.addEventListener("load", () => (images.push(reader.result), showImages()));
    reader.readAsDataURL(file);
  }
}

function submit() {
  const text = find("input").value.trim();
  if (running || (!text && !images.length)) return;
  if (edited >= 0) cutAt(edited);
  isAtEnd = true;
  addUserTurn(text, images);
  endEdit();
  answer();
}

function setUp() {
  find("suggestions").append(
    ...SUGGESTIONS.map((text) => quietButton(text, () => ((find("input").value = text), submit()))),
  );
  for (const [name, step] of Object.entries(SAMPLING)) {
    const field = element("input", { id: name, type: "number", step, min: 0 });
    find("sampling").append(element("label", { htmlFor: name, textContent: name }), field);
  }
  find("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
  find("stop").addEventListener("click", () => running?.abort());
  find("unedit").addEventListener("click", endEdit);
  find("input").addEventListener("input", resize);
  find("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  find("input").addEventListener("paste", (event) => addFiles(event.clipboardData.files));
  find("file").addEventListener("change", () => (addFiles(find("file").files), (find("file").value = "")));
  find("model").addEventListener("change", showDefaults);
  find("new").addEventListener("click", () => (running?.abort(), cutAt(0), edited >= 0 && endEdit(), find("input").focus()));
  find("example").addEventListener("click", () => (find("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 1)));
  find("toggle").addEventListener("click", () => {
    const isOpen = document.body.classList.toggle("open");
    find("toggle").setAttribute("aria-expanded", String(isOpen));
  });
  addEventListener("beforeunload", (event) => turns.length && event.preventDefault()); // the browser asks first
  addEventListener("scroll", () => (isAtEnd = innerHeight + scrollY > document.body.scrollHeight - 120));
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (running) running.abort();
    else if (edited >= 0) endEdit();
  });
  showModels();
}

setUp();
