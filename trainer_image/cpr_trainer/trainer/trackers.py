"""Experiment trackers: the leader's metrics in TensorBoard, MLflow and Weights & Biases, each by its own package.

All take samples as the step, so that runs with different batch sizes can be compared. A job is one run of a tracker,
whichever process leads it. A thread hands the metrics over, so that training never waits for a tracker.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from cpr_contract.env import TRACKERS
from cpr_contract.reports import TrainerReport
from cpr_contract.spec import JobSpec
from cpr_trainer.runtime.environment import BadSpecError

_LOG = logging.getLogger(__name__)
_MLFLOW_URI, _MLFLOW_SERVERS = "MLFLOW_TRACKING_URI", ("http://", "https://", "databricks", "uc")
_FLUSH_INTERVAL = "x_transaction_log_flush_interval"

#: Fields of `SegmentScores` that are logged.
_OF_SEGMENT = frozenset({"pin", "auc", "logloss", "normalised_entropy", "calibration"})

EVERY_S = 10.0
#: The delay with which the end of training is noticed. Once the final anchor is committed, pods may be ended at once.
POLL_S = 0.2
#: W&B writes to the file of an offline run this often.
FLUSH_S = 10.0
#: Time limit of trackers for the last metrics at the end of the process. A grace period is 30 s at least.
LAST_S = 10.0


class Tracker(Protocol):
    """One run of one tracker. Methods raise the errors of its package."""

    def log(self, samples: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics after `samples` samples."""

    def close(self, *, finished: bool) -> None:
        """Send buffered metrics; the job may continue in another process unless it is `finished`."""


class TensorBoard:
    """Event files in a folder of the job's name, below the given one."""

    def __init__(self, job: JobSpec, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 -- an extra

        self._writer = SummaryWriter(str(Path(folder) / job.job_name))

    def log(self, samples: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, samples)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 -- event files have no end
        self._writer.close()


class MLflow:
    """A run of the experiment in MLFLOW_EXPERIMENT_NAME, or of the job's name, at MLFLOW_TRACKING_URI."""

    def __init__(self, job: JobSpec, _argument: str) -> None:
        import mlflow  # noqa: PLC0415 -- an extra
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME  # noqa: PLC0415 -- the same

        name = MLFLOW_EXPERIMENT_NAME.get() or job.job_name  # type: ignore[no-untyped-call]
        experiment = mlflow.set_experiment(name).experiment_id
        self._client = mlflow.MlflowClient()
        own = f"tags.`cprjob.uid` = '{job.job_uid}'"
        known = self._client.search_runs([experiment], own, max_results=1)
        tags = {"cprjob.uid": job.job_uid}
        found = known[0] if known else self._client.create_run(experiment, tags=tags, run_name=job.job_name)
        self._run: str = found.info.run_id

    def log(self, samples: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 -- an extra

        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now_ms, samples) for name, value in metrics.items()])

    def close(self, *, finished: bool) -> None:
        if finished:
            self._client.set_terminated(self._run)


class WandB:
    """A run of the project in WANDB_PROJECT; the package reads WANDB_API_KEY, WANDB_MODE and others itself."""

    def __init__(self, job: JobSpec, _argument: str) -> None:
        import wandb  # noqa: PLC0415 -- an extra

        settings: dict[str, Any] = {"console": "off", "silent": True}
        if _FLUSH_INTERVAL in wandb.Settings.model_fields:  # others write 32 KiB at a time
            settings[_FLUSH_INTERVAL] = FLUSH_S
        own = wandb.Settings(**settings)
        self._run = wandb.init(id=job.job_uid, name=job.job_name, resume="allow", settings=own)
        self._run.define_metric("*", step_metric="samples")

    def log(self, samples: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"samples": samples, **metrics})

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 -- a run can be resumed in either case
        self._run.finish()


def check_mlflow() -> None:
    """Raise BadSpecError if MLFLOW_TRACKING_URI names a store that this installation of MLflow cannot open.

    mlflow-skinny, the package of the extra, is a client of servers. MLflow without that variable uses a local store. A
    server, or a database on another machine, may answer later.
    """
    uri = os.environ.get(_MLFLOW_URI, "")
    if uri.startswith(_MLFLOW_SERVERS):
        return
    named = f"{_MLFLOW_URI} is {uri}" if uri else f"{_MLFLOW_URI} is not set"
    try:
        import mlflow  # noqa: PLC0415 -- an extra

        mlflow.MlflowClient()
    except ImportError as error:
        raise BadSpecError(
            f"{named}, and the package of the extra mlflow opens no such store: {error}.",
            f"Set {_MLFLOW_URI} to a server, as http://HOST:PORT; or add the whole package to the image: "
            "pip install mlflow.",
        ) from error
    except Exception as error:
        if urlsplit(uri).netloc:
            _LOG.warning("MLflow cannot open its store yet: %s", error)
            return
        raise BadSpecError(
            f"{named}, and MLflow refuses that store: {str(error).partition('. ')[0]}.",
            f"Set {_MLFLOW_URI} to a server, as http://HOST:PORT.",
        ) from error


