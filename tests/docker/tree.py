"""What the tests of docker/ share: reading its files, and asking the program what a cluster file means."""
import os
import re
import shutil
import subprocess
import tempfile

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCKER = os.path.join(ROOT, "docker")
DEMO = os.path.join(ROOT, "config", "demo")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def documents(*path):
    return list(yaml.safe_load_all(read(*path)))


def image_user(dockerfile):
    """uid and gid that the image of a Dockerfile runs as: its last USER."""
    user = re.findall(r"^USER (\d+):(\d+)$", read("docker", dockerfile), re.M)[-1]
    return int(user[0]), int(user[1])


class ClusterFile:
    """A cluster file where its model and its secret exist."""

    def __init__(self, program, *path):
        self.program = program
        self.folder = tempfile.mkdtemp(prefix="cedar-docker-")
        secret = os.path.join(self.folder, "secret")
        with open(secret, "w", encoding="utf-8") as f:
            f.write("open sesame\n")
        text = re.sub(r'^secret_file = .*$', f'secret_file = "{secret}"', read(*path), flags=re.M)
        text = re.sub(r'^directory = .*$', f'directory = "{DEMO}"', text, flags=re.M)
        self.path = os.path.join(self.folder, "cluster.toml")
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text)

    def close(self):
        shutil.rmtree(self.folder)

    def check(self):
        """Empty, or what is wrong."""
        run = subprocess.run([self.program, "config", "check", self.path], capture_output=True, text=True)
        complaint = "" if run.returncode == 0 else run.stdout + run.stderr
        return complaint + "".join(line for line in (run.stdout + run.stderr).splitlines() if line.startswith("note:"))

    def settings(self, node):
        """(table, key) -> text of its value, for a node; its own table is "node"."""
        run = subprocess.run([self.program, "config", "show", self.path, node], capture_output=True, text=True)
        if run.returncode != 0:
            raise AssertionError(f"no node {node}: {run.stderr}")
        table, found = "", {}
        for line in run.stdout.splitlines():
            heading = re.match(r"\[+(\w+)\]+$", line)
            value = re.match(r"(\w+) = (.*)$", line)
            if heading:
                table = heading.group(1)
            elif value:
                found[table, value.group(1)] = value.group(2)
        return found


def port_of(address):
    """Of "host:port" in quotes."""
    return int(address.strip('"').rsplit(":", 1)[1])
