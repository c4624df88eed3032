// What the WebSocket and the HTTP side of the client share: errors, the stream of one answer's events, and what these
// events add up to. The events are those of docs/websocket.md.

/**
 * An error of the server, of the protocol or of the connection.
 *
 * `code` is the server's (`invalid_request_error`, `response_not_found`, ...) or one of the client's own:
 * `connection_lost`, `connection_refused`, `closed`, `aborted`, `protocol_error`. `param` names the request's field that
 * is wrong, `status` is the HTTP status or the WebSocket close code where there is one.
 */
export class CedarError extends Error {
  constructor(message, { code = "protocol_error", type = code, param = null, status = null, detail = null } = {}) {
    super(message);
    this.name = "CedarError";
    Object.assign(this, { code, type, param, status, detail });
  }

  /** From the error object that answers and events carry. */
  static from(error, extra = {}) {
    const { message = "the server gave no reason", code, type, param } = error ?? {};
    return new CedarError(message, { code: code ?? undefined, type: type ?? undefined, param, ...extra });
  }
}

/**
 * What the events of one answer add up to.
 *
 * @typedef {{id: string, name: string, namespace?: string, arguments: string}} ToolCall
 * @typedef {{reasoning: string, content: string, toolCalls: ToolCall[], finishReason: string|null}} Choice
 */
export class Answer {
  /** @type {Choice[]} */
  choices = [];
  status = null; // of response.done
  usage = null;
  model = null;
  seed = null;

  get content() {
    return this.choices[0]?.content ?? "";
  }
  get reasoning() {
    return this.choices[0]?.reasoning ?? "";
  }
  get toolCalls() {
    return this.choices[0]?.toolCalls ?? [];
  }
  get finishReason() {
    return this.choices[0]?.finishReason ?? null;
  }

  /** Takes one event; those that say nothing about the answer are ignored. */
  add(event) {
    switch (event.type) {
      case "response.created":
        this.model = event.model;
        this.seed = event.seed ?? null;
        break;
      case "response.in_progress":
        this.usage = { ...this.usage, ...event.usage };
        break;
      case "response.reasoning.delta":
        this.#choice(event).reasoning += event.delta;
        break;
      case "response.content.delta":
        this.#choice(event).content += event.delta;
        break;
      case "response.tool_call.begin":
        this.#choice(event).toolCalls[event.call_index] = {
          id: event.call_id,
          name: event.name,
          ...(event.namespace !== undefined && { namespace: event.namespace }),
          arguments: "",
        };
        break;
      case "response.tool_call.arguments.delta":
        this.#choice(event).toolCalls[event.call_index].arguments += event.delta;
        break;
      case "response.choice.done":
        this.#choice(event).finishReason = event.finish_reason;
        break;
      case "response.done":
        this.status = event.status;
        this.usage = event.usage ?? this.usage;
        break;
    }
  }

  #choice(event) {
    while (this.choices.length <= event.index) {
      this.choices.push({ reasoning: "", content: "", toolCalls: [], finishReason: null });
    }
    return this.choices[event.index];
  }
}

/**
 * One running answer. Read it in one of two ways:
 *
 *     for await (const event of stream) ...          // the pace of this loop is the pace of the stream
 *     stream.on("response.content.delta", f); await stream.done;
 *
 * Events wait until a reader is there. Leaving the loop early cancels the answer. `done` becomes the Answer when the
 * last event was read, also after a cancel (its `status` says so), and fails with a CedarError when the answer failed.
 */
export class ResponseStream {
  answer = new Answer();

  #queue = [];
  #listeners = new Map();
  #iterating = false;
  #flowing = false;
  #wake = null;
  #ended = false; // nothing more will be queued
  #error = null;
  #hooks;
  #done;
  #settle;

  /** `hooks`: cancel() stops the work; consumed(event) is told of every event that was read. */
  constructor(id, hooks = {}) {
    this.id = id;
    this.#hooks = hooks;
    this.#done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.#done.catch(() => {}); // whoever does not look at it has the events
  }

  /** Calls `listener` with every event of `type`; "*" is every type. Returns a function that ends this. */
  on(type, listener) {
    if (!this.#listeners.has(type)) this.#listeners.set(type, new Set());
    this.#listeners.get(type).add(listener);
    this.#flow();
    return () => this.#listeners.get(type).delete(listener);
  }

  get done() {
    this.#flow();
    return this.#done;
  }

  /** Stops the answer within one step of the model. The stream still ends with response.done. */
  cancel() {
    if (!this.#ended) this.#hooks.cancel?.();
  }

  async *[Symbol.asyncIterator]() {
    this.#iterating = true;
    let finished = false;
    try {
      for (;;) {
        while (this.#queue.length > 0) yield this.#take();
        if (this.#ended) break;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      finished = true;
      if (this.#error) throw this.#error;
    } finally {
      this.#iterating = false;
      if (!finished) this.cancel();
      this.#flow();
    }
  }

  /** For the client: one event, in order. */
  push(event) {
    if (this.#ended) return;
    this.#queue.push(event);
    if (event.type === "response.done") {
      this.#ended = true;
      if (event.status === "failed") this.#error = CedarError.from(event.error, { detail: event });
    }
    this.#moved();
  }

  /** For the client: the stream is broken off. */
  fail(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    this.#moved();
  }

  get ended() {
    return this.#ended;
  }

  #flow() {
    if (this.#flowing) return;
    this.#flowing = true;
    // A loop that begins in the same turn as a listener sets the pace instead.
    queueMicrotask(() => this.#moved());
  }

  #moved() {
    if (this.#iterating) {
      this.#wake?.();
    } else if (this.#flowing) {
      while (this.#queue.length > 0) this.#take();
      this.#finish();
    }
  }

  #take() {
    const event = this.#queue.shift();
    this.answer.add(event);
    for (const type of [event.type, "*"]) {
      for (const listener of this.#listeners.get(type) ?? []) listener(event);
    }
    this.#hooks.consumed?.(event);
    this.#finish();
    return event;
  }

  #finish() {
    if (!this.#ended || this.#queue.length > 0) return;
    if (this.#error) this.#settle.reject(this.#error);
    else this.#settle.resolve(this.answer);
  }
}
