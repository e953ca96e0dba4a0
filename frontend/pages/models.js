// The models of the server, and how full their memory is.
import { element, find, json, kvTokens, meter, samples, shown } from "./common.js";
import { SAMPLING } from "./settings.js";

let cards = {}; // the models, by name
let hasMetrics = true; // whether this port may have them

export async function showModels() {
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

/** Shows the chosen model's own values where the reader gives none. */
export function showDefaults() {
  const defaults = cards[find("model").value]?.default_parameters ?? {};
  for (const name of Object.keys(SAMPLING)) find(name).placeholder = defaults[name] ?? "default";
}

/** Shows how full the context window is, and the KV cache where the metrics are on this port. */
export async function showMemory({ usage, body }) {
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
