"""Converts a CPRJob to an application of TorchX and back, and errors to those of TorchX."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from kubernetes.utils.quantity import parse_quantity
from torchx.specs import AppDef, Resource, RetryPolicy, Role
from torchx.specs.finder import ComponentValidationException

from cpr_contract import env
from cpr_operator.api.quantities import main_container
from cpr_operator.api.validate import InvalidSpecError, parse_spec
from cpr_operator.cli import document
from cpr_operator.cli.command_errors import DocumentError
from cpr_operator.client import ClientError
from cpr_operator.client.job import to_create
from cpr_operator.desired.pod import DEFAULT_RESOURCES

Manifest = dict[str, Any]

#: The key of an application's metadata that holds the whole job, as JSON.
MANIFEST = "cprjob.io/manifest"
#: The field of spec and status that describes the members of a role.
MEMBER_FIELDS = {env.ROLE_TRAINER: "trainers", env.ROLE_SHARD: "shards"}
GPU = "nvidia.com/gpu"
#: The value of TorchX for an unknown amount.
UNKNOWN = -1
MIB = 1 << 20


class SchedulerError(ComponentValidationException, SystemExit):  # type: ignore[misc]  # ships no types
    """A command of TorchX that failed; the message has the remedy.

    `torchx run` catches the first base class and reports it. Other commands of TorchX catch nothing: the second base
    ends them without a traceback, except in the threads of `log`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message


@contextlib.contextmanager
def torchx_errors() -> Iterator[None]:
    """Raise errors of requests, manifests and files as SchedulerError, which names every wrong field."""
    try:
        yield
    except (ClientError, DocumentError, InvalidSpecError) as error:
        raise SchedulerError(str(error)) from None


def read_application(file: str, name: str, changes: Mapping[tuple[str, ...], Any]) -> AppDef:
    """Return the application of the job in a file, with `changes` of its spec. Raises SchedulerError."""
    with torchx_errors():
        job = document.read_single(Path(file))
        for keys, value in changes.items():
            document.set_value(job, keys, value)
    if name and isinstance(job, dict) and isinstance(job.get("metadata"), dict):
        job["metadata"]["name"] = name
    return application(job)


def application(job: Any) -> AppDef:
    """Return the application of a job. Raises SchedulerError."""
    with torchx_errors():
        written = to_create(job)
    complete = parse_spec(written["spec"]).model_dump(mode="json", by_alias=True)
    name = written["metadata"]["name"]
    return AppDef(name=name, roles=roles(complete), metadata={MANIFEST: json.dumps(written)})


def roles(spec: Mapping[str, Any]) -> list[Role]:
    """Return the roles trainer and shard of a job. The spec must have its defaults."""
    return [
        Role(
            name=name,
            image=spec["image"],
            entrypoint="python3",
            args=["-m", "cpr_trainer", name],
            num_replicas=spec[field]["replicas"],
            max_retries=spec["failurePolicy"]["restartLimit"]["count"],
            retry_policy=RetryPolicy.REPLICA,
            resource=_resource(spec[field].get("template") or {}),
        )
        for name, field in MEMBER_FIELDS.items()
    ]


def manifest(app: AppDef, namespace: str | None) -> Manifest:
    """Return the job to create for an application of `cprjob.dlrm`, with the name and the roles that it has now.

    Raises SchedulerError.
    """
    if MANIFEST not in app.metadata or {role.name for role in app.roles} != set(MEMBER_FIELDS):
        raise SchedulerError(
            f"the scheduler cprjob cannot run {app.name}; run the component cprjob.dlrm --job FILE, "
            "which has the roles trainer and shard"
        )
    images = {role.image for role in app.roles}
    if len(images) > 1:
        raise SchedulerError(f"the roles of {app.name} name {len(images)} images; give both the same")
    job: Manifest = json.loads(app.metadata[MANIFEST])
    job["metadata"]["name"] = app.name
    if namespace:
        job["metadata"]["namespace"] = namespace
    job["spec"]["image"] = images.pop()
    for role in app.roles:
        job["spec"].setdefault(MEMBER_FIELDS[role.name], {})["replicas"] = role.num_replicas
    with torchx_errors():
        return to_create(job)


def _resource(template: Mapping[str, Any]) -> Resource:
    """Return the requests of a pod, rounded up to whole processors and MiB."""
    named = main_container(template).get("resources") or {"requests": DEFAULT_RESOURCES}
    requested = {**(named.get("limits") or {}), **(named.get("requests") or {})}
    return Resource(
        cpu=_amount(requested.get("cpu", 0)),
        gpu=_amount(requested.get(GPU, 0)),
        memMB=_amount(requested.get("memory", 0), MIB),
    )


def _amount(quantity: Any, unit: int = 1) -> int:
    try:
        amount: Decimal = parse_quantity(quantity)
        return math.ceil(amount / unit)
    except ValueError:  # the API server reports it when a pod is created
        return UNKNOWN
