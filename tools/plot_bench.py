#!/usr/bin/env python3
"""Draw the results of `cedar bench kernels --json FILE`.

    tools/plot_bench.py RESULT.json [MORE.json ...] -o PICTURE.png [--only TEXT]

One panel per run (file and thread count): a bar per case with the share of the ceiling that bounds it, coloured by that
ceiling; the rate itself stands beside the bar. Needs matplotlib.
"""
import argparse
import json
import sys

COLOURS = {"memory": "#3b6ea5", "bf16": "#c8553d", "f32": "#8a9a5b"}
CEILINGS = {"memory": ("read_bytes_per_s", "GB/s"), "bf16": ("bf16_flop_per_s", "GFLOP/s"),
            "f32": ("f32_flop_per_s", "GFLOP/s")}


def load_runs(paths):
    """[(title, run)] of every file; a run has threads, ceilings and results."""
    runs = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            report = json.load(f)
        if report.get("benchmark") != "kernels":
            raise ValueError(f"{path}: not a result of `cedar bench kernels`")
        for run in report["runs"]:
            threads = f"{run['threads']} thread" + ("s" if run["threads"] != 1 else "")
            runs.append((f"{report['machine']}, {report['isa']}, {threads}, {report['clock']} clock, {report['date']}", run))
    return runs


def rate_text(result):
    """The rate that the case's bound is about."""
    amount = result["bytes"] if result["bound"] == "memory" else result["flops"]
    return f"{amount / result['best_us'] / 1e3:.1f} {CEILINGS[result['bound']][1]}"


def draw_run(axes, title, run, only):
    results = [r for r in run["results"] if only in f"{r['op']} {r['shape']}"]
    places = range(len(results))
    shares = [100 * r["ratio"] for r in results]
    axes.barh(places, [min(s, 150) for s in shares], color=[COLOURS[r["bound"]] for r in results], height=0.7)
    for place, result, share in zip(places, results, shares):
        axes.text(min(share, 150) + 1, place, f"{share:.0f} %  ({rate_text(result)})", va="center", fontsize=7)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_yticks(places, [f"{r['op']} {r['shape']}" for r in results], fontsize=7)
    axes.set_xlim(0, 190)
    ceilings = ", ".join(f"{name} {run['ceilings'][key] / 1e9:.0f} {unit}" for name, (key, unit) in CEILINGS.items())
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlabel("share of the ceiling, % (bars end at 150: data in a cache may come faster than from memory)",
                    fontsize=8)
    axes.set_title(f"{title}\nceilings: {ceilings}", fontsize=9)
    handles = [axes.barh([0], [0], color=colour, label=f"bound by {name}") for name, colour in COLOURS.items()]
    axes.legend(handles=handles, fontsize=7, loc="lower right")
    return len(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="files written by --json")
    parser.add_argument("-o", "--output", required=True, help="picture to write")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    try:
        runs = load_runs(options.results)
    except (OSError, ValueError, KeyError) as error:
        print(f"plot_bench: {error}", file=sys.stderr)
        return 1

    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [max(2, 0.19 * len(run["results"]) + 1.2) for _, run in runs]
    figure, panels = pyplot.subplots(len(runs), 1, figsize=(11, sum(heights)), squeeze=False,
                                     gridspec_kw={"height_ratios": heights}, layout="constrained")
    for (title, run), row in zip(runs, panels):
        if draw_run(row[0], title, run, options.only) == 0:
            print(f"plot_bench: --only '{options.only}' matches nothing", file=sys.stderr)
            return 1
    figure.savefig(options.output, dpi=130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
