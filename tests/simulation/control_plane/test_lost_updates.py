"""Lost row updates in the failure records of a whole job: here each step has one for each shard."""

from cpr_operator.api.status import FailureRecord
from simulation.control_plane.checker import missing_row_updates
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import RunResult, Simulation
from simulation.control_plane.workload import BATCH, TOTAL, Scenario, spec, trained

NO_SAVES = {"mode": "Fixed", "seconds": 600}


async def live(*kills: int, portion: float) -> RunResult:
    """Shard 1 is killed at these numbers of samples, and nothing is saved before the end."""
    job = spec(accuracyBudget__portionOfLostSamples=portion, recovery__mode="Partial", snapshots__interval=NO_SAVES)
    steps = tuple((trained(samples), kill("shard", 1)) for samples in kills)
    return await Simulation(Scenario("killed", steps, job, replaced=("shard/1",))).run()


def costs(failures: tuple[FailureRecord, ...]) -> list[tuple[int | None, int | None, bool]]:
    return [(f.lost_samples, f.lost_row_updates, f.lost_row_updates_exact) for f in failures]


async def test_row_updates_lost_again_count_once() -> None:
    result = await live(500, 1500, portion=0.9)
    first, second = costs(result.status.failures)
    assert first[0] is not None
    assert second[0] is not None
    assert first == (first[0], first[0] // BATCH, True)
    assert second == (second[0], second[0] // BATCH, True)
    assert 0 < first[0] < TOTAL - second[0], "the second loss begins where the first one ended"
    reported = [shard.lost_row_updates for shard in result.status.shards]
    assert reported == missing_row_updates(result) == [0, (first[0] + second[0]) // BATCH, 0]


async def test_row_updates_undone_by_a_rollback_are_not_lost() -> None:
    result = await live(500, 1500, portion=0.15)
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == 1
    first, second = costs(result.status.failures)
    assert first[0] is not None
    assert first[0] > 0
    assert (first[1], second[1]) == (first[0] // BATCH, 0)
    assert [shard.lost_row_updates for shard in result.status.shards] == missing_row_updates(result) == [0, 0, 0]
