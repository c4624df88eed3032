// The page: one conversation over one WebSocket, or over plain HTTP where WebSocket does not get through.

import { CedarClient } from "./cedar.js";
import { streamOverHttp } from "./http_stream.js";
import { PipelineStrip } from "./pipeline.js";
import { GrowingText, byteSize, count, duration, element, rate, sampleLog } from "./text.js";

const kLongPasteCharacters = 2000; // becomes a document instead of filling the input
const kLargestFileBytes = 32 << 20;
const kSocketPatienceMs = 3000; // of an answer that waits for its first connection, before HTTP is tried

const byId = (id) => document.getElementById(id);
const main = byId("main");
const prompt = byId("prompt");
const conversation = []; // messages of the API, oldest first
let documents = []; // {name, text} for the next question
let current = null; // the Turn that runs
let client = null;
let overHttp = false;

// --- the connection ----------------------------------------------------------------------------------------

function connect() {
  client?.close();
  client = new CedarClient({ token: byId("key").value || null, giveUpAfterMs: 60000 });
  client.on("state", (state, { delayMs } = {}) => {
    const words = {
      open: "Connected",
      connecting: "Connecting",
      idle: "Not connected",
      waiting: `Connection lost; trying again in ${duration(delayMs)}`,
    };
    const dot = byId("connection");
    dot.dataset.state = state === "waiting" || (state === "idle" && !overHttp) ? "lost" : state;
    dot.title = byId("connection-text").textContent = words[state];
  });
  client.on("session", (session) => showModel(session.models?.[0] ?? "model"));
  client.connect().catch(() => {});
  showContext();
}

function showModel(name) {
  const label = byId("model");
  if (label.firstChild?.data !== name) label.replaceChildren(name);
}

/** The server asks for a key, and `key` (maybe empty) is none that it knows. Sockets cannot tell: they just fail. */
function askForKey(key) {
  if (key !== byId("key").value) return; // of an attempt before the newest one
  client.close();
  openSettings();
  const problem = byId("key-problem");
  problem.hidden = false;
  problem.textContent = key ? "The server does not know this API key." : "The server asks for an API key.";
  byId("key").focus();
}

