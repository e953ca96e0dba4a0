// The settings of a chat: the model, and the fields of a request beside the messages.
import { element, find } from "./common.js";

export const SAMPLING = { temperature: 0.1, top_p: 0.05, top_k: 1, min_p: 0.05, max_tokens: 1, seed: 1 }; // with their steps
const FIELDS = ["system", ...Object.keys(SAMPLING), "schema", "tools", "extra"];
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
export function bodyFor(messages, model) {
  const system = find("system").value.trim();
  const body = { model, messages: [...messages] };
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

/** The settings as the chat keeps them. */
export function readSettings() {
  const texts = FIELDS.map((id) => [id, find(id).value]);
  return { model: find("model").value, probabilities: find("probabilities").checked, ...Object.fromEntries(texts) };
}

/** Shows kept settings. A model that is not served now leaves the choice as it is. */
export function showSettings(settings) {
  for (const id of FIELDS) {
    find(id).value = settings[id] ?? "";
    const details = find(id).closest("details");
    if (details) details.open = find(id).value !== "";
  }
  find("probabilities").checked = settings.probabilities ?? true;
  const option = [...find("model").options].find(({ value }) => value === settings.model);
  if (option) option.selected = true;
}

export function setUpSettings() {
  for (const [name, step] of Object.entries(SAMPLING)) {
    const field = element("input", { id: name, type: "number", step, min: 0 });
    find("sampling").append(element("label", { htmlFor: name, textContent: name }), field);
  }
  find("example").addEventListener("click", () => (find("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 1)));
}
