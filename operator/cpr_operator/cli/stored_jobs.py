"""Jobs as their stores have them: their last recorded state and events, also of jobs that were deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from cpr_contract.requests import History, HistoryRequest
from cpr_operator.cli.command_errors import OptionError, TrialError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.store_source import JobStore, find_source
from cpr_operator.cli.trainer_process import answer, run_role
from cpr_operator.cluster.local.object_files import EventLine


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A CPRJob object and its events, as they were `written_s` (seconds since the epoch)."""

    job: Mapping[str, Any]
    events: tuple[EventLine, ...]
    written_s: float


def stored_jobs(source: JobStore) -> Iterator[StoredJob]:
    """Yield the jobs with a record in a store, by uid. Raises TrialError if the store cannot be read."""
    run = partial(run_role, environment=os.environ)
    found = answer(History, run, "history", None, HistoryRequest(source.store, source.job_uid))
    for record in found.records:
        events = (
            EventLine(each.time_s, record.job_uid, each.type, each.reason, each.message) for each in record.events
        )
        try:
            job = json.loads(record.job)
            name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        except (ValueError, TypeError, KeyError) as error:
            raise TrialError(f"the record of job {record.job_uid} in the store cannot be read: {error!r}") from error
        if (type(name), uid) == (str, record.job_uid):
            yield StoredJob(job, tuple(events), record.written_s)


def find_stored(named: str | None, endpoint: str | None, uid: str | None) -> StoredJob | None:
    """Return the job in the store of a URI; None for any other source. Raises TrialError, OptionError."""
    if named is None or "://" not in named:
        if endpoint is not None or uid is not None:
            raise OptionError("--endpoint and --job are for a store: s3://bucket/prefix or file:///folder")
        return None
    source = find_source(named, None, endpoint, uid, ClusterOptions())
    found = tuple(stored_jobs(source))
    if len(found) == 1:
        return found[0]
    if not found:
        which = "" if source.job_uid is None else f" of {source.job_uid}"
        raise OptionError(f"the store has no record{which}; a job is recorded about a minute after its start")
    several = ", ".join(f"{each.job['metadata']['uid']} ({each.job['metadata']['name']})" for each in found)
    raise OptionError(f"the store has records of several jobs; name one with --job: {several}")
