#!/usr/bin/env python3
"""Draw Grafana's dashboards of monitoring/dashboards/ without Grafana: their queries, asked of a Prometheus that watches a cluster.

    tools/plot_dashboards.py --url http://127.0.0.1:9090 -o FOLDER [--seconds 300] [--step 2] [--only NAME]

One picture a dashboard, panels where they are in Grafana. Needs matplotlib. Exit status 1 if a query of a panel has no data.
"""
import argparse
import glob
import json
import math
import os
import re
import sys
import time
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLOURS = ["#3b6ea5", "#c8553d", "#6a994e", "#8d6cab", "#e09f3e", "#4f5d75", "#b56576", "#2a9d8f", "#9c6644", "#7f7f7f"]


def ask(url, query, begin, end, step):
    """[(labels, times, values)] of a range query."""
    parameters = {"query": query, "start": begin, "end": end, "step": step}
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}", timeout=60) as reply:
        result = json.load(reply)["data"]["result"]
    return [(series["metric"], [float(t) for t, _ in series["values"]], [float(v) for _, v in series["values"]])
            for series in result]


def label_of(legend, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m.group(1), ""), legend)


def units(unit):
    """A formatter of an axis."""
    def thousands(value, base, names):
        for name in names:
            if abs(value) < base:
                return f"{value:.3g}{name}"
            value /= base
        return f"{value:.3g}P"

    if unit == "percentunit":
        return lambda value, _: f"{100 * value:.3g} %"
    if unit == "s":
        return lambda value, _: f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
    if unit in ("bytes", "Bps"):
        return lambda value, _: thousands(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) + ("/s" if unit == "Bps" else "")
    return lambda value, _: thousands(value, 1000, ["", " k", " M", " G"])


def binary_ticks(top):
    """Where an axis of bytes has its lines: powers of two, at most six."""
    step = 2.0 ** math.ceil(math.log2(top / 6)) if top > 6 else 1.0
    return [step * i for i in range(int(top / step) + 1)]


def draw_panel(axes, panel, options, begin, end):
    from matplotlib.ticker import FuncFormatter
    colour, missing = 0, []
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", f"{options.window}s")
        series = ask(options.url, query, begin, end, options.step)
        if not any(math.isfinite(v) for _, _, values in series for v in values):
            missing.append(query)
        for labels, times, values in sorted(series, key=lambda s: sorted(s[0].items())):
            axes.plot([t - begin for t in times], values, color=COLOURS[colour % len(COLOURS)], linewidth=1.4,
                      label=label_of(target["legendFormat"], labels))
            colour += 1
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.set_xlim(0, end - begin)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] <= 1e-9 or all(not any(v > 0 for v in line.get_ydata()) for line in axes.lines):
        axes.set_ylim(0, 1)
    if panel["fieldConfig"]["defaults"]["unit"] in ("bytes", "Bps"):
        axes.set_yticks(binary_ticks(axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(FuncFormatter(units(panel["fieldConfig"]["defaults"]["unit"])))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    if colour:
        axes.legend(fontsize=7, ncols=min(4, colour), loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    return missing


def draw(dashboard, options, begin, end):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    panels = dashboard["panels"]
    columns = 1 + max(p["gridPos"]["x"] // p["gridPos"]["w"] for p in panels)
    rows = 1 + max(p["gridPos"]["y"] // p["gridPos"]["h"] for p in panels)
    figure, grid = pyplot.subplots(rows, columns, figsize=(5.0 * columns, 3.1 * rows), squeeze=False)
    missing = []
    for panel in panels:
        place = panel["gridPos"]
        axes = grid[place["y"] // place["h"]][place["x"] // place["w"]]
        missing += [(panel["title"], query) for query in draw_panel(axes, panel, options, begin, end)]
    figure.suptitle(f"{dashboard['title']} ({end - begin:.0f} s)", fontsize=13, x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.985), h_pad=1.6)
    path = os.path.join(options.folder, f"dashboard-{dashboard['uid'].removeprefix('cedar-')}.png")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    print(path)
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:9090")
    parser.add_argument("-o", dest="folder", required=True)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--step", type=float, default=2)
    parser.add_argument("--window", type=int, default=15, help="seconds of rates")
    parser.add_argument("--only")
    options = parser.parse_args()
    end = time.time()
    missing = []
    for path in sorted(glob.glob(os.path.join(ROOT, "monitoring", "dashboards", "*.json"))):
        if options.only and options.only != os.path.basename(path).removesuffix(".json"):
            continue
        with open(path, encoding="utf-8") as f:
            missing += draw(json.load(f), options, end - options.seconds, end)
    for title, query in missing:
        print(f"no data: {title}: {query}", file=sys.stderr)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
