#!/usr/bin/env python3
"""Puts the traces of several processes into one file for Perfetto or chrome://tracing.

    tools/merge_traces.py gateway.json encoder.json decoder.json -o request.json

A trace whose process was killed lacks its end and is taken as far as it goes.
"""
import argparse
import json
import sys


def read(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    try:
        return json.loads(text)
    except ValueError:
        pass
    # One event per line; the last one may be torn.
    lines = text.rstrip().removeprefix("[").rstrip(",").splitlines()
    while lines:
        try:
            return json.loads("[" + "\n".join(lines).rstrip(",") + "]")
        except ValueError:
            lines.pop()
    raise ValueError(f"{path}: no trace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", help="files written with --trace")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    try:
        events = [event for path in options.traces for event in read(path)]
    except (OSError, ValueError) as error:
        print(f"merge_traces: {error}", file=sys.stderr)
        return 1
    with open(options.output, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
