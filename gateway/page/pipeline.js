// The strip above an answer: where its request is, from the events of docs/websocket.md. Times are those seen here.

import { count, duration, element } from "./text.js";

const kStages = [
  ["queue", "Queue", "waits for room in the decoder"],
  ["encoder", "Encoder", "reads the prompt, 20 of 40 layers"],
  ["transfer", "Transfer", "the decoder pulls what it has not got yet; most comes while the encoder reads"],
  ["replay", "Replay", "the decoder rebuilds its window at the end of the prompt"],
  ["decoder", "Decoder", "writes, all 40 layers"],
];

export class PipelineStrip {
  root = element("ol", { class: "pipeline", "aria-label": "What the server is doing" });
  tokens = 0; // written so far
  #stages = new Map();
  #order = [];
  #active = null;
  #activeSince = performance.now();

  constructor() {
    for (const [key, name, title] of kStages) {
      const fill = element("div", { class: "fill" });
      const value = element("span", { class: "value" });
      const item = element("li", { "data-stage": key, "data-state": "waiting", title: `${name}: ${title}` },
        element("div", { class: "track" }, fill), element("span", { class: "name" }, name), value);
      this.#stages.set(key, { item, fill, value, ms: 0, visited: false });
      this.#order.push(key);
      this.root.append(item);
    }
    this.#enter("queue");
  }

  /** Takes every event of the response. */
  event(event) {
    switch (event.type) {
      case "response.queued":
        this.#value("queue", event.position > 0 ? `${count(event.position)} before` : "next");
        break;
      case "response.progress":
        if (event.stage === "encoder") this.#encoder(event);
        else this.#enter(event.stage);
        break;
      case "response.in_progress":
        this.#enter("transfer");
        break;
      case "response.reasoning.delta":
      case "response.content.delta":
      case "response.tool_call.begin":
      case "response.tool_call.arguments.delta":
        this.tokens += event.token_ids?.length ?? 1;
        this.#enter("decoder");
        this.#value("decoder", `${count(this.tokens)} tokens`);
        break;
    }
  }

  /** The request is over. `failed`: where it was shows as unfinished. */
  end({ failed = false } = {}) {
    this.#leave(failed ? "stopped" : "done");
    this.#active = null;
    for (const stage of this.#stages.values()) {
      if (!stage.visited) stage.item.dataset.state = "skipped";
    }
  }

  #encoder({ computed, total }) {
    this.#enter("encoder");
    const { item, fill, value } = this.#stages.get("encoder");
    if (!(total > 0)) return;
    item.classList.remove("endless");
    fill.style.width = `${(100 * computed) / total}%`;
    value.textContent = `${count(computed)} of ${count(total)}`;
  }

  #enter(key) {
    if (this.#active === key) return;
    // Backwards would be a stage's late word: what follows has begun.
    if (this.#active && this.#order.indexOf(key) < this.#order.indexOf(this.#active)) return;
    if (this.#active) this.#leave("done");
    this.#active = key;
    this.#activeSince = performance.now();
    const stage = this.#stages.get(key);
    stage.visited = true;
    stage.item.dataset.state = "active";
    stage.item.classList.add("endless");
    stage.item.setAttribute("aria-current", "step");
  }

  #leave(state) {
    const stage = this.#stages.get(this.#active);
    if (!stage) return;
    stage.ms = performance.now() - this.#activeSince;
    stage.item.dataset.state = state;
    stage.item.classList.remove("endless");
    stage.item.removeAttribute("aria-current");
    if (state === "done") stage.fill.style.width = "100%";
    stage.value.textContent = duration(stage.ms);
  }

  #value(key, text) {
    this.#stages.get(key).value.textContent = text;
  }
}
