"""A cluster of real `cedar node` processes on this machine, for tests that compare it with one process and break it."""
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "config", "demo")
MINI = os.path.join(ROOT, "tests", "golden", "mini")
DEADLINE_S = 180  # generous: programs under a sanitizer are slow
SKIPPED = 77      # ctest shows a test with this status as skipped


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def eventually(condition, what, deadline_s=DEADLINE_S):
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)


given_ports = set()


def free_port():
    """One that no outgoing connection is given: the kernel's own choice could be taken again before the node that is to
    listen there has started. Never the same twice: one whose node has not started yet looks free."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        lowest = int(f.read().split()[0])
    for _ in range(100):
        port = random.randrange(10000, lowest) if lowest > 12000 else 0
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = s.getsockname()[1]
            if port not in given_ports:
                given_ports.add(port)
                return port
    raise AssertionError("no port is free")


class Node:
    """One process. Its output is in a file, so that nobody has to read it in time."""

    def __init__(self, command, log):
        self.log_path = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_log(self, text, count=1):
        eventually(lambda: self.log().count(text) >= count or self.ended(), f"'{text}' x {count} in {self.log_path}")
        if self.log().count(text) < count:
            raise AssertionError(f"ended with status {self.process.returncode}:\n{self.log()}")

    def ended(self):
        return self.process.poll() is not None

    def send(self, number):
        self.process.send_signal(number)

    def pause(self):
        """Returns when it has stopped: the signal alone lets it run on for a moment."""
        self.send(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def stop(self):
        """Asks it to end; its exit status."""
        if not self.ended():
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end:\n{self.log()}")

    def cpu_s(self):
        """Processor time so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """HTTP to a server at host:port."""

    host = "127.0.0.1"
    port = 0

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def complete(self, ids, tokens, **more):
        """Status and answer of a greedy completion of token ids. The answer has the tokens' log-probabilities: two
        answers are equal only if every float of the last layer was."""
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "logprobs": 1, **more}
        status, reply = self.request("POST", "/v1/completions", body)
        reply = json.loads(reply)
        if status != 200:
            return status, reply
        choice = reply["choices"][0]
        return status, {"text": choice["text"], "finish": choice["finish_reason"], "logprobs": choice["logprobs"],
                        "usage": [reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]]}

    def stream(self, ids, tokens, on_token=None):
        """The text of a streamed completion, and why it ended (an error's text if it failed)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)
        body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        text, end, pieces = "", None, 0
        try:
            connection.request("POST", "/v1/completions", json.dumps(body))
            reply = connection.getresponse()
            if reply.status != 200:
                return "", reply.read().decode()
            for line in reply:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    return text, event["error"]["message"]
                for choice in event["choices"]:
                    text += choice["text"]
                    end = choice["finish_reason"] or end
                    if choice["text"]:
                        pieces += 1
                        if on_token:
                            on_token(pieces)
            return text, end
        finally:
            connection.close()

    def ready(self):
        try:
            return self.request("GET", "/ready")[0] == 200
        except OSError:
            return False

    def metric(self, name):
        for line in self.request("GET", "/metrics")[1].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def wait_idle(self):
        names = ("running_requests", "queued_requests")
        eventually(lambda: all(self.metric(f"cedar_actors_{name}") == 0 for name in names), "no request is left")
        stage = ("cedar_cluster_decoder_sequences", "cedar_cluster_encoder_requests")
        eventually(lambda: all(self.metric(name) == 0 for name in stage), "the stages hold nothing")


class Server(Client):
    """`cedar serve`: every role in one process."""

    def __init__(self, program, model, arguments=()):
        self.folder = tempfile.TemporaryDirectory(prefix="cedar-serve-")
        self.port = free_port()
        self.node = Node([program, "serve", "--model", model, "--port", str(self.port), *arguments],
                         os.path.join(self.folder.name, "serve.log"))
        self.node.wait_log("cedar serves")
        eventually(self.ready, "the server is ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.node.stop()
        self.folder.cleanup()


class Cluster(Client):
    """`nodes`: name -> roles. `settings`: TOML for the shared tables. `hosts`: name -> (address, command prefix). `traces`:
    every node writes one, see trace(). `node_settings`: name -> more settings of that node. `pages`: every node has one, whose
    address is in pages[name]."""

    def __init__(self, program, model, nodes, settings="", hosts=None, cluster=None, traces=False, node_settings=None,
                 pages=False):
        self.traces = traces
        self.pages = {}
        self.program = program
        self.folder = tempfile.TemporaryDirectory(prefix="cedar-cluster-")
        self.roles = nodes
        self.hosts = hosts or {}
        self.nodes = {}
        self.retired = []
        self.settings = {"heartbeat_interval_ms": 100, "lost_after_ms": 1000, "dial_interval_ms": 100,
                         "drain_grace_ms": 5000, **(cluster or {})}
        if self.hosts:
            # A cluster over a network needs one.
            self.settings.setdefault("secret_file", "secret")
            with open(os.path.join(self.folder.name, "secret"), "w", encoding="utf-8") as f:
                f.write("open sesame\n")
        lines = ["[cluster]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        if self.hosts:
            # UCX sees one machine and would choose what does not cross namespaces: docs/cluster.md.
            lines += ["[data]", 'devices = "eth0"', 'transports = "tcp"']
        lines += [settings, "[model]", f"directory = {json.dumps(model)}"]
        self.host = self.address("gw") if "gw" in self.hosts else "127.0.0.1"
        # Every namespace has all its ports free.
        self.port = 8080 if self.hosts else free_port()
        for name, roles in nodes.items():
            lines += ["[[node]]", f"name = {json.dumps(name)}", f"roles = {json.dumps(roles)}"]
            if "gateway" in roles:
                control_port = 7400 if self.hosts else free_port()
                lines += [f'control = "{self.address(name)}:{control_port}"', f'http_host = "{self.host}"',
                          f"http_port = {self.port}"]
            if set(roles) - {"gateway"}:
                lines.append(f'data = "{self.address(name)}:{7500 if self.hosts else free_port()}"')
            if pages:
                self.pages[name] = f"{self.host}:{self.port}" if "gateway" in roles else f"{self.address(name)}:{free_port()}"
                if "gateway" not in roles:
                    lines.append(f'metrics = "{self.pages[name]}"')
            lines += [f"{key} = {json.dumps(value)}" for key, value in (node_settings or {}).get(name, {}).items()]
        self.config = os.path.join(self.folder.name, "cluster.toml")
        with open(self.config, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")

    def address(self, name):
        return self.hosts[name][0] if name in self.hosts else "127.0.0.1"

    def start(self, *names, config=None):
        for name in names or self.roles:
            if name in self.nodes:
                self.retired.append(self.nodes[name])
            prefix = self.hosts[name][1] if name in self.hosts else []
            log = os.path.join(self.folder.name, f"{name}-{len(self.retired)}.log")
            command = [*prefix, self.program, "node", name, "--config", config or self.config]
            if self.traces:
                command += ["--trace", self.trace_path(name)]
            self.nodes[name] = Node(command, log)
        return self

    def trace_path(self, name):
        return os.path.join(self.folder.name, name + ".trace.json")

    def trace(self, name):
        """The events of a node that has ended."""
        with open(self.trace_path(name), encoding="utf-8") as f:
            return json.load(f)

    def wait_ready(self):
        """Every node has been started, every stage is registered, and the gateway serves."""
        for name, roles in self.roles.items():
            self.nodes[name].wait_log("cedar node " + name)
        eventually(self.ready, "the gateway is ready")
        return self

    def __enter__(self):
        try:
            return self.start().wait_ready()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind, *_):
        bad = []
        # The gateway first, so that the others have nothing left to finish.
        for name in sorted(self.nodes, key=lambda name: "gateway" not in self.roles[name]):
            node = self.nodes[name]
            ended_before = node.ended()
            try:
                status = node.stop()
            except AssertionError as e:
                bad.append(f"{name}: {e}")
                continue
            if status != 0 and not ended_before:
                bad.append(f"{name} ended with status {status}:\n{node.log()[-3000:]}")
        if kind is not None:
            for name, node in self.nodes.items():
                print(f"--- {name}\n{node.log()[-4000:]}", flush=True)
        for node in self.retired:
            if not node.ended():
                node.process.kill()
                node.process.wait()
        self.folder.cleanup()
        if kind is None and bad:
            raise AssertionError("\n".join(bad))


def in_parallel(jobs):
    """Runs functions on threads of their own; their results in order. The first exception is raised."""
    results, errors = [None] * len(jobs), []

    def run(i):
        try:
            results[i] = jobs[i]()
        except BaseException as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Network:
    """A network namespace per name, all on one bridge with this one. Nothing where the kernel refuses: see `good`."""

    def __init__(self, names):
        self.tag = f"c{os.getpid() % 100000}"
        self.subnet = f"10.233.{os.getpid() % 250}"
        self.names = list(names)
        self.bridge = f"{self.tag}br"
        self.good = self._run(f"ip link add {self.bridge} type bridge") and \
            self._run(f"ip addr add {self.subnet}.1/24 dev {self.bridge}") and \
            self._run(f"ip link set {self.bridge} up") and all(self._add(i) for i in range(len(self.names)))

    def _add(self, i):
        space, outside, address = f"{self.tag}n{i}", f"{self.tag}v{i}", f"{self.subnet}.{i + 2}"
        return self._run(f"ip netns add {space}") and \
            self._run(f"ip link add {outside} type veth peer name eth0 netns {space}") and \
            self._run(f"ip link set {outside} master {self.bridge}") and self._run(f"ip link set {outside} up") and \
            self._run(f"ip -n {space} addr add {address}/24 dev eth0") and \
            self._run(f"ip -n {space} link set eth0 up") and self._run(f"ip -n {space} link set lo up")

    @staticmethod
    def _run(command):
        try:
            return subprocess.run(command.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            return False

    def hosts(self):
        """For Cluster(hosts=...)."""
        return {name: (f"{self.subnet}.{i + 2}", ["ip", "netns", "exec", f"{self.tag}n{i}"])
                for i, name in enumerate(self.names)}

    def cut(self, name):
        return self._run(f"ip link set {self.tag}v{self.names.index(name)} down")

    def mend(self, name):
        return self._run(f"ip link set {self.tag}v{self.names.index(name)} up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for i in range(len(self.names)):
            self._run(f"ip link del {self.tag}v{i}")
            self._run(f"ip netns del {self.tag}n{i}")
        self._run(f"ip link del {self.bridge}")


def skip_without(place):
    """Skips the program where there is no such place."""
    if place == "namespaces":
        with Network(["probe"]) as network:
            if not network.good:
                skip("this machine does not allow network namespaces and bridges")
