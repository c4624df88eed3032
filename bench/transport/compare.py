#!/usr/bin/env python3
"""Pulls over TCP between two processes of this machine: `cedar bench transport` beside the transfer engines of others.

    python -m venv venv && venv/bin/pip install numpy nixl-cu13 mooncake-transfer-engine-non-cuda
    venv/bin/python bench/transport/compare.py [--cedar build/bin/cedar] [--json FILE]

All read from the other process's memory into memory registered beforehand, IN_FLIGHT reads at a time, through the loopback
device. Each engine has its own pair of processes; rounds alternate and the best of each counts. The hand-off is that of a
prompt of 100,000 tokens of the release's shape: 781 blocks from scattered places to scattered places, and the fixed state.
An engine that is not installed is left out.
"""
import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = [4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
MEMORY = 128 << 20
IN_FLIGHT = 16
BLOCK_BYTES = 113_920
BLOCKS = 100_000 // 128
FIXED_BYTES = 1_351_680 + 12_288 + 5_244_928 + 12


def reads_of(size):
    return max(4, min(2000, MEMORY // size))


def handoff_pieces():
    rng = random.Random(1)
    source, target = list(range(BLOCKS)), list(range(BLOCKS))
    rng.shuffle(source)
    rng.shuffle(target)
    pieces = [(s * BLOCK_BYTES, t * BLOCK_BYTES, BLOCK_BYTES) for s, t in zip(source, target)]
    return pieces + [(BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES, FIXED_BYTES)]


def memory():
    import numpy
    buffer = numpy.random.default_rng(1).integers(0, 255, MEMORY, dtype=numpy.uint8)
    return buffer, buffer.ctypes.data


class Nixl:
    """UCX back end; one transfer handle a read, polled."""
    name = "NIXL"

    @staticmethod
    def version():
        import importlib.metadata
        return importlib.metadata.version("nixl-cu13")

    @staticmethod
    def agent(name):
        os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"] = "tcp", "lo"
        from nixl_cu13._api import nixl_agent, nixl_agent_config
        return nixl_agent(name, nixl_agent_config(backends=["UCX"]))

    @classmethod
    def produce(cls, pipe):
        agent = cls.agent("producer")
        buffer, address = memory()
        agent.register_memory([(address, MEMORY, 0, "")], "DRAM")
        pipe.send((agent.get_agent_metadata(), address))
        pipe.recv()
        del buffer

    def __init__(self, told):
        self.engine = self.agent("consumer")
        self.buffer, self.address = memory()
        self.engine.register_memory([(self.address, MEMORY, 0, "")], "DRAM")
        metadata, self.remote = told
        self.peer = self.engine.add_remote_agent(metadata)

    def handle(self, pieces):
        local = [(self.address + to, size, 0) for _, to, size in pieces]
        remote = [(self.remote + source, size, 0) for source, _, size in pieces]
        return self.engine.initialize_xfer("READ", self.engine.get_xfer_descs(local, "DRAM"),
                                           self.engine.get_xfer_descs(remote, "DRAM"), self.peer)

    def run(self, handles, count):
        free, active, started, done = list(handles), [], 0, 0
        while done < count:
            while free and started < count:
                handle = free.pop()
                state = self.engine.transfer(handle)
                started += 1
                active.append((handle, state))
            left = []
            for handle, state in active:
                state = state if state == "DONE" else self.engine.check_xfer_state(handle)
                if state == "ERR":
                    raise RuntimeError("NIXL: a transfer failed")
                if state == "DONE":
                    free.append(handle)
                    done += 1
                else:
                    left.append((handle, state))
            active = left

    def rate(self, size):
        handles = [self.handle([(0, 0, size)]) for _ in range(IN_FLIGHT)]
        begin = time.perf_counter()
        self.run(handles, reads_of(size))
        seconds = time.perf_counter() - begin
        for handle in handles:
            self.engine.release_xfer_handle(handle)
        return size * reads_of(size) / seconds

    def handoff(self):
        begin = time.perf_counter()
        handle = self.handle(handoff_pieces())
        self.run([handle], 1)
        seconds = time.perf_counter() - begin
        self.engine.release_xfer_handle(handle)
        return seconds


class Mooncake:
    """TCP; batches of IN_FLIGHT reads of bytes beside each other, waited for."""
    name = "Mooncake"

    @staticmethod
    def version():
        import importlib.metadata
        return importlib.metadata.version("mooncake-transfer-engine-non-cuda")

    @staticmethod
    def engine():
        from mooncake.engine import TransferEngine
        engine = TransferEngine()
        if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "lo") != 0:
            raise RuntimeError("Mooncake: cannot start")
        return engine

    @classmethod
    def produce(cls, pipe):
        engine = cls.engine()
        buffer, address = memory()
        engine.register_memory(address, MEMORY)
        pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
        pipe.recv()
        del buffer

    def __init__(self, told):
        self.transfer = self.engine()
        self.buffer, self.address = memory()
        self.transfer.register_memory(self.address, MEMORY)
        self.peer, self.remote = told

    def read(self, pieces):
        status = self.transfer.batch_transfer_sync_read(
            self.peer, [self.address + to for _, to, _ in pieces], [self.remote + source for source, _, _ in pieces],
            [size for _, _, size in pieces])
        if status != 0:
            raise RuntimeError(f"Mooncake: a transfer failed with {status}")

    def rate(self, size):
        batch = max(1, min(IN_FLIGHT, MEMORY // size))
        count = reads_of(size) // batch * batch
        begin = time.perf_counter()
        for _ in range(count // batch):
            self.read([(i * size, i * size, size) for i in range(batch)])
        return size * count / (time.perf_counter() - begin)

    def handoff(self):
        begin = time.perf_counter()
        self.read(handoff_pieces())
        return time.perf_counter() - begin


def serve(kind, pipe):
    kind.produce(pipe)


def consume(kind, told, pipe):
    engine = kind(told)
    engine.rate(1 << 20)  # connects
    while pipe.recv() == "round":
        pipe.send(([engine.rate(size) for size in SIZES], min(engine.handoff() for _ in range(3))))


class Pair:
    """Producer and consumer of one engine, as processes."""

    def __init__(self, kind):
        context = multiprocessing.get_context("spawn")
        self.producer_pipe, theirs = context.Pipe()
        self.producer = context.Process(target=serve, args=(kind, theirs), daemon=True)
        self.producer.start()
        if not self.producer_pipe.poll(60):
            raise RuntimeError(f"{kind.name}: the producer does not start")
        told = self.producer_pipe.recv()
        self.pipe, theirs = context.Pipe()
        self.consumer = context.Process(target=consume, args=(kind, told, theirs), daemon=True)
        self.consumer.start()

    def round(self):
        self.pipe.send("round")
        if not self.pipe.poll(300):
            raise RuntimeError("no answer from the consumer")
        return self.pipe.recv()

    def end(self):
        self.consumer.terminate()
        self.producer.terminate()


class Cedar:
    name = "Cedar"

    def __init__(self, cedar):
        self.cedar = cedar

    def round(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "report.json")
            command = [self.cedar, "bench", "transport", "--links", "tcp", "--repeats", "1", "--in-flight", str(IN_FLIGHT),
                       "--sizes", ",".join(map(str, SIZES)), "--json", path]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
            with open(path, encoding="utf-8") as f:
                report = json.load(f)
        return [pull["bytes_per_s"] for pull in report["pulls"]], report["handoffs"][0]["seconds"]

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cedar", default=os.path.join(ROOT, "build", "bin", "cedar"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--machine", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    engines, versions = {"Cedar": Cedar(arguments.cedar)}, {}
    for kind in (Nixl, Mooncake):
        try:
            versions[kind.name] = kind.version()
        except ImportError as error:
            print(f"{kind.name} is left out: {error}", file=sys.stderr)
            continue
        engines[kind.name] = Pair(kind)
    rates = {name: [0.0] * len(SIZES) for name in engines}
    handoffs = {name: float("inf") for name in engines}
    for _ in range(arguments.rounds):
        for name, engine in engines.items():
            measured, handoff = engine.round()
            rates[name] = [max(a, b) for a, b in zip(rates[name], measured)]
            handoffs[name] = min(handoffs[name], handoff)
    for engine in engines.values():
        engine.end()
    print("GB/s over TCP".ljust(16) + "".join(f"{size >> 10:>10} KiB" for size in SIZES) + "   hand-off ms")
    for name in engines:
        print(name.ljust(16) + "".join(f"{rate / 1e9:14.2f}" for rate in rates[name]) + f"{handoffs[name] * 1e3:14.1f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump({"benchmark": "transport engines over TCP", "machine": arguments.machine, "versions": versions,
                       "in_flight": IN_FLIGHT, "rounds": arguments.rounds, "sizes": SIZES, "bytes_per_s": rates,
                       "handoff_seconds": handoffs, "handoff_bytes": BLOCKS * BLOCK_BYTES + FIXED_BYTES}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
