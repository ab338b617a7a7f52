"""A pod's access to the job's store: credentials and CA bundle as mounted files, and variables with their paths."""

from __future__ import annotations

from typing import Any

from cpr_contract import env
from cpr_operator.api.snapshots import Store

Manifest = dict[str, Any]


def store_variables(store: Store) -> dict[str, str]:
    """Environment variables by name."""
    values = {}
    if store.credentials_secret:
        values[env.CREDENTIALS_DIR] = env.CREDENTIALS_MOUNT
    if store.ca_bundle:
        values[env.CA_FILE] = f"{env.CA_MOUNT}/{store.ca_bundle.key}"
    return values


def store_volumes(store: Store) -> list[Manifest]:
    """The pod's volumes."""
    volumes: list[Manifest] = []
    if store.credentials_secret:
        volumes.append({"name": "cprjob-credentials", "secret": {"secretName": store.credentials_secret}})
    if store.ca_bundle:
        ca_file = {"key": store.ca_bundle.key, "path": store.ca_bundle.key}
        volumes.append({"name": "cprjob-ca", "secret": {"secretName": store.ca_bundle.name, "items": [ca_file]}})
    return volumes


def store_mounts(store: Store) -> list[Manifest]:
    """The volume mounts of the main container."""
    mounts: list[Manifest] = []
    if store.credentials_secret:
        mounts.append({"name": "cprjob-credentials", "mountPath": env.CREDENTIALS_MOUNT, "readOnly": True})
    if store.ca_bundle:
        mounts.append({"name": "cprjob-ca", "mountPath": env.CA_MOUNT, "readOnly": True})
    return mounts
