#!/usr/bin/env python3
"""Run the steps of a Dockerfile without a container engine: in chroots of Debian, made by debootstrap. As root.

    tools/run_dockerfile.py docker/cpu.Dockerfile --work DIR [--ccache DIR] [--until STAGE]

Every stage is a copy of one base that `debootstrap --variant=minbase` makes in DIR (debian:12 and its -slim differ by documentation only).
RUN steps run there with the stage's shell, environment and working directory; COPY obeys .dockerignore. At last the image's entry
point is started as the image's user with a read-only root, as the compose files do, asked for /livez and a completion, and stopped by the
image's signal. What layers, registries and the engine's own isolation do is not tried. --ccache: a compiler cache to use in RUN steps.

Exit status: 0 if every step and the program did.
"""
import argparse
import collections
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUITE = {"debian:12": "bookworm", "debian:12-slim": "bookworm"}
MIRROR = "http://deb.debian.org/debian"

Step = collections.namedtuple("Step", "word text")


def parse(text):
    """The steps in order, continued lines joined, comments gone."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(None, 1)) for line in joined.splitlines()]


def ignored_by(text):
    """Whether a path of the context stays outside: the last line of .dockerignore that matches it or a folder above decides."""
    rules = [line for line in text.split() if not line.startswith("#")]

    def ignored(path):
        parts = path.split("/")
        folders = ["/".join(parts[:i + 1]) for i in range(len(parts))]
        verdict = False
        for rule in rules:
            pattern = rule.lstrip("!").removeprefix("**/")
            if any(fnmatch.fnmatch(f, pattern) or fnmatch.fnmatch(f.rsplit("/", 1)[-1], pattern) and "**/" in rule
                   for f in folders):
                verdict = not rule.startswith("!")
        return verdict
    return ignored


def run(command, **more):
    subprocess.run(command, check=True, **more)


class Stage:
    """One chroot and what the steps so far have set."""

    def __init__(self, root):
        self.root = root
        self.folder, self.user, self.shell = "/", "0:0", ["/bin/sh", "-c"]
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.entrypoint, self.command, self.signal = [], [], "SIGTERM"

    def inside(self, path):
        return os.path.join(self.root, os.path.join(self.folder, path).lstrip("/"))

    def wrapped(self, command, prepare=""):
        """A command line that runs `command` in a mount namespace of its own with the root, as the user, in the folder. Of a
        `prepare` the mounts are made first."""
        environment = [f"{k}={v}" for k, v in self.environment.items()]
        enter = ["chroot", "--userspec=" + self.user, self.root, "/usr/bin/env", "-i", *environment, "/bin/sh", "-c",
                 f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"]
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-euc",
                f"mount -t proc proc {self.root}/proc; mount --rbind /dev {self.root}/dev; {prepare} exec {shlex.join(enter)}"]


class Build:
    def __init__(self, work, ccache):
        self.work, self.ccache = work, ccache
        self.stages = {}
        with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as f:
            text = f.read()
        self.ignored = ignored_by(text)
        self.entered = {os.path.dirname(rule[1:]) for rule in text.split() if rule.startswith("!")}  # folders with exceptions inside

    def base(self, image):
        folder = os.path.join(self.work, "base-" + SUITE[image])
        if not os.path.isdir(folder):
            run(["debootstrap", "--variant=minbase", SUITE[image], folder + ".new", MIRROR], stdout=subprocess.DEVNULL)
            os.rename(folder + ".new", folder)
        return folder

    def step(self, stage, step):
        if step.word == "FROM":
            image, _, name = step.text.partition(" AS ")
            root = os.path.join(self.work, name or "image")
            shutil.rmtree(root, ignore_errors=True)
            run(["cp", "-a", self.base(image), root])
            shutil.copy("/etc/resolv.conf", os.path.join(root, "etc/resolv.conf"))
            for name_of in filter(None, (name,)):
                self.stages[name_of] = root
            return Stage(root)
        if step.word == "WORKDIR":
            stage.folder = os.path.join(stage.folder, step.text)
            os.makedirs(stage.inside(""), exist_ok=True)
        elif step.word == "ENV":
            for pair in shlex.split(step.text):
                key, value = pair.split("=", 1)
                stage.environment[key] = re.sub(r"\$(\w+)", lambda m: stage.environment.get(m.group(1), ""), value)
        elif step.word == "COPY":
            self.copy(stage, step.text.split())
        elif step.word == "ADD":
            url, target = step.text.split()
            run(["curl", "-fsSL", "-o", stage.inside(target), url])
        elif step.word == "RUN":
            prepare = ""
            if self.ccache:
                os.makedirs(stage.inside("/var/cache/ccache"), exist_ok=True)
                prepare = f"mount --bind {self.ccache} {stage.root}/var/cache/ccache;"
                stage.environment |= {"CCACHE_DIR": "/var/cache/ccache", "CCACHE_BASEDIR": stage.folder, "CCACHE_NOHASHDIR": "1"}
            run(stage.wrapped([*stage.shell, step.text], prepare))
        elif step.word in ("SHELL", "ENTRYPOINT", "CMD"):
            setattr(stage, {"SHELL": "shell", "ENTRYPOINT": "entrypoint", "CMD": "command"}[step.word], json.loads(step.text))
        elif step.word == "USER":
            stage.user = step.text
        elif step.word == "STOPSIGNAL":
            stage.signal = step.text
        elif step.word != "EXPOSE":
            raise SystemExit(f"run_dockerfile: no {step.word} here")
        return stage

    def copy(self, stage, words):
        source_root, filtered = ROOT, True
        if words[0].startswith("--from="):
            source_root, filtered = self.stages[words.pop(0).removeprefix("--from=")], False
        *sources, target = words
        for source in sources:
            origin = os.path.normpath(os.path.join(source_root, source.lstrip("/")))
            if os.path.isfile(origin):
                os.makedirs(os.path.dirname(stage.inside(target)), exist_ok=True)
                shutil.copy(origin, stage.inside(target))
                continue
            for folder, folders, files in os.walk(origin):
                inner = os.path.relpath(folder, origin)
                folders[:] = [f for f in folders if not (filtered and self.outside(os.path.join(folder, f)))]
                for f in files:
                    if not (filtered and self.outside(os.path.join(folder, f), False)):
                        os.makedirs(os.path.normpath(os.path.join(stage.inside(target), inner)), exist_ok=True)
                        shutil.copy2(os.path.join(folder, f), os.path.join(stage.inside(target), inner, f))

    def outside(self, path, is_folder=True):
        inner = os.path.relpath(path, ROOT)
        return self.ignored(inner) and not (is_folder and inner in self.entered)


def ask(port, path, body=None):
    command = ["curl", "-fsS", "-m", "60", f"http://127.0.0.1:{port}{path}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def start(stage, port):
    """The entry point, as the compose files start it: its user, a read-only root, a /tmp in memory."""
    root = stage.root
    read_only = f"mount --bind {root} {root}; mount -o remount,ro,bind {root}; mount -t proc proc {root}/proc; " \
        f"mount --rbind /dev {root}/dev; mount -t tmpfs tmpfs {root}/tmp;"
    command = [*stage.entrypoint, *stage.command, "--port", str(port)]
    process = subprocess.Popen(stage.wrapped(command, read_only))
    try:
        end = time.monotonic() + 60
        while ask(port, "/livez") is None:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("run_dockerfile: the image's program does not answer")
            time.sleep(0.2)
        answer = ask(port, "/v1/completions", {"prompt": "Hello", "max_tokens": 4})
        if answer is None:
            raise SystemExit("run_dockerfile: the image's program completes nothing")
        print("image: " + answer.strip()[:200])
        [program] = pids_in(root)
        uid = re.search(r"^Uid:\s+(\d+)", open(f"/proc/{program}/status", encoding="utf-8").read(), re.M).group(1)
        if uid != stage.user.split(":")[0]:
            raise SystemExit(f"run_dockerfile: it runs as {uid}")
        subprocess.run(["kill", "-" + stage.signal.removeprefix("SIG"), str(program)], check=True)
        status = process.wait(60)
        if status != 0:
            raise SystemExit(f"run_dockerfile: stopped with {stage.signal}, it ended with status {status}")
    finally:
        if process.poll() is None:
            process.kill()


def pids_in(root):
    """Processes whose root folder that is and that are no shell."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/root") == root and not os.readlink(f"/proc/{pid}/exe").endswith(("sh", "env")):
                found.append(int(pid))
        except OSError:
            continue
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("dockerfile")
    options.add_argument("--work", required=True)
    options.add_argument("--ccache")
    options.add_argument("--port", type=int, default=18080)
    options.add_argument("--until", help="end after this stage")
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("run_dockerfile: needs root, for chroot")
    os.makedirs(given.work, exist_ok=True)
    with open(given.dockerfile, encoding="utf-8") as f:
        steps = parse(f.read())
    build, stage = Build(os.path.abspath(given.work), given.ccache), None
    for step in steps:
        if step.word == "FROM" and given.until in build.stages:
            return
        begin = time.monotonic()
        print(f"{step.word} {step.text[:100]}", flush=True)
        stage = build.step(stage, step)
        print(f"  {time.monotonic() - begin:.1f} s", flush=True)
    start(stage, given.port)
    print("run_dockerfile: every step ran, the image's program answered as its user and ended")


if __name__ == "__main__":
    main()
