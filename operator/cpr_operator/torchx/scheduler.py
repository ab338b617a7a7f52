"""The scheduler `cprjob` of TorchX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from torchx.runner import config
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, runopts

from cpr_operator.api.yaml_text import write_documents
from cpr_operator.client import Client, NoObjectError
from cpr_operator.torchx.app_state import response, state
from cpr_operator.torchx.application import MEMBER_FIELDS, Manifest, SchedulerError, manifest, torchx_errors

NAME = "cprjob"
Apps = list[ListAppResponse]  # below, `list` is a method


@dataclass(frozen=True, slots=True)
class Request:
    """The job to create, and the options that name its cluster."""

    manifest: Manifest
    cluster: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the manifest alone, as `kubectl apply` and `cprjob validate` read it."""
        return write_documents(self.manifest)


class CPRJobScheduler(Scheduler):  # type: ignore[misc]  # ships no types
    """Runs applications of `cprjob.dlrm` as CPRJobs; the id of an application is NAMESPACE:NAME.

    TorchX passes options to `run` and `list` only. All other requests go to the cluster of the previous request, or
    without one to that of the section [cprjob] of .torchxconfig, or of the kubeconfig.
    """

    def __init__(self, session_name: str) -> None:
        super().__init__(NAME, session_name)
        self._client: Client | None = None
        self._connecting = Lock()

    def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("namespace", type_=str, default=None, help="the job's; else the file's, else the kubeconfig's")
        options.add("context", type_=str, default=None, help="a context of the kubeconfig; else its current one")
        options.add("kubeconfig", type_=str, default=None, help="a file; else KUBECONFIG or ~/.kube/config")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo:
        return AppDryRunInfo(Request(manifest(app, cfg.get("namespace")), cfg), str)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Create the job and return its id."""
        request: Request = dryrun_info.request
        with torchx_errors():
            job = self._connect(request.cluster).submit(request.manifest)
        return _app_id(job.namespace, job.name)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the description of a job, or None if there is none of that id."""
        with torchx_errors():
            client, name = self._find(app_id)
            try:
                return response(app_id, client.get(name))
            except NoObjectError:
                return None

    def list(self, cfg: Mapping[str, Any] | None = None) -> Apps:
        """Return the jobs of the namespace."""
        with torchx_errors():
            jobs = (self._connect(cfg) if cfg else self._connected()).list()
        listed = []
        for job in jobs:
            app = ListAppResponse(app_id=_app_id(job.namespace, job.name), state=state(job))
            app.name = job.name  # TorchX 0.7.0 has no such field, and ignores the attribute
            listed.append(app)
        return listed

    def _cancel_existing(self, app_id: str) -> None:
        """Suspend the job: it saves everything, releases its pods, and can be resumed."""
        with torchx_errors():
            client, name = self._find(app_id)
            client.suspend(name)

    def _delete_existing(self, app_id: str) -> None:
        """Delete the job; its saves are deleted only with `snapshots.deleteWithJob`."""
        with torchx_errors(), contextlib.suppress(NoObjectError):
            client, name = self._find(app_id)
            client.delete(name)

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
        """Return the lines that a member prints."""
        if streams not in (None, Stream.COMBINED):
            raise SchedulerError("a pod's log holds both streams in one; leave --streams out")
        if role_name not in MEMBER_FIELDS:
            raise SchedulerError(f"a CPRJob has no role {role_name}; name {' or '.join(MEMBER_FIELDS)}")
        lines = self._lines(app_id, role_name, k, since, until, follow=should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _lines(  # noqa: PLR0913 -- as above
        self, app_id: str, role: Any, index: int, since: datetime | None, until: datetime | None, *, follow: bool
    ) -> Iterator[str]:
        since_s = None if since is None else (datetime.now(UTC) - since.astimezone(UTC)).total_seconds()
        with torchx_errors():
            client, name = self._find(app_id)
            yield from client.logs(name, role=role, index=index, follow=follow, since_s=since_s, until=until)

    def _connect(self, cluster: Mapping[str, Any]) -> Client:
        self.close()
        self._client = Client(**{option: cluster.get(option) for option in ("kubeconfig", "context", "namespace")})
        return self._client

    def _connected(self) -> Client:
        with self._connecting:  # TorchX reads each log in a thread
            if self._client is not None:
                return self._client
            options: dict[str, Any] = {}
            config.apply(scheduler=NAME, cfg=options)  # those in .torchxconfig
            return self._connect(options)

    def _find(self, app_id: str) -> tuple[Client, str]:
        """Return a client for the namespace of a job, and the name of the job."""
        client = self._connected()
        namespace, _, name = app_id.rpartition(":")
        return client.at(namespace) if namespace else client, name


def create_scheduler(session_name: str, **_: object) -> CPRJobScheduler:
    """Return the scheduler. Parameters that TorchX takes from the environment are for other schedulers."""
    return CPRJobScheduler(session_name)


def _app_id(namespace: str, name: str) -> str:
    return f"{namespace}:{name}"
