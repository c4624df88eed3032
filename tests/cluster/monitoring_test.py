"""A cluster that a real Prometheus watches: every panel of every dashboard has data, and every alert fires when what it is about happens,
and not otherwise.

    monitoring_test.py CEDAR
"""
import contextlib
import glob
import http.client
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import unittest

import harness
import prometheus

ALERTS = set(re.findall(r"- alert: (\w+)", open(prometheus.RULES, encoding="utf-8").read()))
ENGINE = '[engine]\nthreads = 1\nprefill_chunk_tokens = 128\nengram = "service"\nindex_service_min_tokens = 512\n'
NODES = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "n1": ["engram"], "i1": ["indexer"],
         "c1": ["cache"]}
LATE = {"CedarFirstTokenBudgetBurns", "CedarInterTokenBudgetBurns"}  # true on a machine with too much else to do
caused = set()  # alerts that a test has seen fire


def prompt(tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(tokens)]


def targets(cluster):
    """Of every node with a page; roles are jobs."""
    return {("cedar-" + cluster.roles[name][0], name): address for name, address in cluster.pages.items()}


def panels():
    """(dashboard, panel, query), with a window that fits the test."""
    for path in sorted(glob.glob(os.path.join(harness.ROOT, "monitoring", "dashboards", "*.json"))):
        with open(path, encoding="utf-8") as f:
            dashboard = json.load(f)
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", f"{prometheus.WINDOW_S}s")
                yield os.path.basename(path), panel["title"], expression


class Load:
    """Clients that ask on and on, until the end of a `with` or stop(). `ids`: makes the next prompt from a number."""

    def __init__(self, cluster, clients, ids, tokens, pause_s=0.0):
        self.cluster, self.ids, self.tokens, self.pause_s = cluster, ids, tokens, pause_s
        self.ended = threading.Event()
        self.count, self.lock, self.statuses = 0, threading.Lock(), []
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]

    def run(self):
        while not self.ended.is_set():
            with self.lock:
                number = self.count
                self.count += 1
            try:
                status, _ = self.cluster.complete(self.ids(number), self.tokens, ignore_eos=True)
            except OSError:
                status = 0
            with self.lock:
                self.statuses.append(status)
            self.ended.wait(self.pause_s)

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()


def damage(path):
    """A byte in each 4 KiB of a file's latter part becomes another one."""
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        for place in range(8192, size, 4096):
            f.seek(place + 100)
            byte = f.read(1)
            f.seek(place + 100)
            f.write(bytes([byte[0] ^ 0x55]))


class Stream:
    """A client that reads a long answer until leave()."""

    def __init__(self, cluster, seed):
        body = {"prompt": prompt(64, seed), "max_tokens": 12000, "temperature": 0, "stream": True, "ignore_eos": True}
        self.connection = http.client.HTTPConnection(cluster.host, cluster.port, timeout=harness.DEADLINE_S)
        self.connection.request("POST", "/v1/completions", json.dumps(body))

    def leave(self):
        self.connection.close()


@contextlib.contextmanager
def stuttering(node, stopped_s, running_s):
    """A node that stands still again and again."""
    ended = threading.Event()

    def stutter():
        while not ended.wait(running_s):
            node.pause()
            time.sleep(stopped_s)
            node.send(signal.SIGCONT)
    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def watched(nodes=None, settings=ENGINE, **more):
    """A cluster and its Prometheus."""
    with harness.Cluster(PROGRAM, harness.DEMO, nodes or NODES, settings, pages=True, **more) as cluster:
        with prometheus.Prometheus(targets(cluster)) as watch:
            harness.eventually(lambda: len(watch.query("up == 1")) == len(cluster.pages), "every page is scraped")
            yield cluster, watch


