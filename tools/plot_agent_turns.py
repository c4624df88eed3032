#!/usr/bin/env python3
"""Draw the results of `bench/cluster/agent_turns.py --json FILE`.

    tools/plot_agent_turns.py RESULT.json -o PICTURE.png

Left: where the tokens of each turn's prompts came from. Right: the time to the first token, with and without a cache. Needs
matplotlib.
"""
import sys

import result_picture

PARTS = [("memory_tokens", "from memory", "#3b6ea5"), ("disk_tokens", "from disk", "#9bb8d3"),
         ("replayed_tokens", "cached, computed again", "#e0b04f"), ("new_tokens", "computed", "#c8553d")]


def parts_of(turn, sessions):
    """Tokens of a session's prompt. Tokens that are computed again are drawn once."""
    memory = turn["cached_tokens"] - turn["disk_tokens"]
    replayed = turn["replayed_tokens"]
    parts = {"new_tokens": turn["prompt_tokens"] - turn["cached_tokens"], "replayed_tokens": replayed,
             "disk_tokens": turn["disk_tokens"] - max(0, replayed - memory), "memory_tokens": max(0, memory - replayed)}
    return {name: tokens / sessions for name, tokens in parts.items()}


def draw(panels, report):
    turns = report["per_turn"]
    places = [t["turn"] for t in turns]
    shares, times = panels
    bottom = [0.0] * len(turns)
    for name, label, colour in PARTS:
        values = [parts_of(t, report["sessions"])[name] for t in turns]
        shares.bar(places, values, bottom=bottom, color=colour, label=label, width=0.85)
        bottom = [b + v for b, v in zip(bottom, values)]
    shares.set_ylabel("tokens of a prompt, mean of the sessions")
    times.plot(places, [t["cold_ttft_s"] for t in turns], "o-", markersize=3, color="#c8553d", label="without a cache")
    times.plot(places, [t["warm_ttft_s"] for t in turns], "o-", markersize=3, color="#3b6ea5", label="with a cache")
    for turn in turns[1:]:
        times.annotate(f"{turn['warm_over_cold']:.2f}", (turn["turn"], turn["warm_ttft_s"]), xytext=(0, 4),
                       textcoords="offset points", fontsize=6, ha="center", color="#3b6ea5")
    times.set_ylabel("first token after, s")
    times.set_ylim(bottom=0)
    killed = report["cache_killed_before_turn"] - 0.5
    for axes in panels:
        axes.axvline(killed, color="black", linewidth=0.8, linestyle=":", label="the cache node is killed and comes back")
        axes.set_xlabel("turn")
        axes.set_xticks(places[::2])
        axes.grid(alpha=0.3, axis="y")
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])
        axes.legend(fontsize=7, loc="upper left", ncol=2)


def picture(pyplot, report):
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    draw(panels, report)
    figure.suptitle(f"{report['sessions']} sessions, {report['prompt_tokens']:,} prompt tokens, "
                    f"{report['read_per_written']:.0f} read for one written; load {report['load_at_start']:.1f}; "
                    f"{report['machine'] or 'machine not named'}, {report['date'][:10]}", fontsize=9)
    return figure


if __name__ == "__main__":
    sys.exit(result_picture.main(__doc__, "bench/cluster/agent_turns.py",
                                 lambda report: report.get("benchmark") == "agent_turns", picture))
