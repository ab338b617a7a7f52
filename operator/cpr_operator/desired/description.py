"""What a pod gets beside its template: the job's description, and its contract version.

The file shows an annotation of the pod, as the roster's does: no further object has to be created, kept and deleted. A
short description stays where an image of any release finds it.
"""

from __future__ import annotations

from typing import Any

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import is_packed
from cpr_operator.api.status import Status

Manifest = dict[str, Any]

_VOLUME = "cprjob-spec"


def spec_variables(job_spec: str) -> dict[str, str]:
    """The variable that has the description, or names its file."""
    return {env.SPEC_FILE: f"{env.SPEC_DIR}/{env.SPEC_NAME}"} if is_packed(job_spec) else {env.SPEC: job_spec}


def spec_annotations(job_spec: str) -> dict[str, str]:
    """The annotation that the file shows."""
    return {env.ANNOTATION_SPEC: job_spec} if is_packed(job_spec) else {}


def spec_volumes(job_spec: str) -> list[Manifest]:
    """The volume with the file."""
    if not is_packed(job_spec):
        return []
    item = {"path": env.SPEC_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_SPEC}']"}}
    return [{"name": _VOLUME, "downwardAPI": {"items": [item]}}]


def spec_mounts(job_spec: str) -> list[Manifest]:
    """Where the volume is mounted."""
    return [{"name": _VOLUME, "mountPath": env.SPEC_DIR, "readOnly": True}] if is_packed(job_spec) else []


# The contract version between the operator and a job's pods.
#
# A job's image is frozen at its start, and an image reads its own version and the one before. After an upgrade, the
# operator therefore keeps using the version that a running job started with.


def version_of(status: Status) -> int:
    """The version of the job's rosters and pods; the operator's own before it starts."""
    return status.runtime.contract_version if status.runtime else CONTRACT_VERSION


def is_spoken(version: int) -> bool:
    """Whether the operator writes and reads this version: its own, and the one before."""
    return version in {CONTRACT_VERSION, CONTRACT_VERSION - 1}


def next_version(status: Status, image: str) -> int:
    """The version that a job starts or resumes with. It stays the same as long as the image does."""
    before = status.runtime
    if before is not None and before.image == image and is_spoken(before.contract_version):
        return before.contract_version
    return CONTRACT_VERSION


def not_spoken(version: int) -> str:
    """Why a job of this version is left alone, with the remedy."""
    return (
        f"the job's pods speak contract version {version}, this operator {CONTRACT_VERSION - 1} and "
        f"{CONTRACT_VERSION}; the pods are left alone, and nothing is replaced; "
        "install the release that started the job, or suspend the job there and resume it here with a newer image"
    )
