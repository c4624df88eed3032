// Asks one question and prints the answer as it comes.
//
//     node example.js "What is E8236?" http://127.0.0.1:8080 document.txt
//
// Node 22 has a WebSocket, Node 20 has one with --experimental-websocket; without one the example speaks plain HTTP.

import { readFile } from "node:fs/promises";
import { CedarClient, streamOverHttp } from "./cedar.js";

const [question = "Hello", server = "http://127.0.0.1:8080", file] = process.argv.slice(2);
const document = file ? (await readFile(file, "utf8")).trimEnd() + "\n\n" : "";
const request = { messages: [{ role: "user", content: document + question }], temperature: 0 };

const client = globalThis.WebSocket && new CedarClient({ url: server.replace(/^http/, "ws") + "/v1/stream" });
const stream = client ? client.respond(request) : streamOverHttp(request, { url: server + "/v1/chat/completions" });

for await (const event of stream) {
  if (event.type === "response.progress" && event.total) console.error(`read ${event.computed} of ${event.total} tokens`);
  if (event.type === "response.content.delta") process.stdout.write(event.delta);
}
const { status, usage } = await stream.done;
console.error(`\n${status}: ${usage.prompt_tokens} tokens read, ${usage.completion_tokens} written`);
client?.close();
