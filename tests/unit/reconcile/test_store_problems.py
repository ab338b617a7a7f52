"""Problems with saves in reports become a condition, while training continues without a lost member."""

from collections.abc import Callable, Iterator

import pytest

from cpr_contract.reports import Problem
from cpr_operator.api.status import Status
from cpr_operator.reconcile.conditions import STORE_PROBLEMS
from cpr_operator.reconcile.polling import LATE
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.embedding.capture import UndoLogFullError
from cpr_trainer.store import StoreError
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, after, spec, trained

UNDO_LOG_FULL = Problem("SaveOutrun", "Training changed rows faster than the store took them.", "Use more shards.")


def kinds(error: type[StoreError]) -> Iterator[type[StoreError]]:
    for each in error.__subclasses__():
        yield each
        yield from kinds(each)


def test_store_problems_are_complete() -> None:
    errors = {error.reason for error in kinds(StoreError)} | {DamagedError.reason, UndoLogFullError.reason}
    assert errors | {"AnchorDamaged"} == STORE_PROBLEMS  # the last one has no error: pods report it themselves


def give_up(cluster: SimulatedCluster) -> None:
    """From here on shard 1 gives up every save, so no cut is ever committed; the leader reports no problem."""
    plane = cluster.plane()
    plane.store.down = True
    next(shard for shard in plane.shards.values() if shard.roster.index == 1).problem = UNDO_LOG_FULL


def recover(cluster: SimulatedCluster) -> None:
    plane = cluster.plane()
    plane.store.down = False
    for shard in plane.shards.values():
        shard.problem = None


async def test_shard_with_late_saves_is_polled() -> None:
    job = spec(snapshots__interval={"mode": "Fixed", "seconds": 1})
    run = await Simulation(Scenario("outrun", ((trained(500), give_up), (after(6.0), recover)), job)).run()
    polled = []
    for document in run.cluster.statuses:
        status = Status.model_validate(document)
        degraded = next((c for c in status.conditions if c.type == "SnapshotsDegraded"), None)
        if degraded is not None and degraded.status == "True":
            polled.append(status.progress.samples)
            assert degraded.reason == "SaveOutrun"
            assert degraded.message.startswith("shard/1: Training changed rows faster")
            saved = min(shard.saved_samples for shard in status.shards)
            assert degraded.message.endswith(f"lost now goes back to sample {saved}")
            assert saved < status.progress.samples
    assert polled, "no shard was polled"
    end = next(c for c in run.status.conditions if c.type == "SnapshotsDegraded")
    assert (end.status, end.reason) == ("False", "Healthy")
    assert min(polled) > 400 + LATE * 400, "while saves may still come only the leader is asked"
    assert [e.message for e in run.cluster.events.values() if e.reason == "SnapshotsDegraded"]


def log_grows(cluster: SimulatedCluster) -> None:
    """The leader was replaced, and found files that came since the job began."""
    for trainer in cluster.plane().trainers.values():
        trainer.new_files = 3


def ids_are_odd(cluster: SimulatedCluster) -> None:
    """The first leader found ids that are written in two ways."""
    for trainer in cluster.plane().trainers.values():
        trainer.problem = Problem("IdsSpelledTwice", "Column user writes 2 ids in two ways.", "Name the column.")


@pytest.mark.parametrize(
    ("act", "condition", "reason", "message"),
    [
        (log_grows, "DataOutdated", "NewFiles", "3 files of data.uri were added after the job had begun"),
        (ids_are_odd, "IdsSpelledTwice", "TwoSpellings", "Column user writes 2 ids in two ways. Name the column."),
    ],
)
async def test_data_problem_is_a_condition_and_one_event(
    act: Callable[[SimulatedCluster], None], condition: str, reason: str, message: str
) -> None:
    run = await Simulation(Scenario("grows", ((trained(500), act),), spec())).run()
    found = next(c for c in run.status.conditions if c.type == condition)
    assert (found.status, found.reason) == ("True", reason)
    events = [e.message for e in run.cluster.events.values() if e.reason == condition]
    assert len(events) == 1
    assert events[0].startswith(message)
    assert run.status.phase == "Succeeded"
