#!/usr/bin/env python3
"""Tokens read per second with the Engram tables beside the encoder, on a node of their own, and there without a cache of hot
rows.

    bench/cluster/engram.py [--cedar build/bin/cedar] [--requests 24] [--rounds 3] [--json FILE]

One encoder of one thread reads prompts that are put together from PHRASES different phrases, CLIENTS at a time, and the decoder
writes one token of each. The order of the setups changes from round to round; the median round counts. Processor seconds
tell more than tokens per second where others use the machine, too.
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

PROMPT_TOKENS = 2048
PHRASES = 400
PHRASE_TOKENS = 16
CLIENTS = 4
ENGINE = "[engine]\nthreads = 1\nmax_sequences = 8\nprefill_chunk_tokens = 512\n"
NODES = {"gw": ["gateway"], "encoder": ["encoder"], "decoder": ["decoder"], "tables": ["engram"]}
FOUND = ("cache", "ahead", "late", "missed")
SETUPS = {
    "local tables": 'engram = "local"\n',
    "service": 'engram = "service"\nengram_cache_mib = 64\n',
    "service, no cache": 'engram = "service"\nengram_cache_mib = 0\n',
}


def ask(client, ids):
    status, answer = client.complete(ids, 1, ignore_eos=True)
    if status != 200 or answer["usage"] != [PROMPT_TOKENS, 1]:
        raise AssertionError(f"{status}: {answer}")
    return answer["logprobs"]


def run(cedar, setup, prompts):
    with harness.Cluster(cedar, harness.DEMO, NODES, ENGINE + SETUPS[setup]) as cluster:
        harness.in_parallel([lambda i=i: ask(cluster, prompts[0][i:] + prompts[0][:i]) for i in range(1, CLIENTS + 1)])
        before = {name: node.cpu_s() for name, node in cluster.nodes.items()}
        work, answers = queue.Queue(), {}
        for i, prompt in enumerate(prompts):
            work.put((i, prompt))

        def client():
            while True:
                try:
                    i, ids = work.get_nowait()
                except queue.Empty:
                    return
                answers[i] = ask(cluster, ids)

        begin = time.monotonic()
        harness.in_parallel([client] * CLIENTS)
        wall = time.monotonic() - begin
        cpu = {name: node.cpu_s() - before[name] for name, node in cluster.nodes.items()}
        cluster.wait_idle()
        found = {way: cluster.metric(f'cedar_cluster_engram_rows_total{{found="{way}"}}') for way in FOUND}
    speed = len(prompts) * PROMPT_TOKENS / wall
    return {"setup": setup, "found": found, "wall_s": wall, "read_tokens_per_s": speed, "cpu_s": cpu}, answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rng = random.Random(7)
    phrases = [[rng.randrange(10, 1000) for _ in range(PHRASE_TOKENS)] for _ in range(PHRASES)]
    prompts = [sum((rng.choice(phrases) for _ in range(PROMPT_TOKENS // PHRASE_TOKENS)), [])
               for _ in range(arguments.requests)]
    runs, expected = {setup: [] for setup in SETUPS}, None
    for _ in range(arguments.rounds):
        for setup in rng.sample(list(SETUPS), len(SETUPS)):
            result, answers = run(arguments.cedar, setup, prompts)
            expected = expected or answers
            if answers != expected:
                raise AssertionError(f"{setup}: other answers")
            runs[setup].append(result)
    results = []
    for setup, same in runs.items():
        median = statistics.median_low(r["read_tokens_per_s"] for r in same)
        results.append(next(r for r in same if r["read_tokens_per_s"] == median))
    cores = len(os.sched_getaffinity(0))
    print(f"{arguments.requests} prompts of {PROMPT_TOKENS} tokens, {CLIENTS} at a time, {cores} cores, one thread an engine")
    print(f"{'tables':<20} {'read/s':>9} {'of local':>9}   processor seconds: encoder, tables; rows by {', '.join(FOUND)}")
    for result in results:
        print(f"{result['setup']:<20} {result['read_tokens_per_s']:>9.0f} "
              f"{result['read_tokens_per_s'] / results[0]['read_tokens_per_s']:>9.2f}   "
              f"{result['cpu_s']['encoder']:.2f}, {result['cpu_s']['tables']:.2f}; "
              f"{', '.join(str(int(result['found'][way])) for way in FOUND)}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump({"benchmark": "cluster engram", "machine": arguments.machine, "cores": cores,
                       "prompt_tokens": PROMPT_TOKENS, "requests": arguments.requests, "clients": CLIENTS,
                       "results": results}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
