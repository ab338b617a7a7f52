"""Files of a pod beyond its template, and variables with their paths: the job's description, and access to stores.

The description is an annotation of the pod that is mounted as a file, as the roster is: no further object has to be
created and deleted. A short description is a variable instead, which an image of any release reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpr_contract import env
from cpr_contract.codec import is_packed
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.store_spec import Endpoint

Manifest = dict[str, Any]

_SPEC_VOLUME = "cprjob-spec"


def spec_variables(job_spec: str) -> dict[str, str]:
    """The variable with the description, or with the path of its file."""
    return {env.SPEC_FILE: f"{env.SPEC_DIR}/{env.SPEC_NAME}"} if is_packed(job_spec) else {env.SPEC: job_spec}


def spec_annotations(job_spec: str) -> dict[str, str]:
    """The annotation that is mounted as the file."""
    return {env.ANNOTATION_SPEC: job_spec} if is_packed(job_spec) else {}


def spec_volumes(job_spec: str) -> list[Manifest]:
    """The volume with the file."""
    if not is_packed(job_spec):
        return []
    item = {"path": env.SPEC_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_SPEC}']"}}
    return [{"name": _SPEC_VOLUME, "downwardAPI": {"items": [item]}}]


def spec_mounts(job_spec: str) -> list[Manifest]:
    """The mount of this volume."""
    return [{"name": _SPEC_VOLUME, "mountPath": env.SPEC_DIR, "readOnly": True}] if is_packed(job_spec) else []


@dataclass(slots=True)
class StoreAccess:
    """Environment variables by name, the pod's volumes, and the mounts of the main container."""

    variables: dict[str, str] = field(default_factory=dict)
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)

    def add(self, volume: str, secret: Manifest, mount: str) -> None:
        """Mount files of a Secret."""
        self.volumes.append({"name": volume, "secret": secret})
        self.mounts.append({"name": volume, "mountPath": mount, "readOnly": True})


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the access to one store in a pod."""

    volumes: str
    credentials: tuple[str, str]
    ca: tuple[str, str]


_SAVES = _Names("cprjob", (env.CREDENTIALS_DIR, env.CREDENTIALS_MOUNT), (env.CA_FILE, env.CA_MOUNT))
_DATA = _Names(
    "cprjob-data", (env.DATA_CREDENTIALS_DIR, env.DATA_CREDENTIALS_MOUNT), (env.DATA_CA_FILE, env.DATA_CA_MOUNT)
)


def store_access(spec: CPRJobSpec, *, reads_data: bool) -> StoreAccess:
    """The access to the job's store, and for a pod that reads data to the store of the data."""
    access = StoreAccess()
    _add(access, spec.snapshots.store, _SAVES)
    if reads_data and spec.data.store is not None:
        _add(access, spec.data.store, _DATA)
    return access


def _add(access: StoreAccess, store: Endpoint, names: _Names) -> None:
    if store.credentials_secret:
        variable, mount = names.credentials
        access.variables[variable] = mount
        access.add(f"{names.volumes}-credentials", {"secretName": store.credentials_secret}, mount)
    if store.ca_bundle:
        variable, mount = names.ca
        key = store.ca_bundle.key
        access.variables[variable] = f"{mount}/{key}"
        access.add(
            f"{names.volumes}-ca", {"secretName": store.ca_bundle.name, "items": [{"key": key, "path": key}]}, mount
        )
