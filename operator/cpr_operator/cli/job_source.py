"""Finds the job of a command, and its events: on a cluster, in a file, or in the folder of a local run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.command_options import ClusterOptions, is_on_cluster, job_name
from cpr_operator.cli.document import read_single
from cpr_operator.cluster.local.object_files import EventLine, read_events

if TYPE_CHECKING:
    from cpr_operator.client import Event


def find_job(source: str | None, workdir: Path | None, kube: ClusterOptions) -> dict[str, Any]:
    """Return the CPRJob object of that name, in that file, or in the working folder of a local run.

    Raises DocumentError, OptionError, ClusterRequestError.
    """
    if (source is None) == (workdir is None):
        raise DocumentError("give either a job, as cpr/NAME or a file, or --workdir DIR of a local run")
    if source is not None and is_on_cluster(source):
        with kube.client() as client:
            return dict(client.get(job_name(source)).document)
    if kube.text:
        raise OptionError(f"only a job on a cluster takes{kube.text}; name it as cpr/NAME")
    if source is not None:
        file = Path(source)
    else:
        paths = tuple(workdir.glob("jobs/*/*.json")) if workdir else ()
        if len(paths) != 1:
            raise DocumentError(f"there is no job in {workdir}")
        (file,) = paths
    found = read_single(file)
    if not isinstance(found, dict):
        raise DocumentError(f"{source or workdir} contains no CPRJob")
    return found


def find_events(
    job: Mapping[str, Any], source: str | None, workdir: Path | None, kube: ClusterOptions
) -> tuple[EventLine | Event, ...]:
    """Return the events of a job that `find_job` found, oldest first; a job in a file has none.

    Raises ClusterRequestError.
    """
    if workdir is not None:
        return tuple(read_events(workdir, str(job["metadata"].get("uid", ""))))
    if not is_on_cluster(source):
        return ()
    with kube.client() as client:
        return client.events(str(job["metadata"]["name"]))
