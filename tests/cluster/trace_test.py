#!/usr/bin/env python3
"""Nodes write traces; together they show what a request did where, and that KV blocks move while the prompt is still read."""
import json
import os
import random
import subprocess
import sys
import tempfile

import harness

MERGE = os.path.join(harness.ROOT, "tools", "merge_traces.py")
NODES = {"gw": ["gateway"], "encoder": ["encoder"], "decoder": ["decoder"]}
CHUNK = 128
BLOCK = 64  # tokens of a KV block of the demo model
PROMPT = 4096
REQUESTS = 4


def spans_of(events):
    """(category, name, id, begin, end, fields) of spans, in the order of the file."""
    begins, spans = {}, []
    for event in events:
        key = (event.get("cat"), event["name"], event.get("id"))
        if event["ph"] == "b":
            begins[key] = event
        elif event["ph"] == "e":
            begin = begins.pop(key)
            spans.append((*key, begin["ts"], event["ts"], begin["args"]))
    assert not begins, f"spans without an end: {begins}"
    return spans


def main():
    program = sys.argv[1]
    rng = random.Random(3)
    with harness.Cluster(program, harness.DEMO, NODES, f"[engine]\nprefill_chunk_tokens = {CHUNK}\n", traces=True) as cluster:
        for _ in range(REQUESTS):
            status, answer = cluster.complete([rng.randrange(10, 1000) for _ in range(PROMPT)], 5, ignore_eos=True)
            assert status == 200, answer
        cluster.wait_idle()
        for name in ("decoder", "encoder", "gw"):
            assert cluster.nodes[name].stop() == 0, cluster.nodes[name].log()
        traces = {name: cluster.trace(name) for name in NODES}
        merged = os.path.join(cluster.folder.name, "merged.json")
        subprocess.run([sys.executable, MERGE, *(cluster.trace_path(name) for name in NODES), "-o", merged], check=True)
        with open(merged, encoding="utf-8") as f:
            together = json.load(f)
    assert len({event["pid"] for event in together}) == len(NODES), "every process has a number of its own"
    assert sorted(map(str, together)) == sorted(str(event) for trace in traces.values() for event in trace)

    chunks = [event for event in traces["encoder"] if event["ph"] == "X" and event["name"] == "chunk"]
    assert sum(chunk["args"]["rows"] for chunk in chunks) == REQUESTS * PROMPT, chunks
    steps = [event for event in traces["decoder"] if event["ph"] == "X"]
    assert sum(step["args"]["tokens"] for step in steps) == REQUESTS * 5, steps

    pulls = [span for span in spans_of(traces["decoder"]) if span[0] == "pull"]
    phases = [span for span in spans_of(traces["gw"]) if span[0] == "phase"]
    handoffs = {span[5]["handoff"] for span in phases if span[1] == "decode"}
    assert len(handoffs) == REQUESTS
    overlaps = 0
    for handoff in handoffs:
        mine = [span for span in pulls if span[5]["handoff"] == handoff and span[5]["ok"]]
        blocks = [span for span in mine if span[1] == "blocks"]
        assert sum(span[5]["blocks"] for span in blocks) == PROMPT // BLOCK, blocks
        # 890 bytes a token for the release; the demo model has its own figure, the same for every block.
        sizes = {span[5]["bytes"] / span[5]["blocks"] for span in blocks}
        assert len(sizes) == 1, sizes
        assert len([span for span in mine if span[1] == "state"]) == 1, mine
        own = {span[1]: span for span in phases if span[5].get("handoff") == handoff}
        names = ["reserve", "prefill", "hand-over", "replay", "decode"]
        for earlier, later in zip(names, names[1:]):
            assert own[earlier][4] == own[later][3], f"a gap between {earlier} and {later}: {own}"
        prefill_end = own["prefill"][4]
        during = [span for span in blocks if span[4] < prefill_end]
        overlaps += bool(during)
        print(f"{len(during)} of {len(blocks)} pulls ended while the prompt was still being read; prefill "
              f"{(prefill_end - own['prefill'][3]) / 1e3:.1f} ms, hand-over {(own['hand-over'][4] - prefill_end) / 1e3:.1f} ms")
    assert overlaps > 0, "no block moved before its prompt was read"
    one_process(program)


def one_process(program):
    with tempfile.TemporaryDirectory(prefix="cedar-trace-") as folder:
        path = os.path.join(folder, "serve.json")
        with harness.Server(program, harness.DEMO, ("--trace", path)) as server:
            status, answer = server.complete(list(range(10, 210)), 3, ignore_eos=True)
            assert status == 200, answer
            server.wait_idle()
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
    work = [event["name"] for event in events if event["ph"] == "X"]
    assert work.count("chunk") >= 1 and work.count("step") >= 3, work
    names = [span[1] for span in spans_of(events) if span[0] == "phase"]
    assert names == ["queue", "reserve", "prefill", "hand-over", "replay", "decode"], names


if __name__ == "__main__":
    main()
