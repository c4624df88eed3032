#!/usr/bin/env python3
"""Answers whose decoder is killed in the middle: how long the client waits for the next token, and how far the rest is from
the undisturbed answer, with bounded and with exact replay.

    bench/cluster/failover.py [--cedar build/bin/cedar] [--answers 20] [--json FILE]

One answer at a time, greedy, the demo model; the killed decoder is started again before the next one.
"""
import argparse
import http.client
import json
import os
import random
import signal
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

NODES = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "d2": ["decoder"]}
ANSWER_TOKENS = 200


def answer(client, ids, on_token=lambda count: None):
    """(token, log-probability, when) of a greedy answer."""
    connection = http.client.HTTPConnection(client.host, client.port, timeout=harness.DEADLINE_S)
    body = {"prompt": ids, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True,
            "return_token_ids": True, "logprobs": 1}
    connection.request("POST", "/v1/completions", json.dumps(body))
    tokens = []
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            now = time.monotonic()
            for token, logprob in zip(choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("token_logprobs", [])):
                tokens.append((token, logprob, now))
                on_token(len(tokens))
    connection.close()
    assert len(tokens) == ANSWER_TOKENS, len(tokens)
    return tokens


def broken_answer(cluster, ids, at):
    """The answer when its decoder is killed after `at` tokens, and how many tokens had come then."""
    before = {name: cluster.nodes[name].cpu_s() for name in ("d1", "d2")}
    killed = []

    def kill(count):
        if count < at or killed:
            return
        name = max(before, key=lambda name: cluster.nodes[name].cpu_s() - before[name])
        cluster.nodes[name].send(signal.SIGKILL)
        cluster.nodes[name].process.wait()
        killed.append(name)
    tokens = answer(cluster, ids, kill)
    cluster.start(killed[0])
    cluster.nodes[killed[0]].wait_log("registered with gw")
    return tokens


def measure(cedar, replay, prompts):
    rows = []
    engine = f'[engine]\nthreads = 1\nreplay = "{replay}"\n'
    with harness.Cluster(cedar, harness.DEMO, NODES, engine) as cluster:
        rng = random.Random(11)
        for ids in prompts:
            whole = answer(cluster, ids)
            got = broken_answer(cluster, ids, rng.randrange(20, 120))
            gaps = [b[2] - a[2] for a, b in zip(got, got[1:])]
            at = max(range(len(gaps)), key=gaps.__getitem__)  # the next token came late: that is where it was killed
            same = [a[0] == b[0] for a, b in zip(whole, got)]
            behind = range(at + 1, ANSWER_TOKENS)
            rows.append({
                "prompt_tokens": len(ids), "resumed_at": at + 1, "wait_s": gaps[at],
                "tokens_equal": sum(same[i] for i in behind) / len(behind),
                "first_other": next((i - at for i in behind if not same[i]), None),
                "all_equal": all(same), "bit_equal": all(a[:2] == b[:2] for a, b in zip(whole, got)),
                # Of the tokens up to the first other one, which were computed from the same history.
                "logprob_error": max((abs(whole[i][1] - got[i][1]) for i in behind if all(same[:i + 1])), default=0.0)})
            assert all(same[:at + 1])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rng = random.Random(5)
    prompts = [[rng.randrange(10, 1000) for _ in range(rng.randrange(50, 1500))] for _ in range(arguments.answers)]
    result = {"answers": arguments.answers, "answer_tokens": ANSWER_TOKENS}
    for replay in ("bounded", "exact"):
        rows = measure(arguments.cedar, replay, prompts)
        result[replay] = {
            "answers_equal": sum(row["all_equal"] for row in rows), "bit_equal": sum(row["bit_equal"] for row in rows),
            "tokens_equal_behind": statistics.mean(row["tokens_equal"] for row in rows),
            "first_other_token": sorted(row["first_other"] for row in rows if row["first_other"]),
            "logprob_error": max(row["logprob_error"] for row in rows),
            "wait_s_median": statistics.median(row["wait_s"] for row in rows),
            "wait_s_max": max(row["wait_s"] for row in rows), "rows": rows}
        r = result[replay]
        print(f"{replay:8} {r['answers_equal']} of {arguments.answers} answers equal, {r['bit_equal']} to the bit; "
              f"{100 * r['tokens_equal_behind']:.1f} % of the tokens behind the kill equal; largest error of a "
              f"log-probability {r['logprob_error']:.2g}; next token after {r['wait_s_median']:.2f} s "
              f"(median), {r['wait_s_max']:.2f} s (longest)", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
