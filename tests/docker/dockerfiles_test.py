"""docker/*.Dockerfile: what linters of Dockerfiles ask for, and that what they copy and run exists.

    dockerfiles_test.py CEDAR

tools/run_dockerfile.py runs their steps.
"""
import json
import os
import re
import subprocess
import sys
import unittest

import tree

sys.path.insert(0, os.path.join(tree.ROOT, "tools"))
import run_dockerfile  # noqa: E402

FILES = ("cpu.Dockerfile", "cuda.Dockerfile")
KNOWN = {"FROM", "WORKDIR", "COPY", "ADD", "RUN", "ENV", "SHELL", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


class Dockerfiles(unittest.TestCase):
    def each(self, check):
        for name in FILES:
            with self.subTest(file=name):
                check(run_dockerfile.parse(tree.read("docker", name)))

    def test_stages(self):
        def check(steps):
            self.assertEqual({step.word for step in steps} - KNOWN, set())
            images = [step.text.split()[0] for step in steps if step.word == "FROM"]
            self.assertEqual(images, ["debian:12", "debian:12-slim"])  # named versions, compilers stay in the first
        self.each(check)

    def test_the_last_stage_is_a_users(self):
        def check(steps):
            last = steps[max(i for i, step in enumerate(steps) if step.word == "FROM"):]
            words = [step.word for step in last]
            [user] = [step.text for step in last if step.word == "USER"]
            self.assertRegex(user, r"^[1-9]\d*:[1-9]\d*$")
            self.assertGreater(words.index("USER"), max(i for i, w in enumerate(words) if w in ("RUN", "COPY")))
            uid = user.split(":")[0]
            self.assertTrue(any(f"useradd --system --uid {uid}" in step.text for step in last))
            # As lists: a signal reaches the program, not a shell.
            for word in ("ENTRYPOINT", "CMD"):
                [text] = [step.text for step in last if step.word == word]
                self.assertIsInstance(json.loads(text), list)
        self.each(check)

    def test_package_lists_are_removed_and_nothing_is_pulled_in(self):
        def check(steps):
            for step in steps:
                if step.word == "RUN" and "apt-get install" in step.text:
                    self.assertIn("--no-install-recommends", step.text)
                    self.assertIn("rm -rf /var/lib/apt/lists/*", step.text)
        self.each(check)

    def test_copied_files_exist_and_are_not_ignored(self):
        ignored = run_dockerfile.ignored_by(tree.read(".dockerignore"))
        def check(steps):
            for step in steps:
                if step.word == "COPY" and not step.text.startswith("--from"):
                    for source in step.text.split()[:-1]:
                        self.assertTrue(os.path.exists(os.path.join(tree.ROOT, source)), source)
                        self.assertFalse(source != "." and ignored(source), source)
        self.each(check)

    def test_what_the_build_reads_is_not_ignored(self):
        ignored = run_dockerfile.ignored_by(tree.read(".dockerignore"))
        tracked = subprocess.run(["git", "ls-files"], cwd=tree.ROOT, capture_output=True, text=True)
        if tracked.returncode != 0:
            self.skipTest("not a git checkout")
        paths = tracked.stdout.splitlines()
        left_out = {path.split("/")[0] for path in paths if ignored(path)}
        for path in paths:
            if not ignored(path) and re.search(r"\.(h|cpp|cu|cuh)$", path):
                for name in re.findall(r'^#include "(tests/[^"]+)"', tree.read(path), re.M):
                    self.assertFalse(ignored(name), f"{path} includes {name}")
        self.assertTrue(left_out <= {".ci", ".clang-format", ".clang-tidy", ".dockerignore", ".gitignore", "tests", "CONTRIBUTING.md",
                                     "Makefile"}, left_out)

    def test_exposed_ports_are_those_of_the_settings(self):
        kubernetes = tree.read("docker", "kubernetes", "cluster.toml")
        def check(steps):
            [ports] = [step.text.split() for step in steps if step.word == "EXPOSE"]
            self.assertEqual(set(ports), {"8080", *re.findall(r'\w:(\d\d+)"', kubernetes), *re.findall(r'\*:(\d+)"', kubernetes)})
        self.each(check)


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
