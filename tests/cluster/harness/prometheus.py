"""A Prometheus in the cluster that scrapes what the chart's monitors name, as the Prometheus Operator would have it."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import yaml

from cluster.harness.kubectl import Object
from cluster.harness.space import Space
from cluster.harness.waiting import until

NAME, PORT = "prometheus", 9090
IMAGE = "localhost/cprjob-prometheus:dev"
#: Far more often than in production, so that a test need not wait.
SCRAPE_S = 1


class Prometheus:
    """One Prometheus in the namespace of a test. Queries go through the API server, which reaches pods everywhere."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def start(self, monitors: list[Object], rules: str) -> None:
        """Start it with a ServiceMonitor, PodMonitors and a file of rules, and wait until it answers."""
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": ["/etc/prometheus/rules.yaml"],
            "scrape_configs": [scrape for monitor in monitors for scrape in _scrapes(monitor)],
        }
        files = {"prometheus.yml": yaml.safe_dump(config), "rules.yaml": rules}
        for manifest in _manifests(self._space.name, files):
            self._space.apply(manifest)
        self._space.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=60s")

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the HTTP API."""
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        service = f"/api/v1/namespaces/{self._space.name}/services/{NAME}:{PORT}/proxy/api/v1/{path}?{query}"
        answer = json.loads(self._space.all("get", "--raw", service))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Object]:
        """Return the series that an expression gives now."""
        found: list[Object] = self.api("query", query=expression)["result"]
        return found

    def wait_for(self, expression: str, within_s: float = 60) -> list[Object]:
        """Return the series that an expression gives, once there are some."""
        return until(f"Prometheus has {expression}", lambda: self.query(expression) or None, within_s, every_s=1.0)

    def remove(self) -> None:
        """Remove what does not go with the namespace."""
        self._space.kubectl("delete", "clusterrole,clusterrolebinding", self._space.name, "--wait=false")


def _scrapes(monitor: Object) -> Iterator[Object]:
    """Return the scrape configuration of a ServiceMonitor or a PodMonitor, for the fields of ours."""
    spec, of_pods = monitor["spec"], monitor["kind"] == "PodMonitor"
    labels = "pod_label" if of_pods else "service_label"
    relabelled = [(f"{labels}_{_safe(key)}", value) for key, value in spec["selector"].get("matchLabels", {}).items()]
    for each in spec["selector"].get("matchExpressions", []):
        name = _safe(each["key"])
        if each["operator"] == "Exists":
            relabelled.append((f"pod_labelpresent_{name}", "true"))
        else:
            relabelled.append((f"{labels}_{name}", "|".join(each["values"])))
    port = "pod_container_port_name" if of_pods else "endpointslice_port_name"
    targets = {"namespace": "namespace", "pod": "pod_name"}
    targets |= {"container": "pod_container_name"} if of_pods else {"service": "service_name"}
    for number, endpoint in enumerate(spec["podMetricsEndpoints" if of_pods else "endpoints"]):
        keep = [_keep(name, value) for name, value in (*relabelled, (port, endpoint["port"]))]
        named = [_label(f"__meta_kubernetes_{source}", label) for label, source in targets.items()]
        own = [_label(each["sourceLabels"][0], each["targetLabel"]) for each in endpoint.get("relabelings", [])]
        yield {
            "job_name": f"{monitor['kind']}/{monitor['metadata']['name']}/{number}",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint.get("honorLabels", False),
            "kubernetes_sd_configs": [{"role": "pod" if of_pods else "endpointslice"}],
            "relabel_configs": [*keep, *named, *own],
        }


def _safe(label: str) -> str:
    return label.replace(".", "_").replace("/", "_").replace("-", "_")


def _keep(name: str, value: str) -> Object:
    return {"source_labels": [f"__meta_kubernetes_{name}"], "regex": value, "action": "keep"}


def _label(source: str, target: str) -> Object:
    return {"source_labels": [source], "target_label": target}


def _manifests(namespace: str, files: dict[str, str]) -> Iterator[Object]:
    """The objects of a Prometheus that may read pods and services of all namespaces. Its role has the space's name."""
    labels = {"app": NAME}
    rbac = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ]
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": namespace}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}}
    yield {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": namespace}, "rules": rules}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": namespace}}
    yield binding | {"roleRef": role, "subjects": [account]}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": files}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": labels, "ports": [{"port": PORT}]},
    }
    container = {
        "name": NAME,
        "image": IMAGE,
        "args": ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data"],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/prometheus"}, {"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "serviceAccountName": NAME,
        "nodeSelector": {"cprjob.io/stable": "true"},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
