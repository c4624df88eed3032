#!/usr/bin/env python3
"""Tokens read per second by an encoder on one core, and by one whose layers are spread over two nodes with a core each.

    bench/cluster/pipeline.py [--cedar build/bin/cedar] [--rounds 5] [--json FILE]

Gateway and decoder use what the two cores have left. One prompt at a time: what is gained comes of its own chunks, which are
in both nodes at the same time.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

PROMPT_TOKENS = 8000
ENGINE = "[engine]\nthreads = 1\nprefill_chunk_tokens = 256\n"


def measure(program, encoders, rounds):
    """`encoders`: name -> settings; the first is pinned to core 0, the second to core 1."""
    nodes = {"gw": ["gateway"], **{name: ["encoder"] for name in encoders}, "d1": ["decoder"]}
    cluster = harness.Cluster(program, harness.DEMO, nodes, ENGINE, node_settings=encoders)
    cores = dict(zip(encoders, ("0", "1")))
    seconds, busy = [], {name: [] for name in nodes}
    try:
        for name in nodes:
            command = ["taskset", "-c", cores.get(name, "0,1"), program, "node", name, "--config", cluster.config]
            cluster.nodes[name] = harness.Node(command, os.path.join(cluster.folder.name, f"{name}.log"))
        cluster.wait_ready()
        for i in range(rounds + 1):
            rng = random.Random(i)
            ids = [rng.randrange(10, 1000) for _ in range(PROMPT_TOKENS)]
            before = {name: node.cpu_s() for name, node in cluster.nodes.items()}
            begin = time.monotonic()
            status, reply = cluster.complete(ids, 1)
            if status != 200:
                raise AssertionError(reply)
            if i == 0:
                continue  # connections, first touches of memory
            seconds.append(time.monotonic() - begin)
            for name, node in cluster.nodes.items():
                busy[name].append(node.cpu_s() - before[name])
    finally:
        cluster.__exit__(*sys.exc_info())
    return {"tokens_per_s": PROMPT_TOKENS / statistics.median(seconds),
            "cpu_s": {name: statistics.median(values) for name, values in busy.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    whole = measure(options.cedar, {"e1": {}}, options.rounds)
    halves = {"p1": {"pipeline": "reader", "layers": "0-2"}, "p2": {"pipeline": "reader", "layers": "3-5"}}
    spread = measure(options.cedar, halves, options.rounds)
    result = {"prompt_tokens": PROMPT_TOKENS, "rounds": options.rounds, "load": os.getloadavg()[0], "one_node": whole,
              "two_nodes": spread, "ratio": spread["tokens_per_s"] / whole["tokens_per_s"]}
    for name in ("one_node", "two_nodes"):
        print(f"{name}: {result[name]['tokens_per_s']:.0f} tokens/s, processor seconds {result[name]['cpu_s']}")
    print(f"{result['ratio']:.2f} times, load {result['load']:.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