/** The length of the context, which the socket does not tell; the model's name as well where there is no socket. */
async function showContext() {
  const key = byId("key").value;
  try {
    const reply = await fetch("/v1/models", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (reply.status === 401) return askForKey(key);
    const model = (await reply.json()).data[0];
    showModel(model.id);
    if (model.max_model_len) {
      byId("model").append(element("span", { class: "extra" }, ` · reads up to ${count(model.max_model_len)} tokens`));
    }
  } catch {
    // The socket's state says it.
  }
}

// --- a question and its answer -------------------------------------------------------------------------------

function requestBody() {
  const effort = byId("effort").value;
  const system = byId("system").value.trim();
  const maxTokens = Number.parseInt(byId("max-tokens").value, 10);
  const body = {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    temperature: Number.parseFloat(byId("temperature").value) || 0,
    return_token_ids: true, // to count while it streams
  };
  if (effort === "off") body.thinking = { type: "disabled" };
  else if (effort) body.reasoning_effort = effort;
  if (maxTokens > 0) body.max_tokens = maxTokens;
  return body;
}

class Turn {
  #strip = new PipelineStrip();
  #words = element("div", { class: "words" });
  #root = element("article", { class: "turn answer running", "aria-busy": "true" });
  #content = new GrowingText(this.#words, keepAtEnd);
  #reasoning = null;
  #figures = null;
  #stream = null;
  #began = performance.now();
  #firstToken = 0;
  #lastToken = 0;
  #accepted = false;
  #stopped = false;

  constructor() {
    this.#root.append(this.#strip.root, this.#words);
    byId("log").append(this.#root);
    following = true; // who asks wants to see the answer
    keepAtEnd();
  }

  async run() {
    showRunning(this);
    const body = requestBody();
    try {
      let answer;
      try {
        answer = await this.#read(overHttp ? this.#http(body) : client.respond(body), !overHttp);
      } catch (error) {
        // Nothing came over the socket, not even a greeting: a proxy may not let WebSocket through.
        if (overHttp || client.session || this.#stopped) throw error;
        answer = await this.#read(this.#http(body), false);
        overHttp = true;
      }
      this.#finish(answer);
      conversation.push({ role: "assistant", content: answer.content });
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#root.classList.remove("running");
      this.#root.removeAttribute("aria-busy");
      showRunning(null);
    }
  }

  stop() {
    this.#stopped = true;
    this.#stream?.cancel();
  }

  #http(body) {
    return streamOverHttp(body, { token: byId("key").value || null });
  }

  async #read(stream, giveUpEarly) {
    this.#stream = stream;
    if (this.#stopped) stream.cancel();
    const impatience = setTimeout(() => {
      if (giveUpEarly && !client.session) client.close();
    }, kSocketPatienceMs);
    try {
      stream.on("*", (event) => this.#event(event));
      return await stream.done;
    } finally {
      clearTimeout(impatience);
    }
  }

  #event(event) {
    this.#accepted = true;
    this.#strip.event(event);
    if (event.delta !== undefined) {
      this.#lastToken = performance.now();
      this.#firstToken ||= this.#lastToken;
    }
    switch (event.type) {
      case "response.reasoning.delta":
        this.#reasoning ??= new Thinking(this.#words);
        this.#reasoning.append(event.delta);
        break;
      case "response.reasoning.done":
      case "response.content.delta":
        this.#reasoning?.finish();
        if (event.delta) this.#content.append(event.delta);
        break;
      case "response.tool_call.done":
        this.#content.append(`\n\`\`\`tool call\n${event.arguments}\n\`\`\`\n`);
        break;
    }
    if (event.delta !== undefined) this.#showFigures({ usage: usageOf(this.#stream) });
  }

  #finish(answer) {
    this.#reasoning?.finish();
    this.#content.draw();
    this.#strip.end({ failed: answer.status === "cancelled" });
    this.#showFigures({ usage: answer.usage, note: this.#note(answer) });
  }

  #note(answer) {
    if (answer.status === "cancelled") return "stopped";
    return answer.status === "incomplete" ? "cut at the longest answer allowed" : null;
  }

  #showFigures({ usage, note }) {
    const written = usage?.completion_tokens ?? this.#strip.tokens;
    const writingMs = this.#lastToken - this.#firstToken;
    const parts = [];
    if (note) parts.push(element("span", {}, element("b", {}, note)));
    if (this.#firstToken) parts.push(figure(duration(this.#firstToken - this.#began), "to the first token"));
    if (written > 1 && writingMs > 0) parts.push(figure(rate((1000 * (written - 1)) / writingMs), "tokens/s"));
    if (usage?.prompt_tokens !== undefined) {
      const cached = usage.prompt_cache_hit_tokens;
      parts.push(figure(count(usage.prompt_tokens), `read${cached > 0 ? `, ${count(cached)} of them from the cache` : ""}`));
    }
    if (written > 0) parts.push(figure(count(written), "written"));
    if (!this.#figures) {
      this.#figures = element("p", { class: "figures" });
      this.#words.after(this.#figures);
    }
    this.#figures.replaceChildren(...parts);
    keepAtEnd();
  }

  #fail(error) {
    this.#reasoning?.finish();
    this.#content.draw();
    if (this.#accepted) this.#strip.end({ failed: true });
    else this.#strip.root.remove(); // it was nowhere
    const again = element("button", { type: "button" }, "Try again");
    const where = error.param ? ` (${error.param})` : "";
    const problem = element("div", { class: "problem", role: "alert" },
      element("p", {}, `${error.message}${error.message.startsWith(error.param ?? "\n") ? "" : where}`), again);
    again.addEventListener("click", () => {
      this.#root.remove();
      if (!current) new Turn().run();
    });
    this.#root.append(problem);
    keepAtEnd();
  }
}

const usageOf = (stream) => stream?.answer.usage ?? null;
const figure = (value, unit) => element("span", {}, element("b", {}, value), ` ${unit}`);

/** The model's thinking: open while it goes on, then folded unless somebody has opened it. */
class Thinking {
  #summary = element("summary", {}, "Thinking…");
  #words = element("div", { class: "words" });
  #root = element("details", { class: "thinking", open: true }, this.#summary, this.#words);
  #text = new GrowingText(this.#words, keepAtEnd);
  #began = performance.now();
  #touched = false;
  #finished = false;

