"""The start of a trainer's loop: refused jobs, and reports at the beginning of a generation; and its last cut."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY, Mock, call

import pytest
import torch

from cpr_contract.model import ModelSpec
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters, TrainerRoster
from cpr_contract.spec import MEASURED, EvaluationSpec, JobSpec
from cpr_trainer.errors import DataError
from cpr_trainer.exchange import Exchange
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.runtime import Access, Environment
from cpr_trainer.store import open_store
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.compute import set_threads
from cpr_trainer.trainer.control import PollInterrupts, RosterChanged
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from cpr_trainer.trainer.loop import Loop
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.step import Stepper
from cpr_trainer.trainer.worker_tuning import WorkerChoice
from support.shard_job import HOST, KEY, small_job, trainer_roster

#: The reports of these are read while a network is built.
built: list[StatusPublisher] = []
reports: list[TrainerReport] = []


def watched_network(spec: ModelSpec, seed: int) -> torch.nn.Module:
    """The DLRM; the report is read meanwhile."""
    reports.extend(status.report() for status in built)
    return Dlrm(spec, seed)


class _Signals:
    """Rosters of two generations, one after the other."""

    def __init__(self, *rosters: TrainerRoster) -> None:
        self._rosters = iter(rosters)

    def adopt(self) -> TrainerRoster:
        return next(self._rosters)

    def poll_roster(self) -> None:
        pass

    poll_interrupts = poll_roster


class _TrainedOn(Group):
    """A group that trained, and then is rolled back."""

    def __init__(self, status: StatusPublisher) -> None:
        super().__init__()
        self._status = status

    def join(self, replica: object, provide: object, poll_interrupts: PollInterrupts) -> bool:
        del replica, provide, poll_interrupts
        self._status.update(state=TrainerState.TRAINING, step=9, samples=900, samples_started=1000, lost=((300, 700),))
        raise RosterChanged("a rollback")


def read_setup(job: JobSpec, roster: TrainerRoster, folder: Path) -> Setup:
    environment = Environment(job, folder / "roster", KEY, HOST, 0, Access(), Access(), folder, folder / "word", None)
    inputs = FrozenInputs(job.job_uid, job.data.uri, lambda: True, lambda: None)
    store = open_store(job.snapshots.store, *environment.store_access)
    return Setup.read(environment, roster, store, (inputs, inputs))


def test_evaluation_without_a_row_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path), evaluation=EvaluationSpec(100, 1000))
    job = replace(job, data=replace(job.data, hold_out=1e-6))
    with pytest.raises(DataError, match=r"no row to score: data.holdOut 1e-06 of \d+ rows is less than one"):
        read_setup(job, trainer_roster(()), tmp_path)


@pytest.mark.parametrize(("workers", "expected"), [(3, (3, "stated", 2)), (MEASURED, (ANY, ANY, 2))])
def test_successor_has_the_threads_of_the_first_leader(
    tmp_path: Path, workers: int, expected: tuple[int, str, int]
) -> None:
    """Its node may have another number of processors, and then sums would differ in their last bits."""
    job, before = replace(small_job(tmp_path), workers=workers), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first = read_setup(job, trainer_roster(()), tmp_path).workers
        torch.set_num_threads(1)
        successor = read_setup(job, trainer_roster(()), tmp_path).workers
        set_threads(successor.threads)
        assert first == successor == WorkerChoice(*expected)
        assert torch.get_num_threads() == 2
        set_threads(0)  # of an earlier release, which left each process its own number
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_report_has_no_old_values_under_the_counters_of_a_new_generation(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    job = replace(job, model=replace(job.model, entrypoint=f"{__name__}:watched_network"))
    roster = replace(trainer_roster(()), leader=1)  # the duties of a leader need shards
    rosters = [replace(roster, counters=Counters(g, 1, g)) for g in (1, 2, 3)]
    setup = read_setup(job, rosters[0], tmp_path)
    status = StatusPublisher(
        TrainerReport(1, job.job_uid, 0, 1, Counters(1, 1, 1), TrainerState.LOADING, 0, 0, 0, 0, (), (), (), None)
    )
    exchange = Exchange(job, 0, 1, KEY, setup.order.total_samples)
    loop = Loop(setup, _Signals(rosters[0], *rosters), status, exchange, lambda *_: _TrainedOn(status))  # type: ignore[arg-type]
    built.append(status)
    try:
        with pytest.raises(StopIteration):
            loop.run()
    finally:
        built.clear()
        exchange.close()
    of_now = [report for report in reports if report.counters.generation > 1]
    assert of_now
    assert {(report.state, report.step, report.samples_started, report.lost) for report in of_now} == {
        (TrainerState.JOINING, 0, 0, ())
    }


@pytest.mark.parametrize(
    ("stops", "left_s", "commits", "settled"),
    [
        pytest.param([True], inf, [True] * 3, True, id="a shard comes back without rows that this rank has counted"),
        pytest.param([True], -inf, [True], True, id="late"),
        pytest.param([False], inf, [False], True, id="drained"),
        pytest.param([False, True], inf, [False, *[True] * 3], True, id="the stop comes while a drained trainer waits"),
        pytest.param([False], -inf, [False], False, id="late, without acknowledgements"),
    ],
)
def test_last_commit_waits_for_counted_rows_of_a_job_that_stops(
    *, stops: list[bool], left_s: float, commits: list[bool], settled: bool
) -> None:
    exchange = Mock(**{"counted.side_effect": [(7, -1), (7, 3), (7, 7)]})
    control, count = Mock(job_stops=stops[0]), Mock()

    def settle_soon() -> bool:
        control.job_stops = stops[-1]
        return settled

    stepper = SimpleNamespace(state=SimpleNamespace(done=7), cut_step=5, count=count)
    stepper.shards = SimpleNamespace(settle_soon=settle_soon)
    stepper._exchange, stepper._control = exchange, control
    stepper._setup = SimpleNamespace(job=SimpleNamespace(per_step=True))
    assert Stepper.settle_last(cast(Any, stepper), lambda: left_s, leads=True) is settled
    assert exchange.commit.call_args_list == [call(7, 5, for_all=each) for each in commits]
    assert count.call_args_list == [call(7, ANY)] * max(sum(commits) - 1, 0)


def test_last_cut_waits_for_an_unavailable_shard_that_lacks_the_last_step() -> None:
    exchange = Mock(**{"unavailable.return_value": (1,), "applied.return_value": (7, 6)})
    coordinator = Mock(**{"finish.side_effect": [None, None, "the anchor"]})
    coordinator.committer.state.commit_s = None
    stepper = SimpleNamespace(state=SimpleNamespace(done=7))
    loop = SimpleNamespace(_stepper=stepper, _exchange=exchange, _control=Mock())
    assert Loop._last_cut(cast(Any, loop), coordinator) == "the anchor"
    exchange.announce_cut.assert_called_once_with(7)
