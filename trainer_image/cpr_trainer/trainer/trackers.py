"""Where the leader's figures may go, too: TensorBoard, MLflow and Weights & Biases, each by its own package.

All take samples as the step, so that runs with batches of other sizes can be compared. A job is one run there,
whichever process leads it: its successor goes on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from cpr_contract.env import TRACKERS
from cpr_contract.spec import JobSpec
from cpr_trainer.runtime.environment import BadSpecError


class Tracker(Protocol):
    """One run of one tracker. Methods raise whatever its package raises."""

    def log(self, samples: int, figures: Mapping[str, float]) -> None:
        """Add figures as they were after so many samples."""
        ...

    def close(self, *, finished: bool) -> None:
        """Send what is left; the job may go on in another process unless it is `finished`."""
        ...


class TensorBoard:
    """Event files in a folder of the job's name, below the given one."""

    def __init__(self, job: JobSpec, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 -- an extra

        self._writer = SummaryWriter(str(Path(folder) / job.job_name))

    def log(self, samples: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, samples)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 -- event files have no end
        """See `Tracker`."""
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

    def log(self, samples: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric  # noqa: PLC0415 -- an extra

        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now_ms, samples) for name, value in figures.items()])

    def close(self, *, finished: bool) -> None:
        """See `Tracker`."""
        if finished:
            self._client.set_terminated(self._run)


class WandB:
    """A run of the project in WANDB_PROJECT; WANDB_API_KEY, WANDB_MODE and the others are its package's own."""

    def __init__(self, job: JobSpec, _argument: str) -> None:
        import wandb  # noqa: PLC0415 -- an extra

        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(id=job.job_uid, name=job.job_name, resume="allow", settings=quiet)
        self._run.define_metric("*", step_metric="samples")

    def log(self, samples: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({"samples": samples, **figures})

    def close(self, *, finished: bool) -> None:  # noqa: ARG002 -- a run can be resumed in either case
        """See `Tracker`."""
        self._run.finish()


@dataclass(frozen=True, slots=True)
class Kind:
    """A tracker: its package, and whether the name of a folder follows its own."""

    package: str
    make: Callable[[JobSpec, str], Tracker]
    takes_folder: bool = False


KINDS: Mapping[str, Kind] = {
    "tensorboard": Kind("tensorboard", TensorBoard, takes_folder=True),
    "mlflow": Kind("mlflow", MLflow),
    "wandb": Kind("wandb", WandB),
}


def read_trackers(text: str, job: JobSpec) -> tuple[Callable[[], Tracker], ...]:
    """What opens the trackers that the variable names. Raises BadSpecError if one is unknown or not installed."""
    return tuple(_opener(word.strip(), job) for word in text.split(",") if word.strip())


def _opener(word: str, job: JobSpec) -> Callable[[], Tracker]:
    name, _, argument = word.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise BadSpecError(f"{TRACKERS} names {name}.", f"Name some of {', '.join(KINDS)}, separated by commas.")
    if kind.takes_folder != bool(argument):
        form = f"{name}:FOLDER" if kind.takes_folder else name
        raise BadSpecError(f"{TRACKERS} says {word}.", f"Write {form}.")
    if find_spec(kind.package) is None:
        raise BadSpecError(
            f"{TRACKERS} names {name}, and the package {kind.package} is not installed.",
            f"Add it to the image: pip install 'cprjob[{name}]'.",
        )
    return lambda: kind.make(job, argument)