  constructor(before) {
    before.before(this.#root);
    this.#summary.addEventListener("click", () => (this.#touched = true));
  }

  append(text) {
    this.#text.append(text);
  }

  finish() {
    if (this.#finished) return;
    this.#finished = true;
    this.#text.draw();
    this.#summary.textContent = `Thought for ${duration(performance.now() - this.#began)}`;
    if (!this.#touched) this.#root.open = false;
  }
}

function ask() {
  const question = prompt.value.trim();
  if (current || (!question && documents.length === 0)) return;
  // One empty line between documents and question.
  const content = [...documents.map(({ text }) => text.replace(/\s+$/, "")), ...(question ? [question] : [])].join("\n\n");
  // A question that failed stays on the page but not in the conversation.
  if (conversation.at(-1)?.role === "user") conversation.pop();
  conversation.push({ role: "user", content });
  const turn = element("article", { class: "turn user" }, ...documents.map((d) => documentChip(d)));
  if (question) turn.append(element("div", { class: "words" }, question));
  byId("log").append(turn);
  byId("welcome").hidden = true;
  documents = [];
  showDocuments();
  prompt.value = "";
  fitPrompt();
  new Turn().run();
}

function showRunning(turn) {
  const focusMoves = document.activeElement === byId("stop") || document.activeElement === byId("send");
  current = turn;
  byId("send").hidden = turn !== null;
  byId("stop").hidden = turn === null;
  if (focusMoves) prompt.focus();
  updateSend();
}

/** Follows the answer unless somebody has scrolled up. */
let following = true;
function keepAtEnd() {
  if (following) main.scrollTop = main.scrollHeight;
}

// --- what is asked with ----------------------------------------------------------------------------------------

function documentChip({ name, text }, remove = null) {
  const lines = text.split("\n").length;
  const chip = element("span", { class: "document" }, element("span", { class: "title" }, name),
    element("span", { class: "size" }, `${count(lines)} ${lines === 1 ? "line" : "lines"}, ${byteSize(text)}`));
  if (remove) {
    const button = element("button", { type: "button", "aria-label": `Remove ${name}` }, "×");
    button.addEventListener("click", remove);
    chip.append(button);
  }
  return chip;
}

function showDocuments() {
  byId("documents").replaceChildren(...documents.map((d) =>
    element("li", {}, documentChip(d, () => {
      documents = documents.filter((other) => other !== d);
      showDocuments();
      prompt.focus();
    }))));
  updateSend();
}

function addDocument(name, text) {
  documents.push({ name, text });
  showDocuments();
  prompt.focus();
}

async function addFiles(files) {
  for (const file of files) {
    try {
      if (file.size > kLargestFileBytes) throw new Error("is larger than 32 MB");
      addDocument(file.name, new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
    } catch (error) {
      const why = error instanceof TypeError ? "is not UTF-8 text" : error.message;
      notice(`${file.name} ${why}`);
    }
  }
}

function notice(text) {
  const box = element("div", { class: "problem", role: "alert" }, element("p", {}, text));
  byId("documents").append(element("li", {}, box));
  setTimeout(() => box.parentElement?.remove(), 6000);
}

function fitPrompt() {
  // Browsers without field-sizing.
  if (!CSS.supports("field-sizing", "content")) {
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight}px`;
  }
  updateSend();
}

function updateSend() {
  byId("send").disabled = current !== null || (prompt.value.trim() === "" && documents.length === 0);
}

function newChat() {
  current?.stop();
  conversation.length = 0;
  documents = [];
  byId("log").replaceChildren();
  byId("welcome").hidden = false;
  showDocuments();
  prompt.focus();
}

// --- events of the page ------------------------------------------------------------------------------------------

let keyBefore = "";
function openSettings() {
  keyBefore = byId("key").value;
  if (!byId("settings").open) byId("settings").showModal();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
prompt.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  const text = event.clipboardData.getData("text/plain");
  if (files.length === 0 && text.length < kLongPasteCharacters) return;
  event.preventDefault();
  if (files.length > 0) addFiles(files);
  else addDocument("Pasted text", text.replaceAll("\r\n", "\n"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && current && !byId("settings").open) current.stop();
});
byId("stop").addEventListener("click", () => current?.stop());
byId("new-chat").addEventListener("click", newChat);
byId("open-settings").addEventListener("click", openSettings);
byId("settings").addEventListener("close", () => {
  byId("key-problem").hidden = true;
  if (byId("key").value !== keyBefore) connect();
});
byId("attach").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", (event) => {
  addFiles([...event.target.files]);
  event.target.value = "";
});
byId("sample").addEventListener("click", () => {
  const { text, question } = sampleLog();
  documents = [];
  addDocument("sample.log", text);
  prompt.value = question;
  fitPrompt();
});
main.addEventListener("scroll", () => {
  following = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
});
for (const [type, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", over);
    if (type === "drop" && event.dataTransfer.files.length > 0) addFiles([...event.dataTransfer.files]);
  });
}
window.addEventListener("pagehide", () => client?.close());

fitPrompt();
connect();
prompt.focus();
