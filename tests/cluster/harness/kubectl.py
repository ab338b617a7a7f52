"""The API server as tests reach it: kubectl, and the client library for what is asked often."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
GROUP, VERSION, PLURAL = "cprjob.io", "v1alpha1", "cprjobs"
_NOT_READY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


@dataclass(frozen=True)
class Kubectl:
    """One cluster's kubectl; every call raises CalledProcessError with kubectl's own words unless it succeeds."""

    kubeconfig: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __call__(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_s: float = 120) -> str:
        """Run kubectl; return what it printed."""
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise KubectlError(arguments, done.stderr)
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, manifest: Object | Path, *arguments: str) -> None:
        """Apply a manifest, or a file of them."""
        text = manifest.read_text() if isinstance(manifest, Path) else json.dumps(manifest)
        self("apply", "--server-side", "-f", "-", *arguments, stdin=text)

    def get(self, *arguments: str) -> Object:
        """Return one object, or a list of them."""
        answer: Object = json.loads(self("get", *arguments, "-o", "json"))
        return answer


class KubectlError(Exception):
    """Kubectl failed; the message is its output."""

    def __init__(self, arguments: Sequence[str], output: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {output.strip()}")


class Reader:
    """Cheap repeated reads: a kubectl process per question would take the processors from the pods under test."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._client = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._client)
        self._custom = client.CustomObjectsApi(self._client)

    def close(self) -> None:
        """Close the connections."""
        self._client.rest_client.pool_manager.clear()
        self._client.close()

    def job(self, namespace: str, name: str) -> Object:
        """Return a CPRJob."""
        return cast("Object", self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name))

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """Return the pods that the label selector finds, as the API server's own JSON."""
        response: Any = self._core.list_namespaced_pod(namespace, label_selector=selector, _preload_content=False)
        items: list[Object] = json.loads(response.data)["items"]
        return items

    def report(self, namespace: str, pod: str) -> Object | None:
        """Return what a pod reports of itself, None if it does not answer.

        The API server asks it, which reaches pods wherever this machine does not.
        """
        try:
            response: Any = self._core.connect_get_namespaced_pod_proxy_with_path(
                f"{pod}:7071", namespace, "status", _preload_content=False, _request_timeout=2
            )
            report: Object = json.loads(response.data)
        except (ApiException, HTTPError, ValueError):
            return None
        return report

    def ready(self, node: str) -> bool:
        """Return whether the node's Ready condition is true and its taints are removed, which happens later."""
        response: Any = self._core.read_node(node, _preload_content=False)
        found = json.loads(response.data)
        tainted = any(taint["key"] in _NOT_READY for taint in found["spec"].get("taints", []))
        conditions = found["status"].get("conditions", [])
        return not tainted and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
