"""A CPRJob as an application of TorchX, and back; and what a command ends with that fails."""

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
from cpr_operator.api.validate import InvalidSpecError, parse_spec
from cpr_operator.cli import document
from cpr_operator.client import ClientError
from cpr_operator.client.job import to_create
from cpr_operator.desired.pod import DEFAULT_RESOURCES

# What a command of TorchX ends with: one sentence, with the remedy.


class SchedulerError(ComponentValidationException, SystemExit):  # type: ignore[misc]  # ships no types
    """What cannot be done, and what to do about it.

    `torchx run` reports the first of its bases. Other commands of TorchX catch nothing; they end by the second, without
    a traceback (but for `log`, whose threads print one before).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise what the client raises as TorchX takes it."""
    try:
        yield
    except ClientError as error:
        raise SchedulerError(str(error)) from None


Manifest = dict[str, Any]

#: The key of an application's metadata that holds the whole job, as JSON.
MANIFEST = "cprjob.io/manifest"
#: Where spec describes the pods of a role.
GROUPS = {env.ROLE_TRAINER: "trainers", env.ROLE_SHARD: "shards"}
GPU = "nvidia.com/gpu"
#: What TorchX writes for an amount that is not known.
UNKNOWN = -1
MIB = 1 << 20


def read_application(file: str, name: str, changes: Mapping[tuple[str, ...], Any]) -> AppDef:
    """The application that runs the job of a file, with other values at some paths of its spec.

    Raises SchedulerError.
    """
    try:
        job = document.read_single(Path(file))
        for keys, value in changes.items():
            document.set_value(job, keys, value)
    except document.DocumentError as error:
        raise SchedulerError(str(error)) from None
    if name and isinstance(job, dict) and isinstance(job.get("metadata"), dict):
        job["metadata"]["name"] = name
    return application(job)


def application(job: Any) -> AppDef:
    """The application that runs a job. Raises SchedulerError naming every wrong field."""
    written = _checked(job)
    complete = parse_spec(written["spec"]).model_dump(mode="json", by_alias=True)
    name = written["metadata"]["name"]
    return AppDef(name=name, roles=roles(complete), metadata={MANIFEST: json.dumps(written)})


def roles(spec: Mapping[str, Any]) -> list[Role]:
    """The roles of a job whose spec has its defaults: trainer and shard."""
    return [
        Role(
            name=name,
            image=spec["image"],
            entrypoint="python3",
            args=["-m", "cpr_trainer", name],
            num_replicas=spec[group]["replicas"],
            max_retries=spec["failurePolicy"]["restartLimit"]["count"],
            retry_policy=RetryPolicy.REPLICA,
            resource=_resource(spec[group].get("template") or {}),
        )
        for name, group in GROUPS.items()
    ]


def manifest(app: AppDef, namespace: str | None) -> Manifest:
    """The job to create for an application of `cprjob.dlrm`, with what was changed in its name and its roles since.

    Raises SchedulerError.
    """
    if MANIFEST not in app.metadata or {role.name for role in app.roles} != set(GROUPS):
        raise SchedulerError(
            f"the scheduler cprjob cannot run {app.name}; run the component cprjob.dlrm --job FILE, "
            "whose roles are trainer and shard"
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
        job["spec"].setdefault(GROUPS[role.name], {})["replicas"] = role.num_replicas
    return _checked(job)


def _checked(job: Any) -> Manifest:
    """What is to be created of a job. Raises SchedulerError naming every wrong field."""
    try:
        return to_create(job)
    except InvalidSpecError as error:
        raise SchedulerError(str(error)) from None


def _resource(template: Mapping[str, Any]) -> Resource:
    """What a pod asks for, rounded up to whole processors and MiB."""
    containers = (template.get("spec") or {}).get("containers") or ()
    main: Mapping[str, Any] = next((each for each in containers if each.get("name") == env.MAIN_CONTAINER), {})
    named = main.get("resources") or {"requests": DEFAULT_RESOURCES}
    wanted = {**(named.get("limits") or {}), **(named.get("requests") or {})}
    return Resource(
        cpu=_amount(wanted.get("cpu", 0)), gpu=_amount(wanted.get(GPU, 0)), memMB=_amount(wanted.get("memory", 0), MIB)
    )


def _amount(quantity: Any, unit: int = 1) -> int:
    try:
        amount: Decimal = parse_quantity(quantity)
        return math.ceil(amount / unit)
    except ValueError:  # the API server names it when it is asked for a pod
        return UNKNOWN
