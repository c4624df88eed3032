"""The bytes of streamed answers, as a socket reads them.

    sse_bytes_test.py CEDAR
"""
import json
import os
import re
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

QUESTION, ANSWER = serve.sample_question()
CHAT = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "stream": True}
# What differs from run to run: how it looks, and what stands for it below.
VARYING = [(rb'"id":"chatcmpl-[A-Za-z0-9]{24}"', b'"id":ID'), (rb'"id":"cmpl-[A-Za-z0-9]{24}"', b'"id":ID'),
           (rb'"created":\d{10},', b'"created":N,'), (rb'"system_fingerprint":"[^"]+"', b'"system_fingerprint":F')]


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=serve.DEADLINE_S)
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, path, body, version="1.1", headers=""):
        text = json.dumps(body)
        self.socket.sendall((f"POST {path} HTTP/{version}\r\nHost: localhost\r\n{headers}"
                             f"Content-Length: {len(text)}\r\n\r\n{text}").encode())

    def more(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise AssertionError(f"the connection ended early, after {self.rest[-200:]}")
        self.rest += piece

    def take(self, count):
        while len(self.rest) < count:
            self.more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def take_until(self, mark):
        while mark not in self.rest:
            self.more()
        return self.take(self.rest.index(mark) + len(mark))

    def take_all(self):
        while True:
            piece = self.socket.recv(1 << 16)
            if not piece:
                taken, self.rest = self.rest, b""
                return taken
            self.rest += piece

    def take_chunks(self):
        """The chunks of a chunked body, without the framing."""
        chunks = []
        while True:
            line = self.take_until(b"\r\n")
            if not re.fullmatch(rb"[1-9a-f][0-9a-f]*\r\n|0\r\n", line):
                raise AssertionError(f"no chunk size: {line}")
            chunk = self.take(int(line, 16))
            if self.take(2) != b"\r\n":
                raise AssertionError("a chunk's end is missing")
            if not chunk:
                return chunks
            chunks.append(chunk)


def masked(data):
    for pattern, mark in VARYING:
        data = re.sub(pattern, mark, data)
    return data


def chunk(choices, object_name="chat.completion.chunk", usage=b""):
    return (b'data: {"id":ID,"object":"' + object_name.encode() + b'","created":N,"model":"demo","system_fingerprint":F,'
            b'"choices":[' + choices + b"]" + usage + b"}\n\n")


def delta(fields, reason=b"null", index=0):
    return (b'{"index":%d,"delta":' % index + fields + b',"logprobs":null,"finish_reason":' + reason + b"}")


def without_hits(data):
    """What a cache found of a prompt that was asked before depends on what has arrived there by now."""
    counts = rb'"(prompt_cache_(hit|miss)_tokens|cached_tokens|cached_tokens_disk|replayed_tokens)":\d+|"resume":"\w+"'
    return re.sub(counts, b"C", data)


class SseBytesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(sys.argv[1])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None)
        status, _, body = cls.server.request(
            "POST", "/v1/chat/completions", {**CHAT, "stream": False, "return_token_ids": True})
        assert status == 200, body
        answer = json.loads(body)
        cls.usage = json.dumps(answer["usage"], separators=(",", ":")).encode()
        # What each token adds to the text; the last one ends the answer.
        cls.pieces = [cls.detokenized([token]) for token in answer["choices"][0]["token_ids"][:-1]]
        assert "".join(cls.pieces) == ANSWER

    @classmethod
    def detokenized(cls, tokens):
        return json.loads(cls.server.request("POST", "/detokenize", {"tokens": tokens})[2])["prompt"]

    def expected(self, usage=b""):
        events = [chunk(delta(b'{"role":"assistant","content":""}'), usage=usage)]
        events += [chunk(delta(b'{"content":' + json.dumps(piece).encode() + b"}"), usage=usage) for piece in self.pieces]
        return events + [chunk(delta(b"{}", b'"stop"'), usage=usage)]

    def test_a_chat_stream(self):
        with Connection(self.server.port) as connection:
            connection.send("/v1/chat/completions", CHAT, headers="X-Request-Id: r-1\r\n")
            self.assertEqual(connection.take_until(b"\r\n\r\n"),
                             b"HTTP/1.1 200 OK\r\nServer: cedar\r\nContent-Type: text/event-stream\r\n"
                             b"Transfer-Encoding: chunked\r\nCache-Control: no-cache\r\nX-Request-Id: r-1\r\n"
                             b"Connection: keep-alive\r\n\r\n")
            chunks = connection.take_chunks()
            self.assertEqual(masked(b"".join(chunks)), b"".join(self.expected()) + b"data: [DONE]\n\n")
            for piece in chunks:
                self.assertTrue(piece.startswith(b"data: ") and piece.endswith(b"\n\n"), "whole events only")
            # The connection is as good as new.
            connection.send("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
            connection.take_until(b"\r\n\r\n")
            data = masked(b"".join(connection.take_chunks()))
            expected = b"".join(self.expected(b',"usage":null')) + chunk(b"", usage=b',"usage":' + self.usage)
            self.assertEqual(without_hits(data), without_hits(expected + b"data: [DONE]\n\n"))

    def test_http_1_0_gets_no_chunks(self):
        with Connection(self.server.port) as connection:
            connection.send("/v1/chat/completions", CHAT, version="1.0")
            head = connection.take_until(b"\r\n\r\n")
            self.assertNotIn(b"Transfer-Encoding", head)
            self.assertIn(b"Connection: close\r\n", head)
            self.assertEqual(masked(connection.take_all()), b"".join(self.expected()) + b"data: [DONE]\n\n")

    def test_a_completion_stream(self):
        body = {"prompt": "04:00:00 E9118", "max_tokens": 3, "temperature": 0, "echo": True}
        plain = json.loads(self.server.request("POST", "/v1/completions", {**body, "return_token_ids": True})[2])
        pieces = ["04:00:00 E9118"] + [self.detokenized([token]) for token in plain["choices"][0]["token_ids"]]
        self.assertEqual("".join(pieces), plain["choices"][0]["text"])
        with Connection(self.server.port) as connection:
            connection.send("/v1/completions", {**body, "stream": True})
            connection.take_until(b"\r\n\r\n")
            events = [chunk(b'{"index":0,"text":' + json.dumps(text).encode() + b',"logprobs":null,"finish_reason":'
                            + reason + b"}", "text_completion")
                      for text, reason in [(text, b"null") for text in pieces] + [("", b'"length"')]]
            self.assertEqual(masked(b"".join(connection.take_chunks())), b"".join(events) + b"data: [DONE]\n\n")

    def test_characters_of_several_bytes_are_never_cut(self):
        # Greedy noise after a prompt of many scripts: whatever comes is well-formed in every single chunk.
        body = {"messages": [{"role": "user", "content": "日本語 русский 😀 naïve"}], "temperature": 2, "seed": 5, "stream": True,
                "max_tokens": 200, "ignore_eos": True}
        with Connection(self.server.port) as connection:
            connection.send("/v1/chat/completions", body)
            connection.take_until(b"\r\n\r\n")
            chunks = connection.take_chunks()
        text = ""
        for piece in chunks[:-1]:
            data = json.loads(piece.decode().removeprefix("data: "))
            text += data["choices"][0]["delta"].get("content", "")
        self.assertFalse(any(0xD800 <= ord(c) < 0xE000 for c in text))
        plain = json.loads(self.server.request("POST", "/v1/chat/completions", {**body, "stream": False})[2])
        self.assertEqual(text, plain["choices"][0]["message"]["content"])

    def test_an_error_before_the_first_byte_is_plain_json(self):
        with Connection(self.server.port) as connection:
            connection.send("/v1/chat/completions", {**CHAT, "messages": []})
            head = connection.take_until(b"\r\n\r\n")
            self.assertTrue(head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), head)
            self.assertIn(b"Content-Type: application/json\r\n", head)
            body = connection.take(int(re.search(rb"Content-Length: (\d+)", head).group(1)))
            self.assertEqual(body, b'{"error":{"message":"messages: must not be empty","type":"invalid_request_error",'
                                   b'"param":"messages","code":"invalid_request_error"}}')
            connection.send("/v1/chat/completions", {**CHAT, "max_tokens": 1})
            self.assertTrue(connection.take_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n"))

    def test_a_stop_of_the_server_ends_the_stream_in_good_order(self):
        with serve.Server(sys.argv[1]) as server, Connection(server.port) as connection:
            connection.send("/v1/chat/completions", {**CHAT, "temperature": 1, "max_tokens": 12000, "ignore_eos": True})
            connection.take_until(b"\r\n\r\n")
            connection.take_until(b"\r\n")
            server.begin_stop()
            rest = connection.take_all()
            # The answer, or an error event when it takes longer than the server waits; then the end, in any case.
            self.assertTrue(rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), rest[-300:])
            self.assertEqual(server.process.wait(serve.DEADLINE_S), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
