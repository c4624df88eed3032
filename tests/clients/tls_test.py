"""HTTPS and secure WebSockets of a real `cedar serve`.

    tls_test.py CEDAR
"""
import concurrent.futures
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402
import websocket  # noqa: E402

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificate = serve.Certificate(folder.name)
        cls.context = cls.certificate.context()
        settings = cls.certificate.settings + "tls_handshake_timeout_ms = 500\nmax_body_bytes = 8000000\n"
        cls.server = serve.Server(sys.argv[1], settings=settings, tls=cls.context)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None)

    def connect(self, context=None, **options):
        """An encrypted connection; its end without TLS's goodbye is an error."""
        plain = socket.create_connection(("127.0.0.1", self.server.port), timeout=serve.DEADLINE_S)
        self.addCleanup(plain.close)
        connection = (context or self.context).wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False, **options)
        self.addCleanup(connection.close)
        return connection

    @staticmethod
    def read_rest(connection):
        text = b""
        while piece := connection.recv(1 << 16):
            text += piece
        return text

    def test_answers_and_streams(self):
        self.assertTrue(self.server.url.startswith("https://"))
        status, _, whole = self.server.request("POST", "/v1/chat/completions", HELLO)
        self.assertEqual(status, 200)
        content = json.loads(whole)["choices"][0]["message"]["content"]
        status, headers, body = self.server.request("POST", "/v1/chat/completions", {**HELLO, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
        events = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: {")]
        self.assertEqual("".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events), content)
        self.assertTrue(body.endswith(b"data: [DONE]\n\n"))

    def test_one_connection_serves_many_requests_of_all_sizes(self):
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=serve.DEADLINE_S, context=self.context)
        self.addCleanup(connection.close)
        for size in (1, 100, 16383, 16384, 16385, 100000, 700000):
            connection.request("POST", "/tokenize", json.dumps({"prompt": "a " * size}))
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            self.assertEqual(reply.status, 200)
            self.assertEqual(len(answer["tokens"]), answer["count"])
            connection.request("POST", "/detokenize", json.dumps({"tokens": answer["tokens"]}))
            self.assertEqual(json.loads(connection.getresponse().read())["prompt"], "a " * size)

    def test_a_websocket(self):
        connection = websocket.WebSocket(self.server.port, tls=self.context)
        self.addCleanup(connection.cut)
        self.assertEqual(connection.status, 101)
        connection.send(json.dumps({"type": "ping", "nonce": "x" * 40000}))
        for n in range(3):
            connection.send(json.dumps({"type": "response.create", "response_id": f"resp_000{n}", "request": HELLO}))
        types = []
        while types.count("response.done") < 3:
            types.append(json.loads(connection.read())["type"])
        self.assertEqual(types[:2], ["session.created", "pong"])
        connection.send(b"\x03\xe8", websocket.CLOSE)
        self.assertEqual(connection.read_close_code(), 1000)
        self.server.wait_idle()

    def test_an_upgrade_and_messages_in_one_record(self):
        connection = self.connect()
        ping = b'{"type":"ping","nonce":"n"}'
        connection.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                           b"Sec-WebSocket-Protocol: cedar.v1\r\n\r\n" + b"\x81" + bytes([0x80 | len(ping)]) + b"\0\0\0\0" + ping)
        text = b""
        while b'"nonce":"n"' not in text:
            text += connection.recv(1 << 16)
        self.assertIn(b"101 Switching Protocols", text)

    def test_versions_and_protocol(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = self.certificate.context()
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(["h2", "http/1.1"])
            connection = self.connect(context)
            self.assertEqual(connection.selected_alpn_protocol(), "http/1.1")
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertIn(b'{"version":', self.read_rest(connection))
        old = self.certificate.context()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with self.assertRaises(OSError):
            self.connect(old)

    def test_a_client_that_does_not_trust_it_stays_away(self):
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.connect(ssl.create_default_context())

    def test_the_handshake_has_a_deadline(self):
        for opening in (b"", b"\x16\x03\x01"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=serve.DEADLINE_S) as silent:
                silent.sendall(opening)
                self.assertEqual(silent.recv(100), b"")

    def test_what_is_no_tls_is_closed(self):
        for opening in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", os.urandom(1000), b"\x16\x03\x01\xff\xff" + b"\0" * 70000):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=serve.DEADLINE_S) as other:
                try:
                    other.sendall(opening)
                    while other.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_a_refusal_arrives_though_its_body_does_not(self):
        connection = self.connect()
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 200000)
        text = self.read_rest(connection)
        self.assertTrue(text.startswith(b"HTTP/1.1 413 "), text[:100])
        self.assertIn(b"the body is longer than 8000000 bytes", text)

    def test_a_client_that_leaves_frees_its_work(self):
        connection = self.connect()
        body = json.dumps({**HELLO, "stream": True, "max_tokens": 12000, "ignore_eos": True}).encode()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertIn(b"200 OK", connection.recv(1 << 16))
        connection.close()
        self.server.wait_idle()

    def test_key_updates_without_data_are_bounded(self):
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{self.server.port}", "-tls1_3", "-CAfile", self.certificate.certificate]
        for updates, answered in ((10, True), (60, False)):
            with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
                said = b""

                def wait_for(text, count=1):
                    nonlocal said
                    while said.count(text) < count:
                        piece = os.read(client.stdout.fileno(), 1 << 16)
                        if not piece:
                            raise BrokenPipeError
                        said += piece

                try:
                    wait_for(b"Verify return code")
                    for n in range(updates):
                        client.stdin.write(b"K\n")
                        wait_for(b"KEYUPDATE", n + 1)
                    client.stdin.write(b"GET /version HTTP/1.0\r\n\r\n")
                except BrokenPipeError:
                    pass
                said += client.stdout.read()
                self.assertEqual(b'{"version":' in said, answered, updates)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_many_at_once(self):
        def ask(_):
            return self.server.request("POST", "/v1/chat/completions", {**HELLO, "stream": True})[2].endswith(b"[DONE]\n\n")

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(list(pool.map(ask, range(48))), [True] * 48)


