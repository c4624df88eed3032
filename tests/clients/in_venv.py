"""Run a test with the packages of the requirements.txt beside it.

    in_venv.py FOLDER TEST.py [ARGUMENTS]

They are installed into the virtual environment FOLDER when it is not there yet or requirements.txt has changed; without what
they depend on where its first line is "# complete": then all of it is listed.
Status 77 (skipped), with the reason, when the package index cannot be reached.
"""
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

UNREACHABLE = re.compile(r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|name resolution|"
                         r"ProxyError|Connection (refused|reset)|Network is unreachable|Max retries exceeded|ProtocolError")


def install(folder, requirements):
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    made = subprocess.run([sys.executable, "-m", "venv", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        serve.skip("no virtual environment can be made (Debian: python3-venv): " + made.stdout.strip())
    command = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--retries", "2", "--only-binary", ":all:", "-r", requirements]
    with open(requirements, encoding="utf-8") as f:
        if f.readline().strip() == "# complete":
            command.append("--no-deps")
    installed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if installed.returncode != 0:
        if UNREACHABLE.search(installed.stdout):
            serve.skip("the package index cannot be reached: " + installed.stdout.strip()[-400:])
        sys.exit(installed.stdout)


def main():
    folder, test, *arguments = sys.argv[1:]
    test = os.path.abspath(test)
    requirements = os.path.join(os.path.dirname(test), "requirements.txt")
    with open(requirements, "rb") as f:
        wanted = hashlib.sha256(f.read() + sys.version.encode()).hexdigest()
    stamp = os.path.join(folder, "installed")
    # Several tests may come at once; the first one installs.
    with open(folder + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(stamp) as f:
                ready = f.read() == wanted
        except OSError:
            ready = False
        if not ready:
            install(folder, requirements)
            with open(stamp, "w") as f:
                f.write(wanted)
    python = os.path.join(folder, "bin", "python")
    os.execv(python, [python, "-B", test, *arguments])


if __name__ == "__main__":
    main()
