"""What every node of a cluster says of itself at its page, and that sums over nodes are right.

    metrics_test.py CEDAR
"""
import http.client
import re
import signal
import sys
import tempfile
import unittest

import harness

ENGINE = ('[engine]\nthreads = 1\nmax_sequences = 8\nprefill_chunk_tokens = 64\nengram = "service"\n'
          "index_service_min_tokens = 128\n")
NODES = {"gw": ["gateway"], "e1": ["encoder"], "e2": ["encoder"], "d1": ["decoder"], "tables": ["engram"],
         "keys": ["indexer"], "store": ["cache"]}
# What begins like this is counted by one kind of node alone.
OWNERS = {"cedar_gateway_": ["gw"], "cedar_actors_phase": ["gw"], "cedar_cluster_": ["gw"], "cedar_encoder_": ["e1", "e2"],
          "cedar_decoder_": ["d1"], "cedar_engram_service_": ["tables"], "cedar_engram_rows": ["e1", "e2", "d1"],
          "cedar_indexer_": ["keys"], "cedar_index_scans": ["e1", "e2", "d1"], "cedar_cache_": ["store"],
          "cedar_transport_": ["d1", "e1", "e2", "keys", "store", "tables"], "process_": list(NODES),
          "cedar_build_info": list(NODES)}


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def series(text):
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
            if line and not line.startswith("#")}


class Pages:
    """A cluster whose nodes have pages."""

    def __init__(self, **store):
        self.ports = {name: harness.free_port() for name in NODES if name != "gw"}
        settings = {name: {"metrics": f"127.0.0.1:{port}"} for name, port in self.ports.items()}
        settings["store"].update(store)
        self.cluster = harness.Cluster(PROGRAM, harness.DEMO, NODES, ENGINE, node_settings=settings)
        self.ports["gw"] = self.cluster.port

    def scrape(self, name):
        status, text = get(self.ports[name], "/metrics")
        assert status == 200, (name, status)
        return series(text)

    def sum(self, metric, names=NODES):
        return sum(self.scrape(name).get(metric, 0) for name in names)

    def ready(self, name):
        return get(self.ports[name], "/ready")[0]


