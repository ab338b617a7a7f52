"""Kueue's controller in the cluster, from the chart of its module, with an image of its binary."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.harness.kubectl import Kubectl, Object

NAME, NAMESPACE = "kueue", "kueue-system"
GROUP = "kueue.x-k8s.io"
READY_S = 120
#: Where binaries.sh puts what it builds.
BINARIES = Path(
    os.environ.get("CPR_CLUSTER_BIN")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cprjob" / "bin"
)
VALUES = (
    "controllerManager.manager.image.repository=localhost/cprjob-kueue",
    "controllerManager.manager.image.tag=dev",
    "controllerManager.manager.image.pullPolicy=IfNotPresent",
    "controllerManager.manager.resources.requests.cpu=50m",
    "controllerManager.manager.resources.requests.memory=128Mi",
    "controllerManager.manager.podSecurityContext.runAsUser=65532",
)
STABLE = r"controllerManager.nodeSelector.cprjob\.io/stable=true"


@contextmanager
def kueue(kubectl: Kubectl) -> Iterator[None]:
    """Have Kueue installed, and in the end nothing of it."""
    values = [word for value in VALUES for word in ("--set", value)]
    wait = ("--wait", f"--timeout={READY_S}s")
    chart = str(BINARIES / "kueue-chart")
    try:
        _helm(kubectl, "install", NAME, chart, "--create-namespace", *values, "--set-string", STABLE, *wait)
        yield
    finally:
        for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):
            kubectl("delete", f"{kind}.{GROUP}", "--all", "--all-namespaces", "--timeout=30s", check=False)
        _helm(kubectl, "uninstall", NAME, *wait)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def queue_objects(space: str, cpu: str) -> list[Object]:
    """A LocalQueue of the namespace with this quota, in which higher priorities preempt lower ones."""
    version = f"{GROUP}/v1beta1"
    quota = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "100Gi"}]
    flavor = {"name": space, "resources": quota}
    group = {"coveredResources": ["cpu", "memory"], "flavors": [flavor]}
    chosen = {"kubernetes.io/os": "linux"}
    return [
        _object("ResourceFlavor", space, {"spec": {"nodeLabels": chosen}}, version),
        _object(
            "ClusterQueue",
            space,
            {
                "spec": {
                    "namespaceSelector": {},
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                    "resourceGroups": [group],
                }
            },
            version,
        ),
        _object("LocalQueue", "training", {"spec": {"clusterQueue": space}}, version),
        _object("WorkloadPriorityClass", "urgent", {"value": 1000}, version),
    ]


def _object(kind: str, name: str, rest: Object, version: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}


def _helm(kubectl: Kubectl, *arguments: str) -> None:
    helm = ["helm", "--kubeconfig", str(kubectl.kubeconfig), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(helm, env=kubectl.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
