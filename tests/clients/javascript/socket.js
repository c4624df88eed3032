// WebSocket classes for tests. CuttableSocket is a small client over a TCP socket (RFC 6455, text frames) for Node
// versions without a WebSocket of their own; it can lose its connection. FakeSocket has no network at all.

import { createHash, randomBytes } from "node:crypto";
import { connect } from "node:net";

export class CuttableSocket {
  static open = new Set();
  onmessage = () => {};
  onclose = () => {};
  onerror = () => {};
  #bytes = Buffer.alloc(0);
  #greeted = false;
  #closed = false;
  #code = 1006;

  constructor(url, protocols) {
    const { hostname, port, pathname } = new URL(url);
    const key = randomBytes(16).toString("base64");
    this.accept = createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
    this.socket = connect(Number(port), hostname);
    this.socket.on("error", () => this.onerror());
    this.socket.on("close", () => this.#end());
    this.socket.on("data", (data) => this.#read(data));
    this.socket.write(
      `GET ${pathname} HTTP/1.1\r\nHost: ${hostname}:${port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
        `Sec-WebSocket-Key: ${key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: ${protocols.join(", ")}\r\n\r\n`,
    );
    CuttableSocket.open.add(this);
  }

  send(text) {
    this.#frame(1, Buffer.from(text));
  }
  close(code = 1000) {
    this.#frame(8, Buffer.from([code >> 8, code & 255]));
    this.socket.end();
  }
  /** What a broken network does: no close frame, not another byte. */
  cut() {
    this.socket.destroy();
  }

  #frame(opcode, payload) {
    const mask = randomBytes(4);
    const length = payload.length;
    const head = length < 126 ? [0x80 | length] : length < 65536 ? [0xfe, length >> 8, length & 255]
      : [0xff, 0, 0, 0, 0, length >>> 24, (length >> 16) & 255, (length >> 8) & 255, length & 255];
    const masked = Buffer.from(payload.map((byte, i) => byte ^ mask[i % 4]));
    if (!this.socket.destroyed) this.socket.write(Buffer.concat([Buffer.from([0x80 | opcode, ...head]), mask, masked]));
  }

  #read(data) {
    this.#bytes = Buffer.concat([this.#bytes, data]);
    if (!this.#greeted) {
      const end = this.#bytes.indexOf("\r\n\r\n");
      if (end < 0) return;
      const head = this.#bytes.subarray(0, end).toString();
      this.#bytes = this.#bytes.subarray(end + 4);
      if (!head.startsWith("HTTP/1.1 101 ") || !head.includes(this.accept)) return this.socket.destroy();
      this.#greeted = true;
    }
    while (this.#bytes.length >= 2) {
      let length = this.#bytes[1] & 127;
      let at = 2;
      if (length === 126) [length, at] = [this.#bytes.length < 4 ? Infinity : this.#bytes.readUInt16BE(2), 4];
      else if (length === 127) [length, at] = [this.#bytes.length < 10 ? Infinity : Number(this.#bytes.readBigUInt64BE(2)), 10];
      if (this.#bytes.length < at + length) return;
      const opcode = this.#bytes[0] & 15;
      const payload = this.#bytes.subarray(at, at + length);
      this.#bytes = this.#bytes.subarray(at + length);
      if (opcode === 1) this.onmessage({ data: payload.toString() });
      if (opcode === 8) {
        this.#code = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
        this.close(this.#code);
      }
      if (opcode === 9) this.#frame(10, payload);
    }
  }

  #end() {
    if (this.#closed) return;
    this.#closed = true;
    CuttableSocket.open.delete(this);
    this.onclose({ code: this.#code, reason: "" });
  }
}

/** What a test sends with give() the client receives; what the client sends is in `sent`. */
export class FakeSocket {
  static made = [];
  sent = [];
  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    FakeSocket.made.push(this);
  }
  static get last() {
    return FakeSocket.made.at(-1);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close(code) {
    this.closedWith = code;
  }
  give(event) {
    this.onmessage({ data: JSON.stringify(event) });
  }
  greet() {
    this.give({ type: "session.created", session_id: "sess_1", models: ["demo"], limits: {} });
  }
  lose(code = 1006) {
    this.onclose({ code, reason: "" });
  }
  of(type) {
    return this.sent.filter((message) => message.type === type);
  }
}