class Monitoring(unittest.TestCase):
    def fires(self, watch, *names):
        for name in names:
            self.assertIn(name, ALERTS)
            watch.wait_alert(name)
            caused.add(name)

    def test_1_panels_have_data_and_alerts_are_silent(self):
        cache = {"c1": {"cache_directory": "blocks", "cache_disk_mib": 64}}
        with watched(node_settings=cache) as (cluster, watch):
            # Every other one has been asked before.
            with Load(cluster, 3, lambda i: prompt(900 + i // 2 % 7, seed=i // 2), 12) as load:
                missing = []

                def complete():
                    missing.clear()
                    for place in panels():
                        values = [value for _, value in watch.query(place[2])]
                        if not any(math.isfinite(value) for value in values):
                            missing.append(place)
                    return not missing
                try:
                    harness.eventually(complete, "every panel's query has data", 60)
                except AssertionError as e:
                    raise AssertionError("no data:\n" + "\n".join(map(str, missing))) from e
                self.assertEqual(watch.firing() - LATE, set())
            self.assertEqual(set(load.statuses), {200})
            cluster.wait_idle()
            self.counts_are_what_was_sent(watch, len(load.statuses), 12)
            self.assertEqual(watch.firing() - LATE, set())

    def counts_are_what_was_sent(self, watch, answers, tokens):
        def total(name):
            return watch.value(f"sum({name})")
        expected = {
            'cedar_gateway_responses_total': answers,
            'cedar_gateway_time_to_first_token_seconds_count': answers,
            'cedar_gateway_completion_tokens_total': answers * tokens,
            'cedar_decoder_tokens_total': answers * tokens,
            'cedar_encoder_prompts_total{outcome="finished"}': answers,
            'cedar_decoder_sequences_ended_total{outcome="finished"}': answers,
        }
        harness.eventually(lambda: {name: total(name) for name in expected} == expected,
                           f"{expected}; got {({name: total(name) for name in expected})}", 20)
        read = total("cedar_gateway_prompt_tokens_total") - total("cedar_gateway_cached_prompt_tokens_total")
        self.assertEqual(total("cedar_encoder_rows_total"), read + total("cedar_gateway_replayed_prompt_tokens_total"))

    def test_2_stages_that_hang(self):
        settings = "[engine]\nthreads = 1\nmax_sequences = 2\nprefill_chunk_tokens = 128\n"
        with watched({"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"]}, settings) as (cluster, watch):
            # The stages' threads are those that have worked most.
            self.assertEqual(cluster.complete(prompt(3000, seed=1), 200, ignore_eos=True)[0], 200)

            # An encoder in the midst of a prompt.
            reader = threading.Thread(target=cluster.complete, args=(prompt(8000, seed=2), 4))
            reader.start()
            harness.eventually(lambda: cluster.metric("cedar_cluster_encoder_queued_tokens") > 4000, "the prompt is read")
            with prometheus.StoppedThread(cluster.nodes["e1"].process.pid):
                self.fires(watch, "CedarEncoderStuck")
                self.assertEqual(watch.firing() - LATE, {"CedarEncoderStuck"})
            reader.join()
            watch.wait_silent("CedarEncoderStuck")

            # A decoder in the midst of two answers; others find no room behind it.
            streams = [Stream(cluster, seed) for seed in (3, 4)]
            harness.eventually(lambda: cluster.metric("cedar_cluster_decoder_sequences") == 2, "two answers are written")
            with prometheus.StoppedThread(cluster.nodes["d1"].process.pid):
                streams += [Stream(cluster, seed) for seed in (5, 6)]
                self.fires(watch, "CedarDecoderStuck", "CedarQueueStalled")
                # Clients leave: nothing runs, and the decoder keeps its blocks.
                for stream in streams:
                    stream.leave()
                self.fires(watch, "CedarBlocksLeaked")
            watch.wait_silent("CedarDecoderStuck", "CedarQueueStalled", "CedarBlocksLeaked")
            self.assertEqual(cluster.complete(prompt(100, seed=7), 4)[0], 200)

    def test_3_answers_that_are_late(self):
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"]}
        patient = {"lost_after_ms": 60000}
        settings = "[engine]\nthreads = 1\n" + "[data]\nping_timeout_ms = 60000\n"
        with watched(nodes, settings, cluster=patient) as (cluster, watch):
            # The objectives are 5 s to the first token and 250 ms between two.
            with Load(cluster, 2, lambda i: prompt(200, seed=i), 8), stuttering(cluster.nodes["e1"], 5.5, 0.3):
                self.fires(watch, "CedarFirstTokenBudgetBurns")
            watch.wait_silent("CedarFirstTokenBudgetBurns")
            with Load(cluster, 8, lambda i: prompt(64, seed=1000 + i), 24), stuttering(cluster.nodes["d1"], 0.3, 0.002):
                self.fires(watch, "CedarInterTokenBudgetBurns")

    def test_4_nodes_that_are_lost_and_refused(self):
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "n1": ["engram"]}
        engine = '[engine]\nthreads = 1\nengram = "service"\nengram_timeout_ms = 300\nengram_cache_mib = 0\n'
        with watched(nodes, engine) as (cluster, watch):
            # With another model.
            other = os.path.join(cluster.folder.name, "other.toml")
            with open(cluster.config, encoding="utf-8") as f, open(other, "w", encoding="utf-8") as out:
                out.write(f.read().replace(harness.DEMO, harness.MINI))
            cluster.nodes["e2"].stop()
            cluster.start("e2", config=other)
            self.fires(watch, "CedarNodeRefused")
            self.assertEqual(cluster.nodes["e2"].process.wait(harness.DEADLINE_S), 1)
            cluster.start("e2")
            cluster.nodes["e2"].wait_log("cedar node e2")

            # Encoders that are killed under their prompts and come back.
            with Load(cluster, 4, lambda i: prompt(1500, seed=i), 4) as load:
                for name in ("e1", "e2", "e1"):
                    time.sleep(1)
                    cluster.nodes[name].send(signal.SIGKILL)
                    cluster.nodes[name].process.wait()
                    cluster.start(name)
                    cluster.nodes[name].wait_log("cedar node " + name)
                self.fires(watch, "CedarStagesReplaced")
            self.assertEqual(set(load.statuses), {200})

            # Rows that nobody has.
            cluster.nodes["n1"].send(signal.SIGKILL)
            cluster.nodes["n1"].process.wait()
            with Load(cluster, 2, lambda i: prompt(200, seed=3000 + i), 4):
                self.fires(watch, "CedarTargetDown", "CedarStepsFail", "CedarAnswersFail")
            cluster.start("n1")
            cluster.nodes["n1"].wait_log("cedar node n1")

            # No decoder.
            cluster.nodes["d1"].send(signal.SIGKILL)
            cluster.nodes["d1"].process.wait()
            self.fires(watch, "CedarNotReady")
            cluster.start("d1")
            cluster.nodes["d1"].wait_log("cedar node d1")
            watch.wait_silent("CedarNotReady", "CedarTargetDown", "CedarStepsFail")

    def test_5_too_little_room(self):
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "c1": ["cache"]}
        settings = ("[engine]\nthreads = 1\nmax_sequences = 8\nkv_pool_blocks = 40\nmax_context_tokens = 4096\n"
                    "[actors]\nmax_queued = 4\nwindow_cache_mib = 0\n")
        with watched(nodes, settings, node_settings={"c1": {"cache_mib": 1}}) as (cluster, watch):
            # Each wants half of the decoder's blocks; more wait than may.
            with Load(cluster, 10, lambda i: prompt(1000, seed=i), 1500, pause_s=0.2):
                self.fires(watch, "CedarDecodersFull", "CedarRejectSurge")
            watch.wait_silent("CedarDecodersFull", "CedarRejectSurge")
            # One prompt after the other that nobody asks for again.
            with Load(cluster, 1, lambda i: prompt(2000, seed=5000 + i), 2):
                self.fires(watch, "CedarCacheFull")
            # The same one on and on, and no windows are kept.
            with Load(cluster, 1, lambda i: prompt(640, seed=1) + [10 + i], 2):
                self.fires(watch, "CedarReplaySurge")

    def test_6_an_earlier_life(self):
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "n1": ["engram"]}
        engine = '[engine]\nthreads = 1\nprefill_chunk_tokens = 32\nengram = "service"\nengram_cache_mib = 0\n'
        with watched(nodes, engine) as (cluster, watch):
            # The node that comes instead has ports of its own: the stopped one keeps its.
            other = os.path.join(cluster.folder.name, "other.toml")
            with open(cluster.config, encoding="utf-8") as f, open(other, "w", encoding="utf-8") as out:
                table = re.search(r'name = "e1"\n(.*\n)*?metrics.*\n', text := f.read()).group(0)
                out.write(text.replace(table, re.sub(r":\d+", lambda _: f":{harness.free_port()}", table)))

            def cut_off_and_back():
                """An encoder stops in the midst of a prompt, another process takes its name, and it goes on."""
                reader = threading.Thread(target=cluster.complete, args=(prompt(8000, seed=1), 2))
                reader.start()
                harness.eventually(lambda: cluster.metric("cedar_cluster_encoder_queued_tokens") > 4000, "the prompt is read")
                old = cluster.nodes["e1"]
                old.pause()
                cluster.start("e1", config=other)
                cluster.nodes["e1"].wait_log("cedar node e1")
                self.assertEqual(cluster.complete(prompt(300, seed=2), 2)[0], 200)
                old.send(signal.SIGCONT)
                self.assertEqual(old.process.wait(harness.DEADLINE_S), 1)
                reader.join()
            cut_off_and_back()
            self.fires(watch, "CedarGenerationMismatch")

    def test_7_damaged_blocks(self):
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "c1": ["cache"]}
        with tempfile.TemporaryDirectory(prefix="cedar-blocks-") as folder:
            settings = {"c1": {"cache_mib": 1, "cache_directory": folder, "cache_disk_mib": 64}}
            with watched(nodes, "[engine]\nthreads = 1\n", node_settings=settings) as (cluster, watch):
                before = [cluster.complete(prompt(1500, seed=i), 4) for i in range(8)]
                harness.eventually(lambda: watch.value("sum(cedar_cache_disk_written_blocks_total)") >= 80, "blocks are on disk")
                self.assertEqual(watch.firing() - LATE - {"CedarCacheFull"}, set())
                for name in os.listdir(folder):
                    damage(os.path.join(folder, name))
                after = [cluster.complete(prompt(1500, seed=i), 4) for i in range(8)]
                self.assertEqual(after, before)
                self.fires(watch, "CedarDiskFails")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    prometheus.programs()
    result = unittest.main(exit=False).result
    if result.wasSuccessful() and len(sys.argv) == 1 and caused != ALERTS:
        sys.exit(f"no test causes {sorted(ALERTS - caused)}")
    sys.exit(not result.wasSuccessful())
