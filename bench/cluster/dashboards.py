#!/usr/bin/env python3
"""The pictures of the dashboards in docs/images: a cluster on this machine under load that a Prometheus watches, drawn by
tools/plot_dashboards.py.

    bench/cluster/dashboards.py [--cedar build/bin/cedar] [--seconds 120] -o docs/images

Two encoders, a decoder, Engram, index keys and a cache with a disk; conversations whose turns begin with what was said before, 154 tokens
read for one written. Halfway an encoder is killed and comes back, and some clients leave before their answers end, so that failures are to be seen. Needs
matplotlib.
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402
import monitoring_test  # noqa: E402
import prometheus  # noqa: E402

NODES = {"gateway": ["gateway"], "encoder-1": ["encoder"], "encoder-2": ["encoder"], "decoder": ["decoder"], "engram": ["engram"],
         "indexer": ["indexer"], "cache": ["cache"]}
ENGINE = '[engine]\nthreads = 1\nengram = "service"\nindex_service_min_tokens = 1024\n'
TURNS = 3


def turn(number):
    """Prompts of 1,540, 3,080 and 4,620 tokens of one conversation after the other, four at a time."""
    rng = random.Random(number // (4 * TURNS) * 4 + number % 4)
    words = [rng.randrange(10, 1000) for _ in range(1540 * TURNS)]
    return words[:1540 * (1 + number // 4 % TURNS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("-o", dest="folder", required=True)
    options = parser.parse_args()
    settings = {"cache": {"cache_mib": 4, "cache_directory": "blocks", "cache_disk_mib": 256}}
    with harness.Cluster(options.cedar, harness.DEMO, NODES, ENGINE, pages=True, node_settings=settings,
                         cluster={"lost_after_ms": 5000}) as cluster:
        with prometheus.Prometheus(monitoring_test.targets(cluster)) as watch:
            with monitoring_test.Load(cluster, 4, turn, 20, pause_s=0.3):
                time.sleep(options.seconds / 2)
                cluster.nodes["encoder-2"].send(signal.SIGKILL)
                cluster.nodes["encoder-2"].process.wait()
                time.sleep(5)
                cluster.start("encoder-2")
                time.sleep(options.seconds / 4)
                streams = [monitoring_test.Stream(cluster, seed) for seed in range(3)]
                time.sleep(1)
                for stream in streams:
                    stream.leave()
                time.sleep(options.seconds / 4)
            tool = os.path.join(ROOT, "tools", "plot_dashboards.py")
            drawn = subprocess.run([sys.executable, tool, "--url", watch.url, "-o", options.folder, "--seconds",
                                    str(options.seconds), "--step", "1", "--window", "10"])
    sys.exit(drawn.returncode)


if __name__ == "__main__":
    main()
