// clients/js without a server: when it connects, what it sends, what it makes of what comes.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CedarClient, CedarError, backoffDelay, readServerSentEvents, streamOverHttp } from "../../../clients/js/cedar.js";
import { FakeSocket } from "./socket.js";

const kRequest = { messages: [{ role: "user", content: "Hi" }] };
const kOptions = { url: "ws://test/v1/stream", WebSocket: FakeSocket, backoff: { firstMs: 1, maxMs: 4 }, pingAfterMs: 0 };

function open(options = {}) {
  FakeSocket.made = [];
  const client = new CedarClient({ ...kOptions, ...options });
  client.connect().catch(() => {});
  FakeSocket.last.greet();
  return client;
}

async function until(condition) {
  for (let i = 0; i < 2000 && !condition(); i++) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.ok(condition(), `never became true: ${condition}`);
}

const turn = () => new Promise((resolve) => setImmediate(resolve));
const event = (stream, seq, type, fields = {}) => ({ type, response_id: stream.id, seq, ...fields });
const delta = (stream, seq, text) => event(stream, seq, "response.content.delta", { index: 0, delta: text });
const done = (stream, seq, status = "completed") => event(stream, seq, "response.done", { status, usage: {} });

test("the pause before an attempt is anything up to a bound that doubles", () => {
  const bounds = { firstMs: 500, maxMs: 30000 };
  assert.deepEqual([0, 1, 2, 6, 7, 1000].map((n) => backoffDelay(n, bounds, () => 1)), [500, 1000, 2000, 30000, 30000, 30000]);
  assert.equal(backoffDelay(5, bounds, () => 0), 0);
});

test("the protocol is asked for, and a token goes with it", () => {
  open({ token: "secret" }).close();
  assert.deepEqual(FakeSocket.last.protocols, ["cedar.v1", "bearer.secret"]);
  assert.equal(FakeSocket.last.url, "ws://test/v1/stream");
});

test("nothing is sent before the greeting", () => {
  FakeSocket.made = [];
  const client = new CedarClient(kOptions);
  client.respond(kRequest);
  assert.deepEqual(FakeSocket.last.sent, []);
  FakeSocket.last.greet();
  assert.deepEqual(FakeSocket.last.sent.map((m) => m.type), ["response.create"]);
  client.close();
});

test("a lost connection is resumed after the last event", async () => {
  const client = open();
  const states = [];
  client.on("state", (state) => states.push(state));
  const stream = client.respond(kRequest);
  const first = FakeSocket.last;
  first.give(event(stream, 1, "response.created", { model: "demo" }));
  first.give(delta(stream, 2, "Hel"));
  first.lose();
  first.give(delta(stream, 3, "never")); // of a socket that is gone
  await until(() => FakeSocket.last !== first);
  FakeSocket.last.greet();
  assert.deepEqual(FakeSocket.last.sent, [{ type: "response.resume", response_id: stream.id, last_seq: 2 }]);
  FakeSocket.last.give(delta(stream, 2, "Hel")); // had already
  FakeSocket.last.give(delta(stream, 3, "lo"));
  FakeSocket.last.give(done(stream, 4));
  assert.equal((await stream.done).content, "Hello");
  assert.deepEqual(states, ["waiting", "connecting", "open"]);
  client.close();
});

test("a create whose answer never came is sent again, with the same id", async () => {
  const client = open();
  const stream = client.respond(kRequest);
  const first = FakeSocket.last;
  first.lose();
  await until(() => FakeSocket.last !== first);
  FakeSocket.last.greet();
  assert.deepEqual(FakeSocket.last.sent, first.sent);
  // The server still believes in the first connection: then it is a resume.
  FakeSocket.last.give({ type: "error", response_id: stream.id, error: { code: "response_in_use", message: "in use" } });
  assert.deepEqual(FakeSocket.last.sent.at(-1), { type: "response.resume", response_id: stream.id, last_seq: 0 });
  FakeSocket.last.give(done(stream, 1));
  await stream.done;
  client.close();
});

