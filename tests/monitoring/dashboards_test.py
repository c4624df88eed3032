"""monitoring/dashboards/ and monitoring/rules.yml: written by their tool, PromQL, and about metrics and labels that exist.

    dashboards_test.py [PROMTOOL]

tests/cluster/monitoring_test.py asks a cluster's Prometheus the same queries.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOREIGN = {"up", "ALERTS"}  # Prometheus' own
METRIC = re.compile(r"\b((?:cedar|process)_\w+)(?:\{([^}]*)\})?")
OF_TARGETS = {"job", "instance"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def table():
    """family -> (type, {label: values}) of the page of metrics, which is written from the program's table."""
    found = {}
    for line in read("docs", "metrics.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.match(r"`((?:cedar|process)_\w+)`$", cells[0])
        if name:
            labels = re.findall(r"`(\w+)`: ([^;]+)", line)
            found[name.group(1)] = (cells[1], {label: set(re.findall(r"[\w.]+", values)) for label, values in labels})
    return found


def dashboards():
    for path in sorted(glob.glob(os.path.join(ROOT, "monitoring", "dashboards", "*.json"))):
        with open(path, encoding="utf-8") as f:
            yield os.path.basename(path), json.load(f)


def queries():
    """(dashboard, panel, query) of every panel."""
    return [(name, panel["title"], target["expr"].replace("$__rate_interval", "1m"))
            for name, dashboard in dashboards() for panel in dashboard["panels"] for target in panel["targets"]]


def expressions_of_rules():
    """Every expr of rules.yml, folded blocks included; without a YAML library."""
    text = re.sub(r"expr: >-\n((?: {10,}.*\n)+)", lambda m: "expr: " + " ".join(m.group(1).split()) + "\n",
                  read("monitoring", "rules.yml"))
    return [("rules.yml", "rule", expr) for expr in re.findall(r"^ +expr: (.*)$", text, re.M)]


class Dashboards(unittest.TestCase):
    def test_they_are_what_the_tool_writes(self):
        tool = os.path.join(ROOT, "tools", "make_dashboards.py")
        done = subprocess.run([sys.executable, "-B", tool, "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_identities_are_unique_and_panels_do_not_overlap(self):
        uids = [dashboard["uid"] for _, dashboard in dashboards()]
        self.assertEqual(len(uids), 5)
        self.assertEqual(len(uids), len(set(uids)))
        for name, dashboard in dashboards():
            with self.subTest(dashboard=name):
                places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
                self.assertEqual(len(places), len(set(places)))
                self.assertEqual([p["id"] for p in dashboard["panels"]], list(range(1, len(places) + 1)))

    def test_metrics_and_labels_exist(self):
        families = table()
        self.assertGreater(len(families), 50)
        for name, title, query in queries() + expressions_of_rules():
            for metric, selector in METRIC.findall(query):
                with self.subTest(dashboard=name, panel=title, metric=metric):
                    family = metric
                    if family not in families:
                        family = re.sub(r"_(bucket|sum|count)$", "", metric)
                        self.assertEqual(families.get(family, ("missing",))[0], "histogram")
                    kind, labels = families[family]
                    if f"rate({metric}" in query and kind == "gauge":
                        self.fail("a rate of a gauge")
                    for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"', selector):
                        if label in OF_TARGETS or label == "le":
                            continue
                        self.assertIn(label, labels)
                        if operator != "=~":
                            self.assertIn(value, labels[label])

    def test_queries_are_promql(self):
        if PROMTOOL is None:
            self.skipTest("no promtool (packages/debian.txt, group monitoring)")
        rules = [{"record": f"query:{i}", "expr": query} for i, (_, _, query) in enumerate(queries())]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
            json.dump({"groups": [{"name": "panels", "rules": rules}]}, f)  # JSON is YAML
            f.flush()
            done = subprocess.run([PROMTOOL, "check", "rules", f.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_says_what_and_is_explained(self):
        text = read("monitoring", "rules.yml")
        alerts = re.findall(r"^ +- alert: (\w+)$", text, re.M)
        self.assertEqual(len(alerts), len(set(alerts)))
        self.assertEqual(len(alerts), len(re.findall(r"^ +summary: ", text, re.M)))
        page = read("docs", "operations.md")
        self.assertEqual([a for a in alerts if f"| {a} |" not in page], [])


if __name__ == "__main__":
    PROMTOOL = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
    unittest.main()
