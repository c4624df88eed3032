"""Stages whose index keys are spread over indexers answer exactly as one process does, whatever becomes of these.

    indexers_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import random
import re
import signal
import sys
import unittest

import harness

TOKENS = 40
LONG_ANSWER = 300  # long enough to be broken off in
ARGUMENTS = ("--threads", "1", "--max-sequences", "8")
ENGINE = "[engine]\nthreads = 1\nmax_sequences = 8\nprefill_chunk_tokens = 256\nindex_service_min_tokens = 300\n"
NODES = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "i1": ["indexer"], "i2": ["indexer"]}


def prompts():
    """The demo model chooses 64 rows and keeps 64 candidate blocks of 8 tokens: from 512 tokens on, all of it bites. One
    prompt is too short to be spread and shares the others' batches."""
    rng = random.Random(5)
    return {n: [rng.randrange(10, 1000) for _ in range(n)] for n in (1500, 1001, 640, 250)}


class Indexers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = prompts()
        with harness.Server(PROGRAM, harness.DEMO, ARGUMENTS) as server:
            cls.expected = cls.answers(server)
            cls.long_text, end = server.stream(cls.cases[1500], LONG_ANSWER)
            assert end == "length", end
        for name, (status, answer) in cls.expected.items():
            assert status == 200, f"{name}: {answer}"

    @classmethod
    def answers(cls, client):
        """All at once."""
        names = list(cls.cases)
        return dict(zip(names, harness.in_parallel(
            [lambda ids=cls.cases[name]: client.complete(ids, TOKENS, ignore_eos=True) for name in names])))

    def cluster(self, engine=ENGINE):
        hosts = None
        if PLACE == "namespaces":
            network = harness.Network(NODES)
            self.addCleanup(network.__exit__)
            self.assertTrue(network.good)
            hosts = network.hosts()
        return harness.Cluster(PROGRAM, harness.DEMO, NODES, engine, hosts=hosts)

    def work_of(self, cluster, name):
        """What a node says of its index work when it ends."""
        node = cluster.nodes[name]
        self.assertEqual(node.stop(), 0, node.log())
        line = [line for line in node.log().splitlines() if "[index] keys were spread" in line or "[indexer] ends" in line]
        self.assertEqual(len(line), 1, node.log())
        return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line[0])}

    def check(self, got):
        for name in self.cases:
            self.assertEqual(got[name], self.expected[name], name)

    def test_answers_are_those_of_one_process(self):
        with self.cluster() as cluster:
            self.check(self.answers(cluster))
            cluster.wait_idle()
            for name in ("e1", "d1"):
                work = self.work_of(cluster, name)
                self.assertGreater(work["blocks"], 20, name)
                self.assertGreater(work["calls"], 10, name)
                self.assertEqual(work["failed_calls"], 0, name)
            for name in ("i1", "i2"):
                work = self.work_of(cluster, name)
                self.assertGreater(work["scanned_rows"], 500, name)
                self.assertEqual(work["parts_left"], 0, name)

    def break_while_writing(self, cluster, breaking):
        """Breaks an indexer when the decoder has written ten tokens of a long answer, which must not change."""
        done = []

        def on_token(count):
            if count == 10:
                breaking(cluster.nodes["i1"])
                done.append(True)
        got, end = cluster.stream(self.cases[1500], LONG_ANSWER, on_token)
        self.assertEqual((got, end), (self.long_text, "length"))
        self.assertTrue(done)

    def test_an_indexer_is_killed_while_an_answer_is_written(self):
        with self.cluster() as cluster:
            def kill(node):
                node.send(signal.SIGKILL)
                node.process.wait()
            self.break_while_writing(cluster, kill)
            cluster.start("i1")
            cluster.nodes["i1"].wait_log("registered with gw")
            self.check(self.answers(cluster))
            cluster.wait_idle()
            self.assertGreater(self.work_of(cluster, "d1")["calls"], 10)
            self.assertGreater(self.work_of(cluster, "i1")["scans"], 0)

    def test_an_indexer_is_stopped_while_an_answer_is_written(self):
        with self.cluster(ENGINE + "index_service_timeout_ms = 500\n") as cluster:
            self.break_while_writing(cluster, lambda node: node.pause())
            cluster.nodes["gw"].wait_log("node left node=i1")
            self.check(self.answers(cluster))
            cluster.nodes["i1"].send(signal.SIGCONT)
            cluster.nodes["i1"].wait_log("registered gateway=gw", 2)
            self.check(self.answers(cluster))
            cluster.wait_idle()
            # The calls that were under way when it stopped, and no more.
            self.assertLess(self.work_of(cluster, "d1")["failed_calls"], 5)

    def test_without_indexers_and_with_new_ones(self):
        with self.cluster() as cluster:
            for name in ("i1", "i2"):
                self.assertEqual(cluster.nodes[name].stop(), 0)
            self.check(self.answers(cluster))
            cluster.start("i2")
            cluster.nodes["i2"].wait_log("registered with gw")
            self.check(self.answers(cluster))
            cluster.wait_idle()
            self.assertGreater(self.work_of(cluster, "i2")["scans"], 0)


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
