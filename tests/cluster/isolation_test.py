"""What one tenant has asked is nothing that another can find out: its prompts are read as if nobody had sent them before, by what
the reply says and by the work that they are.

    isolation_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import json
import random
import sys
import unittest

import harness
import prompts

NODES = {"gw": ["gateway"], "e1": ["encoder"], "d1": ["decoder"], "c1": ["cache"]}
ENGINE = "[engine]\nthreads = 1\n"
PROMPT_TOKENS = 4000
ROUNDS = 4


def content(seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(PROMPT_TOKENS)]


class Isolation(unittest.TestCase):
    def cluster(self):
        hosts = None
        if PLACE == "namespaces":
            network = harness.Network(NODES)
            self.addCleanup(network.__exit__)
            self.assertTrue(network.good)
            hosts = network.hosts()
        return harness.Cluster(PROGRAM, harness.DEMO, NODES, ENGINE, hosts=hosts)

    def ask(self, cluster, ids, salt):
        """What the reply says of the cache, the answer, and the encoder's processor time."""
        before = cluster.nodes["e1"].cpu_s()
        status, reply = cluster.request("POST", "/v1/completions", {
            "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "cache_salt": salt})
        self.assertEqual(status, 200, reply)
        reply = json.loads(reply)
        usage = reply["usage"]
        told = {"prompt_cache_hit_tokens": usage["prompt_cache_hit_tokens"], **usage["prompt_tokens_details"]}
        return told, reply["choices"][0]["logprobs"], cluster.nodes["e1"].cpu_s() - before

    def test_a_tenant_finds_nothing_of_anothers(self):
        block = prompts.model_config(harness.DEMO)["sliding_window"]
        own = (PROMPT_TOKENS - 1) // block * block
        with self.cluster() as cluster:
            work = {"cold": 0, "foreign": 0, "own": 0}
            for i in range(ROUNDS):
                ids = content(i)
                told, answer, _ = self.ask(cluster, ids, "a")
                self.assertEqual(told["cached_tokens"], 0)
                # A's blocks are kept behind the answer's back.
                harness.eventually(lambda: self.ask(cluster, ids, "a")[0]["cached_tokens"] == own, "A's prompt is cached")
                told_own, answer_own, work_own = self.ask(cluster, ids, "a")
                self.assertEqual(told_own["cached_tokens"], own)
                # B sends A's content; and, for comparison, what nobody has sent.
                told_foreign, answer_foreign, work_foreign = self.ask(cluster, ids, f"b-{i}")
                told_cold, _, work_cold = self.ask(cluster, content(100 + i), f"b-{i}")
                self.assertEqual(told_foreign["cached_tokens"], 0)
                self.assertEqual(told_foreign, told_cold)
                # The same question has the same answer, however it was read.
                self.assertEqual(answer_own, answer)
                self.assertEqual(answer_foreign, answer)
                for kind, seconds in (("cold", work_cold), ("foreign", work_foreign), ("own", work_own)):
                    work[kind] += seconds
            print(f"processor seconds of the encoder for {ROUNDS} prompts: {work}", flush=True)
            self.assertLess(abs(work["foreign"] - work["cold"]), 0.35 * work["cold"])
            self.assertLess(work["own"], 0.5 * work["cold"])


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
