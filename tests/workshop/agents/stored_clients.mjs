// OpenAI's JavaScript SDK, with what the server stores: the same tasks of two tools as in python_clients.py.
// node --input-type=module - CLIENT URL MODEL <stored_clients.mjs, in a folder with the packages of package.json.
import OpenAI from "openai";

const [client, url, model] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const files = { "note.txt": "The code is 4217.", "other.txt": "The code is 5318." };
const called = [];
const tools = [
  { type: "function", name: "list_files", parameters: { type: "object", properties: {} } },
  {
    type: "function",
    name: "read_file",
    parameters: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  },
];

function outputOf(call) {
  const { path } = JSON.parse(call.arguments);
  called.push(path ? `${call.name} ${path}` : call.name);
  return { type: "function_call_output", call_id: call.call_id, output: path ? files[path] : "note.txt" };
}

// Each request has the new items alone; `link` names the turns before them.
async function twoTurns(link) {
  let response;
  for (const question of ["Which code is in my files?", "Which code is in other.txt?"]) {
    let input = [{ role: "user", content: question }];
    while (input.length) {
      response = await openai.responses.create({ model, tools, input, ...link(response) });
      input = response.output.filter((item) => item.type === "function_call").map(outputOf);
    }
  }
  return { answer: response.output_text, called };
}

async function previous_response() {
  return await twoTurns((response) => ({ previous_response_id: response?.id }));
}

async function conversation() {
  const { id } = await openai.conversations.create();
  const end = await twoTurns(() => ({ conversation: id }));
  const types = [];
  for await (const item of openai.conversations.items.list(id, { order: "asc" })) types.push(item.type);
  return { ...end, types };
}

async function background() {
  const task = { model, input: "Name the numbers up to nine.", background: true, stream: true };
  const events = [];
  let id;
  for await (const event of await openai.responses.create(task)) {
    id ??= event.response.id;
    events.push(event);
    if (event.type === "response.output_text.delta") break;
  }
  const rest = { stream: true, starting_after: events.at(-1).sequence_number };
  for await (const event of await openai.responses.retrieve(id, rest)) events.push(event);
  const { status, output_text } = await openai.responses.retrieve(id);
  const texts = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  return { status, answer: output_text, streamed: texts.join(""), numbers: events.map((event) => event.sequence_number) };
}

async function chats() {
  const metadata = { topic: `topic-${Date.now()}` };
  const messages = [{ role: "user", content: "Name the numbers up to nine." }];
  const { id } = await openai.chat.completions.create({ model, messages, store: true, metadata });
  await openai.chat.completions.create({ model, messages, store: true });
  await openai.chat.completions.update(id, { metadata: { ...metadata, seen: "yes" } });
  const found = [];
  for await (const chat of openai.chat.completions.list({ metadata })) {
    const asked = [];
    for await (const message of openai.chat.completions.messages.list(chat.id)) asked.push(message.content);
    found.push({ asked, answer: chat.choices[0].message.content, seen: chat.metadata.seen });
    await openai.chat.completions.delete(chat.id);
  }
  return { found, left: (await openai.chat.completions.list({ metadata })).data };
}

console.log(JSON.stringify(await { previous_response, conversation, background, chats }[client]()));
