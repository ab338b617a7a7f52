"""The trainer that the bench plays, against a shard's service that saves nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.reports import SaveRef
from cprjob_bench.roles.snapshot import serving
from cprjob_bench.roles.snapshot.serving import SaveGivenUpError, Trainer
from support.shard_job import small_job
from support.shard_thread import ShardThread


class Shard(ShardThread):
    """What a bench asks of a shard process; `outcome` is what becomes of each save."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.service.on_cut = self.cut
        self.cuts: list[int] = []
        self.given_up = False

    def cut(self) -> None:
        assert self.service.progress is not None
        self.cuts.append(self.service.progress.step)
        if self.given_up:
            self.service.given_up_step = self.cuts[-1]
        else:
            self.service.saved_steps = self.service.progress.applied
            self.service.newest_save = SaveRef("save", self.cuts[-1], self.cuts[-1])

    def wait_ready(self) -> None: ...

    def check(self) -> None: ...

    def figure(self, name: str) -> float:
        return {"cut_seconds": 0.25}[name]


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    monkeypatch.setattr(serving, "KEY", b"a key of this test")
    found = Shard(small_job(tmp_path, rows=(500,)))
    yield found
    found.close()


def test_a_round_is_a_window_without_a_save_and_one_from_a_cut_to_its_commit(shard: Shard) -> None:
    with Trainer.of(shard.job, shard) as trainer:  # type: ignore[arg-type]
        trainer.change_everything()
        assert bool((shard.arena.epochs.of == 1).all()), "every row has changed"
        first = trainer.round(0.05)
        trainer.change_everything()
        second = trainer.round(0.05)
    assert first.pause_s == 0.25
    everything = 1
    before_first = everything + first.idle.steps
    before_second = before_first + first.saving.steps + everything + second.idle.steps
    assert shard.cuts == [before_first + 1, before_second + 1], "the first step of a save's window is the cut"
    for window in (first.idle, first.saving, second.idle, second.saving):
        for latency in (window.lookup, window.push):
            assert 0 < latency.p50_ms <= latency.p99_ms


def test_a_save_that_was_given_up_ends_the_bench(shard: Shard) -> None:
    shard.given_up = True
    with Trainer.of(shard.job, shard) as trainer, pytest.raises(SaveGivenUpError):  # type: ignore[arg-type]
        trainer.round(0.01)


def test_training_goes_on_at_an_even_pace(shard: Shard) -> None:
    with Trainer.of(shard.job, shard) as trainer:  # type: ignore[arg-type]
        window = trainer.round(0.3).idle
    assert window.steps <= 0.3 / serving._PACE_S + 1
    assert np.isfinite(window.push.p99_ms)
