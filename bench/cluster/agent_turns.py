#!/usr/bin/env python3
"""Sessions of agents on a cluster with a cache node: what of each turn's prompt has to be computed, where the rest comes
from, and how soon the first token is there, against the same prompts without a cache.

    bench/cluster/agent_turns.py [--cedar build/bin/cedar] [--turns 20] [--machine TEXT] [--json FILE]

The trace is generated: a few tenants with an instruction each that all their sessions begin with, a few sessions a tenant, one
task each. Every turn asks with all that came before, the answer and a tool's output appended; over the whole trace 154 tokens
are read for one that is written. The sessions take turns, one request at a time. The cache node's memory is a part of what the
sessions need, so that blocks come from its disk, too; in the middle of the trace that node is killed and comes back with its
disk alone. The prompts of one session of each tenant are then read by a cluster without a cache: the answers must be the same.
"""
import argparse
import datetime
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

TENANTS, SESSIONS = 2, 3
READ_PER_WRITTEN = 154
INSTRUCTION_TOKENS, TASK_TOKENS, TOOL_TOKENS = 2048, 256, 480
CONTEXT_TOKENS = 16384  # of the demo model
CACHE_MIB, DISK_MIB = 8, 256
V4_FLASH_BYTES = 3514  # a token, published: its KV cache, and as much again for windows where prefixes end
ENGINE = "[engine]\nthreads = {threads}\n[actors]\ncache_mib = {cache}\n"


def random_tokens(rng, count):
    return [rng.randrange(10, 1000) for _ in range(count)]


def make_trace(turns, rng):
    """Sessions as (tenant, first prompt, tool outputs between turns), and the length of every answer."""
    sessions = []
    for tenant in range(TENANTS):
        instruction = random_tokens(rng, INSTRUCTION_TOKENS)
        for _ in range(SESSIONS):
            outputs = [random_tokens(rng, int(TOOL_TOKENS * rng.uniform(0.3, 1.7))) for _ in range(turns - 1)]
            sessions.append((f"tenant-{tenant}", instruction + random_tokens(rng, TASK_TOKENS), outputs))
    # Prompts contain the answers before them: sum of prompts = fixed + answers * (0 + 1 + ... + turns - 1) per session.
    fixed = sum(len(first) * turns + sum(len(o) * (turns - 1 - i) for i, o in enumerate(outputs))
                for _, first, outputs in sessions)
    per_answer = len(sessions) * turns * (turns - 1) / 2
    answer = max(1, round(fixed / (READ_PER_WRITTEN * len(sessions) * turns - per_answer)))
    longest = max(len(first) + sum(map(len, outputs)) for _, first, outputs in sessions) + turns * answer
    if longest > CONTEXT_TOKENS:
        raise SystemExit(f"agent_turns: {longest} tokens at the end, the model has {CONTEXT_TOKENS}: fewer --turns")
    return sessions, answer


