"""Whom a job's rosters tell to stop, and when."""

import pytest

from cpr_contract.roster import Allowance
from cpr_operator.api.status import Phase, Plan, Shard, Status, Trainer
from cpr_operator.desired.rosters import Rosters

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
    assert Rosters(status).for_trainers.stop is trainer_stops
    assert Rosters(status).shard(SHARD, 1).stop is shard_stops


def test_a_shard_is_told_how_often_to_save_its_most_important_rows() -> None:
    plan = Plan(mode="Partial", interval_seconds=80, priority_interval_seconds=10)
    status = Status(shards=(SHARD,), trainers=(TRAINER,), plan=plan)
    assert Rosters(status).shard(SHARD, 1).priority_interval_s == 10
    assert Rosters(Status(shards=(SHARD,))).shard(SHARD, 1).priority_interval_s == 0


def test_a_shard_is_told_in_how_many_bits_to_save() -> None:
    plan = Plan(mode="Partial", interval_seconds=80, stored_bits=3)
    status = Status(shards=(SHARD,), trainers=(TRAINER,), plan=plan)
    assert Rosters(status).shard(SHARD, 1).stored_bits == 3
    assert Rosters(Status(shards=(SHARD,))).shard(SHARD, 1).stored_bits == 32


def test_trainers_are_told_which_shards_they_may_go_on_without() -> None:
    status = Status(shards=(SHARD, Shard(index=1, incarnation=2, allowance=900)), trainers=(TRAINER,))
    assert Rosters(status).for_trainers.allowances == (Allowance(1, 900),)
