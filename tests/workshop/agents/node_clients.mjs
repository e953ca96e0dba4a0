// Vercel's AI SDK on its default paths: the same task of two tools as in python_clients.py.
// node --input-type=module - CLIENT URL MODEL <node_clients.mjs, in a folder with the packages of package.json.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [client, url, model] = process.argv.slice(2);
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
      return "The code is 4217.";
    },
  }),
};
const options = { baseURL: `${url}/v1`, apiKey: "none" };
const provider = client.startsWith("anthropic") ? createAnthropic(options) : createOpenAI(options);
const task = {
  model: provider(model),
  tools,
  prompt: "Which code is in my files?",
  stopWhen: stepCountIs(5),
  // Without it, OpenAI's provider sends ids in place of what the model wrote before.
  providerOptions: client === "openai_unstored" ? { openai: { store: false } } : {},
};
const result = client.endsWith("streamed") ? streamText(task) : await generateText(task);
console.log(JSON.stringify({ answer: await result.text, called }));
