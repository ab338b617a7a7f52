"""The processes of the bench: an API server with its etcd, a scheduler, fake kubelets, the operator.

All of them listen on loopback and end with the context that started them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from support.apiserver import ApiServer, binary, running_apiserver, write_kubeconfig

OPERATOR_TOKEN, OPERATOR_USER = "bench-operator", "cprjob-operator"
HTTP_PORT = 18080
#: The addresses of pods, all on loopback, so that one server answers for all of them.
POD_CIDR = "127.64.0.1/10"
#: The nice value of etcd, the API server and the fake kubelets, which can use more than the two shared cores.
NICENESS = 5


@dataclass(slots=True)
class Operator:
    """The operator's process: restarted by `start`, read through /proc."""

    kubeconfig: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which must not run yet."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cpr_operator"],
                env={
                    **os.environ,
                    "KUBECONFIG": str(self.kubeconfig),
                    "CPR_OPERATOR_HTTP_PORT": str(HTTP_PORT),
                    # A restart finds the bytecode of all modules, as in the image.
                    "PYTHONDONTWRITEBYTECODE": "",
                    "PYTHONPYCACHEPREFIX": str(self.log.with_name("bytecode")),
                },
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        """Stop the process by SIGTERM, and by SIGKILL after 30 s."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def cpu_s(self) -> float:
        """Return its CPU seconds since its start."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Return its resident memory, in MiB."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def _proc(self, name: str) -> str:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"the operator has ended; see {self.log}")
        return Path("/proc", str(self.process.pid), name).read_text()


@dataclass(frozen=True, slots=True)
class Control:
    """A control plane with fake kubelets, and the measured operator."""

    server: ApiServer
    operator: Operator


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[Control]:
    """Start all processes except the operator in an empty folder."""
    tokens = {OPERATOR_TOKEN: OPERATOR_USER}
    with running_apiserver(folder, tokens=tokens) as server, contextlib.ExitStack() as processes:
        kubeconfig = str(server.kubeconfig)
        scheduler: list[str | Path] = [binary("kube-scheduler"), "--kubeconfig", kubeconfig, "--leader-elect=false"]
        limits = ["--kube-api-qps=500", "--kube-api-burst=1000", "--secure-port=0"]
        processes.enter_context(_process([*scheduler, *limits], folder / "scheduler.log"))
        kubelets: list[str | Path] = [binary("kwok"), "--kubeconfig", kubeconfig, "--manage-all-nodes=true"]
        addresses = [f"--cidr={POD_CIDR}", "--node-ip=127.0.0.1"]
        processes.enter_context(_process([*kubelets, *addresses], folder / "kwok.log"))
        own = write_kubeconfig(folder / "operator.kubeconfig", server.url, server.ca_file, OPERATOR_TOKEN)
        operator = Operator(own, folder / "operator.log")
        try:
            yield Control(server, operator)
        finally:
            operator.stop()


@contextlib.contextmanager
def _process(command: list[str | Path], log: Path) -> Iterator[None]:
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 -- our own commands
            ["/usr/bin/nice", "-n", str(NICENESS), *command], stdout=output, stderr=output
        ) as process,
    ):
        try:
            yield
        finally:
            process.kill()  # its state is not needed


def operator_objects() -> list[dict[str, object]]:
    """Return the operator's rights, and its own flow schema, by which the API server counts its requests."""
    subject = {"kind": "User", "name": OPERATOR_USER, "apiGroup": "rbac.authorization.k8s.io"}
    return list(
        yaml.safe_load_all(f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: bench-operator}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}
subjects: [{yaml.safe_dump(subject, default_flow_style=True).strip()}]
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: {OPERATOR_USER}}}
spec:
  priorityLevelConfiguration: {{name: workload-high}}
  matchingPrecedence: 10
  distinguisherMethod: {{type: ByUser}}
  rules:
    - subjects: [{{kind: User, user: {{name: {OPERATOR_USER}}}}}]
      resourceRules:
        - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}}
""")
    )
