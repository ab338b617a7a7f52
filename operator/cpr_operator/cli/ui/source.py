"""Where the jobs come from that `cprjob ui` shows: a cluster, or folders of local runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cpr_operator.cli.document import DocumentError
from cpr_operator.cli.pictures.story import Story, story_of
from cpr_operator.cli.where import AnswerError, Where
from cpr_operator.cluster.local.objects import EventLine, read_events, read_json

Object = Mapping[str, Any]


class Jobs(Protocol):
    """Jobs by a group (a namespace, or the folder of a run) and a name. All methods may block."""

    title: str

    def list(self) -> dict[tuple[str, str], Object]:
        """All jobs. Raises AnswerError, DocumentError."""
        ...

    def story(self, group: str, name: str) -> Story:
        """One of them, as it is now. Raises AnswerError, DocumentError, InvalidStatusError."""
        ...


class ClusterJobs:
    """Jobs of a namespace, or of all of them, with the user's own rights."""

    def __init__(self, where: Where, *, all_namespaces: bool) -> None:
        self._where = where
        self._all = all_namespaces
        with where.client() as client:  # a cluster that cannot be asked is told before a page is opened
            self.title = "all namespaces" if all_namespaces else f"namespace {client.namespace}"

    def list(self) -> dict[tuple[str, str], Object]:
        """See `Jobs`."""
        with self._where.client() as client:
            return {(job.namespace, job.name): job.document for job in client.list(all_namespaces=self._all)}

    def story(self, group: str, name: str) -> Story:
        """See `Jobs`."""
        with Where(self._where.kubeconfig, self._where.context, group).client() as client:
            job, events = client.get(name), client.events(name)
        said = (EventLine(each.time, job.uid, each.type, each.reason, each.message) for each in events)
        return story_of(job.document, said, time.time())


class LocalJobs:
    """The job of a local run in a folder, or those of all runs in the folders below it."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self.title = str(workdir)
        if not self.list():
            raise DocumentError(f"there is no job in {workdir}; name the folder of a run, or one with such folders")

    def list(self) -> dict[tuple[str, str], Object]:
        """See `Jobs`."""
        found = ((path, read_json(path)) for path in self._paths())
        return {(_run_of(path).name, path.stem): job for path, job in found if job is not None}

    def story(self, group: str, name: str) -> Story:
        """See `Jobs`."""
        for path in self._paths():
            if (_run_of(path).name, path.stem) == (group, name) and (job := read_json(path)) is not None:
                return story_of(job, read_events(_run_of(path), job["metadata"]["uid"]), time.time())
        raise DocumentError(f"there is no job {group}/{name} in {self._workdir}")

    def _paths(self) -> tuple[Path, ...]:
        return tuple(sorted([*self._workdir.glob("jobs/*/*.json"), *self._workdir.glob("*/jobs/*/*.json")]))


def _run_of(path: Path) -> Path:
    """The working folder of a run, of the file of its job: FOLDER/jobs/NAMESPACE/NAME.json."""
    return path.resolve().parents[2]


#: What reading jobs may raise, to be shown in the page.
FAULTS = (AnswerError, DocumentError, ValueError, OSError)
