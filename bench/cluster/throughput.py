#!/usr/bin/env python3
"""Tokens read per second as encoder nodes are added, in the shape of agents' work (154 tokens read for each one written), and
the processor time that each role takes: which role is the bottleneck.

    bench/cluster/throughput.py [--cedar build/bin/cedar] [--encoders 1,2,3] [--requests 24] [--json FILE]

Every engine has one thread, so that a node is worth one core; CLIENTS requests are under way at a time. A role's share is its
processor time over what its nodes could have had in that time, one core each.
"""
import argparse
import json
import os
import queue
import random
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

PROMPT_TOKENS = 2 * 1540
ANSWER_TOKENS = 20
CLIENTS = 6
ENGINE = "[engine]\nthreads = 1\nmax_sequences = 8\n"


def ask(client, ids):
    status, answer = client.complete(ids, ANSWER_TOKENS, ignore_eos=True)
    if status != 200 or answer["usage"] != [PROMPT_TOKENS, ANSWER_TOKENS]:
        raise AssertionError(f"{status}: {answer}")


def run(cedar, encoders, requests, rng):
    nodes = {"gw": ["gateway"], "decoder": ["decoder"], **{f"encoder-{i}": ["encoder"] for i in range(encoders)}}
    prompts = [[rng.randrange(10, 1000) for _ in range(PROMPT_TOKENS)] for _ in range(requests)]
    with harness.Cluster(cedar, harness.DEMO, nodes, ENGINE) as cluster:
        harness.in_parallel([lambda i=i: ask(cluster, prompts[0][i:] + prompts[0][:i]) for i in range(2 * encoders)])
        before = {name: node.cpu_s() for name, node in cluster.nodes.items()}
        work = queue.Queue()
        for prompt in prompts:
            work.put(prompt)

        def client():
            while True:
                try:
                    ids = work.get_nowait()
                except queue.Empty:
                    return
                ask(cluster, ids)

        begin = time.monotonic()
        harness.in_parallel([client] * CLIENTS)
        wall = time.monotonic() - begin
        cpu = {name: node.cpu_s() - before[name] for name, node in cluster.nodes.items()}
    roles = {role: [seconds for name, seconds in cpu.items() if name.startswith(role)] for role in ("gw", "encoder", "decoder")}
    return {"encoders": encoders, "wall_s": wall, "read_tokens_per_s": requests * PROMPT_TOKENS / wall,
            "written_tokens_per_s": requests * ANSWER_TOKENS / wall, "cpu_s": cpu,
            "share": {role: sum(seconds) / (wall * len(seconds)) for role, seconds in roles.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--encoders", default="1,2,3")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rng = random.Random(5)
    counts = [int(n) for n in arguments.encoders.split(",")]
    rounds = [[run(arguments.cedar, n, arguments.requests, rng) for n in counts] for _ in range(arguments.rounds)]
    # The median round of each number of encoders.
    results = []
    for same in zip(*rounds):
        median = statistics.median_low(r["read_tokens_per_s"] for r in same)
        results.append(next(r for r in same if r["read_tokens_per_s"] == median))
    print(f"{PROMPT_TOKENS} tokens read, {ANSWER_TOKENS} written, {CLIENTS} at a time, {cores} cores, one thread an engine")
    print(f"{'encoders':>8} {'read/s':>9} {'grows by':>9} {'written/s':>10}   share of a core: gateway, an encoder, decoder")
    for result in results:
        share = result["share"]
        print(f"{result['encoders']:>8} {result['read_tokens_per_s']:>9.0f} "
              f"{result['read_tokens_per_s'] / results[0]['read_tokens_per_s']:>9.2f} {result['written_tokens_per_s']:>10.1f}"
              f"   {share['gw']:.2f}, {share['encoder']:.2f}, {share['decoder']:.2f}; bottleneck: "
              f"{max(share, key=share.get)}, cores used {sum(result['cpu_s'].values()) / result['wall_s']:.2f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump({"benchmark": "cluster throughput", "machine": arguments.machine, "cores": cores,
                       "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "clients": CLIENTS,
                       "requests": arguments.requests, "results": results}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
