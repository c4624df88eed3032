// A client for /v1/stream (docs/websocket.md): streams answers over one WebSocket, several at a time, and goes on with
// them when the connection breaks. For browsers and Node; no dependencies, no build step.

import { CedarError, ResponseStream } from "./events.js";

export { Answer, CedarError, ResponseStream } from "./events.js";
export { readServerSentEvents, streamOverHttp } from "./http_stream.js";

const kProtocol = "cedar.v1";
// What a new connection would not mend: protocol errors, a wrong key.
const kFinalCloseCodes = new Set([1002, 1003, 1007, 1009, 4000, 4001, 4003]);
const kCloseFollowsMs = 100; // an error, at the latest
const kIdCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

// Node 18 has it in a module only.
const webcrypto = globalThis.crypto ?? (await import("node:crypto")).webcrypto;

function randomId(prefix) {
  const bytes = webcrypto.getRandomValues(new Uint8Array(20));
  return prefix + Array.from(bytes, (b) => kIdCharacters[b % kIdCharacters.length]).join("");
}

/** A timer that does not keep a Node process alive by itself. */
function later(milliseconds, action) {
  const timer = setTimeout(action, milliseconds);
  timer.unref?.();
  return timer;
}

/**
 * The pause before connection attempt `attempt` (0, 1, ...): full jitter under a bound that doubles.
 *
 * @param {{firstMs: number, maxMs: number}} backoff
 */
export function backoffDelay(attempt, { firstMs, maxMs }, random = Math.random) {
  return random() * Math.min(maxMs, firstMs * 2 ** Math.min(attempt, 30));
}

/**
 * @typedef {object} ClientOptions
 * @property {string} [url] of the WebSocket; in a page, the page's own server without it
 * @property {string} [token] API key; sent as a subprotocol, which is what browsers can send
 * @property {typeof WebSocket} [WebSocket] for Node before 22: the class of the `ws` package, for example
 * @property {{firstMs: number, maxMs: number}} [backoff] between attempts to connect; 500 ms to 30 s
 * @property {number} [giveUpAfterMs] without a connection for so long, answers fail with connection_lost; 60 s
 * @property {number} [pingAfterMs] a connection silent for so long is asked for a sign of life, and dropped when none
 *     comes within the same time again; 20 s, 0: never
 * @property {number} [credits] events that may be on their way per answer; without it the server decides alone
 * @property {number} [ackEvery] events read between two acknowledgements, which let the server forget; 64
 */
export class CedarClient {
  /** "idle", "connecting", "open", or "waiting" for the next attempt to connect. */
  state = "idle";
  /** The session.created event of the newest connection. */
  session = null;

  #options;
  #socket = null;
  #live = new Map(); // response id -> Entry
  #waiting = []; // promises of connect()
  #pings = new Map(); // nonce -> {resolve, reject, sentAt}
  #listeners = new Map();
  #attempt = 0;
  #lostAt = null;
  #retryAfterMs = 0;
  #retryTimer = null;
  #quietTimer = null;

