"""Prompts that begin like others, with a cache node: what was computed once is fetched, and answers stay what they are.

    cache_test.py CEDAR PLACE     PLACE: loopback, or namespaces joined by veth
"""
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import harness
import prompts

ENGINE = "[engine]\nthreads = 1\nprefill_chunk_tokens = 64\n"
NODES = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "c1": ["cache"]}


def long_prompt(tokens, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1000) for _ in range(tokens)]


def ask_for_details(client, ids, tokens, **more):
    """What the answer says of the prompt, ids and log-probabilities of the greedy answer."""
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "return_token_ids": True,
            "ignore_eos": True, **more}
    status, reply = client.request("POST", "/v1/completions", body)
    reply = json.loads(reply)
    if status != 200:
        raise AssertionError(f"{status}: {reply}")
    choice = reply["choices"][0]
    return reply["usage"]["prompt_tokens_details"], (choice["token_ids"], choice["logprobs"])


def ask(client, ids, tokens, **more):
    """Cached tokens of the prompt, and the answer."""
    details, answer = ask_for_details(client, ids, tokens, **more)
    return details["cached_tokens"], answer


def blocks_in(folder):
    """KV blocks on disk, as `cedar cache stat` counts them."""
    stat = subprocess.run([PROGRAM, "cache", "stat", folder], capture_output=True, text=True, check=True)
    values = [line for line in stat.stdout.splitlines() if line.startswith("values")]
    return int(values[0].split()[1].replace(",", ""))


