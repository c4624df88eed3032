// clients/js with Node's own WebSocket and an encrypted server: CEDAR_URL (https://...), CEDAR_KEY, and CEDAR_TRUSTED, "1"
// where NODE_EXTRA_CA_CERTS names the server's certificate. Run by ../javascript_test.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CedarClient, streamOverHttp } from "../../../clients/js/cedar.js";

const kServer = process.env.CEDAR_URL;
const kOptions = {
  url: kServer.replace("https", "wss") + "/v1/stream",
  token: process.env.CEDAR_KEY,
  backoff: { firstMs: 5, maxMs: 50 },
  giveUpAfterMs: 200,
};
const kRequest = { messages: [{ role: "user", content: "Hello" }], temperature: 1, seed: 5, max_tokens: 60, ignore_eos: true };

if (process.env.CEDAR_TRUSTED === "1") {
  test("answers come over wss, as they do over https", async () => {
    const client = new CedarClient(kOptions);
    const [first, second] = await Promise.all([client.respond(kRequest).done, client.respond(kRequest).done]);
    client.close();
    const http = await streamOverHttp(kRequest, { url: kServer + "/v1/chat/completions", token: process.env.CEDAR_KEY }).done;
    assert.equal(first.usage.completion_tokens, 60);
    assert.equal(first.content, http.content);
    assert.equal(second.content, http.content);
  });

  test("a wrong key gets no connection", async () => {
    const client = new CedarClient({ ...kOptions, token: "wrong-key-0123456789" });
    await assert.rejects(client.respond(kRequest).done, { code: "connection_lost" });
    client.close();
  });
} else {
  test("a certificate that is not trusted gets no connection", async () => {
    const client = new CedarClient(kOptions);
    await assert.rejects(client.respond(kRequest).done, { code: "connection_lost" });
    client.close();
  });
}
