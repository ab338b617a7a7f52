"""`cprjob ui`: shows jobs in a browser while they run. It only reads.

Jobs are those of a kube, or of the folders of local runs. Server-sent events keep the pages up to date.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from plotly.offline import get_plotlyjs
from rich.console import Console
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from cpr_operator.cli.command_errors import ClusterRequestError, DocumentError, OptionError, TrialError
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.pictures.job_report import JobReport, job_report
from cpr_operator.cli.pictures.report_page import contents, render
from cpr_operator.cli.store_source import JobStore, find_source
from cpr_operator.cli.stored_jobs import StoredJob, stored_jobs
from cpr_operator.cluster.local.object_files import read_events, read_json

Object = Mapping[str, Any]

_LOG = logging.getLogger(__name__)

HOST = "127.0.0.1"
#: Seconds between two reads of the state that a page shows.
POLL_S = 2.0
#: Seconds between two reads of a store.
STORE_POLL_S = 30.0
#: The interval at which a stream checks whether the server ends.
END_S = 0.2
#: An empty message, by which a closed connection is detected.
KEEP_ALIVE = ": \n\n"
#: Columns of the list of jobs, by the fields of status.shown.
COLUMNS = ("progress", "speed", "eta", "auc", "interval", "spent", "limit")
#: Errors of reading jobs, which the page shows.
READ_ERRORS = (ClusterRequestError, DocumentError, TrialError, ValueError, OSError)


class ClusterJobs:
    """Jobs of a namespace, or of all of them, with the user's own rights. All methods may block."""

    def __init__(self, kube: ClusterOptions, *, all_namespaces: bool) -> None:
        self._kube = kube
        self._all = all_namespaces
        with kube.client() as client:  # an unreachable cluster fails before a page is opened
            self.title = "all namespaces" if all_namespaces else f"namespace {client.namespace}"

    def list(self) -> dict[tuple[str, str], Object]:
        """Return all jobs by namespace and name. Raises ClusterRequestError."""
        with self._kube.client() as client:
            return {(job.namespace, job.name): job.document for job in client.list(all_namespaces=self._all)}

    def report(self, group: str, name: str) -> JobReport:
        """Return the present report of a job. Raises ClusterRequestError, InvalidStatusError."""
        with ClusterOptions(self._kube.kubeconfig, self._kube.context, group).client() as client:
            job, events = client.get(name), client.events(name)
        return job_report(job.document, events, time.time())


