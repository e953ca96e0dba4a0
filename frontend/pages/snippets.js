// A request as a command for a terminal and as a Python program.

const root = () => new URL("v1", document.baseURI).href;

export function curl(body) {
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

export function python(body) {
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
