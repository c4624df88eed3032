"""docs/websocket.md says what the gateway does: names and codes are compared with its source, the example is run, and
close codes are provoked.

    websocket_docs_test.py CEDAR
"""
import glob
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402
import websocket  # noqa: E402

# Closed with by the WebSocket library, before the gateway's own code sees anything.
LIBRARY_CODES = {1002, 1007, 1009}


def read(*path):
    with open(os.path.join(serve.ROOT, *path), encoding="utf-8") as f:
        return f.read()


def source():
    """The gateway's C++ text with string literals in one form."""
    text = "\n".join(read(path) for path in sorted(glob.glob(os.path.join(serve.ROOT, "gateway", "*.cpp"))))
    return text.replace('\\"', '"')


DOCUMENT = read("docs", "websocket.md")


def section(title):
    return DOCUMENT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text):
    return [row.strip("`") for row in re.findall(r"^\| (`[\w.]+`|\d+) \|", text, re.M)]


class Names(unittest.TestCase):
    def test_messages(self):
        handled = re.findall(r'type == "([\w.]+)"', read("gateway", "stream_protocol.cpp"))
        self.assertEqual(sorted(first_cells(section("What a client sends"))), sorted(set(handled)))

    def test_events(self):
        text = source()
        sent = set(re.findall(r'"type":"([\w.]+)"', text))
        sent |= set(re.findall(r'add(?:_delta)?\(\s*"([\w.]+)"', text))
        sent = {name for name in sent if name in ("error", "pong") or name.startswith(("response.", "session."))}
        self.assertEqual(sorted(first_cells(section("What the server sends"))), sorted(sent))

    def test_error_codes(self):
        sent = set(re.findall(r'protocol_error\(\s*"(\w+)"', source()))
        self.assertEqual(sorted(first_cells(section("Errors"))), sorted(sent))

    def test_close_codes(self):
        body = re.search(r"enum class CloseCode[^{]*\{([^}]*)\}", read("gateway", "frame_target.h")).group(1)
        codes = {int(code) for code in re.findall(r"= (\d+)", body)}
        self.assertEqual({int(cell) for cell in first_cells(section("Close codes"))}, codes | LIBRARY_CODES)

    def test_fields(self):
        """Every field name in the source that an event can have is in the document."""
        text = read("gateway", "stream_response.cpp") + read("gateway", "stream_protocol.cpp").replace('\\"', '"')
        fields = set(re.findall(r'(?:\bfield|text_field)\("(\w+)"', text)) | set(re.findall(r'[{,]"(\w+)":', text))
        missing = sorted(name for name in fields if f"`{name}`" not in DOCUMENT and f'"{name}"' not in DOCUMENT)
        self.assertEqual(missing, [])


def masked(event):
    """The event without what differs from run to run; that it looks as documented is kept."""
    event = dict(event)
    for name, pattern in (("event_id", r"evt_[0-9a-f]{16}"), ("session_id", r"sess_\w{24}"), ("seed", r"\d+"),
                          ("server_time", r"\d{10}"), ("created", r"\d{10}")):
        if name in event and re.fullmatch(pattern, str(event[name])):
            event[name] = pattern
    return event


def in_short(events):
    """[fields in their order] with deltas joined that follow each other, a new greeting between them or not."""
    short, text = [], ""
    for event in events:
        if event["type"] == "response.content.delta":
            text += event["delta"]
        if event["type"] == "response.content.done":
            short.append(text)
        fields = [(name, value) for name, value in masked(event).items() if name not in ("seq", "delta")]
        if not (event["type"] == "response.content.delta" and fields in short):
            short.append(fields)
    return short