test("attempts go on until one succeeds, or the time is over", async () => {
  const client = open();
  const stream = client.respond(kRequest);
  for (let i = 1; i <= 4; i++) {
    FakeSocket.last.lose();
    await until(() => FakeSocket.made.length === i + 1);
  }
  FakeSocket.last.greet();
  assert.equal(client.state, "open");
  client.close();
  await assert.rejects(stream.done, { code: "closed" });

  const impatient = open({ giveUpAfterMs: 0 });
  const lost = impatient.respond(kRequest);
  FakeSocket.last.lose(1011);
  await assert.rejects(lost.done, { name: "CedarError", code: "connection_lost", status: 1011 });
  assert.equal(impatient.state, "idle");
});

// Node 20 says so of a connection that never came about.
test("an error that no close follows is a lost connection", async () => {
  const client = open({ giveUpAfterMs: 0 });
  const stream = client.respond(kRequest);
  FakeSocket.last.onerror();
  await assert.rejects(stream.done, { code: "connection_lost", status: 1006 });
  client.close();

  const other = open();
  const refused = other.respond(kRequest);
  FakeSocket.last.onerror();
  FakeSocket.last.lose(4001);
  await assert.rejects(refused.done, { code: "connection_refused", status: 4001 });
});

test("close codes that no new connection would mend end everything", async () => {
  for (const code of [1003, 1009, 4000, 4001, 4003]) {
    const client = open();
    const stream = client.respond(kRequest);
    const ping = client.ping();
    await turn();
    FakeSocket.last.lose(code);
    await assert.rejects(stream.done, { code: "connection_refused", status: code });
    await assert.rejects(ping, { code: "connection_lost" });
    assert.equal(FakeSocket.made.length, 1);
  }
});

test("an idle connection that ends stays so until it is needed", () => {
  const client = open();
  FakeSocket.last.lose(1000);
  assert.equal(client.state, "idle");
  client.respond(kRequest).done.catch(() => {});
  assert.equal(client.state, "connecting");
  client.close();
});

test("a silent connection is asked, then dropped", async () => {
  const client = open({ pingAfterMs: 10 });
  const stream = client.respond(kRequest);
  const first = FakeSocket.last;
  await until(() => first.of("ping").length > 0);
  first.give({ type: "pong", nonce: first.of("ping")[0].nonce });
  await until(() => first.of("ping").length > 1);
  await until(() => FakeSocket.last !== first);
  FakeSocket.last.greet();
  assert.equal(FakeSocket.last.of("response.create")[0].response_id, stream.id);
  client.close();
});

test("ping gives the time there and back", async () => {
  const client = open();
  const ping = client.ping();
  await turn();
  FakeSocket.last.give({ type: "pong", nonce: FakeSocket.last.of("ping")[0].nonce });
  assert.ok((await ping) >= 0);
  client.close();
});

test("credits come back at the pace of the reader", async () => {
  const client = open({ credits: 4 });
  const stream = client.respond(kRequest);
  assert.equal(FakeSocket.last.of("response.create")[0].credits, 4);
  for (let seq = 1; seq <= 4; seq++) FakeSocket.last.give(delta(stream, seq, "x"));
  await turn();
  assert.deepEqual(FakeSocket.last.of("response.credit"), [], "nobody has read yet");
  const reader = stream[Symbol.asyncIterator]();
  await reader.next();
  assert.deepEqual(FakeSocket.last.of("response.credit"), []);
  await reader.next();
  assert.deepEqual(FakeSocket.last.of("response.credit"), [{ type: "response.credit", response_id: stream.id, add: 2 }]);
  client.close();
});

test("a server without credits is asked again without them", async () => {
  const client = open({ credits: 4 });
  const stream = client.respond(kRequest);
  const [create] = FakeSocket.last.sent;
  FakeSocket.last.give({ type: "error", client_event_id: create.event_id, error: { code: "invalid_request_error", param: "credits", message: "no" } });
  const again = FakeSocket.last.sent[1];
  assert.deepEqual({ ...again, credits: 4 }, create);
  FakeSocket.last.give(done(stream, 1));
  await stream.done;
  client.close();
});

