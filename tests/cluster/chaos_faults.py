"""What is done to the nodes of a cluster while it answers, and what has to be as before afterwards."""
import collections
import os
import random
import re
import signal
import threading
import time

import harness

GAUGES = ("cedar_actors_running_requests", "cedar_actors_queued_requests", "cedar_cluster_encoder_requests",
          "cedar_cluster_encoder_queued_tokens", "cedar_cluster_encoder_free_kv_blocks", "cedar_cluster_decoder_sequences",
          "cedar_cluster_decoder_free_kv_blocks", "cedar_cluster_decoder_kv_blocks", "cedar_ready")
# Of every node at rest; what is left of a lost peer goes with its connection, keys at indexers a minute later.
NOTHING = ("cedar_transport_leases", "cedar_transport_pulls_unfinished", "cedar_transport_calls_unanswered",
           "cedar_encoder_requests", "cedar_decoder_sequences", "cedar_decoder_staging_slots", "cedar_cache_leases",
           "cedar_cache_pinned_blocks", "cedar_indexer_parts")
FREE = {f"cedar_{stage}_free_kv_blocks": f"cedar_{stage}_kv_blocks" for stage in ("encoder", "decoder")}
SETTLE_S = 90


class Faults:
    """Kills and stops random nodes, one every `period_s` on average, until the block is left; then all nodes run again. The
    seed decides about victims, kinds and times; what a request is doing then is chance."""

    def __init__(self, cluster, seed, period_s, spare):
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.period_s = period_s
        self.names = [name for name in cluster.roles if name not in spare]
        self.done = collections.Counter()   # (role, kind) -> times
        self.gateway_down = []              # [from, to] of times it could not answer
        self.repairs = []                   # (when, name, what)
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.error = None

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        if self.error:
            raise self.error

    def kills(self):
        return sum(count for (_, kind), count in self.done.items() if kind == "killed")

    def lost_gateway(self, begin, end):
        """Whether the gateway was killed in that time."""
        return any(down < end and begin < up for down, up in self.gateway_down)

    def _run(self):
        try:
            next_fault = time.monotonic() + self.period_s
            while not self.end.is_set():
                now = time.monotonic()
                for repair in [r for r in self.repairs if r[0] <= now]:
                    self._repair(repair)
                if now >= next_fault:
                    self._break()
                    next_fault = time.monotonic() + self.period_s * self.rng.uniform(0.5, 1.5)
                self.end.wait(0.02)
            for repair in list(self.repairs):
                self._repair(repair)
        except BaseException as e:  # noqa: BLE001
            self.error = e

    def _break(self):
        kind = self.rng.choice(("killed", "stopped"))
        short = self.rng.random() < 0.5
        # Shorter and longer than it takes to be given up.
        lost_after_s = self.cluster.settings["lost_after_ms"] / 1000
        time_s = self.rng.uniform(0.1, 0.8) * lost_after_s if short else self.rng.uniform(1.5, 4) * lost_after_s
        disturbed = {name for _, name, _ in self.repairs}
        name = self.rng.choice(self.names)
        if "gw" in self.names and self.rng.random() < 0.3:
            name = "gw"
        if name in disturbed:
            return
        node = self.cluster.nodes[name]
        if node.ended():
            raise AssertionError(f"{name} ended by itself with status {node.process.returncode}:\n{node.log()[-4000:]}")
        role = self.cluster.roles[name][0]
        if kind == "killed":
            if role == "gateway":
                self.gateway_down.append([time.monotonic(), float("inf")])
            node.send(signal.SIGKILL)
            node.process.wait()
        else:
            node.pause()
        self.done[role, kind] += 1
        self.repairs.append((time.monotonic() + time_s, name, kind))

    def _repair(self, repair):
        _, name, kind = repair
        self.repairs.remove(repair)
        if kind == "stopped":
            self.cluster.nodes[name].send(signal.SIGCONT)
            return
        self.cluster.start(name)
        if self.cluster.roles[name][0] == "gateway":
            harness.eventually(self.cluster.ready, "the gateway is ready again")
            self.gateway_down[-1][1] = time.monotonic() + 1  # connections that were on their way


