"""`cprjob logs --previous` and `--incarnation`: the last outputs of ended processes, from the store of their job."""

from __future__ import annotations

from typing import Literal

from cpr_contract.history import Output, OutputRequest, Outputs, ProcessId
from cpr_operator.cli.command_errors import MissingOutputError
from cpr_operator.cli.report import clock
from cpr_operator.cli.store_source import JobStore
from cpr_operator.cli.trainer_process import RunRole, answer

Role = Literal["trainer", "shard"]


def last_outputs(
    source: JobStore, role: Role, index: int | None, incarnation: int | None, run: RunRole
) -> tuple[Output, ...]:
    """Return the last outputs of a member's processes in one incarnation; without one, that of the newest process.

    index: None is the leader, or shard 0. Raises TrialError if the store cannot be read, MissingOutputError.
    """
    if index is None:
        index = source.leader if role == "trainer" else 0
    request = OutputRequest(source.store, source.job_uid, role, index, incarnation)
    found = answer(Outputs, run, "outputs", None, request)
    if not found.outputs:
        which = "" if incarnation is None else f" incarnation {incarnation} of"
        raise MissingOutputError(
            f"the store has no output of{which} {role}/{index}; {_listed(found.stored)}. "
            "It is stored when a process ends, unless its whole pod was killed"
        )
    return found.outputs


def heading(output: Output) -> str:
    """Return a line about an output."""
    process = output.process
    member = f"{process.role}/{process.index} incarnation {process.incarnation} process {process.process}"
    return f"==> {member}, ended {clock(output.stored_s)} UTC <=="


def _listed(stored: tuple[ProcessId, ...]) -> str:
    if not stored:
        return "it has none of this member"
    incarnations = dict.fromkeys(each.incarnation for each in stored)
    return f"it has those of incarnation {', '.join(map(str, incarnations))}"
