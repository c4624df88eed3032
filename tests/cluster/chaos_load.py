"""What the chaos test asks: conversations whose turns begin like the turns before, over every interface, some given up by
their client; and how a reply is compared with that of an undisturbed process."""
import dataclasses
import http.client
import json
import os
import queue
import random
import sys
import time

import harness

sys.path.insert(0, os.path.join(harness.ROOT, "tests", "clients"))
import websocket  # noqa: E402

DEADLINE_S = 60   # of a request, at the server
MARGIN_S = 5      # for the reply to reach a client on a busy machine
CLEAR = (503, 504)


@dataclasses.dataclass
class Ask:
    name: str
    way: str              # whole, sse or websocket
    body: dict
    path: str
    gives_up_after: int   # tokens after which the client goes away; -1: it stays
    expected: list = None  # of (token, log-probability)


@dataclasses.dataclass
class Reply:
    """What a client saw. `tokens` has those that came before an error, too."""
    tokens: list
    seconds: float
    error: str = ""        # empty: the reply is complete, or the client went away
    status: int = 200      # that the error has
    gone: bool = False     # the client went away
    lost: bool = False     # the connection ended
    cached: int = 0        # tokens of the prompt

    def verdict(self, expected):
        """right, given_up, error, unclear_error, lost, late or wrong."""
        whole = not self.error and not self.lost and not self.gone
        if self.tokens != (expected if whole else expected[:len(self.tokens)]):
            return "wrong"
        if self.seconds > DEADLINE_S + MARGIN_S:
            return "late"
        if self.lost:
            return "lost"
        if self.error:
            return "error" if self.status in CLEAR else "unclear_error"
        return "given_up" if self.gone else "right"


