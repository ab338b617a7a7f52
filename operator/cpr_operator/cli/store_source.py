"""Finds the store of a command, and the job in it: by a URI, or by a CPRJob on a cluster, in a file or a local run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cpr_contract.file_uris import is_file_uri
from cpr_contract.model import ModelSpec
from cpr_contract.spec import StoreSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Phase
from cpr_operator.api.validate import parse_document, parse_status
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.job_source import find_job

#: The number of anchors to keep without a manifest: the default of `snapshots.keep`.
DEFAULT_KEEP = 2
_EXAMPLES = "file:///folder, or s3://bucket/prefix with --endpoint http[s]://host:port"


@dataclass(frozen=True, slots=True)
class JobStore:
    """A store, and a job in it if one is named. Without a status of the job the phase is None.

    recorded: the step of its newest anchor. degraded: the reason of degraded saves. leader: the index of the trainer.
    """

    store: StoreSpec
    job_uid: str | None
    model: ModelSpec | None = None
    keep: int = DEFAULT_KEEP
    forks: tuple[tuple[int, int], ...] = ()
    phase: Phase | None = None
    recorded: int | None = None
    degraded: str = ""
    leader: int = 0


def find_source(
    named: str | None, workdir: Path | None, endpoint: str | None, job_uid: str | None, kube: ClusterOptions
) -> JobStore:
    """Return the store of a URI, or that of a CPRJob on a cluster, in a file or in a local run's folder.

    Raises OptionError, DocumentError, InvalidSpecError, InvalidStatusError, ClusterRequestError.
    """
    if named is not None and "://" in named:
        if workdir is not None:
            raise OptionError("give either a store or --workdir DIR of a local run")
        if is_file_uri(named) and not endpoint:
            return JobStore(StoreSpec(named, None, "", ""), job_uid)
        place = urlsplit(named)
        if place.scheme == "s3" and place.netloc and endpoint:
            return JobStore(StoreSpec(endpoint, None, place.netloc, place.path.strip("/")), job_uid)
        raise OptionError(f"{named}: use {_EXAMPLES}")
    if endpoint is not None:
        raise OptionError(f"--endpoint {endpoint}: only s3://bucket/prefix takes it, because a CPRJob has its own")
    return _of_job(find_job(named, workdir, kube), job_uid)


def _of_job(document: Any, job_uid: str | None) -> JobStore:
    spec, status = parse_document(document), parse_status(document.get("status") or {})
    uid, degraded = job_uid or document["metadata"].get("uid"), ("SnapshotsDegraded", "True")
    job = to_job_spec(spec, uid or "", document["metadata"]["name"])
    return JobStore(
        store=job.snapshots.store,
        job_uid=uid,
        model=job.model,
        keep=job.snapshots.keep,
        forks=tuple(
            (fork.generation, fork.anchor.step if fork.anchor else 0) for fork in status.forks if fork.generation > 1
        ),
        phase=status.phase if status.start_time is not None else None,
        recorded=status.anchors[-1].step if status.anchors else None,
        degraded=next((c.reason for c in status.conditions if (c.type, c.status) == degraded), ""),
        leader=status.leader or 0,
    )
