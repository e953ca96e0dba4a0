// The server's state, from the operations port: models, queues, memory, speed, and what fails and since when.
import { ApiError, call, element, find, json, kvTokens, milliseconds, samples, shown, total } from "./common.js";

const PAUSE_MS = 2000;
const LATENCIES = {
  "to the first token": "conch_time_to_first_token_seconds",
  "for each token": "conch_time_per_output_token_seconds",
  "in the queue": "conch_queue_seconds",
  "of prefill": "conch_prefill_seconds",
  "for a request": "conch_request_seconds",
};
const FAILURES = { conch_errors_total: "error", conch_shed_total: "refused" };

let last; // the reading before: its time, its metrics
const failures = new Map(); // kind, model and code to the number and the time of the last one that was seen

const clock = (date) => date.toLocaleTimeString("en-GB");
const tile = (label, value) => element("div", { className: "card" }, element("b", { textContent: value }), element("span", { className: "muted", textContent: label }));

/** The mean of a histogram; undefined: it is empty. */
function mean(found, name, labels) {
  const count = total(found, `${name}_count`, labels);
  return count ? total(found, `${name}_sum`, labels) / count : undefined;
}

function modelView({ id, state, runtime, aliases = [], adapters = [] }, found, seconds) {
  const of = (name, more) => total(found, name, { model: id, ...more }) ?? 0;
  const before = last && total(last.found, "conch_output_tokens_total", { model: id });
  const rate = before === undefined || !seconds ? 0 : (of("conch_output_tokens_total") - before) / seconds;
  const head = element("div", { className: "row" }, element("h2", { textContent: id }), element("span", { className: state === "ready" ? "state" : "state bad", textContent: state }));
  const names = [runtime, aliases.length && `also ${aliases.join(", ")}`, adapters.length && `adapters ${adapters.join(", ")}`];
  const tiles = [
    tile("running", shown(of("conch_requests_running"))),
    tile("waiting", shown(of("conch_requests_waiting"))),
    tile("tokens/s", shown(Math.max(0, rate), 1)),
    tile("tokens so far", shown(of("conch_output_tokens_total"))),
  ];
  const { used, most } = kvTokens(found, id);
  if (most > 0) tiles.push(tile(`of ${shown(most)} KV tokens`, shown(used)));
  for (const { labels, value } of found.filter(({ name, labels }) => name === "conch_device_used_bytes" && labels.model === id)) {
    if (!value) continue;
    const free = total(found, "conch_device_free_bytes", labels);
    tiles.push(tile(`GB on ${labels.device}, ${shown(free / 1e9, 1)} free`, shown(value / 1e9, 1)));
  }
  for (const [label, name] of Object.entries(LATENCIES)) {
    const value = mean(found, name, { model: id });
    if (value !== undefined) tiles.push(tile(label, milliseconds(value * 1000)));
  }
  const about = element("p", { className: "muted", textContent: names.filter(Boolean).join(" · ") });
  return element("section", { className: "model" }, head, about, element("div", { className: "cards" }, ...tiles));
}

/** Rows of what is down and of errors: what, how often, since when. */
function failureRows(found, now) {
  const rows = [];
  for (const { labels, value } of found.filter((each) => each.name === "conch_engine_up")) {
    if (value !== 0) continue;
    const since = total(found, "conch_engine_up_since_seconds", labels);
    rows.push([`engine down at ${labels.triton}`, labels.model, "", since ? clock(new Date(since * 1000)) : ""]);
  }
  for (const { name, labels, value } of found) {
    if (!(name in FAILURES) || !value) continue;
    const kind = `${FAILURES[name]} ${labels.code}`;
    const known = failures.get(kind + labels.model);
    const seen = known?.value === value ? known.seen : last ? clock(now) : "before this page";
    failures.set(kind + labels.model, { value, seen });
    rows.push([kind, labels.model === "unknown" ? "none" : labels.model, shown(value), `last one ${seen}`]);
  }
  return rows;
}

function show({ models }, found) {
  const now = new Date();
  const seconds = last && (now - last.at) / 1000;
  find("models").replaceChildren(...models.map((model) => modelView(model, found, seconds)));
  const rows = failureRows(found, now).map((texts) => element("tr", {}, ...texts.map((text) => element("td", { textContent: text }))));
  const head = ["What", "Model", "How often", "When"].map((text) => element("th", { textContent: text, scope: "col" }));
  const table = element("table", {}, element("tr", {}, ...head), ...rows);
  find("failures").replaceChildren(rows.length ? table : element("p", { className: "muted", textContent: "None." }));
  last = { at: now, found };
}

function showState(status) {
  find("state").textContent = status;
  find("state").className = status === "ready" ? "state" : "state bad";
}

async function read() {
  try {
    const health = await fetch("health/ready", { cache: "no-store" }); // 503 has the state too
    showState((await health.json()).status);
    const [listed, metrics] = await Promise.all([json("admin/models"), call("metrics")]);
    show(listed, samples(await metrics.text()));
    find("problem").hidden = true;
  } catch (error) {
    if (error instanceof TypeError) showState("no answer");
    const since = last ? ` Last reading: ${clock(last.at)}.` : "";
    find("problem").textContent = `${error.message}${since}`;
    find("problem").hidden = false;
    if (error instanceof ApiError && error.status < 500) return; // the key does not fit: nothing will change
  }
  setTimeout(read, PAUSE_MS);
}

read();