def conversation(rng, number):
    """Lengths of a conversation's turns: (new tokens of the prompt, tokens of the answer)."""
    if rng.random() < 0.4:
        longest = rng.choice((60, 900, 2500))
        return [(rng.randrange(max(longest // 3, 1), longest), rng.randrange(1, 120))]
    first = rng.randrange(200, 1200)
    return [(first if turn == 0 else rng.randrange(10, 200), rng.randrange(20, 100))
            for turn in range(rng.randrange(2, 5))]


class Plan:
    """Conversations with so many turns in all. The same seed gives the same requests."""

    def __init__(self, seed, count):
        self.rng = random.Random(seed)
        self.conversations = []
        self.left = count
        while self.left > 0:
            turns = conversation(self.rng, len(self.conversations))[:self.left]
            self.left -= len(turns)
            way = self.rng.choices(("whole", "sse", "websocket"), (35, 40, 25))[0]
            self.conversations.append([self._turn(way, len(self.conversations), t, *size)
                                       for t, size in enumerate(turns)])

    def _turn(self, way, number, turn, prompt, answer):
        gives_up = self.rng.randrange(min(answer, 30)) if way != "whole" and self.rng.random() < 0.12 else -1
        ids = [self.rng.randrange(10, 1000) for _ in range(prompt)]
        common = {"max_tokens": answer, "temperature": 0, "logprobs": 1, "return_token_ids": True, "ignore_eos": True}
        if way == "websocket":
            words = " ".join(f"E{i} failed on build-{i % 97}" for i in ids[:max(prompt // 8, 1)])
            body = {**common, "logprobs": True, "messages": [{"role": "user", "content": words}]}
            return Ask(f"{number}.{turn}", way, body, "/v1/chat/completions", gives_up)
        return Ask(f"{number}.{turn}", way, {**common, "prompt": ids}, "/v1/completions", gives_up)

    def answer(self, client):
        """Fills in the expected replies, and with them the later turns' prompts."""
        def run(asks):
            before = None
            for ask in asks:
                if before is not None:
                    extend(ask, before)
                reply = send_whole(client, ask)
                assert not reply.error and not reply.lost, f"{ask.name}: {reply}"
                ask.expected = reply.tokens
                before = ask
        for_each(self.conversations, run, 4)


def extend(ask, before):
    """The turn after `before`, which has been answered."""
    if "prompt" in ask.body:
        ask.body["prompt"] = before.body["prompt"] + [token for token, _ in before.expected] + ask.body["prompt"]
    else:
        # Its text need not become the same tokens again; the user's messages do.
        ask.body["messages"] = before.body["messages"] + [{"role": "assistant", "content": "noted"}] + ask.body["messages"]


def for_each(items, work, threads):
    """work(item) of all items, in order, so many at a time."""
    left = queue.SimpleQueue()
    for item in items:
        left.put(item)

    def take():
        while True:
            try:
                item = left.get_nowait()
            except queue.Empty:
                return
            work(item)
    harness.in_parallel([take] * threads)


def tokens_of(choice):
    """(token, log-probability) of a choice in a reply or an event, in both dialects."""
    ids = choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    values = logprobs.get("token_logprobs")
    if values is None:
        values = [entry["logprob"] for entry in logprobs.get("content") or []]
    assert len(ids) == len(values), choice
    return list(zip(ids, values))


def error_of(status, body):
    try:
        return Reply([], 0, json.loads(body)["error"]["message"] or "no reason given", status)
    except (ValueError, KeyError, TypeError):
        return Reply([], 0, f"no error object: {body[:200]!r}", 500)


def send_whole(client, ask):
    status, body = client.request("POST", ask.path, ask.body)
    if status != 200:
        return error_of(status, body)
    reply = json.loads(body)
    return Reply(tokens_of(reply["choices"][0]), 0,
                 cached=reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def send_sse(client, ask):
    connection = http.client.HTTPConnection(client.host, client.port, timeout=DEADLINE_S + MARGIN_S)
    reply = Reply([], 0)
    try:
        connection.request("POST", ask.path, json.dumps({**ask.body, "stream": True}))
        answer = connection.getresponse()
        if answer.status != 200:
            return error_of(answer.status, answer.read())
        done = False
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                reply.error = event["error"]["message"]
                # The stream's status went out before; the kind of error says what it would have been.
                reply.status = {"overloaded_error": 503, "timeout_error": 504}.get(event["error"]["type"], 500)
                return reply
            for choice in event["choices"]:
                reply.tokens += tokens_of(choice)
            if 0 <= ask.gives_up_after <= len(reply.tokens):
                reply.gone = True
                return reply
        reply.lost = not done
    except (OSError, http.client.HTTPException):
        reply.lost = True
    finally:
        connection.close()
    return reply


def send_websocket(client, ask):
    reply = Reply([], 0)
    stream = None
    try:
        stream = websocket.WebSocket(client.port, timeout_s=DEADLINE_S + MARGIN_S)
        if stream.status != 101:
            return Reply([], 0, f"status {stream.status}", stream.status)
        stream.send(json.dumps({"type": "response.create", "request": ask.body}))
        identity = None
        while (text := stream.read()) is not None:
            event = json.loads(text)
            identity = event.get("response_id", identity)
            if event["type"] == "error":
                reply.error, reply.status = event["error"]["message"], 503
                return reply
            if event["type"].endswith((".delta", ".choice.done")):
                reply.tokens += tokens_of(event)
            if event["type"] == "response.done":
                if event["status"] == "failed":
                    reply.error = event["error"]["message"]
                    reply.status = {"overloaded_error": 503, "timeout_error": 504}.get(event["error"]["type"], 500)
                elif event["status"] == "cancelled":
                    reply.gone = True
                else:
                    reply.cached = event["usage"]["prompt_cache_hit_tokens"]
                return reply
            if 0 <= ask.gives_up_after <= len(reply.tokens) and identity and not reply.gone:
                stream.send(json.dumps({"type": "response.cancel", "response_id": identity}))
                reply.gone = True
        reply.lost = True
    except OSError:
        reply.lost = True
    finally:
        if stream is not None:
            stream.cut()
    return reply


SENDERS = {"whole": send_whole, "sse": send_sse, "websocket": send_websocket}


def send(client, ask):
    """Never raises: what goes wrong is part of the reply."""
    begin = time.monotonic()
    try:
        reply = SENDERS[ask.way](client, ask)
    except (OSError, http.client.HTTPException):
        reply = Reply([], 0, lost=True)
    reply.seconds = time.monotonic() - begin
    return reply
