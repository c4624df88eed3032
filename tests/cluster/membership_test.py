"""Who may join a cluster of real processes, and what the others are told.

    membership_test.py CEDAR
"""
import json
import os
import sys
import unittest

import harness

ENGINE = "[engine]\nthreads = 1\n"
NODES = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"]}


class Membership(unittest.TestCase):
    def changed(self, cluster, old, new):
        """Another file for a cluster's nodes, in which something is different."""
        with open(cluster.config, encoding="utf-8") as f:
            text = f.read()
        self.assertIn(old, text)
        path = cluster.config + f".{len(os.listdir(cluster.folder.name))}.toml"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
        return path

    def expect_end(self, node, status, *words):
        self.assertEqual(node.process.wait(harness.DEADLINE_S), status, node.log())
        for word in words:
            self.assertIn(word, node.log())

    def test_a_secret_is_needed_if_there_is_one(self):
        folder = harness.tempfile.TemporaryDirectory(prefix="cedar-secret-")
        self.addCleanup(folder.cleanup)
        for name, text in (("right", "open sesame\n"), ("wrong", "open barley\n"), ("empty", "\n")):
            with open(os.path.join(folder.name, name), "w", encoding="utf-8") as f:
                f.write(text)
        secret = os.path.join(folder.name, "right")
        with harness.Cluster(PROGRAM, harness.MINI, NODES, ENGINE, cluster={"secret_file": secret}) as cluster:
            self.assertEqual(cluster.complete([1, 2, 3], 2)[0], 200)
            cluster.nodes["e1"].stop()
            cluster.start("e1", config=self.changed(cluster, json.dumps(secret), json.dumps(folder.name + "/wrong")))
            self.expect_end(cluster.nodes["e1"], 1, "secret of cluster")
            cluster.start("e1", config=self.changed(cluster, json.dumps(secret), json.dumps(folder.name + "/empty")))
            self.expect_end(cluster.nodes["e1"], 2, "cluster.secret_file", "is empty")
            cluster.start("e1", config=self.changed(cluster, json.dumps(secret), json.dumps(folder.name + "/none")))
            self.expect_end(cluster.nodes["e1"], 2, "cluster.secret_file", "No such file")
            self.assertTrue(cluster.nodes["d1"].process.poll() is None)

    def test_nodes_of_another_cluster_or_model_are_refused_by_both_values(self):
        with harness.Cluster(PROGRAM, harness.MINI, NODES, ENGINE) as cluster:
            cluster.nodes["e1"].stop()
            cluster.start("e1", config=self.changed(cluster, "[cluster]", '[cluster]\nname = "other"'))
            self.expect_end(cluster.nodes["e1"], 1, 'cluster "other"', 'cluster "cedar"')
            refused = 'cedar_cluster_refused_nodes_total{reason="%s"}'
            self.assertGreaterEqual(cluster.metric(refused % "invalid_argument"), 1)
            self.assertEqual(cluster.metric(refused % "unsupported"), 0)
            cluster.start("e1", config=self.changed(cluster, json.dumps(harness.MINI), json.dumps(harness.DEMO)))
            self.expect_end(cluster.nodes["e1"], 1, "KV layout", "64 tokens", "36 tokens")
            self.assertGreaterEqual(cluster.metric(refused % "unsupported"), 1)
            cluster.start("e1")
            cluster.nodes["e1"].wait_log("registered with gw")
            self.assertEqual(cluster.complete([1, 2, 3], 2)[0], 200)

    def test_a_later_life_of_a_node_ends_the_former(self):
        with harness.Cluster(PROGRAM, harness.MINI, NODES, ENGINE) as cluster:
            former = cluster.nodes["e1"]
            # Another data port: the address of the former is still taken.
            config = self.changed(cluster, self.data_of(cluster, "e1"), "127.0.0.1:0")
            cluster.start("e1", config=config)
            cluster.nodes["e1"].wait_log("registered with gw")
            self.expect_end(former, 1, "a later one has registered")
            self.assertEqual(cluster.complete([1, 2, 3], 2)[0], 200)

    def data_of(self, cluster, name):
        with open(cluster.config, encoding="utf-8") as f:
            text = f.read()
        return text.split(f'name = "{name}"')[1].split('data = "')[1].split('"')[0]

    def test_what_a_node_cannot_be_is_said_at_once(self):
        cluster = harness.Cluster(PROGRAM, harness.MINI, NODES, ENGINE)
        try:
            cluster.start("nobody")
            self.expect_end(cluster.nodes["nobody"], 2, 'has no node "nobody"', "gw, e1, d1")
        finally:
            cluster.folder.cleanup()

    def test_a_node_waits_for_its_gateway_and_ends_when_told(self):
        cluster = harness.Cluster(PROGRAM, harness.MINI, NODES, ENGINE)
        try:
            cluster.start("e1", "d1")
            cluster.nodes["e1"].wait_log("not registered, tries again")
            cluster.start("gw")
            cluster.wait_ready()
            self.assertEqual(cluster.complete([1, 2, 3], 2)[0], 200)
        finally:
            cluster.__exit__(None)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