  /** @param {ClientOptions} options */
  constructor(options = {}) {
    this.#options = {
      url: options.url ?? defaultUrl(),
      token: null,
      WebSocket: globalThis.WebSocket,
      backoff: { firstMs: 500, maxMs: 30000 },
      giveUpAfterMs: 60000,
      pingAfterMs: 20000,
      credits: 0,
      ackEvery: 64,
      random: Math.random,
      ...options,
    };
    if (!this.#options.WebSocket) {
      throw new CedarError("no WebSocket here: pass a class as options.WebSocket", { code: "unsupported" });
    }
  }

  /** "state" (state, {delayMs, code}), "session" (event), "error" (CedarError that belongs to no answer),
   *  "going_away" (event). Returns a function that ends this. */
  on(name, listener) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, new Set());
    this.#listeners.get(name).add(listener);
    return () => this.#listeners.get(name).delete(listener);
  }

  /** Connects now instead of with the first answer. Becomes the session.created event. */
  connect() {
    if (this.state === "open") return Promise.resolve(this.session);
    const connected = new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
    this.#begin();
    return connected;
  }

  /**
   * Starts an answer.
   *
   * @param {object} request a Chat Completions body
   * @param {{responseId?: string, resumable?: boolean, credits?: number, signal?: AbortSignal}} options
   * @returns {ResponseStream}
   */
  respond(request, { responseId = randomId("resp_"), resumable = true, credits, signal } = {}) {
    const entry = this.#track(responseId, signal);
    entry.credits = credits ?? this.#options.credits;
    entry.create = {
      type: "response.create",
      event_id: randomId("c_"),
      response_id: responseId,
      resumable,
      request,
      ...(entry.credits > 0 && { credits: entry.credits }),
    };
    return this.#launch(entry);
  }

  /** Reads an answer that was started before, by a page that was reloaded for example, from after `lastSeq` on. */
  resume(responseId, { lastSeq = 0, signal } = {}) {
    const entry = this.#track(responseId, signal);
    entry.lastSeq = lastSeq;
    return this.#launch(entry);
  }

  /** Milliseconds there and back. */
  async ping() {
    await this.connect();
    const nonce = randomId("");
    return new Promise((resolve, reject) => {
      this.#pings.set(nonce, { resolve, reject, sentAt: performance.now() });
      this.#send({ type: "ping", nonce });
    });
  }

  /** Ends the connection; the server stops the answers that still run, and they fail here with `closed`. */
  close() {
    clearTimeout(this.#retryTimer);
    const socket = this.#socket;
    this.#dropSocket();
    socket?.close(1000);
    this.#setState("idle");
    this.#failAll(new CedarError("the client was closed", { code: "closed" }));
  }

  // --- answers ---------------------------------------------------------------------------------------------

  #track(id, signal) {
    if (this.#live.has(id)) throw new CedarError(`${id} is running already`, { code: "duplicate_response" });
    const entry = { id, create: null, credits: 0, lastSeq: 0, unacked: 0, owed: 0, cancelled: false };
    entry.stream = new ResponseStream(id, {
      cancel: () => this.#cancel(entry),
      consumed: (event) => this.#consumed(entry, event),
    });
    this.#live.set(id, entry);
    if (signal?.aborted) queueMicrotask(() => entry.stream.cancel());
    signal?.addEventListener("abort", () => entry.stream.cancel(), { once: true });
    return entry;
  }

  #launch(entry) {
    if (this.state === "open") this.#sendStart(entry);
    else this.#begin();
    return entry.stream;
  }

  /** The message that starts an answer or goes on with it. Creating twice with one id is creating once. */
  #sendStart(entry) {
    if (entry.create && entry.lastSeq === 0) this.#send(entry.create);
    else this.#send({ type: "response.resume", response_id: entry.id, last_seq: entry.lastSeq });
    entry.owed = 0;
    if (entry.cancelled) this.#send({ type: "response.cancel", response_id: entry.id });
  }

  #cancel(entry) {
    entry.cancelled = true;
    if (this.state === "open") this.#send({ type: "response.cancel", response_id: entry.id });
    else if (entry.create && entry.lastSeq === 0) this.#end(entry, new CedarError("cancelled", { code: "aborted" }));
  }

  #consumed(entry, event) {
    if (entry.stream.ended) return;
    entry.unacked += 1;
    entry.owed += 1;
    if (this.state !== "open") return;
    if (entry.unacked >= this.#options.ackEvery) {
      entry.unacked = 0;
      this.#send({ type: "response.ack", response_id: entry.id, seq: event.seq });
    }
    if (entry.credits > 0 && entry.owed >= Math.ceil(entry.credits / 2)) {
      this.#send({ type: "response.credit", response_id: entry.id, add: entry.owed });
      entry.owed = 0;
    }
  }

  #end(entry, error) {
    this.#live.delete(entry.id);
    if (error) entry.stream.fail(error);
  }

  #failAll(error) {
    for (const entry of [...this.#live.values()]) this.#end(entry, error);
    for (const { reject } of this.#waiting.splice(0)) reject(error);
    this.#failPings(error);
  }

  #failPings(error) {
    for (const { reject } of this.#pings.values()) reject(error);
    this.#pings.clear();
  }

  // --- messages --------------------------------------------------------------------------------------------

  #receive(text) {
    this.#watchQuiet();
    let event;
    try {
      event = JSON.parse(text);
    } catch {
      return this.#emit("error", new CedarError("the server sent something that is no JSON"));
    }
    switch (event.type) {
      case "session.created":
        return this.#greeted(event);
      case "session.going_away":
        return this.#emit("going_away", event);
      case "error":
        return this.#refused(event);
      case "pong": {
        const ping = this.#pings.get(event.nonce);
        this.#pings.delete(event.nonce);
        return ping?.resolve(performance.now() - ping.sentAt);
      }
    }
    const entry = this.#live.get(event.response_id);
    if (!entry || !(event.seq > entry.lastSeq)) return; // unknown, finished, or had already
    if (event.seq !== entry.lastSeq + 1) {
      this.#send({ type: "response.cancel", response_id: entry.id });
      return this.#end(entry, new CedarError(`event ${entry.lastSeq + 1} of ${entry.id} is missing`));
    }
    entry.lastSeq = event.seq;
    if (event.type === "response.done") this.#end(entry, null);
    entry.stream.push(event);
  }

  #greeted(event) {
    this.session = event;
    this.#attempt = 0;
    this.#lostAt = null;
    this.#retryAfterMs = 0;
    this.#setState("open");
    for (const { resolve } of this.#waiting.splice(0)) resolve(event);
    this.#emit("session", event);
    for (const entry of [...this.#live.values()]) this.#sendStart(entry);
  }

  #refused(event) {
    const error = CedarError.from(event.error, { detail: event });
    if (event.retry_after_s > 0) this.#retryAfterMs = event.retry_after_s * 1000;
    const named = event.response_id || event.client_event_id;
    const entry = [...this.#live.values()].find(
      (e) => e.id === event.response_id || (event.client_event_id && e.create?.event_id === event.client_event_id),
    );
    if (!entry) {
      if (!named) this.#emit("error", error); // else of an answer that has ended meanwhile
    } else if (error.code === "response_in_use") {
      // The server has not noticed yet that the connection before this one is gone.
      this.#send({ type: "response.resume", response_id: entry.id, last_seq: entry.lastSeq });
    } else if (error.param === "credits" && entry.credits > 0) {
      // A server without credits: its own limits have to do.
      entry.credits = 0;
      delete entry.create.credits;
      this.#send(entry.create);
    } else {
      this.#end(entry, error);
    }
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  // --- the connection --------------------------------------------------------------------------------------

  #begin() {
    if (this.state === "idle") this.#open();
  }

  #open() {
    const { WebSocket, url, token } = this.#options;
    this.#setState("connecting");
    let socket;
    try {
      socket = new WebSocket(url, token ? [kProtocol, `bearer.${token}`] : [kProtocol]);
    } catch (error) {
      this.#setState("idle");
      return this.#failAll(new CedarError(String(error?.message ?? error), { code: "connection_refused" }));
    }
    this.#socket = socket;
    socket.onmessage = (message) => socket === this.#socket && this.#receive(message.data);
    socket.onclose = (event) => socket === this.#socket && this.#lost(event.code, event.reason);
    // onclose follows, but not in Node 20 when there was no connection yet.
    socket.onerror = () => setTimeout(() => socket === this.#socket && this.#lost(1006, ""), kCloseFollowsMs);
    this.#watchQuiet();
  }

  #lost(code, reason) {
    this.#dropSocket();
    const detail = `the connection ended (${code}${reason ? ", " + reason : ""})`;
    this.#failPings(new CedarError(detail, { code: "connection_lost", status: code }));
    if (kFinalCloseCodes.has(code)) {
      this.#setState("idle", { code });
      return this.#failAll(new CedarError(detail, { code: "connection_refused", status: code }));
    }
    if (this.#live.size === 0 && this.#waiting.length === 0) return this.#setState("idle", { code });
    this.#lostAt ??= performance.now();
    if (performance.now() - this.#lostAt >= this.#options.giveUpAfterMs) {
      this.#setState("idle", { code });
      this.#lostAt = null;
      this.#attempt = 0;
      return this.#failAll(new CedarError(detail, { code: "connection_lost", status: code }));
    }
    const delayMs = Math.max(
      this.#retryAfterMs,
      backoffDelay(this.#attempt++, this.#options.backoff, this.#options.random),
    );
    this.#retryTimer = setTimeout(() => this.#open(), delayMs);
    this.#setState("waiting", { delayMs, code });
  }

  #dropSocket() {
    clearTimeout(this.#quietTimer);
    this.#socket = null;
  }

  /** Started anew by every message: a connection that stays silent is asked, then given up. */
  #watchQuiet() {
    clearTimeout(this.#quietTimer);
    const limit = this.#options.pingAfterMs;
    if (!limit) return;
    const socket = this.#socket;
    const giveUp = () => {
      if (socket !== this.#socket) return;
      this.#lost(4004, "no sign of life");
      socket.close();
    };
    this.#quietTimer = later(limit, () => {
      if (socket !== this.#socket) return;
      if (this.state === "open") this.#send({ type: "ping", nonce: randomId("") });
      this.#quietTimer = later(limit, giveUp);
    });
  }

  #setState(state, detail = {}) {
    if (state === this.state) return;
    this.state = state;
    this.#emit("state", state, detail);
  }

  #emit(name, ...values) {
    for (const listener of this.#listeners.get(name) ?? []) listener(...values);
  }
}

function defaultUrl() {
  const place = globalThis.location;
  if (!place?.host) throw new CedarError("options.url is missing", { code: "unsupported" });
  return `${place.protocol === "https:" ? "wss" : "ws"}://${place.host}/v1/stream`;
}
