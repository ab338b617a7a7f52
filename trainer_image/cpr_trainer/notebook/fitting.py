"""A job from its first values to a trained model, in this process."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch
from torch import nn

from cpr_contract.spec import JobSpec
from cpr_trainer.access import Rows, of_bands
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.evaluated import data_of_its_own, open_scored, scored_rows
from cpr_trainer.data.source import open_dataset
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluate import score_held_out
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.model.entrypoint import Factory, build_network
from cpr_trainer.notebook.fitted import Fitted, Score
from cpr_trainer.notebook.progress import ProgressBar
from cpr_trainer.rows import UniqueRows
from cpr_trainer.store import Uris


def train(job: JobSpec, factory: Factory | None, *, progress: bool) -> Fitted:
    """Train a job to its end in this process and in memory, as its trainer would, and return the model.

    factory: see `build_network`. progress: write a bar to the standard error. The job's numbers of trainers and shards
    are not looked at, and nothing is saved. Raises ModelError, DataError, StoreError, DivergedError.
    """
    if factory is not None:
        job = replace(job, model=replace(job.model, entrypoint=_name(factory)))
    # Better known before the data is indexed.
    build_network(job.model, job.data.seed, job.precision, factory, job.device)
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store))
    trainer = LoneTrainer(job, dataset, job.data.seed, factory)
    tell = ProgressBar(trainer.order.total_samples).show if progress else _say_nothing
    began = perf_counter()
    trainer.train(None, tell)
    took_s = perf_counter() - began
    network = trainer.replica.model.cpu().eval()  # `predict` computes where the rows are.
    samples, loss = trainer.order.total_samples, trainer.scores.loss
    assert loss is not None  # noqa: S101 -- the last step was scored
    return Fitted(
        samples=samples,
        samples_per_s=samples / took_s,
        loss=loss,
        progressive=Score.of(trainer.scores.validation),
        held_out=_score_held_out(job, dataset, trainer),
        network=network,
        dataset=dataset,
        model=job.model,
        arena=trainer.arena,
        placement=trainer.placement,
    )


def _score_held_out(job: JobSpec, dataset: Dataset, trainer: LoneTrainer) -> Score | None:
    if data_of_its_own(job) is not None:
        dataset = open_scored(job, Uris(job.snapshots.store))
    if not scored_rows(job, dataset.layout.rows):
        return None

    def fetch(rows: UniqueRows) -> Rows:
        return of_bands(tuple(map(torch.from_numpy, trainer.arena.read(rows.places))))

    return Score.of(score_held_out(trainer.replica.model, job, dataset, trainer.placement, fetch))


def _name(network: object) -> str:
    """Return what errors call a network's factory. Raises ModelError if it cannot be called as one."""
    if isinstance(network, nn.Module) or not callable(network):
        raise ModelError(
            f"network is of type {type(network).__name__}, not what makes one.",
            "Give the network's class, or a function of (spec, seed) that returns it.",
        )
    return f"{network.__module__}:{getattr(network, '__qualname__', type(network).__name__)}"


def _say_nothing(_samples: int) -> None:
    pass