def ask(client, ids, tokens, salt):
    """A greedy answer's ids, the usage, and what it cost: seconds to the first token, and of the encoder's processor."""
    encoder_s = client.nodes["e1"].cpu_s()
    connection = http.client.HTTPConnection(client.host, client.port, timeout=harness.DEADLINE_S)
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt, "stream": True,
            "return_token_ids": True, "stream_options": {"include_usage": True}}
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit(f"agent_turns: {reply.status}: {reply.read().decode()}")
    first_s, answer, usage = None, [], None
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(f"agent_turns: {event['error']['message']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if first_s is None and choice.get("token_ids"):
                first_s = time.monotonic() - begin
            answer += choice.get("token_ids") or []
    connection.close()
    return answer, usage, {"ttft_s": first_s, "encoder_s": client.nodes["e1"].cpu_s() - encoder_s}


def measured(usage, cost, ids):
    details = usage["prompt_tokens_details"]
    cached, replayed = details["cached_tokens"], details["replayed_tokens"]
    return {"prompt_tokens": len(ids), "cached_tokens": cached, "disk_tokens": details["cached_tokens_disk"],
            "replayed_tokens": replayed, "computed_tokens": len(ids) - cached + replayed, "resume": details["resume"],
            **cost}


def play(cluster, sessions, answer_tokens, turns, restart):
    """All turns of all sessions, taking turns; what was measured of each, and every prompt with its answer."""
    prompts = [list(first) for _, first, _ in sessions]
    results, played = [], [[] for _ in sessions]
    for turn in range(turns):
        if turn == turns // 2:
            restart()
        for index, (tenant, _, outputs) in enumerate(sessions):
            ids = prompts[index]
            answer, usage, cost = ask(cluster, ids, answer_tokens, tenant)
            results.append({"turn": turn + 1, "session": index, **measured(usage, cost, ids)})
            played[index].append((list(ids), answer))
            ids += answer + (outputs[turn] if turn < len(outputs) else [])
    return results, played


def layout_of(program, model):
    """Of a KV block: its tokens, and what they cost."""
    inspect = subprocess.run([program, "inspect", model, "--json"], check=True, capture_output=True, text=True)
    return json.loads(inspect.stdout)["kv"]


def stored_bytes_per_token(program, folder, block_tokens):
    """What the disk tier's values hold for a token."""
    stat = subprocess.run([program, "cache", "stat", folder], check=True, capture_output=True, text=True).stdout
    numbers = {line.split()[0]: [int(n.replace(",", "")) for n in re.findall(r"[0-9][0-9,]*", line)]
               for line in stat.splitlines()}
    return numbers["bytes"][1] / (numbers["values"][0] * block_tokens)


def of_turn(results, turn):
    rows = [r for r in results if r["turn"] == turn]
    total = {key: sum(r[key] for r in rows) for key in
             ("prompt_tokens", "cached_tokens", "disk_tokens", "replayed_tokens", "computed_tokens")}
    resumes = {kind: sum(r["resume"] == kind for r in rows) for kind in ("none", "windows", "bounded", "exact")}
    compared = [r for r in rows if "cold" in r]
    warm_s = {key: statistics.mean(r[key] for r in compared) for key in ("ttft_s", "encoder_s")}
    cold_s = {key: statistics.mean(r["cold"][key] for r in compared) for key in ("ttft_s", "encoder_s")}
    return {"turn": turn, **total, "computed_share": total["computed_tokens"] / total["prompt_tokens"],
            "memory_share": (total["cached_tokens"] - total["disk_tokens"]) / total["prompt_tokens"],
            "disk_share": total["disk_tokens"] / total["prompt_tokens"], "resumes": resumes,
            "warm_ttft_s": warm_s["ttft_s"], "cold_ttft_s": cold_s["ttft_s"],
            "warm_over_cold": warm_s["ttft_s"] / cold_s["ttft_s"],
            "warm_encoder_s": warm_s["encoder_s"], "cold_encoder_s": cold_s["encoder_s"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--machine", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    program, turns = arguments.cedar, arguments.turns
    sessions, answer_tokens = make_trace(turns, random.Random(154))
    load = os.getloadavg()[0]
    nodes = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "c1": ["cache"]}
    settings = ENGINE.format(threads=len(os.sched_getaffinity(0)), cache=CACHE_MIB)
    with tempfile.TemporaryDirectory(prefix="cedar-blocks-") as folder:
        disk = {"c1": {"cache_directory": folder, "cache_disk_mib": DISK_MIB}}
        with harness.Cluster(program, harness.DEMO, nodes, settings, node_settings=disk) as cluster:
            def restart():
                cluster.nodes["c1"].send(signal.SIGKILL)
                cluster.nodes["c1"].process.wait()
                cluster.nodes["gw"].wait_log("node left node=c1")
                cluster.start("c1")
                cluster.nodes["c1"].wait_log("registered with gw")
            results, played = play(cluster, sessions, answer_tokens, turns, restart)
        demo = layout_of(program, harness.DEMO)
        stored = stored_bytes_per_token(program, folder, demo["block_tokens"])
    # One session of each tenant again, and nothing is known of it.
    del nodes["c1"]
    with harness.Cluster(program, harness.DEMO, nodes, settings) as cluster:
        for index in range(0, len(sessions), SESSIONS):
            rows = [r for r in results if r["session"] == index]
            for row, (ids, answer) in zip(rows, played[index]):
                cold_answer, usage, row["cold"] = ask(cluster, ids, answer_tokens, "")
                if cold_answer != answer or usage["prompt_tokens_details"]["cached_tokens"] != 0:
                    raise SystemExit(f"agent_turns: session {index}, turn {row['turn']}: another answer without a cache")
    release = layout_of(program, os.path.join(ROOT, "tests", "golden", "release"))

    per_turn = [of_turn(results, turn) for turn in range(1, turns + 1)]
    prompt = sum(r["prompt_tokens"] for r in results)
    later = [r for r in results if r["turn"] > 1]
    report = {
        "benchmark": "agent_turns", "machine": arguments.machine, "load_at_start": load,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tenants": TENANTS, "sessions": len(sessions), "turns": turns, "answer_tokens": answer_tokens,
        "prompt_tokens": prompt, "read_per_written": prompt / (len(results) * answer_tokens),
        "cache_mib": CACHE_MIB, "cache_killed_before_turn": turns // 2 + 1,
        "computed_share": sum(r["computed_tokens"] for r in results) / prompt,
        "replayed_share": sum(r["replayed_tokens"] for r in results) / prompt,
        "memory_share": sum(r["cached_tokens"] - r["disk_tokens"] for r in results) / prompt,
        "disk_share": sum(r["disk_tokens"] for r in results) / prompt,
        "windows_of_later_turns": sum(r["resume"] == "windows" for r in later) / len(later),
        "warm_over_cold_ttft_median": statistics.median(t["warm_over_cold"] for t in per_turn[1:]),
        "warm_over_cold_encoder_s": sum(t["warm_encoder_s"] for t in per_turn[1:]) /
        sum(t["cold_encoder_s"] for t in per_turn[1:]),
        "demo_bytes_per_token": demo["bytes_per_token"], "demo_bytes_per_token_on_disk": stored,
        "release_bytes_per_token": release["bytes_per_token"],
        "v4_flash_bytes_per_token": 2 * V4_FLASH_BYTES,
        "release_over_v4_flash": release["bytes_per_token"] / (2 * V4_FLASH_BYTES),
        "per_turn": per_turn,
    }
    show(report)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
            f.write("\n")


def show(report):
    print(f"{report['sessions']} sessions of {report['tenants']} tenants, {report['turns']} turns each: "
          f"{report['prompt_tokens']:,} tokens in prompts, {report['read_per_written']:.0f} read for one written")
    print("turn  prompt  computed  memory   disk  windows  replayed  first token: warm, cold, ratio")
    for t in report["per_turn"]:
        print(f"{t['turn']:4d} {t['prompt_tokens']:7,d} {t['computed_share']:9.1%} {t['memory_share']:7.1%} "
              f"{t['disk_share']:6.1%} {t['resumes']['windows']:5d}/{sum(t['resumes'].values())} {t['replayed_tokens']:9,d}"
              f"  {t['warm_ttft_s']:.3f} s, {t['cold_ttft_s']:.3f} s, {t['warm_over_cold']:.3f}")
    print(f"of all prompt tokens computed {report['computed_share']:.1%} ({report['replayed_share']:.1%} a second time), "
          f"from memory {report['memory_share']:.1%}, from disk {report['disk_share']:.1%}; "
          f"{report['windows_of_later_turns']:.1%} of the later turns had their windows")
    print(f"from the second turn on: first token after {report['warm_over_cold_ttft_median']:.3f} of the time without a "
          f"cache (median of the turns), {report['warm_over_cold_encoder_s']:.3f} of the encoder's processor time")
    print(f"kept on disk for a token of the demo model: {report['demo_bytes_per_token_on_disk']:.1f} bytes, of "
          f"{report['demo_bytes_per_token']:.1f} of the layout")
    print(f"kept on disk for a token of the release: {report['release_bytes_per_token']:.0f} bytes, global KV alone; "
          f"published of V4-Flash: 2 x {V4_FLASH_BYTES}; ratio 1/{1 / report['release_over_v4_flash']:.2f}")


if __name__ == "__main__":
    main()
