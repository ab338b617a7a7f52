"""The scheduler `cprjob` of TorchX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

from torchx.runner import config
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, runopts

from cpr_operator.api.yaml_text import write_documents
from cpr_operator.client import Place
from cpr_operator.client.client import Member, Span, follow_log, read_log
from cpr_operator.client.connection import Connection
from cpr_operator.torchx.manifest import GROUPS, Manifest, SchedulerError, manifest, told
from cpr_operator.torchx.status import response, state

NAME = "cprjob"
Apps = list[ListAppResponse]  # below, `list` is a method


@dataclass(frozen=True, slots=True)
class Request:
    """The job to create, and where."""

    manifest: Manifest
    place: Place

    def __str__(self) -> str:
        """The manifest alone, as `kubectl apply` and `cprjob validate` take it."""
        return write_documents(self.manifest)


class CPRJobScheduler(Scheduler):  # type: ignore[misc]  # ships no types
    """Runs applications of `cprjob.dlrm` as CPRJobs; an application's id is NAMESPACE:NAME.

    TorchX gives options to `run` and `list` only. All else asks the cluster that this scheduler asked last, or that of
    the section [cprjob] of .torchxconfig, or that of the kubeconfig.
    """

    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._connection: Connection | None = None
        self._connecting = Lock()

    def close(self) -> None:
        """Close all connections."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("namespace", type_=str, default=None, help="the job's; else the file's, else the kubeconfig's")
        options.add("context", type_=str, default=None, help="a context of the kubeconfig; else its current one")
        options.add("kubeconfig", type_=str, default=None, help="a file; else KUBECONFIG or ~/.kube/config")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        place = _place_of(cfg)
        return AppDryRunInfo(Request(manifest(app, place.namespace), place), str)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Create the job. Returns its id."""
        request: Request = dryrun_info.request
        metadata = request.manifest["metadata"]
        with told():
            connection = self._connect(request.place)
            namespace = metadata.get("namespace") or connection.namespace
            connection.create(namespace, request.manifest)
        return _app_id(namespace, metadata["name"])

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """How a job stands; None if there is none of that id."""
        with told():
            connection, namespace, name = self._find(app_id)
            job = connection.find(namespace, name)
        return None if job is None else response(app_id, job)

    def list(self, cfg: Mapping[str, Any] | None = None) -> Apps:
        """The jobs of the namespace."""
        with told():
            connection = self._connect(_place_of(cfg)) if cfg else self._connected()
            namespace = connection.namespace
            jobs = connection.jobs(namespace)
        return [_listed(namespace, job["metadata"]["name"], state(job)) for job in jobs]

    def _cancel_existing(self, app_id: str) -> None:
        """Suspend the job: it saves everything, gives its pods back, and stays."""
        with told():
            connection, namespace, name = self._find(app_id)
            connection.change(namespace, name, {"spec": {"suspend": True}})

    def _delete_existing(self, app_id: str) -> None:
        """Delete the job; its saves go only with `snapshots.deleteWithJob`."""
        with told():
            connection, namespace, name = self._find(app_id)
            connection.delete(namespace, name)

    def log_iter(  # noqa: PLR0913, PLR0917 -- TorchX's own signature
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,  # noqa: FBT001, FBT002 -- the same
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """What a member prints."""
        if streams not in (None, Stream.COMBINED):
            raise SchedulerError("a pod's log holds both streams in one; leave --streams out")
        if role_name not in GROUPS:
            raise SchedulerError(f"a CPRJob has no role {role_name}; name {' or '.join(GROUPS)}")
        lines = self._lines(app_id, role_name, k, Span(since, until), follow=should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _lines(self, app_id: str, role: str, index: int, span: Span, *, follow: bool) -> Iterator[str]:
        with told():
            connection, namespace, name = self._find(app_id)
            yield from (follow_log if follow else read_log)(connection, Member(namespace, name, role, index), span)

    def _connect(self, place: Place) -> Connection:
        self.close()
        self._connection = Connection(place)
        return self._connection

    def _connected(self) -> Connection:
        with self._connecting:  # TorchX reads each log in a thread
            return self._connection or self._connect(_configured())

    def _find(self, app_id: str) -> tuple[Connection, str, str]:
        """The cluster, the namespace and the name of a job."""
        connection = self._connected()
        namespace, _, name = app_id.rpartition(":")
        return connection, namespace or connection.namespace, name


def create_scheduler(session_name: str, **_: object) -> CPRJobScheduler:
    """Make the scheduler; what TorchX takes from the environment for others is not used."""
    return CPRJobScheduler(session_name)


def _listed(namespace: str, name: str, stands: AppState) -> ListAppResponse:
    listed = ListAppResponse(app_id=_app_id(namespace, name), state=stands)
    listed.name = name  # TorchX 0.7.0 takes none, and does not mind it
    return listed


def _place_of(cfg: Mapping[str, Any]) -> Place:
    """The options as TorchX hands them over."""
    return Place(cfg.get("namespace"), cfg.get("context"), cfg.get("kubeconfig"))


def _configured() -> Place:
    """The options in .torchxconfig."""
    cfg: dict[str, Any] = {}
    config.apply(scheduler=NAME, cfg=cfg)
    return _place_of(cfg)


def _app_id(namespace: str, name: str) -> str:
    return f"{namespace}:{name}"
