#!/usr/bin/env python3
"""Writes model/unicode_classes_data.inc from the class ranges of the tokenizer's golden data.

The ranges come from the regex engine that the reference tokenizer uses, so the compiled tables need no
Unicode library and cannot drift with one. Usage: tools/make_unicode_classes.py (from anywhere).
"""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests/golden/tokenizer/unicode_classes.json"
TARGET = ROOT / "model/unicode_classes_data.inc"
LIMIT = 0x110000
# The bits of enum CharClass in model/unicode_classes.h.
LETTER, MARK, NUMBER, PUNCTUATION, SPACE, CJK, NEWLINE = 1, 2, 4, 8, 16, 32, 64


def class_of_each_code_point(ranges):
    classes = bytearray(LIMIT)
    for name, bit in (("L", LETTER), ("N", NUMBER), ("PS", PUNCTUATION), ("WS", SPACE), ("CJK", CJK)):
        for first, last in ranges[name]:
            for code in range(first, last + 1):
                classes[code] |= bit
    for first, last in ranges["LM"]:
        for code in range(first, last + 1):
            if not classes[code] & LETTER:
                classes[code] |= MARK
    for code in (0x0A, 0x0D):
        classes[code] |= NEWLINE
    return classes


def runs(classes):
    """(first code point, class) of every maximal run of one class."""
    out = [(0, classes[0])]
    for code in range(1, LIMIT):
        if classes[code] != out[-1][1]:
            out.append((code, classes[code]))
    return out


def main():
    table = runs(class_of_each_code_point(json.loads(SOURCE.read_text())))
    lines = [
        "// Written by tools/make_unicode_classes.py. Each entry is the first code point of a run, shifted left",
        "// by 8, and the run's class bits (enum CharClass).",
    ]
    row = ""
    for first, cls in table:
        entry = f"0x{first << 8 | cls:x},"
        if len(row) + len(entry) + 1 > 100:
            lines.append(row)
            row = entry
        else:
            row = f"{row} {entry}" if row else entry
    lines.append(row)
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"{TARGET.relative_to(ROOT)}: {len(table)} runs")


if __name__ == "__main__":
    main()
