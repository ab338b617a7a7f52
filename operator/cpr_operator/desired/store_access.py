"""A pod's access to stores: credentials and CA bundles as mounted files, and variables with their paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpr_contract import env
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.store_spec import Endpoint

Manifest = dict[str, Any]


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
    """What the access to one store is called in a pod."""

    volumes: str
    credentials: tuple[str, str]
    ca: tuple[str, str]


_SAVES = _Names("cprjob", (env.CREDENTIALS_DIR, env.CREDENTIALS_MOUNT), (env.CA_FILE, env.CA_MOUNT))
_DATA = _Names(
    "cprjob-data", (env.DATA_CREDENTIALS_DIR, env.DATA_CREDENTIALS_MOUNT), (env.DATA_CA_FILE, env.DATA_CA_MOUNT)
)


def store_access(spec: CPRJobSpec, *, reads_data: bool) -> StoreAccess:
    """The access to the job's store, and of a pod that reads data to the data's own."""
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