class Metrics(unittest.TestCase):
    def ask(self, cluster, count, first=0):
        jobs = [lambda i=i: cluster.complete([10 + (i * 7 + j) % 900 for j in range(200)], 8) for i in range(first, first + count)]
        for status, answer in harness.in_parallel(jobs):
            self.assertEqual(status, 200, answer)
        cluster.wait_idle()

    def test_sums_over_nodes_are_what_the_gateway_has_seen(self):
        pages = Pages()
        with pages.cluster as cluster:
            self.ask(cluster, 6)
            gateway = pages.scrape("gw")
            read = gateway["cedar_gateway_prompt_tokens_total"]
            written = gateway["cedar_gateway_completion_tokens_total"]
            self.assertEqual(read, 6 * 200)
            self.assertEqual(written, 6 * 8)
            self.assertEqual(pages.sum("cedar_encoder_rows_total"), read)
            self.assertEqual(pages.sum("cedar_decoder_tokens_total"), written)
            self.assertGreater(pages.sum("cedar_decoder_replayed_rows_total"), 0)
            self.assertEqual(pages.sum('cedar_encoder_prompts_total{outcome="finished"}'), 6)
            self.assertEqual(pages.sum('cedar_decoder_sequences_ended_total{outcome="finished"}'), 6)
            for phase in ("queue", "reserve", "prefill", "handover", "replay", "decode"):
                self.assertEqual(gateway[f'cedar_actors_phase_seconds_count{{phase="{phase}"}}'], 6, phase)
            self.assertEqual(gateway['cedar_actors_cache_questions_total{result="miss"}'], 6)
            # Bytes that one side fetched are bytes that an offer had; both kinds went to the decoder.
            for kind in ("blocks", "state"):
                self.assertGreater(pages.scrape("d1")[f'cedar_transfer_bytes_total{{kind="{kind}"}}'], 0, kind)
            self.assertGreater(pages.scrape("d1")['cedar_transport_pulls_total{status="ok"}'], 0)
            self.assertGreater(pages.sum("cedar_engram_service_rows_total"), 0)
            self.assertGreater(pages.sum('cedar_engram_rows_total{found="ahead"}') +
                               pages.sum('cedar_engram_rows_total{found="late"}') +
                               pages.sum('cedar_engram_rows_total{found="missed"}'), 0)
            self.assertGreater(pages.sum("cedar_index_scans_total"), 0)
            self.assertGreater(pages.sum("cedar_indexer_scans_total"), 0)
            harness.eventually(lambda: pages.sum("cedar_cache_blocks") > 0, "blocks are cached")
            self.assertEqual(gateway['cedar_cluster_nodes{role="encoder"}'], 2)
            self.assertEqual(gateway['cedar_cluster_nodes{role="cache"}'], 1)
            for name in NODES:
                self.assertEqual(pages.ready(name), 200, name)
                self.assertEqual(pages.scrape(name)["cedar_ready"], 1, name)
                self.assertGreater(pages.scrape(name)["process_resident_memory_bytes"], 0, name)

    def test_every_family_belongs_to_the_nodes_of_its_role(self):
        pages = Pages()
        with pages.cluster as cluster:
            self.ask(cluster, 1)
            names = {name: pages.scrape(name) for name in NODES}
            for prefix, owners in OWNERS.items():
                having = [name for name, metrics in names.items() if any(m.startswith(prefix) for m in metrics)]
                self.assertEqual(sorted(having), sorted(owners), prefix)

    # Field report B65: counters of one target never go back, unless its process is a new one, which says so.
    def test_a_node_that_begins_anew_leaves_all_others_as_they_are(self):
        pages = Pages()
        with pages.cluster as cluster:
            self.ask(cluster, 4)
            before = {name: pages.scrape(name) for name in NODES}
            cluster.nodes["e2"].process.send_signal(signal.SIGKILL)
            cluster.nodes["e2"].process.wait()
            harness.eventually(lambda: pages.scrape("gw")['cedar_cluster_nodes{role="encoder"}'] == 1, "e2 is missed")
            cluster.start("e2")
            cluster.wait_ready()
            harness.eventually(lambda: pages.ready("e2") == 200, "e2 is listed")
            self.ask(cluster, 4, first=4)
            for name in NODES:
                after = pages.scrape(name)
                if name == "e2":
                    self.assertGreater(after["process_start_time_seconds"], before[name]["process_start_time_seconds"])
                    self.assertLessEqual(after["cedar_encoder_rows_total"], 800)
                    continue
                for metric, value in before[name].items():
                    if re.search(r"(_total|_count|_sum|_bucket)(\{|$)", metric):
                        self.assertGreaterEqual(after[metric], value, f"{name} {metric}")
            self.assertEqual(pages.scrape("gw")["cedar_gateway_prompt_tokens_total"], 8 * 200)

    def test_what_a_cache_has_is_counted_by_where_it_had_it(self):
        folder = tempfile.TemporaryDirectory(prefix="cedar-metrics-")
        self.addCleanup(folder.cleanup)
        pages = Pages(cache_directory=folder.name)
        # Longer than what an exact replay of the windows reads again.
        prompt = [10 + i * 7 % 900 for i in range(1000)]
        with pages.cluster as cluster:
            def ask(more):
                status, answer = cluster.complete(prompt + more, 4)
                self.assertEqual(status, 200, answer)
                cluster.wait_idle()

            def cached(tier):
                return pages.scrape("gw")[f'cedar_gateway_cached_prompt_tokens_total{{tier="{tier}"}}']

            ask([])
            harness.eventually(lambda: pages.scrape("store")["cedar_cache_windows"] == 1, "the windows are kept")
            harness.eventually(lambda: pages.scrape("store")["cedar_cache_disk_written_blocks_total"] >=
                               pages.scrape("store")["cedar_cache_stored_blocks_total"] > 0, "the blocks are on disk")
            self.assertEqual(cached("memory") + cached("disk"), 0)
            ask([5] * 50)
            store, gateway = pages.scrape("store"), pages.scrape("gw")
            blocks = store['cedar_cache_hit_blocks_total{tier="memory"}']
            self.assertGreater(blocks, 0)
            self.assertEqual(pages.sum("cedar_encoder_cached_blocks_total"), blocks)
            self.assertGreater(cached("memory"), 0)
            self.assertEqual(cached("disk"), 0)
            self.assertEqual(gateway['cedar_actors_cache_questions_total{result="hit"}'], 1)
            self.assertEqual(store["cedar_cache_window_hits_total"], 1)
            self.assertEqual(gateway['cedar_gateway_prefix_resumes_total{kind="windows"}'], 1)
            self.assertGreater(store["cedar_cache_capacity_bytes"], store["cedar_cache_bytes"])
            self.assertGreater(store["cedar_cache_disk_bytes"], 0)

            def from_disk():
                """The first question to a new process."""
                cluster.nodes["store"].stop()
                harness.eventually(lambda: pages.scrape("gw")['cedar_cluster_nodes{role="cache"}'] == 0, "it is missed")
                cluster.start("store")
                cluster.wait_ready()
                harness.eventually(lambda: pages.scrape("gw")['cedar_cluster_nodes{role="cache"}'] == 1, "it is back")
                ask([6] * 50)
                return cached("disk") > 0
            # A lookup may take too long on a machine that is busy.
            harness.eventually(from_disk, "blocks come from the disk")
            self.assertGreater(pages.scrape("store")['cedar_cache_hit_blocks_total{tier="disk"}'], 0)
            self.assertEqual(pages.scrape("store")['cedar_cache_hit_blocks_total{tier="memory"}'], 0)
            # The windows went with the process.
            self.assertGreater(pages.scrape("gw")['cedar_gateway_prefix_resumes_total{kind="exact"}'], 0)
            self.assertGreater(pages.scrape("gw")["cedar_gateway_replayed_prompt_tokens_total"], 0)

    def test_a_node_that_nobody_lists_is_not_ready(self):
        pages = Pages()
        with pages.cluster:
            self.assertEqual(pages.ready("e1"), 200)
            cluster = pages.cluster
            cluster.nodes["gw"].process.send_signal(signal.SIGKILL)
            cluster.nodes["gw"].process.wait()
            harness.eventually(lambda: pages.ready("e1") == 503, "nobody lists it")
            self.assertEqual(get(pages.ports["e1"], "/livez")[0], 200)
            self.assertEqual(pages.scrape("e1")["cedar_ready"], 0)
            cluster.start("gw")
            harness.eventually(lambda: pages.ready("e1") == 200, "it is listed again")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
