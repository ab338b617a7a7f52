"""In which version of the contract the operator speaks to a job's pods: that of the job, as long as it knows it.

Images are frozen with a job's start, and an image reads its own version and the one before. So an operator that is
upgraded in mid-run goes on in the version that the job started with.
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
    """The version that a job starts or resumes with; the same image reads what it read before."""
    before = status.runtime
    if before is not None and before.image == image and is_spoken(before.contract_version):
        return before.contract_version
    return CONTRACT_VERSION


def not_spoken(version: int) -> str:
    """Why a job of this version is left as it is, and what to do."""
    return (
        f"the job's pods speak contract version {version}, this operator {CONTRACT_VERSION - 1} and "
        f"{CONTRACT_VERSION}; the pods are left alone, and nothing is replaced; "
        "install the release that started the job, or suspend the job there and resume it here with a newer image"
    )
