"""clients/js in Node: alone, and against a real `cedar serve`.

    javascript_test.py CEDAR

Status 77 (skipped) where there is no Node 18 or newer.
"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "javascript")


def main():
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        serve.skip("no Node here (Debian: nodejs)")
    version = subprocess.run([node, "--version"], stdout=subprocess.PIPE, text=True).stdout
    if int(re.match(r"v(\d+)", version).group(1)) < 18:
        serve.skip(f"Node {version.strip()} is older than 18")
    with serve.Server(sys.argv[1]) as server:
        for test in ("unit_test.js", "server_test.js"):
            environment = {**os.environ, "CEDAR_URL": server.url}
            status = subprocess.run([node, "--test", os.path.join(FOLDER, test)], env=environment).returncode
            if status != 0:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
