"""The records of jobs: written by the pods that the operator gives them to, read by `cprjob report` and `ui`.

The operator puts a record into an annotation of a pod, which the kubelet shows as a file. It has no store itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json, to_json, unpack
from cpr_contract.records import MOST_EVENTS, JobRecord, RecordedEvent, record_job, record_key, records_prefix
from cpr_contract.requests import History, HistoryRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import Access, Environment, optional_path, read_job, read_request, store_access
from cpr_trainer.store import ExistsError, MissingError, Store, open_store

_LOG = logging.getLogger(__name__)

#: The interval of looks at the file, and the pause after the store refused a record.
_LOOK_S, _PAUSE_S = 5.0, 60.0


@contextmanager
def recording(environment: Environment) -> Iterator[None]:
    """Store each record that the operator gives to this pod, in a thread, while the context lasts."""
    stop = threading.Event()
    if environment.history_file is not None:
        arguments = (environment.history_file, environment.job, environment.store_access, stop)
        threading.Thread(target=_record, args=arguments, name="record", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def run_recorder(environ: Mapping[str, str]) -> None:
    """Store the record of this pod. Raises TrainerError."""
    job, record = read_job(environ), read_record(optional_path(environ, env.HISTORY_FILE))
    if record is not None:
        store_record(open_store(job.snapshots.store, *store_access(environ)), record)


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Answer the `HistoryRequest` in `source` by one line to `sink`. Raises TrainerError."""
    request = read_request(HistoryRequest, source, "report")
    store = open_store(request.store, *store_access(environ))
    print(to_json(History(tuple(newest_records(store, request.job_uid)))), file=sink, flush=True)


def read_record(path: Path | None) -> JobRecord | None:
    """Return the record in a file; None while there is none that can be read."""
    if path is None:
        return None
    try:
        return from_json(JobRecord, unpack(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, ContractError):
        return None


def store_record(store: Store, record: JobRecord) -> None:
    """Store a record with the events of the last one, unless the store has a later one; delete all but the last.

    Raises StoreError.
    """
    keys = [entry.key for entry in store.list(records_prefix(record.job_uid)) if record_job(entry.key) is not None]
    key = record_key(record)
    if keys and keys[-1] >= key:
        return
    with suppress(MissingError, ContractError, IndexError):
        last = _stored(store, keys[-1])
        record = replace(record, events=merged(last.events, record.events))
    with suppress(ExistsError):
        store.put(key, to_json(record).encode(), if_absent=True)
    store.delete(keys[:-1])


def merged(earlier: Iterable[RecordedEvent], later: Iterable[RecordedEvent]) -> tuple[RecordedEvent, ...]:
    """Return the newest events of both, each once, oldest first. The first time of an event counts."""
    found: dict[str, RecordedEvent] = {}
    for event in (*earlier, *later):
        found.setdefault(event.key, event)
    return tuple(sorted(found.values(), key=lambda event: event.time_s)[-MOST_EVENTS:])


def newest_records(store: Store, job_uid: str | None) -> Iterator[JobRecord]:
    """Yield the newest record of a job, or of each job in the store, by uid. Raises StoreError.

    A record that cannot be read is left out.
    """
    newest: dict[str, str] = {}
    for entry in store.list("" if job_uid is None else records_prefix(job_uid)):
        if (uid := record_job(entry.key)) is not None:
            newest[uid] = entry.key  # keys are sorted
    for key in newest.values():
        try:
            yield _stored(store, key)
        except (MissingError, ContractError) as error:
            _LOG.warning("%s cannot be read and is left out: %s", key, error)


def _stored(store: Store, key: str) -> JobRecord:
    return from_json(JobRecord, store.get(key).decode(errors="replace"))


def _record(path: Path, job: JobSpec, access: Access, stop: threading.Event) -> None:
    store, stored_s, pause_s = open_store(job.snapshots.store, *access), 0.0, _LOOK_S
    while not stop.wait(pause_s):
        pause_s, record = _LOOK_S, read_record(path)
        if record is None or record.written_s <= stored_s or record.job_uid != job.job_uid:
            continue
        try:
            store_record(store, record)
            stored_s = record.written_s
        except TrainerError as error:
            _LOG.warning("the job's record is not stored: %s", error)
            pause_s = _PAUSE_S
