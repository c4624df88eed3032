"""tools/check_docs.py on small trees: what a document names and the tree lacks must be found, and nothing else."""
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_docs  # noqa: E402

TREE = {
    "Makefile": "run:\n\ttrue\ntest: run\n",
    "apps/main.cpp": '    {"serve", "serve a model", run_serve},\n',
    "core/ids.h": "",
    "docs/formats/wire.md": "",
    "docs/specification.md": "## spec/model.md\n| 7 | attention |\n## Other\n| 9 | x |\n",
}


def check(text, document="docs/page.md"):
    with tempfile.TemporaryDirectory() as root:
        for path, content in {**TREE, document: text}.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(content)
        return check_docs.check(root)


class CheckDocs(unittest.TestCase):
    def expect_missing(self, text, line, words):
        found = check(text)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"docs/page.md:{line}: "), found)
        self.assertIn(words, found[0])

    def test_what_exists_is_fine(self):
        self.assertEqual(check(
            "`core/ids.h`, `core/ids`, `ids.h`, `core/`, `formats/wire.md`, [wire](formats/wire.md#top), [up](../core/ids.h)\n"
            "`make test`, `cedar serve --port 1`, `build/bin/cedar serve`, `core/ids.h:12`\n"
            "```\nmake run  # make nothing of this\n```\n"), [])

    def test_what_is_no_path_is_left_alone(self):
        self.assertEqual(check(
            "`/v1/models`, `text/event-stream`, `a/b`, `core/<room>.h`, `core/*.h`, `x.cpp`, `core/x_test.cpp`, `.ids/_values`, `n / r`, `model.py`,\n"
            "`build/made.h`, make it so, cedar tree, [site](https://example.org/x.md), [top](#top), `[n, d](x)`\n"), [])

    def test_missing_files(self):
        self.expect_missing("\nsee `core/gone.h`\n", 2, "core/gone.h does not exist")
        self.expect_missing("`oldroom/ids.cpp`\n", 1, "oldroom/ids.cpp does not exist")
        self.expect_missing("`formats/gone.md`\n", 1, "formats/gone.md does not exist")
        self.expect_missing("`../gone`\n", 1, "../gone does not exist")
        self.expect_missing("`gone.py`\n", 1, "is called gone.py")
        self.expect_missing("    python3 core/gone.py --x\n", 1, "core/gone.py does not exist")
        self.expect_missing("text\n```\ncat core/gone.h\n```\n", 3, "core/gone.h does not exist")

    def test_dead_links(self):
        self.expect_missing("[x](gone.md)\n", 1, "link to gone.md")

    def test_pages_that_code_names(self):
        fine = "// docs/formats/wire.md, spec/model.md, spec/model.md 7.4, https://x.org/a/b.md, docs/<x>.md, x.md\n"
        self.assertEqual(check(fine, "core/ids.h"), [])
        for text, words in [
            ("see docs/gone.md.", "docs/gone.md does not exist"),
            ("spec/gone.md 7", "does not list spec/gone.md"),
            ("(spec/model.md 8.1)", "does not list section 8 of spec/model.md"),
            ("spec/model.md section 9", "does not list section 9 of spec/model.md"),
        ]:
            for file in ("core/ids.h", "tools/x.py", "clients/js/x.js", "core/CMakeLists.txt"):
                found = check("\n# " + text + "\n", file)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(f"{file}:2: "), found)
                self.assertIn(words, found[0])

    def test_make_targets_and_subcommands(self):
        self.expect_missing("`make fly`\n", 1, "no target fly")
        self.expect_missing("`cedar fly --high`\n", 1, "no subcommand fly")
        self.expect_missing("    build/bin/cedar fly\n", 1, "no subcommand fly")


if __name__ == "__main__":
    unittest.main()