def descriptors(node):
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def kinds(node):
    """Descriptors by what they are, without numbers."""
    folder = f"/proc/{node.process.pid}/fd"
    return dict(collections.Counter(re.sub(r"[0-9a-f]{6,}|\d+", "N", os.readlink(os.path.join(folder, fd)))
                                    for fd in os.listdir(folder)))


def threads(node):
    return len(os.listdir(f"/proc/{node.process.pid}/task"))


def shared_memory():
    """Segments in /dev/shm that no living process has."""
    mapped = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
                    mapped.update(re.findall(r"/dev/shm/\S+", f.read()))
            except OSError:
                pass
    return {name for name in os.listdir("/dev/shm") if "/dev/shm/" + name not in mapped}


class Level:
    """What a cluster at rest holds. `pages`: name -> the port where a node has its metrics."""

    def __init__(self, cluster, pages):
        self.cluster = cluster
        self.pages = pages
        self.abandoned = shared_memory()
        harness.eventually(lambda: self.gauges()["cedar_ready"] == 1, "the cluster is at rest")
        self.before = self._settled()
        self.open = {name: descriptors(node) for name, node in cluster.nodes.items()}
        self.threads = {name: threads(node) for name, node in cluster.nodes.items()}

    def gauges(self):
        text = self.cluster.request("GET", "/metrics")[1].decode()
        return {name: float(re.search(rf"^{name} (\S+)$", text, re.M).group(1)) for name in GAUGES}

    def _settled(self):
        """Gauges that stayed the same for a while."""
        last = [self.gauges(), time.monotonic()]

        def same():
            now = self.gauges()
            if now != last[0]:
                last[:] = [now, time.monotonic()]
            return time.monotonic() - last[1] > 1
        harness.eventually(same, "the gauges are at rest", SETTLE_S)
        return last[0]

    def held(self, name):
        """Of a node at rest: nothing."""
        page = harness.Client()
        page.port = self.pages[name]
        values = dict(re.findall(r"^(\w+) (\S+)$", page.request("GET", "/metrics")[1].decode(), re.M))
        assert "cedar_transport_leases" in values, values
        left = [f"{metric} {values[metric]}" for metric in NOTHING if float(values.get(metric, 0)) != 0]
        return left + [f"{free} {values[free]} of {values[total]}" for free, total in FREE.items()
                       if values.get(free) != values.get(total)]

    def differences(self):
        """What is not as it was: lines of text."""
        found = []
        for name in self.pages:
            try:
                harness.eventually(lambda: not self.held(name), "nothing is held", SETTLE_S)
            except AssertionError:
                found.append(f"{name}: {', '.join(self.held(name))}")
        try:
            harness.eventually(lambda: self.gauges() == self.before, "the gauges return", SETTLE_S)
        except AssertionError:
            now = self.gauges()
            found += [f"{name}: {self.before[name]:.0f} before, {now[name]:.0f} now"
                      for name in GAUGES if now[name] != self.before[name]]
        for name, node in self.cluster.nodes.items():
            # Nodes that came back have connections to fewer or more of the others; a leak grows with the requests.
            allowed = self.open[name] + 2 * len(self.cluster.nodes)
            try:
                harness.eventually(lambda: descriptors(node) <= allowed, "descriptors are closed", SETTLE_S)
            except AssertionError:
                found.append(f"{name}: {descriptors(node)} descriptors, {self.open[name]} before: {kinds(node)}")
            if threads(node) > self.threads[name]:
                found.append(f"{name}: {threads(node)} threads, {self.threads[name]} before")
        try:
            harness.eventually(lambda: not shared_memory() - self.abandoned, "shared memory is given back", 5)
        except AssertionError:
            found.append(f"/dev/shm: {sorted(shared_memory() - self.abandoned)}")
        return found
