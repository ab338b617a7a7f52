"""Rosters: orders to stop, and the members that they list."""

import json

import pytest

from cpr_contract.codec import MAX_PLAIN_LENGTH, pack
from cpr_contract.roster import Allowance
from cpr_operator.api.status import Phase, Plan, Runtime, Shard, Status, Trainer
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


def test_shard_roster_has_the_interval_and_bits_of_saves() -> None:
    plan = Plan(mode="Partial", interval_seconds=80, priority_interval_seconds=10, stored_bits=3)
    planned = Rosters(Status(shards=(SHARD,), trainers=(TRAINER,), plan=plan)).shard(SHARD, 1)
    assert (planned.priority_interval_s, planned.stored_bits) == (10, 3)
    unplanned = Rosters(Status(shards=(SHARD,))).shard(SHARD, 1)
    assert (unplanned.priority_interval_s, unplanned.stored_bits) == (0, 32)


def test_trainer_roster_has_the_allowances() -> None:
    status = Status(shards=(SHARD, Shard(index=1, incarnation=2, allowance=900)), trainers=(TRAINER,))
    assert Rosters(status).for_trainers.allowances == (Allowance(1, 900),)


def _with_parity(data_shards: int, *, phase: Phase = "Running", hosts: int = 6, padding: str = "") -> Status:
    spec = pack(json.dumps({"parity_shards": data_shards, "padding": padding}))
    runtime = Runtime(image="i", contract_version=1, template_hash="h", job_spec=spec)
    shards = tuple(Shard(index=i, incarnation=1, host="10.0.0.1" if i < hosts else "") for i in range(6))
    return Status(phase=phase, runtime=runtime, shards=shards)


@pytest.mark.parametrize(("data_shards", "listed"), [(0, []), (1, [2]), (2, [0, 2, 3]), (5, [0, 2, 3, 4, 5])])
def test_shard_roster_has_the_shards_of_its_parity(data_shards: int, listed: list[int]) -> None:
    for padding in ("", "x" * MAX_PLAIN_LENGTH):  # the long one is packed
        status = _with_parity(data_shards, padding=padding)
        assert [peer.index for peer in Rosters(status).shard(status.shards[1], 1).shards] == listed


def test_shard_roster_has_parity_shards_only_once_all_have_an_address() -> None:
    for hosts, listed in ((5, []), (6, [5])):
        status = _with_parity(1, phase="Starting", hosts=hosts)
        assert [peer.index for peer in Rosters(status).shard(status.shards[4], 1).shards] == listed
