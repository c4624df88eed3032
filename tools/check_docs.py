#!/usr/bin/env python3
"""Check that what texts name exists: links, paths, source files, make targets, subcommands of cedar, cited pages.

    tools/check_docs.py [ROOT]

Prints `file:line: what is missing` for every finding; exit status 1 if there are any. Looked at are link targets and
the words inside code spans and code blocks; words with placeholders (<room>, *, {a,b}, $X, x.h) are not. In every other
text file, comments of the code above all, pages are looked at: a path to a Markdown file must exist, and a citation of
the specification (spec/model.md 7.4) must be a section that docs/specification.md lists.
"""
import os
import re
import sys

# Files of the released model's own program and of other projects that our texts talk about.
FOREIGN = {
    "inference/model.py", "model.py", "kernel.py", "kernel_cpu.py", "engram.py", "vision.py", "image_processor.py",
}
# Made by the build or by running something.
MADE = re.compile(r"(build[\w-]*|\.cache|run)/")
SOURCE = re.compile(r"\.(h|hpp|cpp|cu|cuh|py|js|sh|cmake)$")
TEXT = re.compile(r"\.(md|toml|json|jsonl|yml|yaml|html|txt)$")
PLACEHOLDER = re.compile(r"(.*/)?[a-z](_\w+)?\.\w+$")  # x.cpp, x_test.cpp
PATH = re.compile(r"(\.{1,2}/)*[\w.-]+(/[\w.-]+)*/?$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
CODE = re.compile(r"(\.(h|hpp|cpp|cu|cuh|py|js|sh|cmake|txt|toml|yml|yaml)|Makefile)$")
PAGE = re.compile(r"(?<![\w./:*<>{}$-])((?:\.{1,2}/)*[\w-][\w.-]*(?:/[\w.-]+)+\.md)\b(?:,? (?:sections? )?(\d+)(?:\.\d+)*)?")
SPECIFICATION = "docs/specification.md"
# Its trees are made up.
NOT_READ = {"tests/tools/check_docs_test.py"}
SKIPPED_FOLDERS = re.compile(r"(\.git|\.venv|\.cache|__pycache__|node_modules|build.*)$")


class Tree:
    def __init__(self, root):
        self.root = root
        self.names, self.documents, self.code = set(), [], []
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if not SKIPPED_FOLDERS.match(f))
            self.names.update(files)
            self.documents += [os.path.relpath(os.path.join(folder, f), root) for f in sorted(files) if f.endswith(".md")]
            self.code += [os.path.relpath(os.path.join(folder, f), root) for f in sorted(files) if CODE.search(f)]
        self.top = {name for name in os.listdir(root) if not SKIPPED_FOLDERS.match(name)}
        self.make_targets = set(re.findall(r"^([a-z][\w-]*):", self.read("Makefile"), re.M))
        self.commands = set(re.findall(r'^\s*\{"([a-z]+)",', self.read("apps/main.cpp"), re.M))

        self.spec_sections = self.read_specification()

    def read_specification(self):
        """{(part, section)} of docs/specification.md; section None: the part itself."""
        found, part = set(), None
        for line in self.read(SPECIFICATION).splitlines():
            heading = re.match(r"## (spec/[\w-]+\.md)$", line)
            row = re.match(r"\| (\d+) \|", line)
            if heading:
                part = heading.group(1)
                found.add((part, None))
            elif line.startswith("## "):
                part = None
            elif row and part:
                found.add((part, row.group(1)))
        return found

    def read(self, path):
        try:
            with open(os.path.join(self.root, path), encoding="utf-8") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def exists(self, document, path):
        folder = os.path.dirname(document)
        # A name without ending stands for a header with its source, `core/arena` for core/arena.h and .cpp.
        return any(os.path.exists(os.path.join(self.root, base, path + ending))
                   for base in (folder, "") for ending in ("", ".h"))


def check_word(tree, document, word):
    """What is wrong with one word of code, or None."""
    word = re.sub(r":\d+(:\d+)?$", "", word.strip("\"'(),;")).rstrip(".,:")
    if not PATH.match(word) or word in FOREIGN or MADE.match(word) or PLACEHOLDER.match(word):
        return None
    if "/" not in word:
        if SOURCE.search(word) and word not in tree.names:
            return f"no file of the repository is called {word}"
        return None
    looks_like_ours = word.split("/")[0] in tree.top or word.startswith(("./", "../")) or SOURCE.search(word) or TEXT.search(word)
    if looks_like_ours and not tree.exists(document, word):
        return f"{word} does not exist"
    return None


def check_code(tree, document, code):
    words = code.split()
    for word in words:
        yield check_word(tree, document, word)
    for before, word in zip(words, words[1:]):
        if before == "make" and re.match(r"[a-z][\w-]*$", word) and word not in tree.make_targets:
            yield f"the Makefile has no target {word}"
        if before in ("cedar", "build/bin/cedar") and re.match(r"[a-z]+$", word) and word not in tree.commands:
            yield f"cedar has no subcommand {word}"


def check_document(tree, document):
    """[(line number, message)]"""
    found, in_block = [], False
    for number, line in enumerate(tree.read(document).splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
            continue
        indented = line.startswith("    ") and not line.lstrip().startswith(("-", "*", "|"))
        messages = []
        if in_block or indented:
            messages += check_code(tree, document, line.split(" #")[0])
        else:
            for target in LINK.findall(SPAN.sub("", line)):
                path = target.split("#")[0]
                if path and "://" not in path and not path.startswith("mailto:"):
                    folder = os.path.dirname(document)
                    if not os.path.exists(os.path.join(tree.root, folder, path)):
                        messages.append(f"link to {path}, which does not exist")
            for span in SPAN.findall(line):
                messages += check_code(tree, document, span)
        found += [(number, m) for m in messages if m]
    return found


def check_page(tree, file, path, section):
    """What is wrong with a page that a line of text names, or None."""
    if not path.startswith("spec/"):
        return None if tree.exists(file, path) else f"{path} does not exist"
    if (path, None) not in tree.spec_sections:
        return f"{SPECIFICATION} does not list {path}"
    if section and (path, section) not in tree.spec_sections:
        return f"{SPECIFICATION} does not list section {section} of {path}"
    return None


def check_pages(tree, file):
    """[(line number, message)]"""
    found = []
    for number, line in enumerate(tree.read(file).splitlines(), 1):
        messages = (check_page(tree, file, *match.groups()) for match in PAGE.finditer(line))
        found += [(number, m) for m in messages if m]
    return found


def check(root):
    """Every finding as text."""
    tree = Tree(root)
    found = [(document, *finding) for document in tree.documents for finding in check_document(tree, document)]
    found += [(file, *finding) for file in tree.code if file not in NOT_READ for finding in check_pages(tree, file)]
    return [f"{file}:{number}: {message}" for file, number, message in found]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = check(root)
    for line in found:
        print(line)
    if not found:
        tree = Tree(root)
        print(f"check_docs: {len(tree.documents)} documents and {len(tree.code)} other files, no finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
