"""Engram rows from nodes of their own: the same answers, and what happens when such a node is lost.

    engram_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import random
import signal
import sys
import time
import unittest

import harness
import prompts

TIMEOUT_MS = 1000
ENGINE = ("[engine]\nthreads = 1\nmax_sequences = 16\nprefill_chunk_tokens = 64\n"
          f'engram = "service"\nengram_timeout_ms = {TIMEOUT_MS}\nengram_cache_mib = {{cache}}\n')
ARGUMENTS = ("--threads", "1", "--max-sequences", "16")
NODES = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "n0": ["engram"], "n1": ["engram"]}
TWO_SHARDS = {"n0": {"engram_shards": 2}, "n1": {"engram_shard": 1, "engram_shards": 2, "engram_memory": "resident"}}


def answers(client, cases, tokens=8):
    names = list(cases)
    results = harness.in_parallel([lambda ids=cases[name]: client.complete(ids, tokens) for name in names])
    return dict(zip(names, results))


def random_prompts(count, tokens, seed):
    rng = random.Random(seed)
    return {f"random {i}": [rng.randrange(10, 1000) for _ in range(tokens)] for i in range(count)}


class Engram(unittest.TestCase):
    def cluster(self, model, nodes, node_settings, cache=1, **more):
        hosts = None
        if PLACE == "namespaces":
            network = harness.Network(nodes)
            self.addCleanup(network.__exit__)
            self.assertTrue(network.good)
            hosts = network.hosts()
        return harness.Cluster(PROGRAM, model, nodes, ENGINE.format(cache=cache), hosts=hosts,
                               node_settings=node_settings, **more)

    def compare(self, model, cases, cluster):
        with harness.Server(PROGRAM, model, ARGUMENTS) as server:
            expected = answers(server, cases)
        with cluster:
            got = answers(cluster, cases)
            cluster.wait_idle()
            found = {way: cluster.metric(f'cedar_cluster_engram_rows_total{{found="{way}"}}')
                     for way in ("cache", "ahead", "late", "missed")}
        for name, (status, answer) in expected.items():
            self.assertEqual(status, 200, f"{name}: {answer}")
            self.assertEqual(got[name], expected[name], name)
        return found

    def test_demo_answers_are_those_of_one_process(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(random_prompts(4, 200, seed=1))
        found = self.compare(harness.DEMO, cases, self.cluster(harness.DEMO, NODES, TWO_SHARDS))
        self.assertGreater(found["ahead"] + found["late"], 0, found)  # encoders ask ahead
        self.assertGreater(found["cache"], 0, found)                  # answers repeat n-grams

    def test_mini_answers_are_those_of_one_process_without_a_cache(self):
        # One node has two roles: it calls itself.
        nodes = {"gw": ["gateway"], "e1": ["encoder", "engram"], "d1": ["decoder"], "n1": ["engram"]}
        settings = {"e1": {"engram_shards": 2}, "n1": {"engram_shard": 1, "engram_shards": 2}}
        found = self.compare(harness.MINI, dict(prompts.golden()[harness.MINI]),
                             self.cluster(harness.MINI, nodes, settings, cache=0))
        self.assertEqual(found["cache"], 0, found)
        self.assertGreater(found["missed"], 0, found)  # of the decoder's steps

    def break_a_replica(self, breaking):
        """Sixteen prompts at once; one of two replicas is broken while they are read. Every answer must come, and be that
        of an undisturbed run."""
        nodes = {**NODES, "e2": ["encoder"]}
        cases = random_prompts(16, 600, seed=2)
        with harness.Server(PROGRAM, harness.DEMO, ARGUMENTS) as server:
            expected = answers(server, cases)
        for name, (status, answer) in expected.items():
            self.assertEqual(status, 200, f"{name}: {answer}")
        with self.cluster(harness.DEMO, nodes, {}) as cluster:
            before = sum(cluster.nodes[name].cpu_s() for name in ("e1", "e2"))

            def break_it():
                harness.eventually(lambda: sum(cluster.nodes[name].cpu_s() for name in ("e1", "e2")) > before + 0.2,
                                   "the encoders read")
                breaking(cluster.nodes["n0"])
            got = harness.in_parallel([lambda: answers(cluster, cases), break_it])[0]
            for name in cases:
                self.assertEqual(got[name], expected[name], name)
            cluster.wait_idle()

    def test_a_replica_is_killed_while_prompts_are_read(self):
        def kill(node):
            node.send(signal.SIGKILL)
            node.process.wait()
        self.break_a_replica(kill)

    def test_a_replica_is_stopped_while_prompts_are_read(self):
        self.break_a_replica(lambda node: node.pause())

    def test_a_drained_replica_is_missed_by_nobody(self):
        self.break_a_replica(lambda node: self.assertEqual(node.stop(), 0))

    def test_without_a_replica_requests_fail_by_name_and_go_on_when_it_is_back(self):
        with self.cluster(harness.DEMO, NODES, TWO_SHARDS, cluster={"max_replacements": 1}) as cluster:
            cases = random_prompts(4, 300, seed=3)
            expected = answers(cluster, cases)
            cluster.nodes["n1"].send(signal.SIGKILL)
            cluster.nodes["n1"].process.wait()
            begin = time.monotonic()
            for name, (status, reply) in answers(cluster, random_prompts(4, 300, seed=4)).items():
                self.assertEqual(status, 503, f"{name}: {reply}")
                self.assertIn("Engram shard 1 of 2", str(reply))
            # Two encoders' worth of waiting, and what a loaded machine adds.
            self.assertLess(time.monotonic() - begin, 60)
            cluster.wait_idle()
            cluster.start("n1")
            cluster.nodes["n1"].wait_log("registered with gw")
            self.assertEqual(answers(cluster, cases), expected)
            cluster.wait_idle()

    def test_what_cannot_be_served_is_said_at_once(self):
        cluster = self.cluster(harness.DEMO, NODES, {"n0": {"engram_shards": 2}, "n1": {"engram_shards": 2}})
        try:
            cluster.start("e1")
            self.assertEqual(cluster.nodes["e1"].process.wait(harness.DEADLINE_S), 2)
            self.assertIn("no node serves engram_shard 1 of 2", cluster.nodes["e1"].log())
        finally:
            cluster.folder.cleanup()


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
