"""A cluster answers exactly as one process does, whatever roles it has.

    same_answers_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import sys
import unittest

import harness
import prompts

TOKENS = 12
ARGUMENTS = ("--threads", "1", "--max-sequences", "16")
ENGINE = "[engine]\nthreads = 1\nmax_sequences = 16\n"
# Everything that may come between a prompt and its answer. Bounded replay would be built anew from other rows when blocks
# come from the cache: then answers may differ in their last bits, which is measured, not forbidden.
EVERY_ROLE = ENGINE + """prefill_chunk_tokens = 64
replay = "exact"
engram = "service"
index_service_min_tokens = 100
[actors]
cache_mib = 64
"""
NODES = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "d2": ["decoder"],
         "n1": ["engram"], "n2": ["engram"], "i1": ["indexer"], "i2": ["indexer"], "c1": ["cache"]}


def answers(client, cases):
    """All at once: what a request is batched with must not change its answer."""
    names = list(cases)
    results = harness.in_parallel([lambda ids=cases[name]: client.complete(ids, TOKENS) for name in names])
    return dict(zip(names, results))


class SameAnswers(unittest.TestCase):
    def compare(self, model, nodes, cases, engine=ENGINE, arguments=ARGUMENTS, times=1):
        with harness.Server(PROGRAM, model, arguments) as server:
            expected = answers(server, cases)
        for name, (status, answer) in expected.items():
            self.assertEqual(status, 200, f"{name}: {answer}")
        network = harness.Network(nodes) if PLACE == "namespaces" else None
        try:
            self.assertTrue(network is None or network.good)
            with harness.Cluster(PROGRAM, model, nodes, engine, hosts=network.hosts() if network else None) as cluster:
                for time in range(times):
                    got = answers(cluster, cases)
                    for name in cases:
                        self.assertEqual(got[name], expected[name], f"{name}, time {time + 1}")
                cluster.wait_idle()
        finally:
            if network:
                network.__exit__()

    def test_demo_with_two_encoders_and_one_decoder(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(prompts.around_blocks(harness.DEMO, (1, 3)))
        self.compare(harness.DEMO, {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"]}, cases)

    def test_mini_with_two_encoders_and_two_decoders(self):
        cases = dict(prompts.golden()[harness.MINI])
        cases.update(prompts.around_blocks(harness.MINI, (1, 2, 5)))
        # 48 at once, of which half arrive while others are read and written.
        repeated = {f"{name} again {i}": ids for i in range(2) for name, ids in cases.items()}
        cases.update(dict(list(repeated.items())[:48 - len(cases)]))
        self.assertEqual(len(cases), 48)
        nodes = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "d2": ["decoder"]}
        self.compare(harness.MINI, nodes, cases)

    def test_demo_with_every_role(self):
        cases = dict(prompts.golden()[harness.DEMO])
        cases.update(prompts.around_blocks(harness.DEMO, (1, 3)))
        self.compare(harness.DEMO, NODES, cases, EVERY_ROLE, (*ARGUMENTS, "--replay", "exact"), times=2)

    def test_mini_with_every_role(self):
        cases = dict(prompts.golden()[harness.MINI])
        cases.update(prompts.around_blocks(harness.MINI, (1, 2, 5)))
        self.compare(harness.MINI, NODES, cases, EVERY_ROLE, (*ARGUMENTS, "--replay", "exact"), times=2)


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
