"""A real `cedar serve` with the demo model, on a free port, for the tests of its clients."""
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLE = os.path.join(ROOT, "config", "demo", "sample_document.txt")
# A server with API keys: one for everything, and one with tight limits.
KEY = "clients-key-0123456789"
LIMITED_KEY = "limited-key-0123456789"
KEY_ENVIRONMENT = {"CEDAR_TEST_KEY": KEY, "CEDAR_LIMITED_KEY": LIMITED_KEY}
KEYS = """
[[keys]]
name = "clients"
env = "CEDAR_TEST_KEY"
[[keys]]
name = "limited"
env = "CEDAR_LIMITED_KEY"
requests_per_minute = 1
"""
DEADLINE_S = 180  # generous: programs under a sanitizer are slow
SKIPPED = 77  # ctest shows a test with this status as skipped


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def sample_question(code="E8236"):
    """A document of 4,000 tokens with a question, and the line that answers it."""
    with open(SAMPLE, encoding="utf-8") as f:
        text = f.read().rstrip("\n")
    line = next(line for line in text.split("\n") if f" {code} " in line)
    return f"{text}\n\nWhat is {code}?", line.split(" ", 1)[1]


def eventually(condition, what, deadline_s=DEADLINE_S):
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)


class Certificate:
    """A certificate for 127.0.0.1 that is its own authority, in a folder. Skips the test without the openssl program."""

    def __init__(self, folder, name="server"):
        if shutil.which("openssl") is None:
            skip("no openssl here (Debian: openssl)")
        self.certificate, self.key = os.path.join(folder, name + ".pem"), os.path.join(folder, name + ".key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                        "-keyout", self.key, "-out", self.certificate], check=True, stderr=subprocess.DEVNULL)

    @property
    def settings(self):
        return f'[http]\ntls_certificate = "{self.certificate}"\ntls_key = "{self.key}"\n'

    def context(self):
        """For a client that trusts this certificate only."""
        return ssl.create_default_context(cafile=self.certificate)


class Server:
    """`with Server(program) as server`: up until the end of the block. The program must then end by itself, status 0."""

    def __init__(self, program, port=0, arguments=(), settings=None, environment=None, stderr=None, tls=None):
        """`settings`: the text of a settings file. `environment`: variables besides those of this process. `tls`: the context
        of a client, where the settings name a certificate."""
        self.command = [program, "serve", "--model", os.path.join(ROOT, "config", "demo"), "--port", str(port), *arguments]
        self.settings = settings
        self.environment = {**os.environ, **(environment or {})}
        self.stderr = stderr
        self.tls = tls

    def __enter__(self):
        self.stopping = False
        command = self.command
        with tempfile.TemporaryDirectory() as folder:
            if self.settings is not None:
                path = os.path.join(folder, "settings.toml")
                with open(path, "w", encoding="utf-8") as f:
                    f.write(self.settings)
                command = [*command, "--config", path]
            return self._start(command)

    def _start(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.stderr, text=True, env=self.environment)
        for line in self.process.stdout:
            found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                return self
        raise AssertionError(f"cedar serve ended with status {self.process.wait()}")

    def __exit__(self, kind, *_):
        status = self.stop()
        if kind is None and status != 0:
            raise AssertionError(f"cedar serve ended with status {status}")

    def begin_stop(self):
        """Asks it to end, once: a second signal would end it at once."""
        if not self.stopping and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.stopping = True

    def stop(self):
        self.begin_stop()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request on a connection of its own."""
        if self.tls:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=DEADLINE_S, context=self.tls)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def metric(self, name):
        """The sum of a metric's series. `name` may carry labels: only series that have them all count."""
        name, _, labels = name.partition("{")
        wanted = [label for label in labels.rstrip("}").split(",") if label]
        total = 0.0
        for line in self.request("GET", "/metrics")[2].decode().splitlines():
            found = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
            if found and found.group(1) == name and all(label in (found.group(2) or "") for label in wanted):
                total += float(found.group(3))
        return total

    def wait_idle(self):
        """Until no request holds anything."""
        eventually(lambda: self.metric("cedar_actors_running_requests") + self.metric("cedar_decoder_sequences") == 0,
                   "the server became idle")


class FolderTest(unittest.TestCase):
    """With a folder of its own for the files that a server reads."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path