class LocalJobs:
    """The job of a local run in a folder, or those of all runs in the folders below it. All methods may block."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._damaged = set[Path]()
        self.title = str(workdir)
        if not self.list():
            raise DocumentError(f"there is no job in {workdir}; name the folder of a run, or one with such folders")

    def list(self) -> dict[tuple[str, str], Object]:
        """Return all jobs by folder of the run and name."""
        found = ((run, path, self._read(path)) for run, path in self._paths())
        return {(run.name, path.stem): job for run, path, job in found if job is not None}

    def report(self, group: str, name: str) -> JobReport:
        """Return the present report of a job. Raises DocumentError, InvalidStatusError."""
        for run, path in self._paths():
            if (run.name, path.stem) == (group, name) and (job := self._read(path)) is not None:
                return job_report(job, read_events(run, job["metadata"]["uid"]), time.time())
        raise DocumentError(f"there is no job {group}/{name} in {self._workdir}")

    def _read(self, path: Path) -> Object | None:
        """Return the job in a file; None if there is none, or a file that a machine left damaged when it stopped."""
        try:
            return read_json(path)
        except ValueError as error:
            if path not in self._damaged:
                self._damaged.add(path)
                _LOG.warning("%s contains no job and is left out: %s", path, error)
            return None

    def _paths(self) -> Iterator[tuple[Path, Path]]:
        """Yield the working folder of each run, and the file FOLDER/jobs/NAMESPACE/NAME.json of its job."""
        for path in sorted([*self._workdir.glob("jobs/*/*.json"), *self._workdir.glob("*/jobs/*/*.json")]):
            yield path.resolve().parents[2], path


class StoredJobs:
    """Jobs with a record in a store, also those that were deleted. All methods may block."""

    def __init__(self, source: JobStore, title: str) -> None:
        self._source = source
        self._read_at = float("-inf")
        self._found: dict[tuple[str, str], StoredJob] = {}
        self.title = title
        if not self.list():
            raise OptionError(
                f"the store {title} has no record of a job; one is written about a minute after its start"
            )

    def list(self) -> dict[tuple[str, str], Object]:
        """Return all jobs by uid and name. Raises TrialError."""
        if time.monotonic() >= self._read_at + STORE_POLL_S:
            found = stored_jobs(self._source)
            self._found = {(each.job["metadata"]["uid"], each.job["metadata"]["name"]): each for each in found}
            self._read_at = time.monotonic()
        return {key: each.job for key, each in self._found.items()}

    def report(self, group: str, name: str) -> JobReport:
        """Return the report of a job as of its record. Raises DocumentError, InvalidStatusError, TrialError."""
        self.list()
        found = self._found.get((group, name))
        if found is None:
            raise DocumentError(f"there is no job {group}/{name} in {self.title}")
        return job_report(found.job, found.events, found.written_s)


Jobs = ClusterJobs | LocalJobs | StoredJobs


def choose_jobs(
    store: str | None, workdir: Path | None, endpoint: str | None, kube: ClusterOptions, *, all_namespaces: bool
) -> Jobs:
    """Return the jobs of a store, of local runs or of a cluster. Raises OptionError, and as these classes."""
    others = (store, workdir)
    if others != (None, None) and (None not in others or all_namespaces or kube.text):
        raise OptionError("a store and --workdir replace a cluster; give one of them")
    if store is not None:
        return StoredJobs(find_source(store, None, endpoint, None, kube), store)
    if endpoint is not None:
        raise OptionError(f"--endpoint {endpoint}: only s3://bucket/prefix takes it")
    return ClusterJobs(kube, all_namespaces=all_namespaces) if workdir is None else LocalJobs(workdir)


def application(jobs: Jobs, ends: Callable[[], bool]) -> Starlette:
    """Return the web application over these jobs.

    Requests by other names of this host are refused, so that no foreign page can read jobs. Streams of events end when
    `ends` returns true; otherwise an open page would delay the end of the server.
    """

    async def show_all(_request: Request) -> Response:
        return HTMLResponse(render("all.html", title=jobs.title))

    async def show_one(request: Request) -> Response:
        group, name = request.path_params["group"], request.path_params["name"]
        try:
            found = contents(await asyncio.to_thread(jobs.report, group, name))
        except READ_ERRORS as error:
            return Response(f"{error}\n", 404, media_type="text/plain")
        return HTMLResponse(render("live.html", group=group, **found))

    async def follow_all(_request: Request) -> Response:
        return _stream(partial(listing, jobs), ends)

    async def follow_one(request: Request) -> Response:
        group, name = request.path_params["group"], request.path_params["name"]
        return _stream(lambda: parts(contents(jobs.report(group, name))), ends)

    async def plotly(_request: Request) -> Response:
        return Response(get_plotlyjs(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    return Starlette(
        routes=[
            Route("/", show_all),
            Route("/events", follow_all),
            Route("/plotly.js", plotly),
            Route("/jobs/{group}/{name}", show_one),
            Route("/jobs/{group}/{name}/events", follow_one),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
    )


def parts(found: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of the page of a job that change."""
    return {
        "title": f"{found['report'].name}: {found['report'].status.phase}",
        "head": render("head.html", **found),
        "tables": render("tables.html", **found),
        "charts": found["charts"],
    }


def listing(jobs: Jobs) -> dict[str, Any]:
    """Return the parts of the list of all jobs that change."""
    rows = []
    for (group, name), job in sorted(jobs.list().items()):
        status = job.get("status") or {}
        shown = status.get("shown") or {}
        rows.append((group, name, status.get("phase", ""), [shown.get(column, "") for column in COLUMNS]))
    return {"list": render("list.html", rows=rows, columns=COLUMNS)}


def _stream(read: Callable[[], dict[str, Any]], ends: Callable[[], bool]) -> Response:
    return StreamingResponse(_events(read, ends), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(read: Callable[[], dict[str, Any]], ends: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the result of `read` whenever it has changed, until `ends`. An error is yielded as text and retried."""
    sent = ""
    while True:
        try:
            now = json.dumps(await asyncio.to_thread(read))
        except READ_ERRORS as error:
            now = json.dumps({"fault": str(error)})
        yield KEEP_ALIVE if now == sent else f"data: {now}\n\n"
        sent = now
        for _ in range(round(POLL_S / END_S)):
            if ends():
                return
            await asyncio.sleep(END_S)


def serve(jobs: Jobs, port: int, console: Console) -> None:
    """Serve on the loopback until Ctrl-C. A port of 0 is any that is free. Raises OptionError if the port is in use."""
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise OptionError(f"--port {port}: {error.strerror}; name another one, or 0") from error
    with listener:
        console.print(f"{jobs.title}: http://{HOST}:{listener.getsockname()[1]}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C ends it.", highlight=False)
        pages = application(jobs, lambda: server.should_exit)
        server = uvicorn.Server(uvicorn.Config(pages, log_level="error", timeout_graceful_shutdown=5))
        server.run([listener])
