"""tools/embed_page.py: how the web page is put together."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "embed_page.py")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import embed_page  # noqa: E402

INDEX = "<style>\n{{style}}\n</style>\n<script type=\"module\">\n{{script}}\n</script>\n"


class Scripts(unittest.TestCase):
    def test_modules_become_one(self):
        joined = embed_page.join_scripts([
            "export class A {}\nexport const b = 1;\nconst exported = 'export const';\n",
            'import { A, b } from "./a.js";\nexport { A } from "./a.js";\nexport async function f() {}\n'])
        self.assertEqual(joined, "class A {}\nconst b = 1;\nconst exported = 'export const';\nasync function f() {}\n")

    def test_an_import_over_several_lines(self):
        self.assertEqual(embed_page.join_scripts(['import {\n  A,\n  B,\n} from "./a.js";\nA();\n']), "A();\n")

    def test_what_cannot_be_inside_a_page(self):
        for text in ('import x from "./a.js";', 'import { x } from "elsewhere";', "export default 1;",
                     "const a = '</script>';", "// <!-- "):
            with self.assertRaises(ValueError, msg=text):
                embed_page.join_scripts([text])


class Page(unittest.TestCase):
    def test_the_policy_names_what_is_inside(self):
        html, policy = embed_page.assemble(INDEX, "b { color: red }\n", "run();\n")
        for tag in ("style", "script"):
            inside = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", html, re.S).group(1)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            self.assertIn(f"{tag}-src 'sha256-{digest}'", policy)

    def test_every_part_has_its_place(self):
        with self.assertRaises(ValueError):
            embed_page.assemble("<p></p>", "", "")

    def test_literals_hold_the_same_bytes(self):
        text = 'a "quoted" \\ line?\n\x7f\u00e9\U0001f600 7\n\n end'
        source = embed_page.literal(text)
        body = "".join(re.findall(r'^    "(.*)"$', source, re.M))
        read = re.sub(rb"\\(\d{3})", lambda m: bytes([int(m.group(1), 8)]), body.encode())
        self.assertEqual(read.decode(), text)

    def test_the_program_writes_a_source(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, name) for name in ("index.html", "style.css", "a.js", "out.cpp")}
            for name, text in (("index.html", INDEX), ("style.css", ""), ("a.js", "run();\n")):
                with open(paths[name], "w") as f:
                    f.write(text)
            subprocess.run([sys.executable, "-B", TOOL, paths["index.html"], paths["style.css"], paths["out.cpp"],
                            paths["a.js"]], check=True)
            with open(paths["out.cpp"]) as f:
                self.assertIn("const Page kPage{", f.read())


if __name__ == "__main__":
    unittest.main()