test("events read are acknowledged", async () => {
  const client = open({ ackEvery: 3 });
  const stream = client.respond(kRequest);
  stream.on("*", () => {});
  for (let seq = 1; seq <= 7; seq++) FakeSocket.last.give(delta(stream, seq, "x"));
  await turn();
  assert.deepEqual(FakeSocket.last.of("response.ack").map((m) => m.seq), [3, 6]);
  client.close();
});

test("leaving the loop cancels; the rest of the answer is not waited for", async () => {
  const client = open();
  const stream = client.respond(kRequest);
  FakeSocket.last.give(delta(stream, 1, "a"));
  for await (const { delta: text } of stream) {
    assert.equal(text, "a");
    break;
  }
  assert.deepEqual(FakeSocket.last.of("response.cancel"), [{ type: "response.cancel", response_id: stream.id }]);
  FakeSocket.last.give(done(stream, 2, "cancelled"));
  assert.equal((await stream.done).status, "cancelled");
  client.close();
});

test("an abort signal cancels, before and after the connection", async () => {
  const client = open();
  const abort = new AbortController();
  const stream = client.respond(kRequest, { signal: abort.signal });
  abort.abort();
  assert.equal(FakeSocket.last.of("response.cancel").length, 1);
  FakeSocket.last.lose();
  const early = client.respond(kRequest, { signal: AbortSignal.abort() });
  await assert.rejects(early.done, { code: "aborted" });
  client.close();
  await assert.rejects(stream.done, { code: "closed" });
});

test("errors go where they belong", async () => {
  const client = open();
  const strays = [];
  client.on("error", (error) => strays.push(error));
  const [a, b, c] = [1, 2, 3].map(() => client.respond(kRequest));
  FakeSocket.last.give({ type: "error", client_event_id: FakeSocket.last.sent[0].event_id, error: { message: "temperature: no", code: "invalid_request_error", type: "invalid_request_error", param: "temperature" } });
  await assert.rejects(a.done, { name: "CedarError", code: "invalid_request_error", param: "temperature" });
  FakeSocket.last.give(event(b, 1, "response.done", { status: "failed", error: { message: "the stage went down", code: "overloaded_error" } }));
  await assert.rejects(b.done, { code: "overloaded_error" });
  await assert.rejects(async () => { for await (const _ of b); }, { code: "overloaded_error" });
  FakeSocket.last.give(event(c, 2, "response.content.delta", { index: 0, delta: "x" })); // the first is missing
  await assert.rejects(c.done, { code: "protocol_error" });
  FakeSocket.last.give({ type: "error", response_id: a.id, error: { code: "response_not_found", message: "gone" } });
  FakeSocket.last.give({ type: "error", error: { code: "invalid_request_error", message: "malformed" } });
  FakeSocket.last.give({ type: "news.of.tomorrow", response_id: "resp_other", seq: 9 });
  assert.deepEqual(strays.map((e) => e.message), ["malformed"]);
  client.close();
});

test("several choices and tool calls add up", async () => {
  const client = open();
  const stream = client.respond(kRequest);
  const events = [
    ["response.created", { model: "demo", seed: 5 }],
    ["response.reasoning.delta", { index: 1, delta: "Hm" }],
    ["response.content.delta", { index: 0, delta: "A" }],
    ["response.tool_call.begin", { index: 1, call_index: 0, call_id: "call_1", name: "f", namespace: "n" }],
    ["response.tool_call.arguments.delta", { index: 1, call_index: 0, delta: '{"a":' }],
    ["response.tool_call.arguments.delta", { index: 1, call_index: 0, delta: "1}" }],
    ["response.choice.done", { index: 1, finish_reason: "tool_calls" }],
    ["response.choice.done", { index: 0, finish_reason: "stop" }],
    ["response.done", { status: "completed", usage: { total_tokens: 9 } }],
  ];
  events.forEach(([type, fields], i) => FakeSocket.last.give(event(stream, i + 1, type, fields)));
  const answer = await stream.done;
  assert.deepEqual(answer.choices, [
    { reasoning: "", content: "A", toolCalls: [], finishReason: "stop" },
    { reasoning: "Hm", content: "", toolCalls: [{ id: "call_1", name: "f", namespace: "n", arguments: '{"a":1}' }], finishReason: "tool_calls" },
  ]);
  assert.deepEqual([answer.status, answer.model, answer.seed, answer.usage], ["completed", "demo", 5, { total_tokens: 9 }]);
  client.close();
});

