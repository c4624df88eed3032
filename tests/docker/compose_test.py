"""docker/compose/: valid compose files that name files which exist, at one with the cluster file; nothing runs as root.

    compose_test.py CEDAR
"""
import importlib.metadata
import json
import os
import re
import sys
import unittest

import jsonschema

import tree

FOLDER = os.path.join(tree.DOCKER, "compose")
PAGE_PORT = 9400


def schema():
    """The compose specification's, out of a package that is not imported. It is from before files had a `name`."""
    files = importlib.metadata.files("docker-compose")
    [path] = [f for f in files if f.name == "compose_spec.json"]
    with open(path.locate(), encoding="utf-8") as f:
        found = json.load(f)
    found["properties"]["name"] = {"type": "string"}
    found["$schema"] = "http://json-schema.org/draft-07/schema#"  # what it names is no address of a draft any more
    return found


class Compose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml"))
        cls.files = {name: tree.documents("docker", "compose", name)[0] for name in names}
        cls.cluster = tree.ClusterFile(PROGRAM, "docker", "compose", "cluster.toml")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def each_service(self, check):
        for name, compose in self.files.items():
            for service, settings in compose["services"].items():
                with self.subTest(file=name, service=service):
                    check(compose, settings)

    def nodes(self):
        return {name: s for name, s in self.files["cluster.yaml"]["services"].items() if "ROLE" in s.get("environment", {})}

    def test_every_file_is_valid(self):
        for name, compose in self.files.items():
            with self.subTest(file=name):
                jsonschema.validate(compose, schema())

    def test_the_schema_would_say_so(self):
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate({"services": {"cedar": {"read-only": True}}}, schema())

    def test_nothing_runs_as_root_or_writes_to_its_image(self):
        def check(_, service):
            self.assertIs(service["read_only"], True)
            self.assertEqual(service["cap_drop"], ["ALL"])
            self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
            self.assertNotIn("privileged", service)
            if "user" in service:
                self.assertNotIn(service["user"].split(":")[0], ("0", "root"))
            else:
                image = service["image"].split(":")
                self.assertEqual(image[0], "cedar")
                self.assertGreater(min(tree.image_user(image[1] + ".Dockerfile")), 0)
        self.each_service(check)

    def test_what_is_named_exists(self):
        made_by_hand = {"secret"}  # the first line of cluster.yaml says how
        for name, compose in self.files.items():
            for kind in ("configs", "secrets"):
                for entry in compose.get(kind, {}).values():
                    if entry["file"] not in made_by_hand:
                        self.assertTrue(os.path.isfile(os.path.join(FOLDER, entry["file"])), entry["file"])
        def check(compose, service):
            for config in service.get("configs", []):
                self.assertIn(config["source"], compose["configs"])
            for secret in service.get("secrets", []):
                self.assertIn(secret, compose["secrets"])
            for network in service.get("networks", []):
                self.assertIn(network, compose["networks"])
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue(os.path.isdir(os.path.join(FOLDER, source)), source)
                else:
                    self.assertIn(source, compose["volumes"])
            if "build" in service:
                self.assertTrue(os.path.isfile(os.path.join(FOLDER, service["build"]["context"], service["build"]["dockerfile"])))
        self.each_service(check)

    def test_ports_are_published_on_this_machine_alone(self):
        def check(_, service):
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), port)
        self.each_service(check)

    def test_the_cluster_file_has_a_node_for_every_service(self):
        self.assertEqual(self.cluster.check(), "")
        roles = set()
        for name, service in self.nodes().items():
            self.assertIn("exec cedar node", service["entrypoint"][2])
            suffix = "-0123456789ab" if service["environment"].get("ROLE_SUFFIX") else ""
            settings = self.cluster.settings(service["environment"]["ROLE"] + suffix)
            self.assertEqual(json.loads(settings["node", "roles"]), [name])
            if name != "gateway":
                self.assertEqual(tree.port_of(settings["node", "metrics"]), PAGE_PORT)
            grace_ms = int(service["stop_grace_period"].rstrip("s")) * 1000
            self.assertGreater(grace_ms, int(settings["cluster", "drain_grace_ms"]))
            self.assertGreater(grace_ms, int(settings["http", "shutdown_grace_ms"]))
            roles.add(name)
        self.assertEqual(roles, {"gateway", "encoder", "decoder", "engram", "indexer", "cache"})

    def test_the_cache_writes_to_its_volume(self):
        settings = self.cluster.settings("cache-0")
        [volume] = self.nodes()["cache"]["volumes"]
        self.assertTrue(settings["node", "cache_directory"].strip('"').startswith(volume.split(":")[1] + "/"))

    def test_prometheus_reads_every_node(self):
        [prometheus] = tree.documents("docker", "prometheus", "prometheus.yml")
        targets = {}
        for job in prometheus["scrape_configs"]:
            for static in job.get("static_configs", []):
                for target in static["targets"]:
                    targets[target.split(":")[0]] = (job["job_name"], int(target.split(":")[1]))
            for found in job.get("dns_sd_configs", []):
                for name in found["names"]:
                    targets[name] = (job["job_name"], found["port"])
        expected = {name: (f"cedar-{name}", PAGE_PORT) for name in self.nodes()}
        expected["gateway"] = ("cedar-gateway", int(self.cluster.settings("gateway")["node", "http_port"]))
        self.assertEqual(targets, expected)
        mounted = {c["target"] for c in self.files["cluster.yaml"]["services"]["prometheus"]["configs"]}
        self.assertEqual(mounted, {"/etc/prometheus/prometheus.yml", *prometheus["rule_files"]})

    def test_grafana_finds_prometheus_and_the_dashboards(self):
        services = self.files["cluster.yaml"]["services"]
        [[source]] = [d["datasources"] for d in tree.documents("docker", "grafana", "datasource.yaml")]
        host, port = re.match(r"http://(\w+):(\d+)$", source["url"]).groups()
        self.assertIn(f"127.0.0.1:{port}:{port}", services[host]["ports"])
        [[provider]] = [d["providers"] for d in tree.documents("docker", "grafana", "dashboards.yaml")]
        grafana = services["grafana"]
        [volume] = grafana["volumes"]
        folder, inside, mode = volume.split(":")
        self.assertEqual((inside, mode), (provider["options"]["path"], "ro"))
        home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        for name in os.listdir(os.path.join(FOLDER, folder)):
            if not name.endswith(".json"):
                continue
            dashboard = json.loads(tree.read("monitoring", "dashboards", name))
            for panel in dashboard["panels"]:
                if "datasource" in panel:
                    self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": source["uid"]})
        self.assertTrue(os.path.isfile(os.path.join(FOLDER, folder, os.path.relpath(home, inside))), home)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
