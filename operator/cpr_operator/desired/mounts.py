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


@dataclass(slots=True)
class PodFiles:
    """Environment variables by name, annotations, the pod's volumes, and the mounts of the main container."""

    variables: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)

    def add(self, volume: Manifest, mount: str) -> None:
        """Mount a volume of files."""
        self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], "mountPath": mount, "readOnly": True})


def spec_files(job_spec: str) -> PodFiles:
    """The job's description: a variable, or an annotation, its file, and a variable with the file's path."""
    if not is_packed(job_spec):
        return PodFiles({env.SPEC: job_spec})
    files = PodFiles({env.SPEC_FILE: f"{env.SPEC_DIR}/{env.SPEC_NAME}"}, {env.ANNOTATION_SPEC: job_spec})
    item = {"path": env.SPEC_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_SPEC}']"}}
    files.add({"name": "cprjob-spec", "downwardAPI": {"items": [item]}}, env.SPEC_DIR)
    return files


def store_files(spec: CPRJobSpec, *, reads_data: bool) -> PodFiles:
    """The access to the job's store, and for a pod that reads data to the store of the data."""
    files, saves, data = PodFiles(), spec.snapshots.store, spec.data.store
    _add(files, "cprjob", saves, (env.CREDENTIALS_DIR, env.CREDENTIALS_MOUNT), (env.CA_FILE, env.CA_MOUNT))
    if reads_data and data is not None:
        credentials = (env.DATA_CREDENTIALS_DIR, env.DATA_CREDENTIALS_MOUNT)
        _add(files, "cprjob-data", data, credentials, (env.DATA_CA_FILE, env.DATA_CA_MOUNT))
    return files


def _add(files: PodFiles, name: str, store: Endpoint, credentials: tuple[str, str], ca: tuple[str, str]) -> None:
    """Add the access to one store; `credentials` and `ca` have a variable and the path of its mount."""
    if store.credentials_secret:
        variable, mount = credentials
        files.variables[variable] = mount
        files.add({"name": f"{name}-credentials", "secret": {"secretName": store.credentials_secret}}, mount)
    if store.ca_bundle:
        (variable, mount), key = ca, store.ca_bundle.key
        files.variables[variable] = f"{mount}/{key}"
        secret = {"secretName": store.ca_bundle.name, "items": [{"key": key, "path": key}]}
        files.add({"name": f"{name}-ca", "secret": secret}, mount)
