#!/usr/bin/env python3
"""Draws one request of merged traces (tools/merge_traces.py): its phases, the encoder's chunks, what was pulled, the decoder's
steps.

    tools/plot_trace.py MERGED.json -o PICTURE.png [--request N]

Needs matplotlib.
"""
import argparse
import json
import sys

COLOURS = {"queue": "#bbbbbb", "reserve": "#d9b26f", "prefill": "#3b6ea5", "hand-over": "#c8553d", "replay": "#7d5ba6",
           "decode": "#4f9d69", "reroute": "#000000"}
ROWS = ["phases of the request (gateway)", "chunks of the prompt (encoder)", "pulls (decoder)", "steps (decoder)"]


def spans(events):
    begins = {}
    for event in events:
        key = (event["pid"], event.get("cat"), event["name"], event.get("id"))
        if event["ph"] == "b":
            begins[key] = event
        elif event["ph"] == "e" and key in begins:
            begin = begins.pop(key)
            yield event["cat"], event["name"], begin["ts"], event["ts"], begin["args"]
        elif event["ph"] == "X":
            yield "work", event["name"], event["ts"], event["ts"] + event["dur"], event["args"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--request", type=int, help="its number at the gateway (default: the last one)")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as f:
        everything = list(spans(json.load(f)))
    phases = [s for s in everything if s[0] == "phase" and "request" in s[4]]
    if not phases:
        print("plot_trace: no request in this trace", file=sys.stderr)
        return 1
    request = options.request or max(s[4]["request"] for s in phases)
    phases = [s for s in phases if s[4]["request"] == request]
    begin, end = min(s[2] for s in phases), max(s[3] for s in phases)

    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(11, 3.4))

    def bar(row, span, colour):
        # What is too short to be seen is drawn as a line.
        width = max(span[3] - span[2], (end - begin) / 500)
        axes.broken_barh([((span[2] - begin) / 1e3, width / 1e3)], (row + 0.1, 0.8), facecolor=colour,
                         edgecolor="white", linewidth=0.4 if width > (end - begin) / 100 else 0)

    for span in everything:
        if span[3] < begin or span[2] > end:
            continue
        if span in phases:
            bar(3, span, COLOURS.get(span[1], "#888888"))
        elif span[1] == "chunk":
            bar(2, span, "#3b6ea5")
        elif span[0] == "pull":
            bar(1, span, "#c8553d" if span[1] == "blocks" else "#7d5ba6")
        elif span[1] == "step":
            bar(0, span, "#4f9d69")
    for name, colour in COLOURS.items():
        if any(s[1] == name for s in phases):
            axes.broken_barh([], (0, 0), color=colour, label=name)
    axes.set_yticks([3.5, 2.5, 1.5, 0.5], ROWS)
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_xlabel("ms since the request came")
    axes.legend(ncol=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.16), frameon=False)
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(options.output, dpi=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
