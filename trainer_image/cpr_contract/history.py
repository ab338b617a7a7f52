"""The history of a job in its store, below `<uid>/history/`: keys of last outputs of processes, and requests for them.

The last output of each process of a member is one object, which is written once. `records` has the keys of job records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cpr_contract.choices import MemberRole
from cpr_contract.spec import StoreSpec

#: The most bytes of a process's standard error that are stored: the last ones.
OUTPUT_BYTES = 256 << 10
#: The newest processes of a member with a stored output; those of earlier ones are deleted.
MOST_OUTPUTS = 8

_OUTPUT = re.compile(
    r"(?P<uid>[^/]+)/history/output/(?P<role>shard|trainer)-(?P<index>\d+)/inc-(?P<incarnation>\d+)"
    r"/process-(?P<process>\d+)"
)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of a job: that of number `process` (from 1) in an incarnation of a member."""

    job_uid: str
    role: MemberRole
    index: int
    incarnation: int
    process: int


def history_prefix(job_uid: str) -> str:
    """The prefix of all objects of a job's history, with its slash. Saves lie elsewhere."""
    return f"{job_uid}/history/"


def outputs_prefix(job_uid: str, role: MemberRole, index: int) -> str:
    """The folder of the last outputs of a member's processes, with its slash."""
    return f"{history_prefix(job_uid)}output/{role}-{index:04d}/"


def output_key(process: ProcessId) -> str:
    """The key of the last output of a process."""
    folder = outputs_prefix(process.job_uid, process.role, process.index)
    return f"{folder}inc-{process.incarnation:04d}/process-{process.process:04d}"


def parse_output(key: str) -> ProcessId | None:
    """Return the process of an output, by its key; None for any other key."""
    found = _OUTPUT.fullmatch(key)
    if found is None:
        return None
    role: MemberRole = "shard" if found["role"] == "shard" else "trainer"
    return ProcessId(found["uid"], role, int(found["index"]), int(found["incarnation"]), int(found["process"]))


# --- cprjob logs: an `OutputRequest`; the response is one `Outputs` ---


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """A request for the last outputs of a member of `job_uid`, or of the only job in the store if it is None.

    incarnation: that of the outputs, all of them; None: the newest output of the member alone.
    """

    store: StoreSpec
    job_uid: str | None
    role: MemberRole
    index: int
    incarnation: int | None


@dataclass(frozen=True, slots=True)
class Output:
    """The end of the standard error of a process, in UTF-8 with replaced errors.

    stored_s: the time at which it was stored, in seconds since the epoch, by the store's clock.
    """

    process: ProcessId
    stored_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """The requested outputs, oldest first, and all processes of the member with one."""

    outputs: tuple[Output, ...]
    stored: tuple[ProcessId, ...]
