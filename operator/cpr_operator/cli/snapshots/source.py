"""Finds the store and the job in it that the command line names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cpr_contract.spec import ModelSpec, StoreSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Phase
from cpr_operator.api.validate import parse_spec, parse_status, validate
from cpr_operator.cli.document import InvalidDocumentError
from cpr_operator.cli.options import OptionError
from cpr_operator.cli.source import find_job
from cpr_operator.cli.where import Where

#: Anchors to keep if the job's manifest is not at hand: the default of `snapshots.keep`.
DEFAULT_KEEP = 2
_SPECIMENS = "file:///folder, or s3://bucket/prefix with --endpoint http[s]://host:port"


@dataclass(frozen=True, slots=True)
class Source:
    """A store, and the job in it if one is named. `phase` is None, and `forks` empty, without the job's status."""

    store: StoreSpec
    job_uid: str | None
    model: ModelSpec | None = None
    keep: int = DEFAULT_KEEP
    forks: tuple[tuple[int, int], ...] = ()
    phase: Phase | None = None


def find_source(
    named: str | None, workdir: Path | None, endpoint: str | None, job_uid: str | None, where: Where
) -> Source:
    """The store of a URI, or that of a CPRJob on a cluster, in a file or in a local run's folder.

    Raises OptionError, DocumentError, InvalidDocumentError, InvalidStatusError, AnswerError.
    """
    if named is not None and "://" in named:
        if workdir is not None:
            raise OptionError("give either a store or --workdir DIR of a local run")
        return Source(_store(named, endpoint), job_uid)
    if endpoint is not None:
        raise OptionError(f"--endpoint {endpoint}: only s3://bucket/prefix takes it, because a CPRJob names its own")
    return _of_job(find_job(named, workdir, where), job_uid)


def _store(uri: str, endpoint: str | None) -> StoreSpec:
    place = urlsplit(uri)
    if place.scheme == "s3" and place.netloc and endpoint:
        return StoreSpec(endpoint, None, place.netloc, place.path.strip("/"))
    if place.scheme == "file" and place.path and not endpoint:
        return StoreSpec(uri, None, "", "")
    raise OptionError(f"{uri}: use {_SPECIMENS}")


def _of_job(document: Any, job_uid: str | None) -> Source:
    invalid = validate(document)
    if invalid:
        raise InvalidDocumentError(invalid)
    meta, status = document["metadata"], parse_status(document.get("status") or {})
    uid = job_uid or meta.get("uid")
    job = to_job_spec(parse_spec(document["spec"]), uid or "", meta["name"])
    return Source(
        store=job.snapshots.store,
        job_uid=uid,
        model=job.model,
        keep=job.snapshots.keep,
        forks=tuple(
            (fork.generation, fork.anchor.step if fork.anchor else 0) for fork in status.forks if fork.generation > 1
        ),
        phase=status.phase if status.start_time is not None else None,
    )
