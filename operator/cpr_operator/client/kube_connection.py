"""Requests to a Kubernetes API server with the rights of a kubeconfig, and the errors that users see."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.stream import stream
from kubernetes.stream.ws_client import WSClient
from urllib3.exceptions import HTTPError

from cpr_contract import env
from cpr_operator.api.cprjob_spec import GROUP, KIND, PLURAL, VERSION
from cpr_operator.client.job import Object

DEFAULT_NAMESPACE = "default"
#: The file in a pod that has the name of its namespace.
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_S = 30.0
REMEDIES: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "renew the credentials of your kubeconfig",
    HTTPStatus.NOT_FOUND: "name another namespace or job",
    HTTPStatus.CONFLICT: "give another name, or delete that job first",
}
#: Texts by which refusals of webhooks and policies differ from missing rights.
ADMISSION = ("admission webhook", "ValidatingAdmissionPolicy")


class ClientError(Exception):
    """A request of a user that failed; the message has the remedy."""


class NoObjectError(ClientError):
    """The cluster has no object of this name."""


class UnavailableError(ClientError):
    """The API server is unreachable or overloaded. The same request may succeed later."""


class WaitTimeoutError(ClientError):
    """A state that was waited for did not come in time."""


class KubeConnection:
    """Connections to one API server. All methods raise ClientError.

    Without `kubeconfig` and `context` the defaults of kubectl apply, and in a pod those of its service account.
    `namespace` is that of the context.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        configuration = client.Configuration()
        try:
            self.namespace = _configure(configuration, kubeconfig, context)
        except ConfigException as error:
            raise ClientError(
                f"there is no cluster to ask: {error}; name a kubeconfig by the option kubeconfig, or in KUBECONFIG"
            ) from None
        configuration.retries = 0  # the caller gets the reason at once
        api = client.ApiClient(configuration)
        self._jobs = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)

    def close(self) -> None:
        """Close all connections."""
        self._jobs.api_client.rest_client.pool_manager.clear()
        self._jobs.api_client.close()

    def create(self, namespace: str, job: Object) -> Object:
        """Create a job. The server refuses unknown fields."""
        doing = f"cannot create {namespace}/{job['metadata']['name']}"
        create = self._jobs.create_namespaced_custom_object
        return _answer(doing, create, *_of_jobs(namespace), job, field_validation="Strict")

    def find(self, namespace: str, name: str) -> Object | None:
        """Return a job, or None if there is none of that name."""
        get = self._jobs.get_namespaced_custom_object
        with contextlib.suppress(NoObjectError):
            return _answer(f"cannot read {namespace}/{name}", get, *_of_jobs(namespace), name)
        return None

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return all jobs of a namespace; None is all namespaces."""
        doing = f"cannot list jobs of {namespace or 'all namespaces'}"
        if namespace:
            return list(_answer(doing, self._jobs.list_namespaced_custom_object, *_of_jobs(namespace))["items"])
        return list(_answer(doing, self._jobs.list_cluster_custom_object, GROUP, VERSION, PLURAL)["items"])

    def change(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Merge a patch into a job and return the changed job."""
        merge, kind = self._jobs.patch_namespaced_custom_object, "application/merge-patch+json"
        doing = f"cannot change {namespace}/{name}"
        return _answer(doing, merge, *_of_jobs(namespace), name, dict(patch), _content_type=kind)

    def delete(self, namespace: str, name: str) -> None:
        """Delete a job; a job that does not exist is success."""
        delete = self._jobs.delete_namespaced_custom_object
        with contextlib.suppress(NoObjectError):
            _answer(f"cannot delete {namespace}/{name}", delete, *_of_jobs(namespace), name)

    def pods(self, namespace: str, labels: Mapping[str, object]) -> list[Object]:
        """Return the pods with these labels."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        doing = f"cannot list pods of {namespace}"
        return list(_answer(doing, self._core.list_namespaced_pod, namespace, label_selector=selector)["items"])

    def create_pod(self, namespace: str, manifest: Object) -> Object:
        """Create a pod and return it."""
        doing = f"cannot create the pod {namespace}/{manifest['metadata']['name']}"
        return _answer(doing, self._core.create_namespaced_pod, namespace, manifest)

    def pod(self, namespace: str, name: str) -> Object:
        """Return one pod."""
        return _answer(f"cannot read the pod {namespace}/{name}", self._core.read_namespaced_pod, name, namespace)

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> WSClient:
        """Start a command in a pod's main container, and return the websocket of its standard streams."""
        try:
            opened: WSClient = stream(
                self._core.connect_get_namespaced_pod_exec,
                pod,
                namespace,
                command=list(command),
                container=env.MAIN_CONTAINER,
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:  # of the handshake, which has no body
            reason = str(error.reason).partition(" -+-+-")[0]
            raise ClientError(
                f"cannot run a command in the pod {namespace}/{pod}: {reason}; request permission to create pods/exec"
            ) from None
        return opened

    def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> None:
        """Delete the pod of that uid. A grace of 0 does not wait for its node; None is the pod's own grace period."""
        options = client.V1DeleteOptions(grace_period_seconds=grace_s, preconditions=client.V1Preconditions(uid=uid))
        delete = self._core.delete_namespaced_pod
        _answer(f"cannot delete the pod {namespace}/{name}", delete, name, namespace, body=options)

    def events(self, namespace: str, job: str) -> list[Object]:
        """Return the events about jobs of this name."""
        about = f"involvedObject.kind={KIND},involvedObject.name={job}"
        doing = f"cannot list events of {namespace}"
        return list(_answer(doing, self._core.list_namespaced_event, namespace, field_selector=about)["items"])

    def log(
        self, namespace: str, pod: str, *, follow: bool, since_seconds: int | None, timestamps: bool
    ) -> Iterator[str]:
        """Yield the lines that a pod's process prints; with `follow` until it ends."""
        with _user_errors(f"cannot read the log of {namespace}/{pod}"):
            answer: Any = self._core.read_namespaced_pod_log(
                pod,
                namespace,
                container=env.MAIN_CONTAINER,
                follow=follow,
                since_seconds=since_seconds,
                timestamps=timestamps,
                _preload_content=False,
            )
            try:
                for line in answer:
                    yield line.decode(errors="replace")
            finally:
                answer.close()


def refusal(code: int, body: str) -> str:
    """Return the message of a refusal, with the remedy."""
    message = _message(body)
    if code == HTTPStatus.NOT_FOUND and message is None:
        message = "the cluster has no resource CPRJob"
        remedy = "install the operator: helm install cprjob charts/cprjob -n cprjob-system --create-namespace"
    elif code == HTTPStatus.FORBIDDEN and not any(each in str(message) for each in ADMISSION):
        remedy = "request the role edit of the namespace, or view for read access: the chart adds CPRJobs to both"
    else:
        remedy = REMEDIES.get(code, "correct the job" if code < HTTPStatus.INTERNAL_SERVER_ERROR else "try again")
    return f"{message or f'HTTP {code}'}; {remedy}"


@contextlib.contextmanager
def _user_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body or ""
        if error.status == HTTPStatus.NOT_FOUND and _message(body) is not None:
            kind: type[ClientError] = NoObjectError
        elif error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = UnavailableError
        else:
            kind = ClientError
        raise kind(f"{doing}: {refusal(error.status, body)}") from None
    except HTTPError as error:
        raise UnavailableError(
            f"{doing}: the API server does not answer ({error}); see whether kubectl reaches it"
        ) from None


def _of_jobs(namespace: str) -> tuple[str, str, str, str]:
    """Return the arguments that name the jobs of a namespace."""
    return GROUP, VERSION, namespace, PLURAL


def _answer(doing: str, request: Callable[..., Any], *arguments: object, **options: object) -> Object:
    """Make a request, and return its answer as plain JSON instead of the library's models."""
    with _user_errors(doing):
        answer = request(*arguments, **options, _preload_content=False, _request_timeout=REQUEST_S)
        found: Object = json.loads(answer.data)
    return found


def _message(body: str) -> str | None:
    """Return the message of the Status object in an answer, or None if it has none."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["message"])
    return None


def _configure(configuration: client.Configuration, kubeconfig: str | None, context: str | None) -> str:
    """Read the kubeconfig, or in a pod its service account. Returns the namespace in it."""
    try:
        config.load_kube_config(kubeconfig, context, configuration)
    except ConfigException:
        if kubeconfig or context or not OWN_NAMESPACE.exists():
            raise
        config.load_incluster_config(configuration)
        return OWN_NAMESPACE.read_text("utf-8").strip()
    contexts, active = config.list_kube_config_contexts(kubeconfig)
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)
