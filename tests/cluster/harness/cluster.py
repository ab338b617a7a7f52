"""The cluster of a test session: found or brought up by cluster.sh, and the operator in it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cluster.harness import store
from cluster.harness.kubectl import Kubectl, Reader
from cluster.harness.nodes import Nodes
from cluster.harness.pods import Pod
from cluster.harness.release import NAMESPACE, Release
from cluster.harness.space import Space
from cluster.harness.store import Store
from cluster.harness.waiting import until

SCRIPTS = Path(__file__).resolve().parent.parent
DEPLOYMENT, SELECTOR = "cprjob", "app.kubernetes.io/name=cprjob,app.kubernetes.io/component=operator"
REPLICAS = 2
UP_S = 1800  # from nothing: Kubernetes is compiled first


class UnavailableError(Exception):
    """This machine can have no cluster; the message has the reason."""


def _script(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "cluster.sh", *arguments], capture_output=True, text=True, check=False, timeout=timeout_s
    )


@dataclass(frozen=True)
class Cluster:
    """Three nodes, a MinIO and the operator."""

    kubectl: Kubectl
    reader: Reader
    nodes: Nodes
    store: Store
    _left: list[Space] = field(default_factory=list)

    def space(self, name: str) -> Space:
        """Make a namespace for a class of tests."""
        return Space.create(name, self.kubectl, self.reader)

    def leave(self, space: Space) -> None:
        """Delete a namespace while other tests run; `cluster` waits in the end until all of them are gone."""
        space.leave()
        self._left.append(space)

    def remove_left(self) -> None:
        """Wait until all namespaces that were left are gone."""
        for space in self._left:
            space.remove()

    # --- the operator ---

    @property
    def release(self) -> Release:
        """The helm release that it came by."""
        return Release(self.kubectl)

    def operator_pods(self) -> tuple[Pod, ...]:
        """Return the operator's pods."""
        return tuple(map(Pod.of, self.reader.pods(NAMESPACE, SELECTOR)))

    def operator_images(self) -> set[str]:
        """Return the images of the operator's pods."""
        return {container["image"] for pod in self.operator_pods() for container in pod.raw["spec"]["containers"]}

    def stop_operator(self, within_s: float = 40) -> None:
        """Scale the operator to nothing and wait until it is gone."""
        self._scale(0)
        until("the operator is gone", lambda: not self.operator_pods(), within_s)

    def start_operator(self, within_s: float = 40) -> None:
        """Scale the operator to its two replicas and wait until they are ready."""
        self._scale(REPLICAS)
        self.wait_operator(within_s)

    def wait_operator(self, within_s: float = 60) -> None:
        """Wait until as many replicas as there should be are ready, and no other is left."""

        def ready() -> bool:
            pods = self.operator_pods()
            return len(pods) == REPLICAS and all(pod.ready and not pod.deleting for pod in pods)

        until("the operator is ready", ready, within_s)

    def elected_operator(self) -> Pod:
        """Return the pod of the replica that leads."""

        def holder() -> Pod | None:
            name = self.lease().get("holderIdentity", "").partition("_")[0]
            return next((pod for pod in self.operator_pods() if pod.name == name and pod.ready), None)

        return until("a replica of the operator is elected", holder, 30)

    def lease(self) -> dict[str, Any]:
        """Return the spec of the Lease by which the operator's replicas elect one."""
        spec: dict[str, Any] = self.kubectl.get("-n", NAMESPACE, "lease", DEPLOYMENT)["spec"]
        return spec

    @contextmanager
    def operator_on(self, *numbers: int) -> Iterator[None]:
        """Let the operator's replicas run on these nodes, one on each, for a while; otherwise all run on the first."""
        names = [self.nodes.name(number) for number in numbers]
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        self._place({"nodeSelector": None, "affinity": {"nodeAffinity": required}})
        try:
            yield
        finally:
            self._place({"nodeSelector": {"cprjob.io/stable": "true"}, "affinity": {"nodeAffinity": None}})

    def _place(self, spec: dict[str, object]) -> None:
        patch = json.dumps({"spec": {"template": {"spec": spec}}})
        self.kubectl("-n", NAMESPACE, "patch", f"deployment/{DEPLOYMENT}", "--type=merge", "-p", patch)
        self.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{DEPLOYMENT}", "--timeout=90s", timeout_s=100)
        self.wait_operator()

    def kill_operator(self) -> None:
        """Kill the processes of all the operator's replicas in mid-air; their containers come back by themselves."""
        for pod in until("the operator's containers run", self._running_operator_pods, 60):
            self.nodes.signal(pod, "KILL")

    def _running_operator_pods(self) -> tuple[Pod, ...] | None:
        """Return the operator's pods; None while the container of one has ended and has not begun again."""
        pods = self.operator_pods()
        states = [each["state"] for pod in pods for each in pod.raw["status"].get("containerStatuses", ())]
        return pods if all("running" in state for state in states) else None

    @contextmanager
    def newer_operator(self) -> Iterator[None]:
        """Upgrade the release to the image of `have("operator-next")`, and in the end take it back."""
        self.release.upgrade("localhost/cprjob-operator-next")
        self.wait_operator()
        try:
            yield
        finally:
            self.release.upgrade("localhost/cprjob-operator")
            self.wait_operator()

    def have(self, *names: str) -> None:
        """Build what only some tests need, and put it on the nodes: see `cluster.sh with`."""
        done = _script("with", *names, timeout_s=UP_S)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def operator_before(self, files: Path) -> Iterator[None]:
        """Install the release before, of these files, in the place of ours. In the end ours is there again."""
        with self.release.replaced(files / "charts" / "cprjob", "localhost/cprjob-operator-before"):
            yield
        self.wait_operator()

    def operator_log(self, lines: int = 150) -> str:
        """Return the end of the replicas' logs, and of those before their last restart."""
        command = ("-n", NAMESPACE, "logs", "-l", SELECTOR, "--prefix", f"--tail={lines}")
        return self.kubectl(*command, check=False) + self.kubectl(*command, "--previous", check=False)

    # --- the store ---

    @contextmanager
    def store_down(self) -> Iterator[None]:
        """Make the store unreachable by its name: the service leads nowhere, and open connections break."""
        self._lead_to("nobody")
        try:
            for pod in map(Pod.of, self.reader.pods(store.NAMESPACE, "app.kubernetes.io/name=minio")):
                self.nodes.signal(pod, "KILL")
            yield
        finally:
            self._lead_to("minio")

    def _lead_to(self, name: str) -> None:
        selector = {"spec": {"selector": {"app.kubernetes.io/name": name}}}
        self.kubectl("-n", store.NAMESPACE, "patch", "service", "minio", "-p", json.dumps(selector))

    def _scale(self, replicas: int) -> None:
        self.kubectl("-n", NAMESPACE, "scale", f"deployment/{DEPLOYMENT}", f"--replicas={replicas}")


def backend() -> Literal["bare", "kind"]:
    """Return the access to a cluster on this machine; raise UnavailableError with the reason if there is none."""
    done = _script("backend")
    if done.returncode:
        raise UnavailableError(done.stderr.strip())
    return "kind" if done.stdout.strip() == "kind" else "bare"


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Bring the cluster up, or up to date; leave it running afterwards only if it ran before."""
    way = backend()
    ran = _script("status").returncode == 0
    done = _script("up", timeout_s=UP_S)
    if done.returncode:
        raise RuntimeError(f"the cluster does not come up: {done.stderr[-2000:]}")
    kubeconfig = Path(_script("kubeconfig").stdout.strip())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cprjob" / "bin"
    kubectl = Kubectl(kubeconfig, os.environ | {"PATH": f"{os.environ['PATH']}:{cache}"})
    reader = Reader(kubeconfig)
    try:
        with store.connect(kubectl) as objects:
            up = Cluster(kubectl, reader, Nodes(SCRIPTS, way, kubectl, reader), objects)
            yield up
            up.remove_left()
    finally:
        reader.close()
        if not ran:
            _script("down", timeout_s=300)  # kind deletes gigabytes of images
