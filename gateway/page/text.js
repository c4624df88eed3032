// Text on the page. Nothing here can make markup of it: elements are made one by one, and text stays text.

/** An element with attributes; children are elements or text. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const kCount = new Intl.NumberFormat("en");
const kTenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (n) => kCount.format(n);
export const rate = (n) => (n >= 100 ? kCount.format(Math.round(n)) : kTenths.format(n));

export function duration(ms) {
  if (ms < 0.5) return "under 1 ms";
  if (ms < 995) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

export function byteSize(text) {
  const bytes = new Blob([text]).size;
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Cuts an answer at its ``` fences: [{code: bool, language, text}]. A fence that is still open is code, too. */
export function splitFences(text) {
  const blocks = [];
  let current = { code: false, language: "", lines: [] };
  const close = () => {
    const body = current.lines.join("\n");
    if (current.code || body.trim() !== "") {
      blocks.push({ code: current.code, language: current.language, text: current.code ? body : body.replace(/^\n+|\s+$/g, "") });
    }
  };
  for (const line of text.split("\n")) {
    const fence = /^ {0,3}```(.*)$/.exec(line);
    if (!fence || (current.code && fence[1].trim() !== "")) {
      current.lines.push(line);
      continue;
    }
    close();
    current = { code: !current.code, language: fence[1].trim(), lines: [] };
  }
  close();
  return blocks;
}

/** Shows text that grows. Drawn once a frame at most; only the blocks that changed are touched. */
export class GrowingText {
  text = "";
  #root;
  #drawn = [];
  #frame = 0;
  #afterDraw;

  constructor(root, afterDraw = () => {}) {
    this.#root = root;
    this.#afterDraw = afterDraw;
  }

  append(text) {
    this.text += text;
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const blocks = splitFences(this.text);
    blocks.forEach((block, i) => {
      const shown = this.#drawn[i];
      if (shown && shown.code === block.code && shown.language === block.language) {
        if (shown.text !== block.text) shown.node.data = shown.text = block.text;
        return;
      }
      const made = block.code ? codeBlock(block) : paragraph(block);
      if (shown) shown.outer.replaceWith(made.outer);
      else this.#root.append(made.outer);
      this.#drawn[i] = { ...block, ...made };
    });
    for (const { outer } of this.#drawn.splice(blocks.length)) outer.remove();
    this.#afterDraw();
  }
}

function paragraph({ text }) {
  const node = document.createTextNode(text);
  return { node, outer: element("p", {}, node) };
}

function codeBlock({ text, language }) {
  const node = document.createTextNode(text);
  const copy = element("button", { type: "button", class: "quiet" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(node.data);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const outer = element("div", { class: "code" }, element("header", {}, element("span", {}, language || "text"), copy),
    element("pre", {}, element("code", {}, node)));
  return { node, outer };
}

/** A log in the manner of the one that `make run` reads, and a question about one of its lines. */
export function sampleLog(lines = 400) {
  const pick = (list) => list[Math.floor(Math.random() * list.length)];
  const hosts = ["web", "db", "auth", "edge", "mail", "node", "proxy", "build", "queue", "store", "app", "cache"];
  const parts = ["filter", "disk", "cache", "monitor", "backup", "parser", "router", "worker", "gateway", "sensor", "pump"];
  const events = ["resumed", "moved", "paused", "scanned", "saved", "closed", "opened", "loaded", "restarted"];
  const codes = new Set();
  const text = ["Log:"];
  for (let i = 0, second = 14122; i < lines; i++, second += 5 + Math.floor(Math.random() * 80)) {
    const time = new Date(second * 1000).toISOString().slice(11, 19);
    const host = `${pick(hosts)}-${1 + Math.floor(Math.random() * 98)}`;
    const code = `E${1000 + Math.floor(Math.random() * 9000)}`;
    if (Math.random() < 0.5 && !codes.has(code)) {
      codes.add(code);
      text.push(`${time} ${code} ${pick(parts)} failed on ${host}`);
    } else {
      text.push(`${time} ${host} ${pick(parts)} ${pick(events)}`);
    }
  }
  return { text: text.join("\n"), question: `What is ${pick([...codes])}?` };
}