class Cache(unittest.TestCase):
    def setUp(self):
        self.network = None
        self.block = prompts.model_config(harness.DEMO)["sliding_window"]

    def cluster(self, nodes=None, engine=ENGINE, node_settings=None):
        nodes = nodes or NODES
        hosts = None
        if PLACE == "namespaces":
            self.network = harness.Network(nodes)
            self.addCleanup(self.network.__exit__)
            self.assertTrue(self.network.good)
            hosts = self.network.hosts()
        return harness.Cluster(PROGRAM, harness.DEMO, nodes, engine, hosts=hosts, node_settings=node_settings)

    def without_cache(self, asked):
        """What one process answers that keeps nothing."""
        with harness.Server(PROGRAM, harness.DEMO, ("--threads", "1", "--cache-mib", "0")) as server:
            results = [ask(server, *a) for a in asked]
        self.assertEqual([cached for cached, _ in results], [0] * len(asked))
        return [answer for _, answer in results]

    def eventually_cached(self, cluster, ids, tokens, expected, **more):
        """Blocks are kept behind the answer's back: asks until `expected` tokens are found; the answers."""
        answers = []

        def found():
            cached, answer = ask(cluster, ids, tokens, **more)
            answers.append(answer)
            self.assertLessEqual(cached, expected)
            return cached == expected
        harness.eventually(found, f"{expected} cached tokens")
        return answers

    def encoder_of(self, cluster, ids, tokens):
        before = {name: cluster.nodes[name].cpu_s() for name in ("e1", "e2")}
        result = ask(cluster, ids, tokens)
        return max(before, key=lambda name: cluster.nodes[name].cpu_s() - before[name]), result

    def test_turns_of_a_conversation_hit_on_another_encoder(self):
        first = long_prompt(1500, seed=1)
        with self.cluster() as cluster:
            encoder, (cached, told) = self.encoder_of(cluster, first, 150)
            self.assertEqual(cached, 0)
            second = first + told[0] + long_prompt(40, seed=2)
            # Prompt and answer, in whole blocks; the answer's last token has no rows yet.
            expected = (len(first) + len(told[0]) - 1) // self.block * self.block
            cluster.nodes[encoder].stop()
            answers = self.eventually_cached(cluster, second, 20, expected)
            # The third turn hits what the second one computed.
            third = second + answers[-1][0] + [77, 78]
            last = self.eventually_cached(cluster, third, 20, (len(second) + 20 - 1) // self.block * self.block)
            cluster.wait_idle()
            self.assertEqual(cluster.nodes["c1"].stop(), 0)
        alone = self.without_cache([(first, 150), (second, 20), (third, 20)])
        self.assertEqual(told, alone[0])
        for answer in answers:
            self.assertEqual(answer, alone[1])
        for answer in last:
            self.assertEqual(answer, alone[2])

    def test_windows_of_the_last_turn_are_taken_over_by_another_encoder(self):
        first = long_prompt(6 * self.block + 30, seed=9)  # too short for a replay
        with tempfile.TemporaryDirectory(prefix="cedar-blocks-") as folder:
            with self.cluster(node_settings={"c1": {"cache_directory": folder, "cache_disk_mib": 64}}) as cluster:
                encoder, (_, told) = self.encoder_of(cluster, first, 20)
                cluster.nodes[encoder].stop()
                answers = []

                def turn(ids, expected):
                    details, answer = ask_for_details(cluster, ids, 20)
                    answers.append((ids, answer))
                    return {key: details[key] for key in expected} == expected

                def second_turn():
                    # Each time another one, so that it never hits itself.
                    new = long_prompt(5 * self.block, seed=100 + len(answers))
                    return turn(first + told[0] + new, {
                        "resume": "windows", "cached_tokens": 6 * self.block, "cached_tokens_disk": 0,
                        "replayed_tokens": 0})
                # They are kept behind the answer's back.
                harness.eventually(second_turn, "a turn with windows")
                third = answers[-1][0] + answers[-1][1][0] + [9]
                harness.eventually(lambda: turn(third, {
                    "resume": "windows", "cached_tokens": len(third[:-2]) // self.block * self.block,
                    "cached_tokens_disk": 0}), "another")
                # Windows die with their node, blocks do not.
                harness.eventually(lambda: blocks_in(folder) >= len(third) // self.block, "all blocks are on disk")
                cluster.nodes["c1"].send(signal.SIGKILL)
                cluster.nodes["c1"].process.wait()
                cluster.nodes["gw"].wait_log("node left node=c1")
                cluster.start("c1")
                cluster.nodes["c1"].wait_log("registered with gw")
                details, answer = ask_for_details(cluster, third, 20)
                answers.append((third, answer))
                self.assertNotEqual(details["resume"], "windows")
                self.assertEqual(details["cached_tokens_disk"], details["cached_tokens"])
                cluster.wait_idle()
        alone = self.without_cache([(first, 20)] + [(ids, 20) for ids, _ in answers])
        self.assertEqual([told] + [answer for _, answer in answers], alone)

    def test_prompts_around_block_edges_twice(self):
        cases = prompts.around_blocks(harness.DEMO, (10, 12))
        expected = dict(zip(cases, self.without_cache([(ids, 6) for ids in cases.values()])))
        with self.cluster() as cluster:
            for _ in range(2):
                got = harness.in_parallel([lambda ids=ids: ask(cluster, ids, 6) for ids in cases.values()])
                for name, (_, answer) in zip(cases, got):
                    self.assertEqual(answer, expected[name], name)
            for name, ids in cases.items():
                if len(ids) > 9 * self.block:
                    self.eventually_cached(cluster, ids, 6, (len(ids) - 1) // self.block * self.block)
            cluster.wait_idle()

    def test_other_salts_find_nothing(self):
        ids = long_prompt(1000, seed=3)
        with self.cluster() as cluster:
            found = (len(ids) - 1) // self.block * self.block
            self.eventually_cached(cluster, ids, 4, found, cache_salt="one")
            self.assertEqual(ask(cluster, ids, 4, cache_salt="other")[0], 0)
            self.assertEqual(ask(cluster, ids, 4)[0], 0)
            self.assertEqual(ask(cluster, ids, 4, cache_salt="one")[0], found)

    def test_the_cache_is_killed_in_the_middle_of_a_request_and_comes_back(self):
        ids = long_prompt(2500, seed=4)
        found = (len(ids) - 1) // self.block * self.block
        expected = self.without_cache([(ids, 30)])[0]
        with self.cluster() as cluster:
            self.eventually_cached(cluster, ids, 30, found)
            for delay_s in (0, 0.02, 0.1):
                results = []
                asking = threading.Thread(target=lambda: results.append(ask(cluster, ids, 30)))
                asking.start()
                time.sleep(delay_s)
                cluster.nodes["c1"].send(signal.SIGKILL)
                cluster.nodes["c1"].process.wait()
                asking.join()
                self.assertEqual(results[0][1], expected)
                # Without a cache all is computed.
                cluster.nodes["gw"].wait_log("node left node=c1", len(cluster.retired) + 1)
                self.assertEqual(ask(cluster, ids, 30), (0, expected))
                # It comes back empty and is filled again.
                cluster.start("c1")
                cluster.nodes["c1"].wait_log("registered with gw")
                for answer in self.eventually_cached(cluster, ids, 30, found):
                    self.assertEqual(answer, expected)
            cluster.wait_idle()

    def test_after_every_process_was_killed_the_next_turn_hits_the_disk(self):
        first = long_prompt(1500, seed=6)
        block = self.block
        with tempfile.TemporaryDirectory(prefix="cedar-blocks-") as folder:
            cluster = self.cluster(node_settings={"c1": {"cache_directory": folder, "cache_disk_mib": 64}})
            with cluster:
                _, told = ask(cluster, first, 150)
                second = first + told[0] + long_prompt(40, seed=7)
                whole = (len(first) + len(told[0]) - 1) // block
                harness.eventually(lambda: blocks_in(folder) >= whole, "all blocks are on disk")
                answers = []

                def hits_after_a_restart(ids, expected):
                    """The first question that the new processes are asked."""
                    for node in cluster.nodes.values():
                        node.send(signal.SIGKILL)
                    for node in cluster.nodes.values():
                        node.process.wait()
                    cluster.start().wait_ready()
                    cluster.nodes["c1"].wait_log("registered with gw")
                    cached, answer = ask(cluster, ids, 20)
                    answers.append((ids, answer))
                    return cached == expected
                # Prompt and answer of the last turn; and whole blocks, one token less, one more.
                for ids, expected in ((second, whole), (first[:10 * block], 9), (first[:10 * block - 1], 9),
                                      (first[:10 * block + 1], 10)):
                    # A lookup may take too long on a machine that is busy.
                    harness.eventually(lambda: hits_after_a_restart(ids, expected * block), f"{expected} blocks")
                cluster.wait_idle()
                for node in cluster.nodes.values():
                    node.stop()
                # Nothing that was written is damaged.
                verify = subprocess.run([PROGRAM, "cache", "verify", folder], capture_output=True, text=True, check=False)
                self.assertEqual(verify.returncode, 0, verify.stdout)
        alone = self.without_cache([(ids, 20) for ids, _ in answers])
        self.assertEqual([answer for _, answer in answers], alone)

    def test_a_server_finds_its_blocks_after_a_restart(self):
        ids = long_prompt(1200, seed=8)
        found = (len(ids) - 1) // self.block * self.block
        with tempfile.TemporaryDirectory(prefix="cedar-blocks-") as folder:
            def asked_first():
                with harness.Server(PROGRAM, harness.DEMO, ("--threads", "1", "--cache-directory", folder)) as server:
                    answers.append(ask(server, ids, 10))
                    harness.eventually(lambda: blocks_in(folder) >= len(ids) // self.block, "all blocks are on disk")
                return answers[-1][0] == found
            answers = []
            self.assertFalse(asked_first())
            # A lookup may take too long on a machine that is busy.
            harness.eventually(asked_first, f"{found} cached tokens")
            for _, answer in answers:
                self.assertEqual(answer, answers[0][1])

    def test_a_cache_that_is_stopped_is_done_without(self):
        ids = long_prompt(1200, seed=5)
        found = (len(ids) - 1) // self.block * self.block
        with self.cluster() as cluster:
            expected = self.eventually_cached(cluster, ids, 10, found)[0]
            cluster.nodes["c1"].pause()
            self.assertEqual(ask(cluster, ids, 10)[1], expected)
            cluster.nodes["gw"].wait_log("node left node=c1")
            cluster.nodes["c1"].send(signal.SIGCONT)
            cluster.nodes["c1"].wait_log("registered gateway=gw", 2)
            # What it had is there still.
            self.assertEqual(self.eventually_cached(cluster, ids, 10, found)[-1], expected)
            cluster.wait_idle()


if __name__ == "__main__":
    PROGRAM, PLACE = sys.argv[1:3]
    harness.skip_without(PLACE)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
