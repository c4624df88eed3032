"""Encoders and decoders whose layers are spread over nodes answer as one process does, and one that loses a node is none.

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


def writers(*layers):
    """Nodes w1, w2 and so on that are one decoder: roles and settings."""
    names = [f"w{i + 1}" for i in range(len(layers))]
    return {name: ["decoder"] for name in names}, \
        {name: {"pipeline": "writer", "layers": part} for name, part in zip(names, layers)}


def decoder_pipeline(*layers):
    """The same, with a gateway and an encoder."""
    roles, settings = writers(*layers)
    return {"gw": ["gateway"], "e1": ["encoder"], **roles}, settings


class Gone(Exception):
    """The client hangs up."""


def long_prompt(tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(tokens)]


class Pipeline(unittest.TestCase):
    def cluster(self, nodes, settings, model=harness.DEMO, engine=ENGINE):
        hosts = None
        if PLACE == "namespaces":
            network = harness.Network(nodes)
            self.addCleanup(network.__exit__)
            self.assertTrue(network.good)
            hosts = network.hosts()
        return harness.Cluster(PROGRAM, model, nodes, engine, hosts=hosts, node_settings=settings)

    def compare(self, model, nodes, settings, cases):
        def ask(client):
            return dict(zip(cases, harness.in_parallel([lambda ids=ids: client.complete(ids, TOKENS)
                                                        for ids in cases.values()])))
        with harness.Server(PROGRAM, model, ARGUMENTS) as server:
            expected = ask(server)
        for name, (status, answer) in expected.items():
            self.assertEqual(status, 200, f"{name}: {answer}")
        with self.cluster(nodes, settings, model=model) as cluster:
            got = ask(cluster)
            for name in cases:
                self.assertEqual(got[name], expected[name], name)
            cluster.wait_idle()

    def test_demo_on_three_nodes_answers_as_one_process(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(prompts.around_blocks(harness.DEMO, (1, 3)))
        self.compare(harness.DEMO, *pipeline("0-1", "2", "3-5"), cases)

    def test_mini_on_two_nodes_answers_as_one_process(self):
        cases = dict(prompts.golden()[harness.MINI])
        cases.update(prompts.around_blocks(harness.MINI, (1, 2, 5)))
        self.compare(harness.MINI, *pipeline("0-2", "3-5"), cases)

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

    def test_demo_written_on_two_nodes_is_as_one_process_writes(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(prompts.around_blocks(harness.DEMO, (1, 3)))
        self.compare(harness.DEMO, *decoder_pipeline("0-4", "5-11"), cases)

    def test_mini_read_and_written_on_two_nodes_each_is_as_one_process_writes(self):
        nodes, settings = pipeline("0-2", "3-5")
        del nodes["d1"]
        more_nodes, more_settings = writers("0-5", "6-10")
        cases = dict(prompts.golden()[harness.MINI])
        cases.update(prompts.around_blocks(harness.MINI, (1, 2, 5)))
        self.compare(harness.MINI, {**nodes, **more_nodes}, {**settings, **more_settings}, cases)

    def test_it_is_a_decoder_when_all_its_nodes_are_there(self):
        cluster = self.cluster(*decoder_pipeline("0-5", "6-11"))
        try:
            cluster.start("gw", "e1", "w1")
            for name in ("e1", "w1"):
                cluster.nodes[name].wait_log("registered with gw")
            status, reply = cluster.complete([1, 2, 3], 2)
            self.assertEqual(status, 503, reply)
            self.assertIn("the decoder is missing", str(reply))
            cluster.start("w2").wait_ready()
            expected = cluster.complete(long_prompt(300, 1), TOKENS)
            self.assertEqual(expected[0], 200, expected)
            for name in ("w2", "w1"):
                cluster.nodes[name].send(signal.SIGKILL)
                cluster.nodes[name].process.wait()
                harness.eventually(lambda: not cluster.ready(), "the decoder is withdrawn")
                cluster.start(name).wait_ready()
                self.assertEqual(cluster.complete(long_prompt(300, 1), TOKENS), expected)
            cluster.wait_idle()
        finally:
            cluster.__exit__(*sys.exc_info())

    def test_an_answer_goes_on_elsewhere_when_a_node_is_killed(self):
        nodes, settings = decoder_pipeline("0-5", "6-11")
        nodes["d1"] = ["decoder"]
        ids = prompts.golden()[harness.DEMO]["text_module"]
        tokens = 400
        with self.cluster(nodes, settings, engine=ENGINE + 'replay = "exact"\n') as cluster:
            expected = cluster.stream(ids, tokens)
            self.assertEqual(expected[1], "length")
            first_writes = threading.Event()

            def first(_):
                first_writes.set()

            def second(pieces):
                if pieces == 10:
                    cluster.nodes["w2"].send(signal.SIGKILL)
                    cluster.nodes["w2"].process.wait()

            def ask_second():
                # At the other decoder, where nothing is written yet.
                first_writes.wait(harness.DEADLINE_S)
                return cluster.stream(ids, tokens, second)
            answers = harness.in_parallel([lambda: cluster.stream(ids, tokens, first), ask_second])
            self.assertEqual(answers, [expected, expected])
            cluster.wait_idle()
            self.assertIn("step failed", cluster.nodes["w1"].log())
            # The face holds nothing either: with its node back, and nobody else there, it writes again.
            cluster.start("w2")
            cluster.nodes["w2"].wait_log("registered with gw")
            cluster.nodes["d1"].stop()
            harness.eventually(cluster.ready, "the pipeline is a decoder again")
            self.assertEqual(cluster.stream(ids, tokens), expected)
            cluster.wait_idle()

    def test_a_node_that_drains_finishes_what_it_writes(self):
        with self.cluster(*decoder_pipeline("0-5", "6-11"), engine=ENGINE) as cluster:
            expected = cluster.stream([5, 6, 7], 200)
            self.assertEqual(expected[1], "length")

            def drain(pieces):
                if pieces == 5:
                    cluster.nodes["w2"].send(signal.SIGTERM)
            self.assertEqual(cluster.stream([5, 6, 7], 200, drain), expected)
            self.assertEqual(cluster.nodes["w2"].process.wait(harness.DEADLINE_S), 0)
            harness.eventually(lambda: not cluster.ready(), "the decoder is withdrawn")

    def test_answers_that_nobody_reads_leave_room_on_every_node(self):
        with self.cluster(*decoder_pipeline("0-3", "4-7", "8-11"), engine=ENGINE + "kv_pool_blocks = 12\n") as cluster:
            whole = 12 * prompts.model_config(harness.DEMO)["sliding_window"]

            def hang_up(pieces):
                if pieces == 5:
                    raise Gone

            def leave():
                with self.assertRaises(Gone):
                    cluster.stream([5, 6, 7], whole // 3 - 3, hang_up)
            for _ in range(3):
                harness.in_parallel([leave] * 3)
                # Needs every page of every node.
                status, answer = cluster.complete([5, 6, 7], whole - 3, ignore_eos=True)
                self.assertEqual((status, answer["finish"]), (200, "length"))
            cluster.wait_idle()


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
