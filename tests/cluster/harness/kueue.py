"""Kueue's controller in the cluster, from the chart of its module, with an image of its binary."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.harness.kubectl import Kubectl
from support.kueue import CHART, GROUP, NAMESPACE, VALUES

NAME = "kueue"
READY_S = 180  # it makes its certificate, and reads it when the kubelet has brought it
IMAGE = (
    "controllerManager.manager.image.repository=localhost/cprjob-kueue",
    "controllerManager.manager.image.tag=dev",
    "controllerManager.manager.image.pullPolicy=IfNotPresent",
    "controllerManager.manager.resources.requests.cpu=50m",
    "controllerManager.manager.resources.requests.memory=128Mi",
    "controllerManager.manager.podSecurityContext.runAsUser=65532",
)
STABLE = r"controllerManager.nodeSelector.cprjob\.io/stable=true"
#: What its API of pending workloads is registered as. Nobody answers there, and no namespace could be deleted.
REGISTERED = [f"{version}.visibility.{GROUP}" for version in ("v1beta1", "v1beta2")]


@contextmanager
def kueue(kubectl: Kubectl) -> Iterator[None]:
    """Have Kueue installed, and in the end nothing of it."""
    values = [word for value in (*VALUES, *IMAGE) for word in ("--set", value)]
    wait = ("--wait", f"--timeout={READY_S}s")
    try:
        _helm(kubectl, "install", NAME, str(CHART), "--create-namespace", *values, "--set-string", STABLE, *wait)
        kubectl("delete", "apiservices", *REGISTERED)
        yield
    finally:
        for kind in ("localqueues", "clusterqueues", "resourceflavors"):
            kubectl("delete", f"{kind}.{GROUP}", "--all", "--all-namespaces", "--timeout=30s", check=False)
        _helm(kubectl, "uninstall", NAME, *wait)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _helm(kubectl: Kubectl, *arguments: str) -> None:
    helm = ["helm", "--kubeconfig", str(kubectl.kubeconfig), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(helm, env=kubectl.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
