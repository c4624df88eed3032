"""A real Prometheus that watches a cluster of tests/cluster/harness.py, and the threads of a node stopped one by one."""
import ctypes
import json
import os
import re
import subprocess
import tempfile
import urllib.parse
import urllib.request

import harness

RULES = os.path.join(harness.ROOT, "monitoring", "rules.yml")
SCRAPE_S = 1
WINDOW_S = 10  # what windows of rules and panels become


def programs():
    """Folder of prometheus and promtool; skips the test where they cannot be had."""
    tool = os.path.join(harness.ROOT, "tools", "get_prometheus.sh")
    done = subprocess.run([tool], capture_output=True, text=True)
    if done.returncode != 0:
        harness.skip("no Prometheus: " + done.stderr.strip())
    return done.stdout.strip()


def hurried(rules):
    """The rules with windows of seconds: conditions and thresholds are those of the file."""
    rules = re.sub(r"\[\d+[smh]\]", f"[{WINDOW_S}s]", rules)
    return re.sub(r"for: \d+[smh]", "for: 3s", rules)


class Prometheus:
    """`targets`: (job, instance) -> host:port."""

    def __init__(self, targets, rules=None):
        self.folder = tempfile.TemporaryDirectory(prefix="cedar-prometheus-")
        self.port = harness.free_port()
        rules_path = os.path.join(self.folder.name, "rules.yml")
        with open(RULES, encoding="utf-8") as f, open(rules_path, "w", encoding="utf-8") as out:
            out.write((rules or hurried)(f.read()))
        jobs = {}
        for (job, instance), address in targets.items():
            jobs.setdefault(job, []).append({"targets": [address], "labels": {"instance": instance}})
        config = {"global": {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "scrape_timeout": f"{SCRAPE_S * 1000:.0f}ms",
                             "evaluation_interval": f"{SCRAPE_S * 1000:.0f}ms"},
                  "rule_files": [rules_path],
                  "scrape_configs": [{"job_name": job, "static_configs": group} for job, group in jobs.items()]}
        config_path = os.path.join(self.folder.name, "prometheus.yml")
        with open(config_path, "w", encoding="utf-8") as f:
            json.dump(config, f)  # JSON is YAML
        folder = programs()
        checked = subprocess.run([os.path.join(folder, "promtool"), "check", "config", config_path], capture_output=True, text=True)
        if checked.returncode != 0:
            raise AssertionError(checked.stdout + checked.stderr)
        self.node = harness.Node([os.path.join(folder, "prometheus"), "--config.file", config_path,
                                  "--storage.tsdb.path", os.path.join(self.folder.name, "data"),
                                  "--web.listen-address", f"127.0.0.1:{self.port}"],
                                 os.path.join(self.folder.name, "prometheus.log"))
        self.url = f"http://127.0.0.1:{self.port}"
        harness.eventually(self.answers, "Prometheus answers")

    def answers(self):
        if self.node.ended():
            raise AssertionError(self.node.log())
        try:
            with urllib.request.urlopen(self.url + "/-/ready", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def query(self, expression):
        """[(labels, value)] of an instant query."""
        url = self.url + "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=30) as reply:
            result = json.load(reply)["data"]["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def value(self, expression):
        """Of a query with one sample."""
        [(_, value)] = self.query(expression)
        return value

    def firing(self):
        return {labels["alertname"] for labels, _ in self.query('ALERTS{alertstate="firing"}')}

    def wait_alert(self, name):
        harness.eventually(lambda: name in self.firing(), f"{name} fires; firing: {self.firing()}", 120)

    def wait_silent(self, *names):
        harness.eventually(lambda: not self.firing() & set(names) if names else not self.firing(),
                           f"silence; firing: {self.firing()}", 120)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(f"--- prometheus\n{self.node.log()[-3000:]}", flush=True)
        self.node.stop()
        self.folder.cleanup()


class StoppedThread:
    """The busiest thread of a process that is an actor's own, stopped for as long as this lives, while the others run: a stage that hangs.
    ptrace does that; signals stop whole processes. All calls come from one thread."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long
        threads = [tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if self.name(pid, tid) == "caf.actor"]
        self.thread = max(threads, key=lambda tid: self.cpu(pid, tid))
        self.call(self.SEIZE)
        self.call(self.INTERRUPT)
        os.waitpid(self.thread, self.WALL)

    @staticmethod
    def name(pid, tid):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as f:
            return f.read().strip()

    @staticmethod
    def cpu(pid, tid):
        with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def call(self, request):
        if self.libc.ptrace(request, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call(self.DETACH)
