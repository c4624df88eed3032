"""docker/kubernetes/: valid for Kubernetes, at one with the cluster file and the images, and nothing runs as root.

    kubernetes_test.py CEDAR
"""
import os
import sys
import unittest

import jsonschema
import kubernetes_validate

import tree

FOLDER = os.path.join(tree.DOCKER, "kubernetes")
RELEASES = ("1.28", "1.33")
WORKLOADS = ("Deployment", "StatefulSet")

# Of KEDA's object, what is used here. Values of a trigger's metadata are text; KEDA refuses numbers.
SCALED_OBJECT = {
    "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"}, "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object", "required": ["scaleTargetRef", "triggers"], "additionalProperties": False,
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"], "additionalProperties": False,
                                   "properties": {"name": {"type": "string"}, "kind": {"type": "string"}}},
                "minReplicaCount": {"type": "integer", "minimum": 1},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "cooldownPeriod": {"type": "integer"}, "pollingInterval": {"type": "integer"},
                "triggers": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "required": ["type", "metadata"], "additionalProperties": False,
                    "properties": {
                        "type": {"const": "prometheus"}, "metricType": {"enum": ["AverageValue", "Value"]},
                        "metadata": {"type": "object", "additionalProperties": {"type": "string"},
                                     "required": ["serverAddress", "query", "threshold"]}}}},
            }}}}


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def labels_of(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml") and name != "kustomization.yaml")
        cls.objects = [d for name in cls.files for d in tree.documents("docker", "kubernetes", name)]
        cls.workloads = {o["metadata"]["name"]: o for o in cls.objects if o["kind"] in WORKLOADS}
        cls.cluster = tree.ClusterFile(PROGRAM, "docker", "kubernetes", "cluster.toml")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def of_kind(self, kind):
        return [o for o in self.objects if o["kind"] == kind]

    def node_settings(self, workload):
        """What the program makes of the node that a pod of it is."""
        arguments = pod_of(workload)["containers"][0]["args"]
        self.assertEqual((arguments[0], arguments[2:]), ("node", ["--config", "/etc/cedar/cluster.toml"]))
        return self.cluster.settings(arguments[1].replace("$(POD_NAME)", "some-pod"))

    def test_every_object_is_valid(self):
        for o in self.objects:
            with self.subTest(kind=o["kind"], name=o["metadata"]["name"]):
                if o["kind"] == "ScaledObject":
                    jsonschema.validate(o, SCALED_OBJECT)
                    continue
                for release in RELEASES:
                    kubernetes_validate.validate(o, release, strict=True)

    def test_the_validator_would_say_so(self):
        bad = {**self.of_kind("Deployment")[0], "spec": {"replica": 2}}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(bad, RELEASES[0], strict=True)

    def test_the_kustomization_has_all_files(self):
        [kustomization] = tree.documents("docker", "kubernetes", "kustomization.yaml")
        self.assertEqual(sorted(kustomization["resources"]), self.files)
        self.assertEqual(kustomization["configMapGenerator"], [{"name": "cedar-cluster", "files": ["cluster.toml"]}])

    def test_names_are_unique(self):
        names = [(o["kind"], o["metadata"]["name"]) for o in self.objects]
        self.assertEqual(len(names), len(set(names)))

    def test_nothing_runs_as_root_or_writes_to_its_image(self):
        for name, workload in self.workloads.items():
            with self.subTest(workload=name):
                pod = pod_of(workload)
                context = pod["securityContext"]
                image = pod["containers"][0]["image"].split(":")[1]
                self.assertTrue(context["runAsNonRoot"])
                self.assertEqual((context["runAsUser"], context["runAsGroup"]), tree.image_user(image + ".Dockerfile"))
                self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
                for container in pod["containers"] + pod.get("initContainers", []):
                    own = container["securityContext"]
                    self.assertIs(own["readOnlyRootFilesystem"], True)
                    self.assertIs(own["allowPrivilegeEscalation"], False)
                    self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
                    self.assertNotIn("privileged", own)
                for key in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertNotIn(key, pod)

    def test_mounts_and_volumes_agree(self):
        for name, workload in self.workloads.items():
            with self.subTest(workload=name):
                pod = pod_of(workload)
                claims = workload["spec"].get("volumeClaimTemplates", [])
                volumes = {v["name"] for v in pod["volumes"]} | {c["metadata"]["name"] for c in claims}
                self.assertEqual({m["name"] for m in pod["containers"][0]["volumeMounts"]}, volumes)

    def test_the_cluster_file_is_good(self):
        self.assertEqual(self.cluster.check(), "")

    def test_ports_are_those_of_the_cluster_file(self):
        for name, workload in self.workloads.items():
            with self.subTest(workload=name):
                settings = self.node_settings(workload)
                ports = {p["name"]: p["containerPort"] for p in pod_of(workload)["containers"][0]["ports"]}
                page = "metrics"
                if settings["node", "roles"] == '["gateway"]':
                    page = "http"
                    expected = {"http": int(settings["node", "http_port"]),
                                "control": tree.port_of(settings["node", "control"])}
                else:
                    expected = {"data": tree.port_of(settings["node", "data"]),
                                "metrics": tree.port_of(settings["node", "metrics"])}
                self.assertEqual(ports, expected)
                annotations = workload["spec"]["template"]["metadata"]["annotations"]
                self.assertEqual(annotations, {"prometheus.io/scrape": "true", "prometheus.io/port": str(ports[page])})
                probes = {key: pod_of(workload)["containers"][0][key + "Probe"]["httpGet"]
                          for key in ("startup", "liveness", "readiness")}
                self.assertEqual(probes, {"startup": {"path": "/livez", "port": page},
                                          "liveness": {"path": "/livez", "port": page},
                                          "readiness": {"path": "/ready", "port": page}})

    def test_pods_have_the_time_that_a_drain_takes(self):
        for name, workload in self.workloads.items():
            with self.subTest(workload=name):
                settings = self.node_settings(workload)
                grace = pod_of(workload)["terminationGracePeriodSeconds"]
                for key in (("cluster", "drain_grace_ms"), ("http", "shutdown_grace_ms")):
                    self.assertGreater(grace * 1000, int(settings[key]))

    def test_the_cache_writes_to_its_volume_and_fits(self):
        cache = self.workloads["cedar-cache"]
        settings = self.node_settings(cache)
        mounts = {m["name"]: m["mountPath"] for m in pod_of(cache)["containers"][0]["volumeMounts"]}
        self.assertTrue(settings["node", "cache_directory"].strip('"').startswith(mounts["blocks"] + "/"))
        [claim] = cache["spec"]["volumeClaimTemplates"]
        storage, memory = claim["spec"]["resources"]["requests"]["storage"], pod_of(cache)["containers"][0]["resources"]
        self.assertGreater(int(storage[:-2]) * 1024, int(settings["node", "cache_disk_mib"]))
        self.assertGreater(int(memory["limits"]["memory"][:-2]) * 1024, int(settings["node", "cache_mib"]))

    def test_every_workload_has_a_budget_and_policies(self):
        for name, workload in self.workloads.items():
            with self.subTest(workload=name):
                labels = labels_of(workload)
                self.assertTrue(selects(workload["spec"]["selector"]["matchLabels"], labels))
                budgets = [b for b in self.of_kind("PodDisruptionBudget")
                           if selects(b["spec"]["selector"]["matchLabels"], labels)]
                self.assertEqual(len(budgets), 1)
                others = [n for n, w in self.workloads.items()
                          if n != name and selects(budgets[0]["spec"]["selector"]["matchLabels"], labels_of(w))]
                self.assertEqual(others, [])
                opened = {p["port"] for policy in self.of_kind("NetworkPolicy")
                          if selects(policy["spec"]["podSelector"]["matchLabels"], labels)
                          for rule in policy["spec"]["ingress"] for p in rule["ports"]}
                ports = {p["containerPort"] for p in pod_of(workload)["containers"][0]["ports"]}
                self.assertLessEqual(ports, opened)

    def test_only_nodes_reach_the_data_and_control_planes(self):
        nodes = [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "cedar"}}}]
        for policy in self.of_kind("NetworkPolicy"):
            self.assertEqual(policy["spec"]["policyTypes"], ["Ingress"])
            for rule in policy["spec"]["ingress"]:
                if {p["port"] for p in rule["ports"]} & {7400, 7500}:
                    self.assertEqual(rule["from"], nodes)

    def test_services_reach_the_gateway(self):
        gateway = self.workloads["cedar-gateway"]
        ports = {p["name"]: p["containerPort"] for p in pod_of(gateway)["containers"][0]["ports"]}
        services = {s["metadata"]["name"]: s["spec"] for s in self.of_kind("Service")}
        self.assertEqual(sorted(services), ["cedar", "cedar-nodes"])
        for service in services.values():
            self.assertTrue(selects(service["selector"], labels_of(gateway)))
            for port in service["ports"]:
                target = port.get("targetPort", port["port"])
                self.assertIn(target, [*ports, *ports.values()])
        # Nodes dial the gateway before it is ready: it is ready when they have.
        self.assertIs(services["cedar-nodes"]["publishNotReadyAddresses"], True)
        self.assertEqual(gateway["spec"]["serviceName"], "cedar-nodes")
        control = self.node_settings(gateway)["node", "control"].strip('"')
        self.assertEqual(control, f"cedar-gateway-0.cedar-nodes:{ports['control']}")

    def test_readers_and_writers_scale_apart(self):
        scaled = {s["spec"]["scaleTargetRef"]["name"]: s["spec"] for s in self.of_kind("ScaledObject")}
        self.assertEqual(sorted(scaled), ["cedar-decoder", "cedar-encoder"])
        for name, spec in scaled.items():
            self.assertEqual(self.workloads[name]["kind"], "Deployment")
            self.assertNotIn("replicas", self.workloads[name]["spec"])  # the autoscaler's alone
            self.assertLess(spec["minReplicaCount"], spec["maxReplicaCount"])
            [trigger] = spec["triggers"]
            role = name.removeprefix("cedar-")
            self.assertIn(f"cedar_{role}_", trigger["metadata"]["query"])


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
