"""Whom a job's rosters tell to stop, and when."""

import pytest

from cpr_contract.roster import Allowance
from cpr_operator.api.status import Phase, Plan, Shard, Status, Trainer
from cpr_operator.desired.rosters import shard_roster, trainer_roster

SHARD, TRAINER = Shard(index=0, incarnation=1, uid="s"), Trainer(index=0, incarnation=1, uid="t")
ENDED = Trainer(index=0, incarnation=1)


@pytest.mark.parametrize(
    ("phase", "trainers", "trainer_stops", "shard_stops"),
    [
        ("Running", (TRAINER,), False, False),
        ("Suspending", (TRAINER,), True, False),
        ("Suspending", (ENDED, TRAINER.model_copy(update={"index": 1})), True, False),
        ("Suspending", (ENDED,), True, True),
        ("Starting", (ENDED,), False, False),
    ],
)
def test_trainers_stop_first(
    phase: Phase,
    trainers: tuple[Trainer, ...],
    trainer_stops: bool,  # noqa: FBT001
    shard_stops: bool,  # noqa: FBT001
) -> None:
    status = Status(phase=phase, shards=(SHARD,), trainers=trainers)
    assert trainer_roster(status, trainers[0], 1).stop is trainer_stops
    assert shard_roster(status, SHARD, 1).stop is shard_stops


def test_a_shard_is_told_how_often_to_save_its_most_important_rows() -> None:
    plan = Plan(mode="Partial", interval_seconds=80, priority_interval_seconds=10)
    status = Status(shards=(SHARD,), trainers=(TRAINER,), plan=plan)
    assert shard_roster(status, SHARD, 1).priority_interval_s == 10
    assert shard_roster(Status(shards=(SHARD,)), SHARD, 1).priority_interval_s == 0


def test_a_shard_is_told_in_how_many_bits_to_save() -> None:
    plan = Plan(mode="Partial", interval_seconds=80, stored_bits=3)
    status = Status(shards=(SHARD,), trainers=(TRAINER,), plan=plan)
    assert shard_roster(status, SHARD, 1).stored_bits == 3
    assert shard_roster(Status(shards=(SHARD,)), SHARD, 1).stored_bits == 32


def test_trainers_are_told_which_shards_they_may_go_on_without() -> None:
    status = Status(shards=(SHARD, Shard(index=1, incarnation=2, allowance=900)), trainers=(TRAINER,))
    assert trainer_roster(status, TRAINER, 1).allowances == (Allowance(1, 900),)