class StartTest(serve.FolderTest):
    def test_mistakes_are_told_at_the_start(self):
        good, other = serve.Certificate(self.folder, "good"), serve.Certificate(self.folder, "other")
        pipe = os.path.join(self.folder, "pipe.pem")  # nobody writes to it
        os.mkfifo(pipe)
        garbage = self.write("garbage.pem", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
        locked = os.path.join(self.folder, "locked.key")
        subprocess.run(["openssl", "pkey", "-in", good.key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True)
        for certificate, key, complaint in (
                ("no/such.pem", good.key, f"http.tls_certificate: {self.folder}/no/such.pem: "),
                (good.certificate, "no/such.key", f"http.tls_key: {self.folder}/no/such.key: "),
                (pipe, good.key, f"http.tls_certificate: {pipe}: is not a regular file"),
                (good.certificate, pipe, f"http.tls_key: {pipe}: is not a regular file"),
                (good.certificate, "/dev/null", "http.tls_key: /dev/null: is not a regular file"),
                (self.folder, good.key, f"http.tls_certificate: {self.folder}: "),
                (good.certificate, "", "http.tls_key: is missing beside http.tls_certificate"),
                ("", good.key, "http.tls_certificate: is missing beside http.tls_key"),
                (garbage, good.key, f"http.tls_certificate: {garbage}: no PEM certificate"),
                (good.certificate, garbage, f"http.tls_key: {garbage}: no PEM private key"),
                (good.certificate, locked, f"http.tls_key: {locked}: no PEM private key without a password"),
                (good.certificate, other.key, f"http.tls_key: {other.key}: not the key of the certificate in {good.certificate}")):
            path = self.write("settings.toml", f'[http]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n')
            ended = subprocess.run([sys.argv[1], "serve", "--port", "0", "--config", path], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=serve.DEADLINE_S)
            self.assertEqual(ended.returncode, 2, complaint)
            self.assertIn(complaint, ended.stderr)

    def test_a_new_certificate_is_taken_at_sighup(self):
        served, new = serve.Certificate(self.folder, "served"), serve.Certificate(self.folder, "new")
        log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8")
        self.addCleanup(log.close)

        def logged(text):
            log.seek(0)
            return text in log.read()

        with serve.Server(sys.argv[1], settings=served.settings, tls=served.context(), stderr=log) as server:
            old_context = served.context()
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=serve.DEADLINE_S, context=old_context)
            connection.request("GET", "/version")
            connection.getresponse().read()
            # A broken pair changes nothing.
            shutil.copy(new.key, served.key)
            server.process.send_signal(signal.SIGHUP)
            serve.eventually(lambda: logged("certificate kept"), "the broken pair is seen")
            self.assertEqual(server.request("GET", "/version")[0], 200)
            # Nor does what cannot be read like a file: the next signal is heard.
            os.remove(served.certificate)
            os.mkfifo(served.certificate)
            server.process.send_signal(signal.SIGHUP)
            serve.eventually(lambda: logged(f"{served.certificate}: is not a regular file"), "the pipe is seen")
            os.remove(served.certificate)
            os.mkdir(served.certificate)
            server.process.send_signal(signal.SIGHUP)
            serve.eventually(lambda: logged(f"{served.certificate}: Is a directory"), "the folder is seen")
            os.rmdir(served.certificate)
            shutil.copy(new.certificate, served.certificate)
            server.process.send_signal(signal.SIGHUP)
            server.tls = new.context()

            def taken():
                try:
                    return server.request("GET", "/version")[0] == 200
                except ssl.SSLCertVerificationError:
                    return False

            serve.eventually(taken, "the new certificate is served")
            connection.request("GET", "/version")  # a connection from before goes on
            self.assertEqual(connection.getresponse().read()[:11], b'{"version":')
            connection.close()

    def test_a_sighup_while_the_model_loads_waits(self):
        served = serve.Certificate(self.folder)
        log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8")
        self.addCleanup(log.close)
        program = self.write("cedar", f'#!/bin/sh\nkill -HUP $$\nexec {shlex.quote(os.path.abspath(sys.argv[1]))} "$@"\n')
        os.chmod(program, 0o755)
        # Blocked, the signal stays pending from before the program begins.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        with serve.Server(program, settings=served.settings, tls=served.context(), stderr=log) as server:
            def read_again():
                log.seek(0)
                return "certificate read again" in log.read()

            serve.eventually(read_again, "the certificate is read again")
            self.assertEqual(server.request("GET", "/version")[0], 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
