"""What a client sees when nodes of a cluster are killed, stopped, cut off, restarted and drained.

    faults_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import random
import signal
import sys
import threading
import time
import unittest

import harness
import prompts

ENGINE = "[engine]\nthreads = 1\nprefill_chunk_tokens = 64\n"
FAR = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"]}
TWO_DECODERS = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "d2": ["decoder"]}


def long_prompt(tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(tokens)]


class Faults(unittest.TestCase):
    def setUp(self):
        self.network = None

    def cluster(self, nodes, engine=ENGINE):
        hosts = None
        if PLACE == "namespaces":
            self.network = harness.Network(nodes)
            self.addCleanup(self.network.__exit__)
            self.assertTrue(self.network.good)
            hosts = self.network.hosts()
        return harness.Cluster(PROGRAM, harness.DEMO, nodes, engine, hosts=hosts)

    def busiest(self, cluster, names, work):
        """Runs `work`; which of the nodes worked most, and what it returned."""
        before = {name: cluster.nodes[name].cpu_s() for name in names}
        result = work()
        return max(names, key=lambda name: cluster.nodes[name].cpu_s() - before[name]), result

    def break_while_reading(self, cluster, breaking):
        """A prompt whose encoder is broken while it reads; the answer must be that of an undisturbed run. Prompts that
        begin alike go to the same encoder, so the first run tells which one that will be."""
        ids = long_prompt(3000, seed=len(cluster.retired) + 1)
        encoder, expected = self.busiest(cluster, ["e1", "e2"], lambda: cluster.complete(ids, 8))
        self.assertEqual(expected[0], 200, expected)
        before = cluster.nodes[encoder].cpu_s()
        results = []
        asking = threading.Thread(target=lambda: results.append(cluster.complete(ids, 8)))
        asking.start()
        harness.eventually(lambda: cluster.nodes[encoder].cpu_s() > before + 0.05, "the encoder reads")
        breaking(encoder)
        asking.join()
        self.assertEqual(results[0], expected)
        return encoder

    def test_an_encoder_is_killed_while_it_reads_and_comes_back(self):
        with self.cluster(FAR) as cluster:
            def kill(name):
                cluster.nodes[name].send(signal.SIGKILL)
                cluster.nodes[name].process.wait()
            encoder = self.break_while_reading(cluster, kill)
            cluster.start(encoder)  # on the same address
            cluster.nodes[encoder].wait_log("registered with gw")
            # It is given work again: the other one alone would have to read all of it.
            cluster.nodes["e1" if encoder == "e2" else "e2"].stop()
            status, answer = cluster.complete(long_prompt(300, seed=9), 4)
            self.assertEqual(status, 200, answer)
            cluster.wait_idle()

    def test_an_encoder_is_stopped_while_it_reads_and_goes_on(self):
        with self.cluster(FAR) as cluster:
            encoder = self.break_while_reading(cluster, lambda name: cluster.nodes[name].pause())
            cluster.nodes["gw"].wait_log("node left node=" + encoder)
            cluster.nodes[encoder].send(signal.SIGCONT)
            cluster.nodes[encoder].wait_log("registered gateway=gw", 2)
            cluster.wait_idle()

    def test_an_encoder_is_cut_off_while_it_reads(self):
        if PLACE != "namespaces":
            self.skipTest("needs a network that can be cut")
        with self.cluster(FAR) as cluster:
            encoder = self.break_while_reading(cluster, self.network.cut)
            cluster.nodes["gw"].wait_log("node left node=" + encoder)
            self.network.mend(encoder)
            cluster.nodes[encoder].wait_log("registered gateway=gw", 2)
            cluster.wait_idle()

    def test_a_decoder_is_killed_in_the_middle_of_an_answer(self):
        # Bounded replay builds the windows anew from the last rows, which is close to what the first decoder had built
        # step by step, but not the same.
        with self.cluster(TWO_DECODERS, ENGINE + 'replay = "exact"\n') as cluster:
            ids = prompts.golden()[harness.DEMO]["text_module"]
            expected = cluster.stream(ids, 200)
            self.assertEqual(expected[1], "length")
            before = {name: cluster.nodes[name].cpu_s() for name in ("d1", "d2")}

            def kill_the_writer(pieces):
                if pieces == 60:
                    name = max(before, key=lambda name: cluster.nodes[name].cpu_s() - before[name])
                    cluster.nodes[name].send(signal.SIGKILL)
                    cluster.nodes[name].process.wait()
            self.assertEqual(cluster.stream(ids, 200, kill_the_writer), expected)
            cluster.wait_idle()

    def test_without_another_stage_the_client_is_told(self):
        with self.cluster({"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"]}) as cluster:
            def kill(pieces):
                if pieces == 10:
                    cluster.nodes["d1"].send(signal.SIGKILL)
                    cluster.nodes["d1"].process.wait()
            text, end = cluster.stream(prompts.golden()[harness.DEMO]["text_module"], 400, kill)
            self.assertIn("decoder", end)
            self.assertTrue(text)
            status, reply = cluster.complete([1, 2, 3], 2)
            self.assertEqual(status, 503, reply)
            self.assertIn("the decoder is missing", str(reply))
            # Nothing is wrong with the gateway: restarting it would help nobody.
            self.assertEqual([cluster.request("GET", path)[0] for path in ("/livez", "/health", "/ready")], [200, 503, 503])

    def test_a_gateway_is_restarted_empty(self):
        with self.cluster(FAR) as cluster:
            ids = long_prompt(200, seed=4)
            expected = cluster.complete(ids, 4)
            self.assertEqual(expected[0], 200, expected)
            cluster.nodes["gw"].send(signal.SIGKILL)
            cluster.nodes["gw"].process.wait()
            cluster.start("gw")
            for name in ("e1", "e2", "d1"):
                cluster.nodes[name].wait_log("registered gateway=gw", 2)
            harness.eventually(cluster.ready, "the gateway is ready")
            self.assertEqual(cluster.complete(ids, 4), expected)
            cluster.wait_idle()

    def test_a_drained_encoder_finishes_what_it_reads(self):
        with self.cluster(FAR) as cluster:
            def drain(name):
                cluster.nodes[name].send(signal.SIGTERM)
            encoder = self.break_while_reading(cluster, drain)
            self.assertEqual(cluster.nodes[encoder].process.wait(harness.DEADLINE_S), 0)
            self.assertNotIn("gives up work", cluster.nodes[encoder].log())
            self.assertEqual(cluster.complete(long_prompt(200, seed=5), 4)[0], 200)
            cluster.wait_idle()


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