@dataclass(frozen=True, slots=True)
class Kind:
    """A tracker: its package, its factory, and whether it is named as NAME:FOLDER.

    check: raises BadSpecError if the tracker cannot work here.
    """

    package: str
    make: Callable[[JobSpec, str], Tracker]
    takes_folder: bool = False
    check: Callable[[], None] = lambda: None


KINDS: Mapping[str, Kind] = {
    "tensorboard": Kind("tensorboard", TensorBoard, takes_folder=True),
    "mlflow": Kind("mlflow", MLflow, check=check_mlflow),
    "wandb": Kind("wandb", WandB),
}


def read_trackers(text: str, job: JobSpec) -> tuple[Callable[[], Tracker], ...]:
    """Return factories of the trackers that the variable names.

    Raises BadSpecError if one is unknown, lacks its package, or cannot work here.
    """
    makers: list[Callable[[], Tracker]] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, argument = entry.partition(":")
        kind = KINDS.get(name)
        if kind is None:
            raise BadSpecError(f"{TRACKERS} names {name}.", f"Name some of {', '.join(KINDS)}, separated by commas.")
        if kind.takes_folder != bool(argument):
            form = f"{name}:FOLDER" if kind.takes_folder else name
            raise BadSpecError(f"{TRACKERS} contains {entry}.", f"Write {form}.")
        found = find_spec(kind.package)
        if found is None or found.origin is None:  # W&B leaves a folder of its package's name
            raise BadSpecError(
                f"{TRACKERS} names {name}, and the package {kind.package} is not installed.",
                f"Add it to the image: pip install 'cprjob[{name}]'.",
            )
        kind.check()
        makers.append(partial(kind.make, job, argument))
    return tuple(makers)


class Tracking:
    """Logs the report to all trackers every ten seconds, and once all samples are trained, if this process leads.

    Followers open no tracker. A tracker that fails is tried again with the next metrics.
    """

    def __init__(
        self,
        makers: tuple[Callable[[], Tracker], ...],
        report: Callable[[], TrainerReport],
        leads: Callable[[], bool],
    ) -> None:
        self._makers = makers
        self._report = report
        self._leads = leads
        self._opened: dict[int, Tracker] = {}
        self._samples = 0
        self._next_s = 0.0
        self._failing: set[int] = set()

    def log_if_due(self, now: float) -> None:
        """Log new metrics, if they are due. now: seconds of a monotonic clock."""
        if not self._leads():
            return
        if self._next_s == 0.0:
            self._next_s = now + EVERY_S
            self._each(lambda _: None)  # opens them early: packages take seconds to load
        report = self._report()
        ended = report.data is None or report.data.ended
        if now >= self._next_s or (ended and report.samples == report.total_samples):
            self._next_s = now + EVERY_S
            self._log(report)

    def close(self) -> None:
        """Log the last metrics, and close all trackers."""
        if self._leads():
            report = self._report()
            self._log(report)
            self._each(lambda tracker: tracker.close(finished=report.result is not None))

    def _log(self, report: TrainerReport) -> None:
        if report.samples in {0, self._samples}:
            return
        self._samples, metrics = report.samples, metrics_of(report)
        self._each(lambda tracker: tracker.log(report.samples, metrics))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        """Apply `act` to all trackers; the first failure in a row is logged, and none is raised."""
        for number, make in enumerate(self._makers):
            try:
                if number not in self._opened:
                    self._opened[number] = make()
                act(self._opened[number])
            except Exception:  # noqa: BLE001 -- other packages raise anything
                if number not in self._failing:
                    _LOG.warning("a tracker fails; training continues without it", exc_info=True)
                self._failing.add(number)
            else:
                self._failing.discard(number)


def metrics_of(report: TrainerReport) -> Mapping[str, float]:
    """Return the known metrics of a report by name."""
    of_segment = () if report.segment is None else asdict(report.segment).items()
    known = {
        "loss": report.loss,
        "auc": report.auc,
        "logloss": report.logloss,
        "samples_per_second": report.samples_per_s,
        **dict(report.metrics),
        **{f"segment_{name}": value for name, value in of_segment if name in _OF_SEGMENT},
        "saves": report.saves,
        "save_stall_seconds": report.save_stall_s,
        "paused_seconds": report.paused_s,
        "degraded_samples": report.degraded_samples,
    }
    return {name: float(value) for name, value in known.items() if value is not None and isfinite(value)}


@contextmanager
def tracking(
    makers: tuple[Callable[[], Tracker], ...],
    report: Callable[[], TrainerReport],
    leads: Callable[[], bool],
) -> Iterator[None]:
    """Track while the context lasts. A tracker that hangs at its end is abandoned."""
    if not makers:
        yield
        return
    tracked, ended = Tracking(makers, report, leads), threading.Event()

    def work() -> None:
        while not ended.wait(POLL_S):
            tracked.log_if_due(monotonic())
        tracked.close()

    thread = threading.Thread(target=work, name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_S)
