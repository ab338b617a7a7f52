"""How a pod gets the job's description: in a variable, or if that is too long in a file.

The file shows an annotation of the pod, as the roster's does: no further object has to be created, kept and deleted. A
short description stays where an image of any release finds it.
"""

from __future__ import annotations

from typing import Any

from cpr_contract import env
from cpr_contract.codec import is_packed

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
