#!/usr/bin/env python3
"""Compare answers with what make_prompts.py wanted.

    check_answers.py prompts.jsonl answers.jsonl

An answer is right when its text equals "want" exactly. Prints the wrong ones, a table by kind and length, and last
`N passed, N failed`; a prompt without an answer has failed. Exit status 1 if any failed.
"""
import json
import sys
from collections import defaultdict


def load(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    prompts = load(sys.argv[1])
    answers = {a["id"]: a for a in load(sys.argv[2])}
    cells, right = defaultdict(lambda: [0, 0]), 0
    for p in prompts:
        answer = answers.get(p["id"])
        got = answer.get("text") if answer else None
        ok = got == p["want"]
        right += ok
        cell = cells[p["kind"], p["target_tokens"]]
        cell[0] += ok
        cell[1] += 1
        if not ok:
            print(f"{p['id']}: wanted {p['want']!r}, got {'no answer' if got is None else repr(got)}")
    lengths = sorted({length for _, length in cells})
    print("kind".ljust(10) + "".join(f"{n:>10}" for n in lengths))
    for kind in sorted({kind for kind, _ in cells}):
        row = [cells.get((kind, n)) for n in lengths]
        print(kind.ljust(10) + "".join(f"{c[0]:>7}/{c[1]:<2}" if c else " " * 10 for c in row))
    print(f"{right} passed, {len(prompts) - right} failed")
    return right != len(prompts)


if __name__ == "__main__":
    sys.exit(main())
