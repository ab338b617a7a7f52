"""Processes of a trainer that resume from one file, after a kill at any line between two complete steps."""

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
from cpr_contract.spec import FollowSpec, JobSpec
from cpr_trainer.embedding.memory import Kind, ResumeFile
from cpr_trainer.trainer.allreduce.group import NO_STATE
from cpr_trainer.trainer.resume import CHANGING, NOTHING, ReportedState, ResumeMemory, ResumePoint, TrainerControlBlock
from cpr_trainer.trainer.scores import ScoredSlice
from cpr_trainer.trainer.state import DenseState
from support.killed_lines import killed_at
from support.local_job import small_job

SAMPLES, SHARDS, GENERATION = 1_000, 2, 3
FILES = ("unit/trainer/test_resume.py", "trainer/resume.py", "trainer/state.py")
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


class ResumedTrainer:
    """The resume file of a trainer, and its processes, one after another."""

    def __init__(self, kind: OptimizerKind = "Adagrad") -> None:
        job = small_job(Path("unused"), samples=SAMPLES)
        job = replace(job, data=replace(job.data, follow=FollowSpec(1.0)))  # segments are scored
        optimizer = replace(job.model.dense_optimizer, kind=kind)
        model = replace(job.model, dense_optimizer=optimizer, entrypoint=f"{__name__}:Normed")
        self.job: JobSpec = replace(job, model=model)
        self.control_block = TrainerControlBlock.new(self.job)
        self.begin()

    def begin(self) -> ResumePoint | None:
        """Start the next process."""
        self.control_block = TrainerControlBlock(ResumeFile(self.control_block.file.descriptor), self.job)
        self.control_block.begin_process()
        self.state = DenseState(self.job, SAMPLES)
        self.resume_memory = ResumeMemory(self.control_block, self.state, SHARDS)
        resumed = self.resume_memory.restore() if self.control_block.holds(GENERATION) else None
        self.state.before_change = self.control_block.invalidate
        if resumed is None:
            self.resume_memory.reset(GENERATION)
            self.state.begin({})
            self.resume_memory.prepare(ReportedState())
            self.resume_memory.commit(None, np.full((SHARDS, 4), -1))
        return resumed

    def step(self) -> None:
        """Train a step; its gradients and scores follow from the state before it."""
        step, replica = self.state.done + 1, self.state.replica
        generator = torch.Generator().manual_seed(step)
        replica.model.train()
        replica.gradients.zero_()
        with replica.computing():
            logits = replica.model(torch.rand(8, 13, generator=generator), torch.zeros(8, 4, 8))
            logits.square().sum().backward()
        labels = (torch.rand(8, generator=generator) < 0.5).float()
        self.state.scores.add(ScoredSlice(step, 1, 400 + 8 * step, logits.detach(), labels, 0.5))
        to_merge = self.state.scores.to_merge() if step % 3 == 0 else ()
        self.resume_memory.begin_step()
        half = replica.live.shape[1] // 2
        before = replica.live.clone()
        replica.step(step)
        after = replica.live.clone()
        replica.live[:, half:] = before[:, half:]  # half of what a step writes
        replica.live[:, half:] = after[:, half:]
        if to_merge:
            self.state.scores.merge(*to_merge)
            self.state.scores.end_segment(step, step, 8)
        self.state.done, self.state.lost = step, ((0, step),)
        self.resume_memory.prepare(ReportedState(self.state.lost, evaluation=EVALUATION, loss=self.state.scores.loss))
        self.resume_memory.commit(step, np.full((SHARDS, 4), step))

    def steps_to(self, last: int) -> None:
        while self.state.done < last:
            self.step()

    @property
    def all(self) -> list[bytes]:
        scored = self.state.scores.scored()
        assert scored.boundary is not None
        tensors = [self.state.replica.live, *self.state.replica.buffers().values(), scored.merged, scored.own]
        tensors += [scored.boundary.numbers(), scored.boundary.counters]
        others = (self.state.done, self.state.lost, scored.step, self.state.scores.loss, scored.loss_shares.tolist())
        steps = self.state.replica.optimizer_steps
        return [*(t.detach().clone().numpy().tobytes() for t in tensors), repr((others, steps)).encode()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "stride"), [("Adagrad", 2), ("Adam", 9)])
def test_step_killed_at_any_line_is_taken_once(kind: OptimizerKind, stride: int) -> None:
    undisturbed = ResumedTrainer(kind)
    undisturbed.steps_to(4)
    done = set[int]()
    for line in count(1, stride):
        trainer = ResumedTrainer(kind)
        trainer.steps_to(2)
        died = killed_at(line, trainer.step, *FILES)
        assert trainer.control_block.usable
        resumed = trainer.begin()
        assert resumed is not None
        assert resumed.pushed == trainer.state.done
        assert resumed.link_states.tolist() == [[trainer.state.done] * 4] * SHARDS
        assert resumed.reported.evaluation == EVALUATION
        done.add(trainer.state.done)
        trainer.steps_to(4)
        assert trainer.all == undisturbed.all, f"killed at line {line}"
        if not died:
            break
    assert line > 40
    assert done == {2, 3}


def test_processes_share_the_memory_of_the_first() -> None:
    trainer = ResumedTrainer()
    trainer.steps_to(2)
    trainer.begin()
    trainer.begin()
    assert len([*trainer.control_block.file.areas(Kind.DENSE)]) == 1
    assert (trainer.control_block.process_number, trainer.state.done) == (3, 2)


def test_process_of_another_generation_finds_no_state() -> None:
    trainer = ResumedTrainer()
    trainer.steps_to(2)
    assert trainer.control_block.holds(GENERATION)
    assert not trainer.control_block.holds(GENERATION + 1)
    trainer.resume_memory.reset(GENERATION + 1)
    assert (trainer.control_block.valid, trainer.control_block.usable) == (NOTHING, True)


def unpack_another(trainer: ResumedTrainer) -> None:
    trainer.state.unpack(trainer.state.pack(), 2)


def lose_a_push(trainer: ResumedTrainer) -> None:
    trainer.resume_memory.commit(3, None)


@pytest.mark.parametrize("work", [unpack_another, lose_a_push])
def test_partly_replaced_state_is_not_resumed(work: Callable[[ResumedTrainer], None]) -> None:
    trainer = ResumedTrainer()
    trainer.steps_to(2)
    work(trainer)
    assert (trainer.control_block.valid, trainer.control_block.usable) == (CHANGING, False)
    trainer.resume_memory.prepare(ReportedState())
    trainer.resume_memory.commit(2, np.zeros((SHARDS, 4), np.int64))
    assert trainer.control_block.usable


def test_state_that_was_never_committed_may_be_replaced() -> None:
    trainer = ResumedTrainer()
    trainer.control_block.reset(GENERATION)
    trainer.state.done = NO_STATE
    unpack_another(trainer)
    assert trainer.control_block.usable


def test_file_of_another_job_is_unusable() -> None:
    trainer = ResumedTrainer()
    assert not TrainerControlBlock(trainer.control_block.file, replace(trainer.job, job_uid="another")).usable
