"""A real Kubernetes API server with its etcd on loopback: no nodes, no controllers, so pods never start.

`running_apiserver` starts both in a folder and stops them by their processes. Needs the binaries etcd and
kube-apiserver, and openssl for one certificate.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_operator.cluster.local.pod_folder import PortBlocks

TOKEN = "test-only"  # noqa: S105 -- it opens a server on loopback for the tests alone
#: Other users with all rights, and recorded writes.
USERS = ("first", "second")
READY_S = 180.0
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cprjob" / "bin"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Its address, its process, and a kubeconfig of a user with all rights."""

    url: str
    ca_file: Path
    kubeconfig: Path
    pid: int = 0

    def kubeconfig_of(self, user: str) -> Path:
        """A kubeconfig of one of USERS: all may do everything."""
        return self.kubeconfig.with_name(f"kubeconfig-{user}")

    def writes(self, user: str) -> list[str]:
        """Everything that one of USERS has written, as VERB PATH, in order."""
        events = [json.loads(line) for line in self.kubeconfig.with_name("audit.log").read_text().splitlines()]
        return [f"{each['verb']} {each['requestURI']}" for each in events if each["user"]["username"] == user]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The process stands still: connections are accepted by the kernel alone, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def client(self) -> httpx.Client:
        """A client that is logged in; the caller closes it."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        return httpx.Client(
            base_url=self.url, verify=context, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30, trust_env=False
        )


def binary(name: str) -> Path:
    """A server's binary; without it the test is skipped, or fails where cluster tests are required."""
    found = FOLDER / name
    if found.exists():
        return found
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    message = f"{name} is neither in {FOLDER} nor on the PATH"
    if os.environ.get("CPR_CLUSTER_TESTS") == "required":
        pytest.fail(message)
    pytest.skip(message)


@contextlib.contextmanager
def running_apiserver(folder: Path, *, tokens: Mapping[str, str] | None = None) -> Iterator[ApiServer]:
    """Start etcd and the API server in an empty folder; both end with the context.

    `tokens` maps bearer tokens to names of further users, who may do what RBAC lets them.
    """
    etcd, apiserver, openssl = binary("etcd"), binary("kube-apiserver"), binary("openssl")
    with contextlib.closing(PortBlocks(random.Random())) as ports:  # no outgoing connection takes them meanwhile
        port = ports.take()
        etcd_port, peer_port = port + 1, port + 2
        server = _prepare(folder, openssl, port, tokens or {})
        with (
            _process(_etcd_command(etcd, folder, etcd_port, peer_port), folder / "etcd.log"),
            _process(_apiserver_command(apiserver, folder, port, etcd_port), folder / "apiserver.log") as process,
        ):
            _wait_ready(server, process, folder / "apiserver.log")
            yield replace(server, pid=process.pid)


def install_crd(client: httpx.Client, crd: dict[str, Any]) -> None:
    """Create a CustomResourceDefinition and wait until the server serves it. Fails the test if it is refused."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    answer = client.post(path, json=crd)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        status = client.get(f"{path}/{crd['metadata']['name']}").json().get("status", {})
        found = {one["type"]: one for one in status.get("conditions") or ()}
        if found.get("Established", {}).get("status") == "True":
            assert "NonStructuralSchema" not in found, found["NonStructuralSchema"]["message"]
            return
        time.sleep(0.05)
    pytest.fail("the API server did not establish the CRD")


def write_kubeconfig(path: Path, url: str, ca_file: Path, token: str) -> Path:
    """Write the kubeconfig of the user with this token; return its path."""
    path.write_text(yaml.safe_dump(_kubeconfig(url, ca_file, token)), encoding="utf-8")
    return path


def _prepare(folder: Path, openssl: Path, port: int, tokens: Mapping[str, str]) -> ApiServer:
    """A certificate, the token file and a kubeconfig. The certificate's key signs service account tokens too."""
    key, certificate = folder / "server.key", folder / "server.crt"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command: list[str | Path] = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    masters = {TOKEN: "tester"} | {f"{TOKEN}-{user}": user for user in USERS}
    rows = [f"{token},{user},{user},system:masters\n" for token, user in masters.items()]
    rows += [f"{token},{user},{user}\n" for token, user in tokens.items()]
    (folder / "tokens.csv").write_text("".join(rows), encoding="utf-8")
    url = f"https://127.0.0.1:{port}"
    for token, user in masters.items():
        write_kubeconfig(folder / f"kubeconfig-{user}", url, certificate, token)
    kubeconfig = write_kubeconfig(folder / "kubeconfig", url, certificate, TOKEN)
    (folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT), encoding="utf-8")
    return ApiServer(url=url, ca_file=certificate, kubeconfig=kubeconfig)


#: Writes with their users; no reads.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "users": list(USERS), "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}


def _kubeconfig(url: str, certificate: Path, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }


def _etcd_command(etcd: Path, folder: Path, port: int, peer_port: int) -> list[str]:
    return [
        str(etcd),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
        f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _apiserver_command(apiserver: Path, folder: Path, port: int, etcd_port: int) -> list[str]:
    key, certificate = folder / "server.key", folder / "server.crt"
    return [
        str(apiserver),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # an address of loopback is no endpoint of a service
        f"--secure-port={port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        f"--audit-policy-file={folder / 'audit.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
        f"--service-account-key-file={certificate}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",  # no controller makes service accounts
    ]


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.kill()  # nothing in it is to be kept


def _wait_ready(server: ApiServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    with server.client() as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.TransportError, json.JSONDecodeError):
                if client.get("/readyz").status_code == httpx.codes.OK and _has_default_namespace(client):
                    return
            time.sleep(0.1)
    pytest.fail(f"the API server did not become ready: {log.read_text(encoding='utf-8')[-2000:]}")


def _has_default_namespace(client: httpx.Client) -> bool:
    return client.get("/api/v1/namespaces/default").status_code == httpx.codes.OK
