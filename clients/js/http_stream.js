// The same events over plain HTTP: a streamed chat completion (server-sent events), for places that WebSocket does not
// reach. It cannot be resumed, and nothing tells what the request is waiting for.

import { CedarError, ResponseStream } from "./events.js";

/**
 * Cuts server-sent events out of a byte stream and yields the data of each. Comments, other fields and every kind of
 * line end are handled; an event that the end cuts off is none.
 *
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* readServerSentEvents(body) {
  const decoder = new TextDecoder();
  let text = "";
  let data = [];
  const reader = body.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      text += decoder.decode(value, { stream: !done });
      for (;;) {
        // A CR at the very end may be half of a CR LF.
        const end = text.search(done ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/);
        if (end < 0) break;
        const line = text.slice(0, end);
        text = text.slice(end + (text.startsWith("\r\n", end) ? 2 : 1));
        if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Turns the chunks of a chat completion into the events of docs/websocket.md. */
class ChunkTranslator {
  #stream;
  #id;
  #seq = 0;
  #calls = new Map(); // choice -> the call that is open
  #usage = null;
  #reasons = [];

  constructor(stream, id) {
    this.#stream = stream;
    this.#id = id;
  }

  chunk(chunk) {
    if (this.#seq === 0) {
      this.#push("response.created", { created: chunk.created, model: chunk.model, completion_id: chunk.id });
    }
    if (chunk.usage) this.#usage = chunk.usage;
    for (const { index, delta, logprobs, finish_reason: reason } of chunk.choices ?? []) {
      const extra = logprobs ? { index, logprobs } : { index };
      if (delta?.reasoning_content) this.#push("response.reasoning.delta", { ...extra, delta: delta.reasoning_content });
      if (delta?.content) this.#push("response.content.delta", { ...extra, delta: delta.content });
      for (const call of delta?.tool_calls ?? []) this.#toolCall(index, call);
      if (reason) {
        this.#endCall(index);
        this.#reasons.push(reason);
        this.#push("response.choice.done", { index, finish_reason: reason });
      }
    }
  }

  finish() {
    const status = this.#reasons.includes("length") ? "incomplete" : "completed";
    this.#push("response.done", { status, usage: this.#usage });
  }

  cancelled() {
    this.#push("response.done", { status: "cancelled", usage: this.#usage });
  }

  #toolCall(index, { index: call_index, id, function: fn }) {
    if (id) {
      this.#endCall(index);
      this.#calls.set(index, { call_index, arguments: "" });
      this.#push("response.tool_call.begin", { index, call_index, call_id: id, name: fn.name });
    }
    if (fn?.arguments) {
      this.#calls.get(index).arguments += fn.arguments;
      this.#push("response.tool_call.arguments.delta", { index, call_index, delta: fn.arguments });
    }
  }

  #endCall(index) {
    const open = this.#calls.get(index);
    if (open) this.#push("response.tool_call.done", { index, ...open });
    this.#calls.delete(index);
  }

  #push(type, fields) {
    this.#seq += 1;
    this.#stream.push({ type, response_id: this.#id, seq: this.#seq, ...fields });
  }
}

async function refusal(reply) {
  const text = await reply.text().catch(() => "");
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    error = { message: `the server answered ${reply.status}`, code: "http_error" };
  }
  return CedarError.from(error, { status: reply.status });
}

/**
 * Starts a chat completion and streams it.
 *
 * @param {object} request a Chat Completions body
 * @param {{url?: string, token?: string, fetch?: typeof fetch, signal?: AbortSignal}} options `url`: of
 *     /v1/chat/completions; in a page, the page's own server without it
 * @returns {ResponseStream}
 */
export function streamOverHttp(request, { url = "/v1/chat/completions", token, signal, ...options } = {}) {
  const fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  const abort = new AbortController();
  const id = "http_" + Math.random().toString(36).slice(2, 12);
  const stream = new ResponseStream(id, { cancel: () => abort.abort() });
  if (signal?.aborted) abort.abort();
  signal?.addEventListener("abort", () => abort.abort(), { once: true });

  const run = async () => {
    const translator = new ChunkTranslator(stream, id);
    try {
      const reply = await fetch(url, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) },
        body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
        signal: abort.signal,
      });
      if (!reply.ok) throw await refusal(reply);
      for await (const data of readServerSentEvents(reply.body)) {
        if (data === "[DONE]") return translator.finish();
        const chunk = JSON.parse(data);
        if (chunk.error) throw CedarError.from(chunk.error);
        translator.chunk(chunk);
      }
      throw new CedarError("the stream ended before the answer did", { code: "connection_lost" });
    } catch (error) {
      if (abort.signal.aborted) return translator.cancelled();
      if (error instanceof CedarError) return stream.fail(error);
      stream.fail(new CedarError(String(error?.message ?? error), { code: "connection_lost" }));
    }
  };
  run();
  return stream;
}
