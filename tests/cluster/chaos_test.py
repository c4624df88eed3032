#!/usr/bin/env python3
"""A cluster of every role answers many requests while its nodes are killed, stopped and restarted at random. Each request
ends with the tokens and log-probabilities of an undisturbed process or with a clear error before its deadline, and
afterwards the cluster holds no more than before.

    chaos_test.py CEDAR [--requests 60] [--seed 1] [--period 2] [--clients 8] [--gateway] [--json FILE]

--gateway: the gateway is killed and stopped, too; then connections may end, and clients go on when it is back.
"""
import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import chaos_faults
import chaos_load
import harness

ENGINE = ('[engine]\nthreads = 1\nmax_sequences = 8\nprefill_chunk_tokens = 128\nkv_pool_blocks = 1200\n'
          'replay = "exact"\nresume = "exact"\nengram = "service"\nengram_timeout_ms = 2000\n'
          'index_service_min_tokens = 300\nindex_service_timeout_ms = 1000\n'
          f'[http]\nrequest_timeout_ms = {chaos_load.DEADLINE_S * 1000}\n'
          '[data]\nping_timeout_ms = 1500\n')
NODES = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "e3": ["encoder"], "d1": ["decoder"],
         "d2": ["decoder"], "n1": ["engram"], "n2": ["engram"], "i1": ["indexer"], "i2": ["indexer"], "c1": ["cache"]}
# An encoder and a decoder on two nodes each, beside whole ones.
PIPELINES = {"gw": ["gateway"], "p1": ["encoder"], "p2": ["encoder"], "e3": ["encoder"], "w1": ["decoder"],
             "w2": ["decoder"], "d2": ["decoder"], **{name: NODES[name] for name in ("n1", "n2", "i1", "i2", "c1")}}
LAYERS = {"p1": {"pipeline": "reader", "layers": "0-2"}, "p2": {"pipeline": "reader", "layers": "3-5"},
          "w1": {"pipeline": "writer", "layers": "0-5"}, "w2": {"pipeline": "writer", "layers": "6-11"}}