// --- over HTTP -------------------------------------------------------------------------------------------

const bytesOf = (pieces) => new ReadableStream({ start(c) { pieces.forEach((p) => c.enqueue(p)); c.close(); } });

test("server-sent events are found wherever the bytes are cut", async () => {
  const text = ": keep-alive\n\ndata: {\"a\":1}\n\nevent: x\ndata:two\ndata: lines\r\n\r\ndata: \u00e9\u{1F600}\r\rdata: cut off";
  const bytes = new TextEncoder().encode(text);
  for (let at = 0; at <= bytes.length; at++) {
    const found = [];
    for await (const data of readServerSentEvents(bytesOf([bytes.slice(0, at), bytes.slice(at)]))) found.push(data);
    assert.deepEqual(found, ['{"a":1}', "two\nlines", "\u00e9\u{1F600}"], `cut at ${at}`);
  }
});

const chunks = (list) => list.map((c) => `data: ${typeof c === "string" ? c : JSON.stringify(c)}\n\n`).join("");
const choice = (fields, finish_reason = null) => ({ id: "chatcmpl-1", model: "demo", created: 1, choices: [{ index: 0, delta: fields, finish_reason }] });
const answering = (text, status = 200) => async (url, init) => {
  answering.last = { url, ...init };
  return new Response(text, { status });
};

test("chunks become the events of the stream", async () => {
  const fetch = answering(chunks([
    choice({ role: "assistant", content: "" }), choice({ reasoning_content: "Hm." }), choice({ content: "So" }),
    choice({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "f", arguments: "" } }] }),
    choice({ tool_calls: [{ index: 0, function: { arguments: "{}" } }] }), choice({}, "tool_calls"),
    { choices: [], usage: { prompt_tokens: 3, completion_tokens: 4 } }, "[DONE]"]));
  const stream = streamOverHttp(kRequest, { url: "http://test/v1/chat/completions", token: "secret", fetch });
  const types = [];
  for await (const { type } of stream) types.push(type);
  assert.deepEqual(types, ["response.created", "response.reasoning.delta", "response.content.delta", "response.tool_call.begin",
    "response.tool_call.arguments.delta", "response.tool_call.done", "response.choice.done", "response.done"]);
  const answer = await stream.done;
  assert.deepEqual([answer.reasoning, answer.content, answer.finishReason, answer.status, answer.usage.completion_tokens],
    ["Hm.", "So", "tool_calls", "completed", 4]);
  assert.deepEqual(answer.toolCalls, [{ id: "call_1", name: "f", arguments: "{}" }]);
  assert.equal(answering.last.headers.Authorization, "Bearer secret");
  assert.equal(JSON.parse(answering.last.body).stream, true);
});

test("errors over HTTP: refused, in the middle, cut off", async () => {
  const error = { message: "max_tokens: too many", type: "invalid_request_error", param: "max_tokens", code: "invalid_request_error" };
  const refused = streamOverHttp(kRequest, { fetch: answering(JSON.stringify({ error }), 400) });
  await assert.rejects(refused.done, { status: 400, param: "max_tokens" });
  await assert.rejects(streamOverHttp(kRequest, { fetch: answering("<html>", 502) }).done, { status: 502, code: "http_error" });
  const broken = streamOverHttp(kRequest, { fetch: answering(chunks([choice({ content: "a" }), { error }, "[DONE]"])) });
  await assert.rejects(broken.done, { message: error.message });
  const cut = streamOverHttp(kRequest, { fetch: answering(chunks([choice({ content: "a" })])) });
  await assert.rejects(cut.done, { code: "connection_lost" });
  const down = streamOverHttp(kRequest, { fetch: async () => { throw new TypeError("fetch failed"); } });
  await assert.rejects(down.done, (e) => e instanceof CedarError && e.code === "connection_lost");
});
