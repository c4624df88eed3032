#!/usr/bin/env python3
"""Draw the results of `cedar bench serve --synthetic --json FILE`.

    tools/plot_serve.py RESULT.json -o PICTURE.png

Left: the share of tokens that came later than a time, for each run. Right: the 99th percentile of each second, so that one
sees whether readers that do not read, whose buffers are full after a while, change anything for the others. Needs
matplotlib.
"""
import sys

import result_picture

COLOURS = ["#3b6ea5", "#c8553d"]


def title_of(run):
    if run["slow_connections"] == 0:
        return f"all {run['connections']:,} read"
    return f"{run['slow_connections']:,} of {run['connections']:,} do not read"


def draw(panels, report):
    late, seconds = panels
    for run, colour in zip(report["runs"], COLOURS):
        added = run["added_latency_ms"]
        label = f"{title_of(run)}: p50 {added['p50']:.2f}, p99 {added['p99']:.2f}, max {added['max']:.1f} ms"
        points = [(ms, 1 - q) for q, ms in run["added_latency_quantiles_ms"] if q < 1]
        late.plot([p[0] for p in points], [p[1] for p in points], "o-", markersize=3, color=colour, label=label)
        of_seconds = run["added_latency_p99_of_each_second_ms"]
        # The last one holds what is left of a second.
        seconds.plot(range(len(of_seconds) - 2), of_seconds[:-2], color=colour, label=title_of(run))
    late.set_xscale("log")
    late.set_yscale("log")
    late.set_xlabel("added latency of a token, ms")
    late.set_ylabel("share of tokens that came later")
    late.legend(fontsize=7, loc="lower left")
    seconds.set_xlabel("second of the run")
    seconds.set_ylabel("p99 of the tokens of this second, ms")
    seconds.set_ylim(bottom=0)
    seconds.legend(fontsize=7)
    for axes in panels:
        axes.grid(alpha=0.3)


def picture(pyplot, report):
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw(panels, report)
    first = report["runs"][0]
    figure.suptitle(f"{report['machine']}; {first['tokens_per_s']:,.0f} tokens/s on WebSockets, "
                    f"{report['tokens_per_s_of_a_stream']:g} of each answer", fontsize=9)
    return figure


if __name__ == "__main__":
    sys.exit(result_picture.main(__doc__, "`cedar bench serve --synthetic`",
                                 lambda report: report.get("benchmark") == "serve" and report.get("kind") == "synthetic", picture))
