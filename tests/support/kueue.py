"""Kueue's own controller at an API server without nodes, with the settings of its chart, and queues for it.

Its resource definitions are stored in one version and used in another, so the API server asks Kueue to convert each
object: there is no Kueue without its webhooks. Here they are reached over loopback, and this module does what a kubelet
does with their certificate.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_operator.cluster.local.pod_folder import PortBlocks
from support.apiserver import FOLDER, ApiServer, binary, write_kubeconfig

NAMESPACE = "kueue-system"
#: As this user the controller has the rights of its chart. It opens a server on loopback for the tests alone.
USER = TOKEN = f"system:serviceaccount:{NAMESPACE}:kueue-controller-manager"
GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
CHART = FOLDER / "kueue-chart"
#: Its API of pending workloads is off: it is another server behind the API server, without users here.
VALUES = (
    "controllerManager.featureGates[0].name=VisibilityOnDemand",
    "controllerManager.featureGates[0].enabled=false",
)
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
READY_S = 120.0
Object = dict[str, Any]


def queue_objects(name: str, cpu: str) -> list[Object]:
    """A LocalQueue `training` with a ClusterQueue and a ResourceFlavor of this name, and the priority `urgent`.

    The ClusterQueue has this quota of CPU. Higher priorities preempt lower ones. The nodes of the flavor run Linux.
    """
    quota = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "100Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": name, "resources": quota}]}
    cluster_queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return [
        _object("ResourceFlavor", name, spec={"nodeLabels": {"kubernetes.io/os": "linux"}}),
        _object("ClusterQueue", name, spec=cluster_queue),
        _object("LocalQueue", "training", spec={"clusterQueue": name}),
        _object("WorkloadPriorityClass", "urgent", value=1000),
    ]


@contextlib.contextmanager
def running_kueue(folder: Path, server: ApiServer, **settings: Any) -> Iterator[None]:
    """Install what the chart has, run the controller outside of the cluster, and end it with the context.

    The API server needs TOKEN. `settings` are added to the controller's configuration.
    """
    folder.mkdir()
    with contextlib.closing(PortBlocks(random.Random())) as ports, server.client() as client:
        port = ports.take()
        objects = _rendered()
        _install(client, objects, port)
        command = _command(objects, folder, port, settings)
        kubeconfig = write_kubeconfig(folder / "kubeconfig", server.url, server.ca_file, TOKEN)
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig)}
        log = folder / "kueue.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process,
        ):
            try:
                _wait_ready(client, folder, port, process, log)
                yield
            finally:
                process.kill()  # nothing in it is to be kept


def _rendered() -> list[Object]:
    if not CHART.exists():
        pytest.skip(f"there is no {CHART}")
    settings = [part for value in VALUES for part in ("--set", value)]
    command: list[str | Path] = [binary("helm"), "template", "kueue", CHART, "--namespace", NAMESPACE, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The resource definitions have 40,000 lines: the loader in Python takes half a minute.
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


def _install(client: httpx.Client, objects: list[Object], port: int) -> None:
    """The objects for the controller in a cluster; its webhook's Service leads to this machine."""
    _create(client, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    _create(client, f"/api/v1/namespaces/{NAMESPACE}/services", _service())
    served: set[str] = set()
    for each in objects:
        match each["kind"]:
            case "CustomResourceDefinition":
                webhook = each["spec"].get("conversion", {}).get("webhook")
                if webhook is not None:
                    webhook["clientConfig"]["service"]["port"] = port
                _create(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
                served.add(each["spec"]["names"]["plural"])
            case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" as kind:
                for webhook in each["webhooks"]:
                    webhook["clientConfig"]["service"]["port"] = port
                _create(client, f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s", each)
            case "Secret":
                _create(client, f"/api/v1/namespaces/{NAMESPACE}/secrets", each)
            case "ClusterRole" | "ClusterRoleBinding" as kind:
                _create(client, f"{RIGHTS}/{kind.lower()}s", each)
            case "Role" | "RoleBinding" as kind:
                namespace = each["metadata"].get("namespace", NAMESPACE)
                _create(client, f"{RIGHTS}/namespaces/{namespace}/{kind.lower()}s", each)
            case _:
                pass
    _wait(lambda: served <= _resources(client), "the resource definitions are not served")


def _resources(client: httpx.Client) -> set[str]:
    answer = client.get(f"/apis/{GROUP}/{VERSION}")
    return {each["name"] for each in answer.json().get("resources", ())} if answer.is_success else set()


def _service() -> Object:
    name = {"name": "kueue-webhook-service", "namespace": NAMESPACE}
    return {"metadata": name, "spec": {"type": "ExternalName", "externalName": "localhost"}}


def _command(objects: list[Object], folder: Path, port: int, settings: Object) -> list[str | Path]:
    """The controller as the chart's Deployment has it, with addresses and folders of its own."""
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (stored,) = (each for each in objects if each["metadata"]["name"] == "kueue-manager-config")
    configuration = yaml.safe_load(stored["data"]["controller_manager_config.yaml"])
    configuration["webhook"] = {"port": port, "host": "127.0.0.1", "certDir": str(_certificates(folder))}
    configuration["health"] = {"healthProbeBindAddress": f"127.0.0.1:{port + 1}"}
    configuration["metrics"] = {"bindAddress": f"127.0.0.1:{port + 2}"}
    configuration["leaderElection"]["resourceNamespace"] = NAMESPACE
    configuration |= settings
    file = folder / "configuration.yaml"
    file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    others = [each for each in container["args"] if not each.startswith("--config=")]
    return [binary("kueue"), f"--config={file}", *others]


def _certificates(folder: Path) -> Path:
    return folder / "certificates"


def _wait_ready(client: httpx.Client, folder: Path, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    _certificates(folder).mkdir()

    def ready() -> bool:
        if process.poll() is not None:
            pytest.fail(f"Kueue has ended: {log.read_text(encoding='utf-8')[-3000:]}")
        _mount(client, _certificates(folder))
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port + 1}/readyz", trust_env=False).is_success
        return False

    _wait(ready, f"Kueue does not become ready; see {log}")


def _mount(client: httpx.Client, folder: Path) -> None:
    """Write the Secret that the controller has filled into the folder in which it looks for it."""
    secret = client.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert").json()
    for name, text in (secret.get("data") or {}).items():
        file, content = folder / name, base64.b64decode(text)
        if not file.exists() or file.read_bytes() != content:
            fresh = folder.with_name(f"{name}.fresh")  # outside the folder, which the controller watches
            fresh.write_bytes(content)
            fresh.replace(file)


def _wait(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def _create(client: httpx.Client, path: str, body: Object) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == httpx.codes.CREATED, answer.text


def _object(kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, **fields}
