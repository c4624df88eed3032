#!/usr/bin/env python3
"""Put the web page together and write it as C++ text.

    tools/embed_page.py INDEX.html STYLE.css OUTPUT.cpp SCRIPT.js...

INDEX.html has the lines `{{style}}` and `{{script}}` where the style and the scripts go; the scripts become one module,
in the order given, with their imports (and exports) of each other and the word `export` taken out. The page's Content-Security-Policy
allows exactly these two inline parts, by their hashes. The output defines cedar::gateway::kPage (gateway/page.h).
"""
import base64
import hashlib
import re
import sys

IMPORT = re.compile(r'^(import|export) \{[^}]*\} from "\./[^"]*";\n', re.M)
EXPORT = re.compile(r"^export (?=(async function|function|class|const|let)\b)", re.M)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def join_scripts(texts):
    """One module text. What it still imports or exports would not work inside a page."""
    script = "\n".join(EXPORT.sub("", IMPORT.sub("", text)).strip("\n") for text in texts)
    left = re.search(r"^\s*(import|export)\b.*", script, re.M)
    if left:
        raise ValueError("cannot be put into the page: " + left.group(0).strip())
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a script that contains </script or <!-- would end early")
    return script + "\n"


def source_hash(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def assemble(index, style, script):
    """(html, Content-Security-Policy) of the page."""
    style, script = "\n" + style.strip("\n") + "\n", "\n" + script
    parts = {"{{style}}\n": style, "{{script}}\n": script}
    html = index
    for mark, text in parts.items():
        if html.count(mark) != 1:
            raise ValueError(f"the page needs {mark.strip()} once")
        html = html.replace("\n" + mark, text)
    policy = "; ".join([
        "default-src 'none'",
        "script-src " + source_hash(script),
        "style-src " + source_hash(style),
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text of a model or of a person can become markup: the browser refuses innerHTML and its like.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ])
    return html, policy


def literal(text):
    """A C++ string literal, a line of the text each."""
    lines = []
    for line in text.splitlines(keepends=True):
        # Octal escapes have at most three digits, so that what follows them cannot join in.
        body = "".join(chr(b) if 0x20 <= b < 0x7F and chr(b) not in '"\\?' else f"\\{b:03o}" for b in line.encode())
        lines.append(f'    "{body}"')
    return "\n".join(lines) or '    ""'


def main():
    index, style, output, *scripts = sys.argv[1:]
    html, policy = assemble(read(index), read(style), join_scripts([read(path) for path in scripts]))
    etag = '"' + hashlib.sha256(html.encode()).hexdigest()[:20] + '"'
    text = f"""// Made by tools/embed_page.py.
#include "gateway/page.h"

namespace cedar::gateway {{

const Page kPage{{
{literal(html)},
{literal(etag)},
{literal(policy)}}};

}}  // namespace cedar::gateway
"""
    with open(output, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
