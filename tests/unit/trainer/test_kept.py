"""One life of a trainer after the other, in one file: killed at any line between two complete steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from cpr_contract.model import ModelSpec
from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import Kind, ResumeFile
from cpr_trainer.trainer.allreduce.group import NO_STATE
from cpr_trainer.trainer.page import CHANGING, NOTHING, ResumeHeader
from cpr_trainer.trainer.resume import ReportedState, ResumePoint, ResumeState
from cpr_trainer.trainer.scores import ScoredSlice
from cpr_trainer.trainer.state import DenseState
from support.killed_lines import killed_at
from support.local_job import small_job

SAMPLES, SHARDS, GENERATION = 1_000, 2, 3
FILES = ("unit/trainer/test_kept.py", "trainer/resume.py", "trainer/page.py", "trainer/state.py")
EVALUATION = HeldOutScores(3, 300, 50, 0.7, 0.4, None, 1.0)


OptimizerKind = Literal["SGD", "Adagrad", "Adam", "AdamW"]


class Normed(nn.Module):
    """A network with buffers, of two types."""

    def __init__(self, _spec: ModelSpec, _seed: int) -> None:
        super().__init__()
        self.norm, self.end = nn.BatchNorm1d(13), nn.Linear(13, 1)

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.end(self.norm(dense)).squeeze(1) + embeddings.sum((1, 2))
        return found


class House:
    """The file of a trainer, and the processes that live on it, one after the other."""

    def __init__(self, kind: OptimizerKind = "Adagrad") -> None:
        job = small_job(Path("unused"), samples=SAMPLES)
        optimizer = replace(job.model.dense_optimizer, kind=kind)
        model = replace(job.model, dense_optimizer=optimizer, entrypoint=f"{__name__}:Normed")
        self.job: JobSpec = replace(job, model=model)
        self.header = ResumeHeader.new(self.job)
        self.begin()

    def begin(self) -> ResumePoint | None:
        """Begin the next life."""
        torch.manual_seed(0)
        self.header = ResumeHeader(ResumeFile(self.header.file.descriptor), self.job)
        self.header.begin_process()
        self.state = DenseState(self.job, SAMPLES)
        self.resume_state = ResumeState(self.header, self.state, SHARDS)
        resumes = self.header.holds(GENERATION)
        left = self.resume_state.restore() if resumes else None
        self.state.before_change = self.header.invalidate
        if left is None:
            self.resume_state.reset(GENERATION)
            self.state.begin({})
            self.resume_state.prepare(ReportedState())
            self.resume_state.commit(None, np.full((SHARDS, 4), -1))
        return left

    def step(self) -> None:
        """Train a step, whose gradients, scores and random numbers follow from what the step begins with."""
        step, replica = self.state.done + 1, self.state.replica
        replica.model.train()
        logits = replica.model(torch.rand(8, 13), torch.zeros(8, 4, 8))
        replica.zero_gradients()
        logits.square().sum().backward()
        labels = (torch.rand(8) < 0.5).float()
        self.state.scores.add(ScoredSlice(step, 1, 400 + 8 * step, logits.detach(), labels, 0.5))
        to_merge = self.state.scores.to_merge() if step % 3 == 0 else ()
        self.resume_state.begin_step()
        half = replica.live.shape[1] // 2
        before = replica.live.clone()
        replica.step(step)
        after = replica.live.clone()
        replica.live[:, half:] = before[:, half:]  # half of what a step writes
        replica.live[:, half:] = after[:, half:]
        if to_merge:
            self.state.scores.merge(*to_merge)
        self.state.done, self.state.lost = step, ((0, step),)
        self.resume_state.prepare(ReportedState(self.state.lost, evaluation=EVALUATION, loss=self.state.scores.loss))
        self.resume_state.commit(step, np.full((SHARDS, 4), step))

    def steps_to(self, last: int) -> None:
        while self.state.done < last:
            self.step()

    @property
    def all(self) -> list[bytes]:
        scored = self.state.scores.scored()
        tensors = [self.state.replica.live, *self.state.replica.buffers().values(), scored.merged, scored.own]
        rest = (self.state.done, self.state.lost, scored.step, self.state.scores.loss, scored.loss_shares.tolist())
        steps = self.state.replica.optimizer_steps
        return [*(t.detach().clone().numpy().tobytes() for t in tensors), repr((rest, steps)).encode()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "stride"), [("Adagrad", 2), ("Adam", 9)])
def test_a_step_killed_at_any_line_is_taken_once(kind: OptimizerKind, stride: int) -> None:
    calm = House(kind)
    calm.steps_to(4)
    done = set[int]()
    for line in count(1, stride):
        house = House(kind)
        house.steps_to(2)
        died = killed_at(line, house.step, *FILES)
        assert house.header.usable
        left = house.begin()
        assert left is not None
        assert left.pushed == house.state.done
        assert left.standing.tolist() == [[house.state.done] * 4] * SHARDS
        assert left.reported.evaluation == EVALUATION
        done.add(house.state.done)
        house.steps_to(4)
        assert house.all == calm.all, f"killed at line {line}"
        if not died:
            break
    assert line > 40
    assert done == {2, 3}


def test_lives_share_the_areas_of_the_first() -> None:
    house = House()
    house.steps_to(2)
    house.begin()
    house.begin()
    assert len([*house.header.file.areas(Kind.DENSE)]) == 1
    assert (house.header.process_number, house.state.done) == (3, 2)


def test_a_life_in_another_generation_finds_nothing() -> None:
    house = House()
    house.steps_to(2)
    assert house.header.holds(GENERATION)
    assert not house.header.holds(GENERATION + 1)
    house.resume_state.reset(GENERATION + 1)
    assert (house.header.valid, house.header.usable) == (NOTHING, True)


def unpack_another(house: House) -> None:
    house.state.unpack(house.state.pack(), 2)


def lose_a_push(house: House) -> None:
    house.resume_state.commit(3, None)


@pytest.mark.parametrize("work", [unpack_another, lose_a_push])
def test_what_is_neither_the_old_nor_the_new_is_not_gone_on_from(work: Callable[[House], None]) -> None:
    house = House()
    house.steps_to(2)
    work(house)
    assert (house.header.valid, house.header.usable) == (CHANGING, False)
    house.resume_state.prepare(ReportedState())
    house.resume_state.commit(2, np.zeros((SHARDS, 4), np.int64))
    assert house.header.usable


def test_a_state_that_was_never_kept_may_be_replaced() -> None:
    house = House()
    house.header.reset(GENERATION)
    house.state.done = NO_STATE
    unpack_another(house)
    assert house.header.usable


def test_a_file_of_another_job_does_not_fit() -> None:
    house = House()
    assert not ResumeHeader(house.header.file, replace(house.job, job_uid="another")).usable
