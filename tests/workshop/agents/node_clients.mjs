// Vercel's AI SDK on its default paths: the same tasks of two tools as in python_clients.py.
// node --input-type=module - CLIENT URL MODEL <node_clients.mjs, in a folder with the packages of package.json.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [client, url, model] = process.argv.slice(2);
const files = { "note.txt": "The code is 4217.", "other.txt": "The code is 5318." };
const called = [];
const tools = {
  list_files: tool({
    description: "List my files.",
    inputSchema: z.object({}),
    execute: async () => {
      called.push("list_files");
      return "note.txt";
    },
  }),
  read_file: tool({
    description: "Read a file.",
    inputSchema: z.object({ path: z.string() }),
    execute: async ({ path }) => {
      called.push(`read_file ${path}`);
      return files[path];
    },
  }),
};
const options = { baseURL: `${url}/v1`, apiKey: "none" };
const provider = client.startsWith("anthropic") ? createAnthropic(options) : createOpenAI(options);
const first = { role: "user", content: "Which code is in my files?" };
const second = { role: "user", content: "Which code is in other.txt?" };
const ask = async (messages, openai) => {
  const task = { model: provider(model), tools, messages, stopWhen: stepCountIs(5), providerOptions: { openai } };
  return client.endsWith("streamed") ? streamText(task) : await generateText(task);
};
// Without it, OpenAI's provider sends ids in place of what the model wrote before.
let result = await ask([first], client === "openai_unstored" ? { store: false } : {});
if (client.startsWith("openai_second_turn")) {
  result = await ask([first, ...(await result.responseMessages), second], {});
} else if (client === "openai_previous_response") {
  result = await ask([second], { previousResponseId: (await result.providerMetadata).openai.responseId });
}
console.log(JSON.stringify({ answer: await result.text, called }));
