"""clients/js in Node: alone, and against a real `cedar serve`.

    javascript_test.py CEDAR

Status 77 (skipped) where there is no Node 18 or newer.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "javascript")


def run_test(node, test, environment, options=()):
    return subprocess.run([node, *options, "--test", os.path.join(FOLDER, test)], env={**os.environ, **environment}).returncode


def websocket_options(node):
    """The options with which this Node has a WebSocket of its own, or None."""
    for options in ([], ["--experimental-websocket"]):
        probe = [node, *options, "-e", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]
        if subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0:
            return options
    return None


def test_secure(node):
    options = websocket_options(node)
    if options is None:
        print("secure_test.js left out: this Node has no WebSocket of its own", flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        certificate = serve.Certificate(folder)
        with serve.Server(sys.argv[1], settings=certificate.settings + serve.KEYS, environment=serve.KEY_ENVIRONMENT,
                          tls=certificate.context()) as server:
            environment = {"CEDAR_URL": server.url, "CEDAR_KEY": serve.KEY}
            trusting = {**environment, "CEDAR_TRUSTED": "1", "NODE_EXTRA_CA_CERTS": certificate.certificate}
            return run_test(node, "secure_test.js", trusting, options) or run_test(node, "secure_test.js", environment, options)


def main():
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        serve.skip("no Node here (Debian: nodejs)")
    version = subprocess.run([node, "--version"], stdout=subprocess.PIPE, text=True).stdout
    if int(re.match(r"v(\d+)", version).group(1)) < 18:
        serve.skip(f"Node {version.strip()} is older than 18")
    with serve.Server(sys.argv[1]) as server:
        for test in ("unit_test.js", "server_test.js"):
            status = run_test(node, test, {"CEDAR_URL": server.url})
            if status != 0:
                return status
    return test_secure(node)


if __name__ == "__main__":
    sys.exit(main())
