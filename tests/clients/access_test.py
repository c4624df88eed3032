"""Access settings of a real `cedar serve`: where keys come from, that they show nowhere, and what is refused at the start.

    access_test.py CEDAR
"""
import hashlib
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402
import websocket  # noqa: E402

FILE_KEY = "of-a-file-0123456789"
ENV_KEY = "of-the-environment-0123"
HASHED_KEY = "of-a-digest-0123456789"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


class AccessTest(serve.FolderTest):
    def settings(self, key_file):
        digest = hashlib.sha256(HASHED_KEY.encode()).hexdigest()
        return (f'[[keys]]\nname = "file"\nfile = "{key_file}"\n[[keys]]\nname = "env"\nenv = "A_CEDAR_KEY"\n'
                f'[[keys]]\nname = "digest"\nsha256 = "{digest}"\n')

    def test_keys_from_everywhere_show_nowhere(self):
        path = self.write("settings.toml", self.settings(os.path.basename(self.write("a.key", FILE_KEY + "\n"))))
        log = os.path.join(self.folder, "log")
        with open(log, "w", encoding="utf-8") as stderr:
            server = serve.Server(sys.argv[1], arguments=("--config", path), environment={"A_CEDAR_KEY": ENV_KEY}, stderr=stderr)
            with server:
                for key in (FILE_KEY, ENV_KEY, HASHED_KEY):
                    headers = {"Authorization": f"Bearer {key}"}
                    self.assertEqual(server.request("POST", "/v1/chat/completions", HELLO, headers)[0], 200)
                    socket = websocket.WebSocket(server.port, f"cedar.v1, bearer.{key}")
                    self.addCleanup(socket.cut)
                    self.assertEqual(socket.status, 101)
                    wrong = {"Authorization": f"Bearer {key}x"}
                    status, _, body = server.request("POST", "/v1/chat/completions", HELLO, wrong)
                    self.assertEqual(status, 401)
                    self.assertNotIn(key, body.decode())
                self.assertEqual(server.request("GET", "/v1/models")[0], 401)
                metrics = server.request("GET", "/metrics")[2].decode()
                server.begin_stop()
                said = server.process.stdout.read()
        with open(log, encoding="utf-8") as f:
            said += f.read() + metrics
        for key in (FILE_KEY, ENV_KEY, HASHED_KEY):
            self.assertNotIn(key, said)

    def test_mistakes_are_told_at_the_start(self):
        short = self.write("short.key", "short-secret\n")
        spaced = self.write("spaced.key", "a secret with spaces in it\n")
        pipe = os.path.join(self.folder, "pipe.key")  # nobody writes to it
        os.mkfifo(pipe)
        key = self.write("a.key", FILE_KEY)
        digest = hashlib.sha256(FILE_KEY.encode()).hexdigest()
        for text, complaint in (
                ('[[keys]]\nname = "a"\n', "keys[0] must have exactly one of sha256, file and env"),
                (f'[[keys]]\nname = "a"\nfile = "{key}"\nenv = "X"\n', "keys[0] must have exactly one of"),
                (f'[[keys]]\nfile = "{key}"\n', "keys[0].name must have 1 to 64 bytes"),
                ('[[keys]]\nname = "a"\nfile = "no/such.key"\n', f"keys[0].file: {self.folder}/no/such.key: "),
                (f'[[keys]]\nname = "a"\nfile = "{pipe}"\n', f"keys[0].file: {pipe}: is not a regular file"),
                ('[http]\nhost = "example"\n', 'http.host must be an IP address or localhost, got "example"'),
                ('[http]\nallowed_hosts = ["cedar.example:80"]\n', "http.allowed_hosts must hold names such as cedar.example"),
                (f'[[keys]]\nname = "a"\nfile = "{short}"\n', f"keys[0].file: {short} must hold a key of 16 to 256"),
                (f'[[keys]]\nname = "a"\nfile = "{spaced}"\n', f"keys[0].file: {spaced} must hold a key of 16 to 256"),
                ('[[keys]]\nname = "a"\nenv = "NO_SUCH_CEDAR_KEY"\n', "keys[0].env: NO_SUCH_CEDAR_KEY is not set"),
                ('[[keys]]\nname = "a"\nsha256 = "abc"\n', "keys[0].sha256 must be 64 hexadecimal digits"),
                (f'[[keys]]\nname = "a"\nfile = "{key}"\n[[keys]]\nname = "b"\nsha256 = "{digest}"\n',
                 'keys[1] has the name or the key of "a"'),
                ('[http]\nallowed_origins = ["https://a.example/x"]\n',
                 'http.allowed_origins must hold origins such as https://host:port, or *, got "https://a.example/x"')):
            path = self.write("settings.toml", text)
            ended = subprocess.run([sys.argv[1], "serve", "--port", "0", "--config", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, timeout=serve.DEADLINE_S)
            self.assertEqual(ended.returncode, 2, text)
            self.assertIn(complaint, ended.stderr)
            for secret in ("short-secret", "a secret with", FILE_KEY):
                self.assertNotIn(secret, ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
