// clients/js against a real server: CEDAR_URL is its address (http://...). Run by ../javascript_test.py.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CedarClient, streamOverHttp } from "../../../clients/js/cedar.js";
import { CuttableSocket } from "./socket.js";

const kServer = process.env.CEDAR_URL;
const kOptions = {
  url: kServer.replace("http", "ws") + "/v1/stream",
  WebSocket: CuttableSocket,
  backoff: { firstMs: 5, maxMs: 50 },
};
const kHello = [{ role: "user", content: "Hello" }];
// Noise of a fixed length that the seed decides.
const noise = (seed, max_tokens = 400) => ({ messages: kHello, temperature: 1, seed, max_tokens, ignore_eos: true });

let client;
before(() => (client = new CedarClient(kOptions)));
after(() => client.close());

async function plain(request) {
  const reply = await fetch(kServer + "/v1/chat/completions", { method: "POST", body: JSON.stringify(request) });
  assert.equal(reply.status, 200);
  return reply.json();
}

async function until(condition) {
  for (let i = 0; i < 3000; i++) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.fail(`never became true: ${condition}`);
}

const running = async () => {
  const text = await (await fetch(kServer + "/metrics")).text();
  return Number(/^cedar_actors_running_requests (\S+)$/m.exec(text)[1]);
};

test("the greeting", async () => {
  const session = await client.connect();
  assert.equal(session.type, "session.created");
  assert.deepEqual(session.models, ["demo"]);
  assert.ok(session.limits.max_message_bytes > 0);
  assert.ok((await client.ping()) >= 0);
});

test("an answer as a loop over its events", async () => {
  const request = noise(1, 40);
  const stream = client.respond(request);
  const types = new Set();
  let text = "";
  let seq = 0;
  for await (const event of stream) {
    assert.equal(event.seq, ++seq);
    types.add(event.type);
    if (event.type === "response.content.delta") text += event.delta;
  }
  assert.deepEqual([...types], ["response.created", "response.progress", "response.in_progress", "response.content.delta",
    "response.content.done", "response.choice.done", "response.done"]);
  const wanted = await plain(request);
  assert.equal(text, wanted.choices[0].message.content);
  const answer = await stream.done;
  assert.equal(answer.content, text);
  assert.equal(answer.status, "incomplete");
  assert.equal(answer.finishReason, "length");
  assert.equal(answer.usage.completion_tokens, 40);
  assert.equal(answer.seed, 1);
});

test("several answers share the connection", async () => {
  const requests = [2, 3, 4, 5].map((seed) => noise(seed, 60));
  const answers = await Promise.all(requests.map((request) => client.respond(request).done));
  for (const [i, request] of requests.entries()) {
    assert.equal(answers[i].content, (await plain(request)).choices[0].message.content);
  }
  assert.equal(CuttableSocket.open.size, 1);
});

test("a cut connection costs nothing: the answer goes on where it was", async () => {
  const request = noise(6, 1500);
  const stream = client.respond(request);
  const seqs = [];
  let cuts = 0;
  stream.on("*", ({ seq, type }) => {
    seqs.push(seq);
    if (type === "response.content.delta" && seqs.length % 10 === 0 && cuts < 3) {
      cuts += 1;
      [...CuttableSocket.open].at(-1).cut();
    }
  });
  const answer = await stream.done;
  assert.ok(cuts > 0);
  assert.deepEqual(seqs, seqs.map((_, i) => i + 1));
  assert.equal(answer.usage.completion_tokens, 1500);
  assert.equal(answer.content, (await plain(request)).choices[0].message.content);
});

test("cut before the first event: it is started once", async () => {
  const other = new CedarClient(kOptions);
  await other.connect();
  const socket = [...CuttableSocket.open].at(-1);
  const stream = other.respond(noise(7, 50), { responseId: "resp_cut_early" });
  socket.cut();
  assert.equal((await stream.done).usage.completion_tokens, 50);
  // The id is taken now: who asks again gets the same events.
  const again = await client.resume("resp_cut_early").done;
  assert.equal(again.content, stream.answer.content);
  other.close();
});

test("a reader that is slow gets everything", async () => {
  const stream = client.respond(noise(8, 300), { credits: 8 });
  let tokens = "";
  for await (const event of stream) {
    if (event.seq % 20 === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    if (event.type === "response.content.delta") tokens += event.delta;
  }
  assert.equal(tokens, (await plain(noise(8, 300))).choices[0].message.content);
});

test("cancelling stops the work and keeps what there is", async () => {
  const stream = client.respond(noise(9, 12000));
  stream.on("response.content.delta", () => stream.cancel());
  const answer = await stream.done;
  assert.equal(answer.status, "cancelled");
  assert.ok(answer.content.length > 0);
  assert.ok(answer.usage.completion_tokens < 12000);
  await until(async () => (await running()) === 0);
  for await (const event of client.respond(noise(10, 12000))) {
    if (event.type === "response.content.delta") break;
  }
  await until(async () => (await running()) === 0);
});

test("errors name the field; the connection stays", async () => {
  await assert.rejects(client.respond({ messages: kHello, temperature: 3 }).done, { code: "invalid_request_error", param: "temperature" });
  await assert.rejects(client.respond({ messages: kHello, model: "other" }).done, { code: "not_found_error", param: "model" });
  await assert.rejects(client.resume("resp_never_seen").done, { code: "response_not_found" });
  assert.equal(client.state, "open");
});

test("closing the client stops its work", async () => {
  const other = new CedarClient(kOptions);
  const stream = other.respond(noise(11, 12000));
  for await (const event of stream) {
    if (event.type !== "response.content.delta") continue;
    other.close();
    break;
  }
  await assert.rejects(stream.done, { code: "closed" });
  await until(async () => (await running()) === 0);
});

test("a server that is not there", async () => {
  const other = new CedarClient({ ...kOptions, url: "ws://127.0.0.1:9/v1/stream", giveUpAfterMs: 20 });
  await assert.rejects(other.connect(), { code: "connection_lost" });
});

test("the same answer over HTTP", async () => {
  const url = kServer + "/v1/chat/completions";
  const stream = streamOverHttp(noise(1, 40), { url });
  const answer = await stream.done;
  assert.equal(answer.content, (await plain(noise(1, 40))).choices[0].message.content);
  assert.deepEqual([answer.status, answer.finishReason, answer.usage.completion_tokens], ["incomplete", "length", 40]);
  await assert.rejects(streamOverHttp({ messages: [] }, { url }).done, { status: 400, param: "messages" });
  const long = streamOverHttp(noise(12, 12000), { url });
  long.on("response.content.delta", () => long.cancel());
  assert.equal((await long.done).status, "cancelled");
  await until(async () => (await running()) === 0);
});
