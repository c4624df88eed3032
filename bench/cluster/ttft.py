#!/usr/bin/env python3
"""Time to first token of a prompt of 4,000 tokens through a cluster, against one process on the same processors; and how
much processor time each role takes.

    bench/cluster/ttft.py [--cedar build/bin/cedar] [--rounds 9] [--cores 0,1] [--json FILE]

Both are pinned to the same cores and use as many threads per engine. Rounds alternate, so that a disturbance hits both.
Prompts differ from round to round and are the same for both.
"""
import argparse
import http.client
import json
import os
import random
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

PROMPT_TOKENS = 4096
ANSWER_TOKENS = 27  # 154 : 1


def answer(client, ids):
    """Seconds to the first token and to the last, of a greedy answer."""
    connection = http.client.HTTPConnection(client.host, client.port, timeout=harness.DEADLINE_S)
    body = {"prompt": ids, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body))
    first = None
    for line in connection.getresponse():
        if line.startswith(b"data: {") and first is None:
            if json.loads(line[6:])["choices"]:
                first = time.monotonic() - begin
    connection.close()
    return first, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cores", default=",".join(str(c) for c in sorted(os.sched_getaffinity(0))))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cores = {int(core) for core in arguments.cores.split(",")}
    os.sched_setaffinity(0, cores)  # inherited by all that follows
    threads = str(len(cores))
    nodes = {"gw": ["gateway"], "encoder": ["encoder"], "decoder": ["decoder"]}
    rng = random.Random(7)
    with harness.Server(arguments.cedar, harness.DEMO, ("--threads", threads)) as server, \
            harness.Cluster(arguments.cedar, harness.DEMO, nodes, f"[engine]\nthreads = {threads}\n") as cluster:
        for client in (server, cluster):
            answer(client, [rng.randrange(10, 1000) for _ in range(PROMPT_TOKENS)])
        before = {name: node.cpu_s() for name, node in cluster.nodes.items()}
        server_before = server.node.cpu_s()
        one, many = [], []
        for _ in range(arguments.rounds):
            ids = [rng.randrange(10, 1000) for _ in range(PROMPT_TOKENS)]
            one.append(answer(server, ids))
            many.append(answer(cluster, ids))
        cpu = {name: (node.cpu_s() - before[name]) / arguments.rounds for name, node in cluster.nodes.items()}
        server_cpu = (server.node.cpu_s() - server_before) / arguments.rounds
    result = {
        "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "cores": len(cores), "rounds": arguments.rounds,
        "one_process_ttft_s": statistics.median(first for first, _ in one),
        "cluster_ttft_s": statistics.median(first for first, _ in many),
        "one_process_total_s": statistics.median(total for _, total in one),
        "cluster_total_s": statistics.median(total for _, total in many),
        "one_process_cpu_s": server_cpu, "cluster_cpu_s": cpu,
    }
    result["ttft_ratio"] = result["cluster_ttft_s"] / result["one_process_ttft_s"]
    print(f"{PROMPT_TOKENS} tokens read, {ANSWER_TOKENS} written, {len(cores)} cores, median of {arguments.rounds}")
    print(f"first token: one process {result['one_process_ttft_s']:.3f} s, cluster {result['cluster_ttft_s']:.3f} s, "
          f"ratio {result['ttft_ratio']:.2f}")
    print(f"last token:  one process {result['one_process_total_s']:.3f} s, cluster {result['cluster_total_s']:.3f} s")
    print(f"processor seconds per request: one process {server_cpu:.2f}; cluster " +
          ", ".join(f"{name} {seconds:.2f}" for name, seconds in cpu.items()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
