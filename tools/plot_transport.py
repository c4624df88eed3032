#!/usr/bin/env python3
"""Draw the results of `cedar bench transport --json FILE`.

    tools/plot_transport.py RESULT.json -o PICTURE.png

One panel per link: the rate of pulls by size beside ucx_perftest's in the same run, with the ratio at each point, and the
rate of the hand-off of a long prompt as a line. Needs matplotlib.
"""
import sys

import result_picture


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def draw_link(axes, report, handoff):
    pulls = [p for p in report["pulls"] if p["link"] == handoff["link"]]
    sizes = [p["bytes"] for p in pulls]
    ours = [p["bytes_per_s"] / 1e9 for p in pulls]
    theirs = [p["perftest_bytes_per_s"] / 1e9 for p in pulls]
    axes.plot(sizes, theirs, "o--", color="#8a9a5b", label=f"ucx_perftest {pulls[0]['perftest']}")
    axes.plot(sizes, ours, "o-", color="#3b6ea5", label=f"pull, {report['in_flight']} in flight")
    for size, rate, reference in zip(sizes, ours, theirs):
        if reference > 0:
            axes.annotate(f"{rate / reference:.2f}", (size, rate), textcoords="offset points", xytext=(0, -14),
                          ha="center", fontsize=7)
    axes.axhline(handoff["bytes_per_s"] / 1e9, color="#c8553d", linewidth=1,
                 label=f"hand-off of {handoff['tokens']} tokens: {handoff['bytes'] / 1e6:.1f} MB in "
                       f"{1e3 * handoff['seconds']:.1f} ms")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_text(s) for s in sizes], fontsize=7, rotation=30)
    axes.set_ylabel("GB/s")
    axes.set_title(f"{handoff['link']}: {handoff['lanes']}", fontsize=9)
    axes.legend(fontsize=7, loc="lower right")
    axes.grid(alpha=0.3)


def picture(pyplot, report):
    figure, panels = pyplot.subplots(1, len(report["handoffs"]), figsize=(5.5 * len(report["handoffs"]), 4.2),
                                     squeeze=False, layout="constrained")
    for axes, handoff in zip(panels[0], report["handoffs"]):
        draw_link(axes, report, handoff)
    figure.suptitle(f"{report['machine']}; numbers at the points: share of ucx_perftest in the same run", fontsize=9)
    return figure


if __name__ == "__main__":
    sys.exit(result_picture.main(__doc__, "`cedar bench transport`",
                                 lambda report: report.get("benchmark") == "transport", picture))
