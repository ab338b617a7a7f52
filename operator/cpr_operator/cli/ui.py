"""`cprjob ui`: jobs in a browser, as they go on. It only reads."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from plotly.offline import get_plotlyjs
from rich.console import Console
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from cpr_operator.cli.console import AnswerError, OptionError, Where
from cpr_operator.cli.document import DocumentError
from cpr_operator.cli.pictures.page import contents, render
from cpr_operator.cli.pictures.story import Story, story_of
from cpr_operator.cluster.local.objects import EventLine, read_events, read_json

# Where the jobs come from that `cprjob ui` shows: a cluster, or folders of local runs.


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


# The pages of `cprjob ui`, and the server-sent events that keep them up to date. It only reads.


HOST = "127.0.0.1"
#: Seconds between two looks at what a page shows.
LOOK_EVERY_S = 2.0
#: Seconds within which a stream sees that the server ends.
END_S = 0.2
#: A connection that nobody reads is noticed so soon.
SIGN_OF_LIFE = ": \n\n"
#: Columns of the list, by the fields of status.shown, and where a row leads.
COLUMNS = ("progress", "speed", "eta", "auc", "interval", "spent", "limit")


def application(jobs: Jobs, ends: Callable[[], bool]) -> Starlette:
    """The pages over these jobs. Other names of this host are refused, so that no page of others can ask for them.

    Streams of events end when `ends` returns true. An open page would keep the server from ending in order.
    """

    async def show_all(_request: Request) -> Response:
        return HTMLResponse(render("all.html", title=jobs.title))

    async def show_one(request: Request) -> Response:
        group, name = request.path_params["group"], request.path_params["name"]
        try:
            found = contents(await asyncio.to_thread(jobs.story, group, name))
        except FAULTS as error:
            return Response(f"{error}\n", 404, media_type="text/plain")
        return HTMLResponse(render("live.html", group=group, **found))

    async def follow_all(_request: Request) -> Response:
        return _stream(partial(listing, jobs), ends)

    async def follow_one(request: Request) -> Response:
        group, name = request.path_params["group"], request.path_params["name"]
        return _stream(lambda: parts(contents(jobs.story(group, name))), ends)

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
    """What changes in the page of a job."""
    return {
        "title": f"{found['story'].name}: {found['story'].status.phase}",
        "head": render("head.html", **found),
        "tables": render("tables.html", **found),
        "charts": found["charts"],
    }


def listing(jobs: Jobs) -> dict[str, Any]:
    """What changes in the list of all jobs."""
    rows = []
    for (group, name), job in sorted(jobs.list().items()):
        status = job.get("status") or {}
        shown = status.get("shown") or {}
        rows.append((group, name, status.get("phase", ""), [shown.get(column, "") for column in COLUMNS]))
    return {"list": render("list.html", rows=rows, columns=COLUMNS)}


def _stream(look: Callable[[], dict[str, Any]], ends: Callable[[], bool]) -> Response:
    return StreamingResponse(_events(look, ends), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(look: Callable[[], dict[str, Any]], ends: Callable[[], bool]) -> AsyncIterator[str]:
    """What `look` returns whenever it has changed, until `ends`; a fault in words, and then it is tried again."""
    told = ""
    while True:
        try:
            now = json.dumps(await asyncio.to_thread(look))
        except FAULTS as error:
            now = json.dumps({"fault": str(error)})
        yield SIGN_OF_LIFE if now == told else f"data: {now}\n\n"
        told = now
        for _ in range(round(LOOK_EVERY_S / END_S)):
            if ends():
                return
            await asyncio.sleep(END_S)


def serve(jobs: Jobs, port: int, console: Console) -> None:
    """Serve on this machine alone until Ctrl-C. A port of 0 is any that is free. Raises OptionError if it is taken."""
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
