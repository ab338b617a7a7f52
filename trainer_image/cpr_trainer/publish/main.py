"""`python -m cpr_trainer publisher`: publishes the models of a job until SIGTERM, and then the newest one."""

from __future__ import annotations

import logging
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

from prometheus_client import CollectorRegistry

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.published import Published, PublisherReport
from cpr_contract.reports import ExitCode, Problem
from cpr_contract.spec import PublishSpec
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.errors import TrainerError
from cpr_trainer.export.main import open_uri
from cpr_trainer.publish.publisher import Publisher
from cpr_trainer.runtime import (
    BadSpecError,
    StatusServer,
    backoff,
    certificates,
    end_with,
    optional_path,
    problem_of,
    read_job,
    stop_on_sigterm,
    store_access,
)
from cpr_trainer.runtime.environment import port_base, termination_file
from cpr_trainer.store import StoreError, StoreUnsuitableError, open_store
from cprjob_serving.chain import Entry

_LOG = logging.getLogger(__name__)

#: Seconds between two looks for a newer anchor: a quarter of `every`, between these.
_SHORTEST_S, _LONGEST_S = 0.2, 5.0
#: Attempts to publish the newest anchor at the end.
_LAST_ATTEMPTS = 5


def run(environ: Mapping[str, str], *, once: bool = False) -> None:
    """Publish until SIGTERM, or `once`. Raises TrainerError for a job that cannot be published."""
    stop, job, access = stop_on_sigterm(), read_job(environ), store_access(environ)
    if once:
        stop.set()
    spec = job.publish
    if spec is None:
        raise BadSpecError("The job publishes no models.", "State spec.publish.")
    store, target = open_store(job.snapshots.store, *access), open_uri(spec.to, job.snapshots.store, *access)
    scratch = optional_path(environ, env.SCRATCH_DIR) or Path(tempfile.gettempdir())
    publisher = Publisher(store, target, job, spec, scratch, time.time)
    state = _State(job.job_uid, publisher)
    address, port = environ.get(env.ADDRESS) or "127.0.0.1", port_base(environ) + env.HTTP_PORT
    with StatusServer(
        address,
        port,
        status=state.report,
        healthy=lambda: True,
        ready=lambda: True,
        registry=CollectorRegistry(),
        certificates=certificates(environ, env.ROLE_PUBLISHER),
    ):
        work(publisher, state, spec, stop)
    end_with(termination_file(environ), state.report(), ExitCode.OK)  # the operator may have missed the last report


class _State:
    """The state for reports: the newest entry, and the problem that keeps the publisher from the next one."""

    def __init__(self, job_uid: str, publisher: Publisher) -> None:
        self._job_uid, self._publisher = job_uid, publisher
        self.problem: Problem | None = None

    def report(self) -> PublisherReport:
        """Return the report."""
        last = self._publisher.last
        published = None if last is None or last.job_uid != self._job_uid else published_of(last)
        return PublisherReport(CONTRACT_VERSION, self._job_uid, published, self.problem)


def published_of(entry: Entry) -> Published:
    """Return an entry as it is reported."""
    return Published(entry.sequence, entry.anchor, entry.step, entry.samples, entry.time_s)


def work(publisher: Publisher, state: _State, spec: PublishSpec, stop: Event) -> None:
    """Look for anchors until `stop`, and once more. Raises StoreUnsuitableError, and errors of the job itself."""
    pause_s = min(max((spec.every_s or 1.0) / 4, _SHORTEST_S), _LONGEST_S)
    while not _done(publisher.begin, state) and not stop.wait(pause_s):
        pass
    delays = backoff(random.Random(), first_s=pause_s, cap_s=60.0)
    while not stop.is_set():
        if _done(publisher.look, state):
            delays = backoff(random.Random(), first_s=pause_s, cap_s=60.0)
            stop.wait(pause_s)
        else:
            stop.wait(next(delays))
    for _ in range(_LAST_ATTEMPTS):
        if _done(lambda: publisher.look(final=True), state):
            break
        time.sleep(1.0)
    _done(publisher.close, state)


def _done(action: Callable[[], object], state: _State) -> bool:
    """Do something; return whether it succeeded. A store that fails, or a full disk, is waited for."""
    try:
        action()
    except StoreUnsuitableError:
        raise
    except (StoreError, DamagedError) as error:
        _report(state, problem_of(error))
    except OSError as error:
        remedy = "Give the publisher disk for the model, twice (its scratch volume)."
        _report(state, Problem("DiskFailed", f"The publisher's disk fails: {error}.", remedy))
    except TrainerError as error:
        _report(state, problem_of(error))
        raise
    else:
        state.problem = None
        return True
    return False


def _report(state: _State, problem: Problem) -> None:
    if state.problem != problem:
        _LOG.warning("nothing is published: %s: %s %s", problem.reason, problem.message, problem.remedy)
    state.problem = problem
