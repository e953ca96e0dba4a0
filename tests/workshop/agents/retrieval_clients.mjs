// JavaScript's SDKs embed documents, find the one that answers a question, and print the answer.
// node --input-type=module - CLIENT URL MODEL EMBEDDER QUESTION DOCUMENT... <retrieval_clients.mjs
import { createOpenAI } from "@ai-sdk/openai";
import { cosineSimilarity, embedMany, generateText } from "ai";
import OpenAI from "openai";

const [client, url, model, embedder, question, ...documents] = process.argv.slice(2);
const options = { baseURL: `${url}/v1`, apiKey: "none" };
const values = [question, ...documents];
const clients = {
  ai_sdk: async () => {
    const provider = createOpenAI(options);
    const { embeddings } = await embedMany({ model: provider.embedding(embedder), values });
    return (await generateText({ model: provider(model), prompt: promptWith(nearest(embeddings)) })).text;
  },
  openai: async () => {
    const openai = new OpenAI(options);
    const { data } = await openai.embeddings.create({ model: embedder, input: values });
    const content = promptWith(nearest(data.map((each) => each.embedding)));
    const chat = await openai.chat.completions.create({ model, messages: [{ role: "user", content }] });
    return chat.choices[0].message.content;
  },
};

function promptWith(document) {
  return `Answer with the document.\n\nDocument: ${document}\n\nQuestion: ${question}`;
}

function nearest([query, ...others]) {
  const scores = others.map((each) => cosineSimilarity(query, each));
  return documents[scores.indexOf(Math.max(...scores))];
}

console.log(await clients[client]());
