"""An encoder whose layers are spread over nodes answers as one process does, and one that loses a node is no encoder.

    pipeline_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import random
import signal
import sys
import threading
import unittest

import harness
import prompts

TOKENS = 8
ARGUMENTS = ("--threads", "1", "--max-sequences", "16")
ENGINE = "[engine]\nthreads = 1\nmax_sequences = 16\nprefill_chunk_tokens = 64\n"


def pipeline(*layers):
    """Nodes p1, p2 and so on with these layers, and a gateway and a decoder: roles, and settings of nodes."""
    names = [f"p{i + 1}" for i in range(len(layers))]
    roles = {"gw": ["gateway"], **{name: ["encoder"] for name in names}, "d1": ["decoder"]}
    return roles, {name: {"pipeline": "reader", "layers": part} for name, part in zip(names, layers)}


def long_prompt(tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(tokens)]


class Pipeline(unittest.TestCase):
    def cluster(self, nodes, settings, model=harness.DEMO):
        hosts = None
        if PLACE == "namespaces":
            network = harness.Network(nodes)
            self.addCleanup(network.__exit__)
            self.assertTrue(network.good)
            hosts = network.hosts()
        return harness.Cluster(PROGRAM, model, nodes, ENGINE, hosts=hosts, node_settings=settings)

    def compare(self, model, layers, cases):
        def ask(client):
            return dict(zip(cases, harness.in_parallel([lambda ids=ids: client.complete(ids, TOKENS)
                                                        for ids in cases.values()])))
        with harness.Server(PROGRAM, model, ARGUMENTS) as server:
            expected = ask(server)
        for name, (status, answer) in expected.items():
            self.assertEqual(status, 200, f"{name}: {answer}")
        with self.cluster(*pipeline(*layers), model=model) as cluster:
            got = ask(cluster)
            for name in cases:
                self.assertEqual(got[name], expected[name], name)
            cluster.wait_idle()

    def test_demo_on_three_nodes_answers_as_one_process(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(prompts.around_blocks(harness.DEMO, (1, 3)))
        self.compare(harness.DEMO, ("0-1", "2", "3-5"), cases)

    def test_mini_on_two_nodes_answers_as_one_process(self):
        cases = dict(prompts.golden()[harness.MINI])
        cases.update(prompts.around_blocks(harness.MINI, (1, 2, 5)))
        self.compare(harness.MINI, ("0-2", "3-5"), cases)

    def test_it_is_an_encoder_when_all_its_nodes_are_there(self):
        nodes, settings = pipeline("0-2", "3-5")
        cluster = self.cluster(nodes, settings)
        try:
            cluster.start("gw", "p1", "d1")
            for name in ("p1", "d1"):
                cluster.nodes[name].wait_log("registered with gw")
            status, reply = cluster.complete([1, 2, 3], 2)
            self.assertEqual(status, 503, reply)
            self.assertIn("the encoder is missing", str(reply))
            cluster.start("p2").wait_ready()
            expected = cluster.complete(long_prompt(300, 1), 4)
            self.assertEqual(expected[0], 200, expected)
            cluster.nodes["p2"].send(signal.SIGKILL)
            cluster.nodes["p2"].process.wait()
            harness.eventually(lambda: not cluster.ready(), "the encoder is withdrawn")
            cluster.start("p2").wait_ready()
            self.assertEqual(cluster.complete(long_prompt(300, 1), 4), expected)
            cluster.wait_idle()
        finally:
            cluster.__exit__(*sys.exc_info())

    def break_while_reading(self, cluster, name, breaking):
        """Asks about a long prompt, breaks a node of the pipeline while it reads, and returns what came of it."""
        results = []
        before = cluster.nodes[name].cpu_s()
        asking = threading.Thread(target=lambda: results.append(cluster.complete(long_prompt(6000, 2), TOKENS)))
        asking.start()
        harness.eventually(lambda: cluster.nodes[name].cpu_s() > before + 0.05, "the pipeline reads")
        breaking(cluster.nodes[name])
        asking.join()
        return results[0]

    def test_another_encoder_takes_over_when_a_node_is_killed(self):
        nodes, settings = pipeline("0-2", "3-5")
        nodes["e1"] = ["encoder"]
        cluster = self.cluster(nodes, settings)
        try:
            cluster.start("gw", "p1", "p2", "d1")
            harness.eventually(cluster.ready, "the gateway is ready")
            expected = cluster.complete(long_prompt(6000, 2), TOKENS)
            self.assertEqual(expected[0], 200, expected)

            def kill(node):
                # Not before, so that it is the pipeline that reads.
                cluster.start("e1")
                cluster.nodes["e1"].wait_log("registered with gw")
                node.send(signal.SIGKILL)
                node.process.wait()
            self.assertEqual(self.break_while_reading(cluster, "p2", kill), expected)
            cluster.wait_idle()
            # The face holds nothing either: the pipeline reads again when its node is back, and nobody else is there.
            cluster.start("p2")
            cluster.nodes["p2"].wait_log("registered with gw")
            cluster.nodes["e1"].stop()
            harness.eventually(cluster.ready, "the pipeline is an encoder again")
            self.assertEqual(cluster.complete(long_prompt(6000, 2), TOKENS), expected)
            cluster.wait_idle()
        finally:
            cluster.__exit__(*sys.exc_info())

    def test_a_node_that_drains_finishes_what_it_reads(self):
        with self.cluster(*pipeline("0-2", "3-5")) as cluster:
            expected = cluster.complete(long_prompt(6000, 2), TOKENS)
            self.assertEqual(expected[0], 200, expected)
            got = self.break_while_reading(cluster, "p2", lambda node: node.send(signal.SIGTERM))
            self.assertEqual(got, expected)
            self.assertEqual(cluster.nodes["p2"].process.wait(harness.DEADLINE_S), 0)
            harness.eventually(lambda: not cluster.ready(), "the encoder is withdrawn")


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