DISK_MIB = 256
SLOW_S = 10  # worth a line
NOT_ALLOWED = ("wrong", "late", "unclear_error")


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.verdicts = collections.Counter()
        self.errors = collections.Counter()   # (status, text without numbers) -> times
        self.bad = []
        self.slow = []
        self.disk = tempfile.TemporaryDirectory(prefix="cedar-chaos-")
        self.waits = []
        self.cached = 0

    def reference(self, plan):
        options = ("--threads", "1", "--cache-mib", "0", "--replay", "exact", "--max-sequences", "4")
        with harness.Server(self.arguments.cedar, harness.DEMO, options) as server:
            plan.answer(server)

    def ask(self, cluster, faults, asks):
        for ask in asks:
            begin = time.monotonic()
            reply = chaos_load.send(cluster, ask)
            verdict = reply.verdict(ask.expected)
            if verdict == "lost" and not faults.lost_gateway(begin, time.monotonic()):
                verdict = "unclear_error"
            self.verdicts[verdict] += 1
            self.waits.append(reply.seconds)
            self.cached += reply.cached
            if reply.seconds > SLOW_S:
                self.slow.append(f"{reply.seconds:.1f} s: request {ask.name} ({ask.way}), begun "
                                 f"{time.strftime('%H:%M:%S', time.gmtime(time.time() - reply.seconds))}")
            if reply.error:
                self.errors[reply.status, re.sub(r"\d+", "N", reply.error)] += 1
            if verdict in NOT_ALLOWED:
                self.bad.append(f"{verdict}: request {ask.name} ({ask.way}): {reply.status} {reply.error} "
                                f"{len(reply.tokens)} of {len(ask.expected)} tokens in {reply.seconds:.1f} s")
            if verdict == "lost":
                harness.eventually(cluster.ready, "the gateway is back")

    def play(self):
        arguments = self.arguments
        plan = chaos_load.Plan(arguments.seed, arguments.requests)
        begin = time.monotonic()
        self.reference(plan)
        self.reference_s = time.monotonic() - begin
        settings = {"max_replacements": arguments.max_replacements}
        disk = {"cache_mib": 8, "cache_directory": self.disk.name, "cache_disk_mib": DISK_MIB}
        nodes, more = (PIPELINES, LAYERS) if arguments.pipelines else (NODES, {})
        pages = {name: harness.free_port() for name in nodes if name != "gw"}
        of_nodes = {name: {"metrics": f"127.0.0.1:{port}", **more.get(name, {})} for name, port in pages.items()}
        of_nodes["c1"].update(disk)
        with harness.Cluster(arguments.cedar, harness.DEMO, nodes, ENGINE, cluster=settings,
                             node_settings=of_nodes) as cluster:
            warm = chaos_load.Plan(arguments.seed + 1, 12)
            chaos_load.for_each(warm.conversations, lambda asks: [chaos_load.send(cluster, ask) for ask in asks], 4)
            cluster.wait_idle()
            level = chaos_faults.Level(cluster, pages)
            begin = time.monotonic()
            spare = () if arguments.gateway else ("gw",)
            with chaos_faults.Faults(cluster, arguments.seed, arguments.period, spare) as faults:
                chaos_load.for_each(plan.conversations, lambda asks: self.ask(cluster, faults, asks), arguments.clients)
            self.chaos_s = time.monotonic() - begin
            for name in nodes:
                cluster.nodes[name].wait_log("registered with gw" if name != "gw" else "cedar node gw")
            self.faults = faults
            self.bad += level.differences()
            # Nothing is wrong with what is left.
            for ask in [asks[0] for asks in plan.conversations[:4]]:
                ask.gives_up_after = -1
                verdict = chaos_load.send(cluster, ask).verdict(ask.expected)
                if verdict != "right":
                    self.bad.append(f"afterwards, request {ask.name}: {verdict}")
            cluster.wait_idle()
            logs = [node.log() for node in (*cluster.retired, *cluster.nodes.values())]
            self.replacements = collections.Counter(
                re.sub(r"\d+", "N", why) for log in logs
                for why in re.findall(r"replacing a stage .*?why=(.*)", log))
            self.stop(cluster)
            if arguments.keep_logs:
                shutil.copytree(cluster.folder.name, arguments.keep_logs, dirs_exist_ok=True)
        self.look_at_disk()

    def look_at_disk(self):
        """What a cache that was killed left is within its bounds and undamaged."""
        stored = sum(os.stat(entry).st_blocks * 512 for entry in os.scandir(self.disk.name))
        if not 0 < stored <= DISK_MIB << 20:
            self.bad.append(f"the disk cache takes {stored} bytes of {DISK_MIB << 20}")
        verify = subprocess.run([self.arguments.cedar, "cache", "verify", self.disk.name], capture_output=True, text=True)
        if verify.returncode != 0:
            self.bad.append(f"cedar cache verify: status {verify.returncode}: {verify.stdout[-500:]}{verify.stderr[-500:]}")
        self.disk.cleanup()

    def stop(self, cluster):
        """Every node ends in peace and with nothing in its hands."""
        for name in sorted(cluster.nodes, key=lambda name: name != "gw"):
            node = cluster.nodes[name]
            if node.stop() != 0:
                self.bad.append(f"{name} ended with status {node.process.returncode}")
            for line in node.log().splitlines():
                left = re.search(r"parts_left=(\d+)", line)
                if "gives up work" in line or (left and left.group(1) != "0"):
                    self.bad.append(f"{name}: {line}")

    def table(self):
        a = self.arguments
        rows = [("requests", a.requests), ("seed", a.seed), ("clients", a.clients),
                ("seconds", f"{self.chaos_s:.0f} (undisturbed reference: {self.reference_s:.0f})")]
        rows += [(name, self.verdicts[name])
                 for name in ("right", "given_up", "error", "lost", "unclear_error", "late", "wrong")]
        rows.append(("longest wait", f"{max(self.waits):.1f} s"))
        rows.append(("cached tokens", self.cached))
        rows += [(f"{kind} {role}", count) for (role, kind), count in sorted(self.faults.done.items())]
        rows += [(f"error {status}", f"{count} x {text}") for (status, text), count in sorted(self.errors.items())]
        rows += [("replaced", f"{count} x {why}") for why, count in sorted(self.replacements.items())]
        rows += [("slow", line) for line in self.slow]
        return "\n".join(f"{name:16} {value}" for name, value in rows)

    def write_json(self, path):
        a = self.arguments
        result = {"requests": a.requests, "seed": a.seed, "clients": a.clients, "fault_every_s": a.period,
                  "gateway_too": a.gateway, "pipelines": a.pipelines, "max_replacements": a.max_replacements,
                  "seconds": round(self.chaos_s, 1), "longest_wait_s": round(max(self.waits), 2),
                  "verdicts": dict(self.verdicts), "cached_tokens": self.cached,
                  "faults": {f"{role} {kind}": n for (role, kind), n in sorted(self.faults.done.items())},
                  "errors": {f"{status} {text}": n for (status, text), n in sorted(self.errors.items())},
                  "replacements": dict(sorted(self.replacements.items()))}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cedar")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--period", type=float, default=2, help="seconds between two faults, on average")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--max-replacements", type=int, default=3)
    parser.add_argument("--gateway", action="store_true")
    parser.add_argument("--pipelines", action="store_true", help="an encoder and a decoder on two nodes each")
    parser.add_argument("--json")
    parser.add_argument("--keep-logs", metavar="DIR", help="copy the nodes' logs there")
    run = Run(parser.parse_args())
    run.play()
    print(run.table(), flush=True)
    if run.arguments.json:
        run.write_json(run.arguments.json)
    for line in run.bad:
        print("NOT ALLOWED:", line, flush=True)
    if run.faults.kills() == 0 or run.verdicts["right"] == 0:
        print("NOT ALLOWED: nothing was tested")
        return 1
    return 1 if run.bad else 0


if __name__ == "__main__":
    sys.exit(main())
