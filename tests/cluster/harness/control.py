"""Faults of the bare cluster's control plane, each undone at the end of its block."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import urllib3

from cluster.harness.kubectl import Kubectl, KubectlError
from cluster.harness.waiting import until

Process = Literal["etcd", "apiserver", "controller-manager", "scheduler"]
ETCD = "http://127.0.0.1:2379/v3/kv"
READY_S = 90


class ControlPlane:
    """Its processes by name. kind has them in a container of its own, out of reach of these faults."""

    def __init__(self, scripts: Path, kubectl: Kubectl) -> None:
        self._script = scripts / "control_plane.sh"
        self._kubectl = kubectl

    @contextmanager
    def down(self, process: Process) -> Iterator[None]:
        """Have a process dead for a while."""
        self._run("halt", process)
        try:
            yield
        finally:
            self._run("run", process)
            self.wait_ready()

    @contextmanager
    def frozen(self, process: Process) -> Iterator[None]:
        """Stop a process: connections stay open, without answers."""
        self._run("freeze", process)
        try:
            yield
        finally:
            self._run("thaw", process)
            self.wait_ready()

    @contextmanager
    def throttled(self, process: Process) -> Iterator[None]:
        """Let a process run a fifth of the time."""
        self._run("throttle", process)
        try:
            yield
        finally:
            self._run("unthrottle", process)
            self.wait_ready()

    def forget(self) -> None:
        """Compact etcd and restart the API server: clients with watches have to list again."""
        revision = _request("range", {"key": "AA=="})["header"]["revision"]
        _request("compaction", {"revision": revision, "physical": True})
        with self.down("apiserver"):
            pass

    def hasten(self) -> None:
        """Restart those that, after an outage of the API server, would look for it again only after half a minute."""
        for process in ("controller-manager", "scheduler"):
            self._run("halt", process)
            self._run("run", process)

    def heal(self) -> None:
        """Have all processes run and answer, whatever was done to them."""
        processes: tuple[Process, ...] = ("etcd", "apiserver", "controller-manager", "scheduler")
        for process in processes:
            self._run("run", process)
            self._run("unthrottle", process)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the API server is ready."""

        def ready() -> bool:
            try:
                return self._kubectl("get", "--raw", "/readyz", "--request-timeout=3s").strip() == "ok"
            except KubectlError:
                return False

        until("the API server is ready", ready, READY_S)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([self._script, *arguments], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RuntimeError(f"control_plane.sh {' '.join(arguments)}: {done.stderr.strip()}")


def _request(what: str, question: dict[str, Any]) -> Any:
    response = urllib3.request("POST", f"{ETCD}/{what}", body=json.dumps(question), timeout=10)
    if response.status != 200:
        raise RuntimeError(f"etcd {what}: {response.data!r}")
    return response.json()
