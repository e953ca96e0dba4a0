// The API's description, from openapi.json.
import { element, find, json } from "./common.js";

let schemas = {};

const nameOf = (schema) => schema.$ref?.split("/").at(-1);
const resolved = (schema) => schemas[nameOf(schema)] ?? schema;

/** The type of a schema in words. */
function typeOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].filter((each) => each !== "null").join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {})}`;
  return schema.type ?? "any value";
}

/** A type in words. Its objects are links to their tables among those of the same endpoint. */
function typeView(tag, schema, endpoint) {
  const words = typeOf(schema).split(/(\w+)/);
  const link = (word) => element("a", { href: `#${endpoint}/${word}`, textContent: word });
  return element(tag, {}, ...words.map((word) => (Object.hasOwn(schemas, word) ? link(word) : word)));
}

/** The bounds of a schema, or of its choices, in words. */
function rulesOf(schema) {
  const words = [];
  for (const each of [schema, ...(schema.anyOf ?? [])]) {
    if ("minimum" in each) words.push(`at least ${each.minimum}`);
    if ("maximum" in each) words.push(`at most ${each.maximum}`);
    if ("maxItems" in each) words.push(`at most ${each.maxItems} items`);
    if ("maxLength" in each) words.push(`at most ${each.maxLength} characters`);
  }
  return words.join(", ");
}

/** The names of the schemas that a schema refers to, and those that these refer to. */
function namesIn(schema, names = new Set()) {
  for (const [key, value] of Object.entries(schema ?? {})) {
    if (key === "$ref" && !names.has(nameOf(schema))) {
      names.add(nameOf(schema));
      namesIn(resolved(schema), names);
    } else if (value && typeof value === "object") namesIn(value, names);
  }
  return names;
}

/** The fields of an object as a table. */
function fieldTable(schema, endpoint) {
  const required = schema.required ?? [];
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => {
    const text = [field.description, rulesOf(field), required.includes(name) && "required"].filter(Boolean).join("; ");
    const runtimes = Object.entries(field["x-runtimes"] ?? {}).map(([runtime, word]) => `${runtime}: ${word}`);
    const meaning = element("td", {}, text, ...(runtimes.length ? [element("div", { className: "muted", textContent: runtimes.join(", ") })] : []));
    const row = element("tr", {}, element("td", {}, element("code", { textContent: name })), typeView("td", field, endpoint), meaning);
    row.dataset.text = `${name} ${text}`.toLowerCase();
    return row;
  });
  const head = ["Field", "Type", "Meaning"].map((text) => element("th", { textContent: text, scope: "col" }));
  return element("table", { tabIndex: 0 }, element("tr", {}, ...head), ...rows);
}

function schemaView(title, schema, endpoint) {
  const whole = resolved(schema);
  const body = whole.properties ? fieldTable(whole, endpoint) : typeView("p", whole, endpoint);
  const id = `${endpoint}/${nameOf(schema) ?? title}`;
  return element("div", { id }, element("h2", { textContent: title }), element("p", { className: "muted", textContent: whole.description ?? "" }), body);
}

function endpointView(method, path, described) {
  const body = described.requestBody?.content["application/json"].schema;
  const answers = Object.entries(described.responses["200"]?.content ?? {});
  const parts = [];
  if (body) parts.push(["Body", body]);
  for (const [type, { schema }] of answers) {
    const event = schema.properties?.data;
    const sent = event ? (event.anyOf ?? [event]).find((each) => each.contentSchema)?.contentSchema : schema;
    parts.push([type === "application/json" ? "Answer" : "Event of a stream", sent ?? schema]);
  }
  const endpoint = method + path;
  const shown = new Set(parts.map(([, schema]) => nameOf(schema)));
  const further = [...new Set(parts.flatMap(([, schema]) => [...namesIn(schema)]))].filter((name) => !shown.has(name));
  const statuses = Object.entries(described.responses).map(([status, { description }]) =>
    element("tr", {}, element("td", { textContent: status }), element("td", { textContent: description })),
  );
  const summary = element(
    "summary",
    {},
    element("span", { className: "method", textContent: method.toUpperCase() }),
    element("span", { className: "path", textContent: path }),
    element("span", { className: "muted", textContent: described.summary }),
  );
  const details = element("details", {}, summary);
  const fill = () => {
    if (details.children.length > 1) return;
    details.append(
      ...parts.map(([title, schema]) => schemaView(title, schema, endpoint)),
      ...further.sort().map((name) => schemaView(name, schemas[name], endpoint)),
      element("div", {}, element("h2", { textContent: "Statuses" }), element("table", { tabIndex: 0 }, ...statuses)),
    );
  };
  details.addEventListener("toggle", fill);
  return { details, fill, text: `${path} ${described.summary}`.toLowerCase() };
}

/** Shows each endpoint that has the text in its path, with all fields; of other endpoints, the fields that have it. */
function filter(views, text) {
  for (const { details, fill, text: own } of views) {
    if (text) fill();
    const isOwn = own.includes(text);
    const rows = [...details.querySelectorAll("tr[data-text]")];
    for (const row of rows) row.hidden = !isOwn && !row.dataset.text.includes(text);
    for (const part of details.querySelectorAll("div:has(> h2)")) part.hidden = !isOwn && !part.querySelector("tr[data-text]:not([hidden])");
    details.hidden = !isOwn && rows.every((row) => row.hidden);
    details.open = Boolean(text) && !details.hidden;
  }
}

/** Shows the whole table that a link leads to, also one that the search has hidden. */
function showTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (const each of [target, ...target.querySelectorAll("[hidden]")]) each.hidden = false;
  target.scrollIntoView();
}

addEventListener("hashchange", showTarget);
try {
  const { info, paths, components } = await json("openapi.json");
  schemas = components.schemas;
  find("about").textContent = `Version ${info.version}. ${info.description}`;
  const views = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => endpointView(method, path, described)),
  );
  document.querySelector("main").append(...views.map((each) => each.details));
  const search = () => filter(views, find("filter").value.trim().toLowerCase());
  find("filter").addEventListener("input", search);
  search();
} catch (error) {
  find("about").textContent = `The description cannot be read: ${error.message}`;
}
