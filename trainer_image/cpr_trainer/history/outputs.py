"""The last outputs of the processes of a job's members: stored by their pods, read by `cprjob logs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from cpr_contract.choices import MemberRole
from cpr_contract.codec import to_json
from cpr_contract.history import (
    MOST_OUTPUTS,
    Output,
    OutputRequest,
    Outputs,
    ProcessId,
    history_prefix,
    output_key,
    outputs_prefix,
    parse_output,
)
from cpr_trainer.errors import AmbiguousError
from cpr_trainer.runtime import Environment, read_request, store_access
from cpr_trainer.runtime.last_output import LastOutput
from cpr_trainer.store import Entry, Store, open_store


def store_output(environment: Environment, role: MemberRole, output: LastOutput) -> None:
    """Store the last output of a process of this pod, and delete those of old processes of the member.

    Raises StoreError.
    """
    job = environment.job
    store = open_store(job.snapshots.store, *environment.store_access)
    process = ProcessId(job.job_uid, role, output.index, output.incarnation, output.process)
    store.put(output_key(process), output.text)
    listed = store.list(outputs_prefix(job.job_uid, role, output.index))
    store.delete(output_key(each) for each in old_outputs(entry.key for entry in listed))


def old_outputs(keys: Iterable[str]) -> tuple[ProcessId, ...]:
    """Return the processes of a member, by the keys of their outputs, without the newest MOST_OUTPUTS."""
    return _in_order(keys)[:-MOST_OUTPUTS]


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Answer the `OutputRequest` in `source` by one line to `sink`. Raises TrainerError."""
    request = read_request(OutputRequest, source, "logs")
    print(to_json(read_outputs(request, open_store(request.store, *store_access(environ)))), file=sink, flush=True)


def read_outputs(request: OutputRequest, store: Store) -> Outputs:
    """Return the requested outputs. Raises StoreError, AmbiguousError."""
    job_uid = request.job_uid or only_job(entry.key for entry in store.list(""))
    found = {entry.key: entry for entry in store.list(outputs_prefix(job_uid, request.role, request.index))}
    stored = _in_order(found)
    chosen = [each for each in stored if each.incarnation == request.incarnation]
    if request.incarnation is None:
        chosen = list(stored[-1:])
    return Outputs(tuple(_read(store, each, found[output_key(each)]) for each in chosen), stored)


def only_job(keys: Iterable[str]) -> str:
    """Return the uid of the job with a history among all keys of a store; empty without one. Raises AmbiguousError."""
    jobs = sorted({uid for key in keys if key.startswith(history_prefix(uid := key.partition("/")[0]))})
    if len(jobs) > 1:
        raise AmbiguousError(f"There are several jobs in the store: {', '.join(jobs)}.", "Name one with --job.")
    return jobs[0] if jobs else ""


def _in_order(keys: Iterable[str]) -> tuple[ProcessId, ...]:
    """Return the processes with these keys, oldest first."""
    processes = filter(None, map(parse_output, keys))
    return tuple(sorted(processes, key=lambda each: (each.incarnation, each.process)))


def _read(store: Store, process: ProcessId, entry: Entry) -> Output:
    return Output(process, entry.modified_s, store.get(entry.key).decode(errors="replace"))
