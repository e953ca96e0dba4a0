// What the server knows about an answer: its tokens with the alternatives, its prompt, its time.
import { element, json, milliseconds, shown } from "./common.js";

const PHASES = { tokenize: "Tokenization and transfer", queue: "Queue", prefill: "Prefill", decode: "Decode" };
const SHADES = [0.9, 0.6, 0.3, 0.1]; // the probabilities below which a token has a stronger colour

const percent = (logprob) => (logprob < Math.log(0.0005) ? "< 0.1 %" : `${shown(Math.exp(logprob) * 100, 1)} %`);

/** A text with visible signs for blanks and line breaks. */
const visible = (text) => (text.trim() === text && text ? text : text.replaceAll(" ", "·").replaceAll("\n", "↵") || "∅");

/** Tokens as a row of spans. Line breaks in them are kept. */
function spans(texts, className) {
  return texts.map((text, place) => {
    const span = element("span", { className: className(place), textContent: text.replaceAll("\n", "↵\n") || "∅" });
    span.dataset.place = place;
    return span;
  });
}

/** A row of tokens. The pointer or the arrow keys choose a token, and `show` gets its place. */
function tokenRow(label, nodes, show) {
  const row = element("div", { className: "tokens", tabIndex: 0, role: "group", "aria-label": `${label}. The arrow keys choose a token.` }, ...nodes);
  let chosen = -1;
  const choose = (place) => {
    if (place < 0 || place >= nodes.length || place === chosen) return;
    nodes[chosen]?.classList.remove("chosen");
    nodes[place].classList.add("chosen");
    show((chosen = place));
  };
  row.addEventListener("mouseover", ({ target }) => target.dataset.place && choose(Number(target.dataset.place)));
  row.addEventListener("click", ({ target }) => target.dataset.place && choose(Number(target.dataset.place)));
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.max(0, chosen + step));
    nodes[chosen].scrollIntoView({ block: "nearest" });
  });
  return [row, choose];
}

/** The tokens of an answer, shaded by probability, and the alternatives of one. */
export function tokenView(tokens) {
  const alternatives = element("div", { className: "alternatives", role: "status" });
  const show = (place) => {
    const { token, logprob, top_logprobs: top } = tokens[place];
    const rows = top.some((each) => each.token === token) ? top : [{ token, logprob }, ...top];
    alternatives.replaceChildren(
      ...rows.flatMap((each) => [
        element("span", { className: each.token === token ? "drawn" : "", textContent: visible(each.token) }),
        element("span", { textContent: percent(each.logprob) }),
        element("progress", { max: 1, value: Math.exp(each.logprob), "aria-label": `Probability of ${each.token}` }),
      ]),
    );
  };
  const shade = (place) => `shade-${SHADES.filter((each) => Math.exp(tokens[place].logprob) < each).length}`;
  const [row, choose] = tokenRow("Tokens of the answer", spans(tokens.map((each) => each.token), shade), show);
  choose(0);
  const legend = element("p", { className: "muted", textContent: "The stronger its colour, the less likely a token was. Probabilities are those of the model, before sampling." });
  return element("div", {}, row, alternatives, legend);
}

/** The rendered prompt with its tokens; the first ones had their KV cache. */
export async function promptView(body, numCached) {
  const { model, messages, tools } = body;
  try {
    const { tokens, token_strs: strings } = await json("tokenize", { model, messages, tools, return_token_strs: true });
    const note = element("p", { className: "muted", role: "status", textContent: `${shown(tokens.length)} tokens` });
    if (numCached) note.append(", of which ", element("span", { className: "cached", textContent: `${shown(numCached)} were in the KV cache` }));
    const texts = strings.map(readable);
    const id = element("p", { className: "muted", role: "status" });
    const nodes = spans(texts, (place) => (place < numCached ? "cached" : place % 2 ? "odd" : "even"));
    const show = (place) => (id.textContent = `Token ${place + 1}: ${visible(texts[place])}, id ${tokens[place]}`);
    return element("div", {}, note, tokenRow("Tokens of the prompt", nodes, show)[0], id);
  } catch (error) {
    return element("p", { className: "error", textContent: `The prompt cannot be shown: ${error.message}` });
  }
}

// Byte-level vocabularies write each byte as one printable character: bytes that are none follow from U+0100 on.
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isPrintable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  BYTES.set(String.fromCharCode(isPrintable ? byte : next++), byte);
}

/** The text of a token as the vocabulary writes it. */
function readable(string) {
  const bytes = [...string].map((character) => BYTES.get(character));
  if (bytes.includes(undefined)) return string.replaceAll("▁", " ");
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

/** The phases of a request as one bar with a legend. */
export function timeView(timing, seenMs) {
  const sum = Object.values(timing).reduce((left, right) => left + right, 0) || 1;
  const known = Object.entries(PHASES).map(([name, label]) => [name, label, timing[name]]);
  const bar = element("div", { className: "phases", "aria-hidden": "true" });
  for (const [name, , ms] of known) {
    const part = element("span", { className: name });
    part.style.flexGrow = ms / sum;
    bar.append(part);
  }
  const rows = known.flatMap(([name, label, ms]) => [
    element("dt", {}, element("i", { className: name }), label),
    element("dd", { textContent: milliseconds(ms) }),
  ]);
  const seen = [element("dt", { textContent: "As seen by this page" }), element("dd", { textContent: milliseconds(seenMs) })];
  return element("div", {}, bar, element("dl", { className: "legend" }, ...rows, ...seen));
}
