"""The contract version between the operator and a job's pods.

A job's image is frozen at its start, and an image reads its own version and the one before. After an upgrade, the
operator therefore keeps using the version that a running job started with.
"""

from __future__ import annotations

from cpr_contract import CONTRACT_VERSION
from cpr_operator.api.status import Status


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