class Session(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server(sys.argv[1])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None)

    def connect(self, **options):
        connection = websocket.WebSocket(self.server.port, **options)
        self.addCleanup(connection.cut)
        return connection

    def test_the_example(self):
        """The same messages lead to the same events. How many tokens a delta has is a matter of speed."""
        lines = re.search(r"```\n(.*?)```", section("An answer from start to end, over two connections"), re.S).group(1)
        shown = [json.loads(line[3:]) for line in lines.splitlines() if line.startswith("<- ")]
        connection, seen, last_seq = self.connect(), [], 0
        # What the client does, with the last event that the document shows until it does something else.
        for line, answers in re.findall(r"^((?:->|   ).*|)\n?((?:<- .*\n)+)", lines, re.M):
            if line.startswith("-> "):
                message = json.loads(line[3:])
                if "last_seq" in message:
                    message["last_seq"] = last_seq
                connection.send(json.dumps(message))
            elif line:
                connection.cut()
                connection = self.connect()
            wanted = json.loads(answers.splitlines()[-1][3:])["type"]
            while True:
                seen.append(json.loads(connection.read()))
                if "seq" in seen[-1]:
                    self.assertEqual(seen[-1]["seq"], last_seq + 1)
                    last_seq += 1
                if seen[-1]["type"] == wanted:
                    break
        self.assertEqual(in_short(seen), in_short(shown))

    def test_close_codes(self):
        provoke = {
            1002: lambda c: c.send("{}", masked=False),
            1003: lambda c: c.send(b"x", websocket.BINARY),
            1007: lambda c: c.send(b"\xff\xfe"),
            4000: lambda c: (c.send("no JSON"), c.send('{"type":"unheard_of"}')),
        }
        for code, action in provoke.items():
            connection = self.connect()
            action(connection)
            self.assertEqual(connection.read_close_code(), code)
            self.assertIn(f"\n| {code} |", section("Close codes"))

    def test_a_message_over_the_limit(self):
        connection = self.connect()
        limit = json.loads(connection.read())["limits"]["max_message_bytes"]
        # Its announced length is enough.
        connection.socket.sendall(b"\x81\xff" + (limit + 1).to_bytes(8, "big") + b"\0\0\0\0")
        self.assertEqual(connection.read_close_code(), 1009)

    def test_answers_to_the_upgrade(self):
        self.assertEqual(self.connect(protocols="other").status, 400)
        self.assertEqual(self.server.request("GET", "/v1/stream")[0], 426)

    def test_the_server_stops(self):
        with serve.Server(sys.argv[1]) as server:
            connection = websocket.WebSocket(server.port)
            self.addCleanup(connection.cut)
            connection.read()
            server.begin_stop()
            going = json.loads(connection.read())
            self.assertEqual((going["type"], going["reason"]), ("session.going_away", "shutdown"))
            self.assertEqual(connection.read_close_code(), 1001)

    def test_ids_and_retries(self):
        """The table of the same name."""
        create = {"type": "response.create", "response_id": "resp_retry_01", "event_id": "c1",
                  "request": {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "max_tokens": 15000}}

        def say(connection, message):
            connection.send(json.dumps(message))

        def next_of(connection, *types):
            while True:
                event = json.loads(connection.read())
                if event["type"] in types:
                    return event

        first, second = self.connect(), self.connect()
        say(first, create)
        next_of(first, "response.content.delta")
        say(second, create)
        self.assertEqual(next_of(second, "error")["error"]["code"], "response_in_use")
        say(second, {**create, "request": {"messages": [{"role": "user", "content": "Bye"}]}})
        self.assertEqual(next_of(second, "error")["error"]["code"], "response_id_conflict")
        say(second, {"type": "response.resume", "response_id": "resp_retry_01", "last_seq": 1})
        self.assertEqual(next_of(second, "response.progress", "response.in_progress")["seq"], 2)
        self.assertEqual(next_of(first, "error")["error"]["code"], "stream_moved")
        second.cut()
        third = self.connect()
        serve.eventually(lambda: self.taken_over(third, create), "the answer was without a connection")
        say(third, {"type": "response.cancel", "response_id": "resp_retry_01"})
        self.assertEqual(next_of(third, "response.done")["status"], "cancelled")

    @staticmethod
    def taken_over(connection, create):
        connection.send(json.dumps(create))
        while True:
            event = json.loads(connection.read())
            if event["type"] == "response.created":
                return True
            if event["type"] == "error":
                return False


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
