"""Random storms of failures: no status has a loss above the budget, and the ledger covers all that the model misses."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cpr_operator.api.status import Status
from simulation.control_plane.checker import charged, missing, missing_row_updates, run_storm
from simulation.control_plane.failpoints import Storm, StormSimulation, faults, storms
from simulation.control_plane.workload import partial_job, spec


@pytest.mark.timeout(6 * settings().max_examples)  # the part `storms` of the soak draws more than the usual 100
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(storm=storms())
def test_random_storm_stays_within_budget_and_charges_every_loss(storm: Storm) -> None:
    run_storm(storm)


async def worst_of(storm: Storm) -> tuple[Status, list[str]]:
    """The first status of the job's first recovery, and the messages of the events of rollbacks."""
    result = await StormSimulation(storm).run()
    statuses = [Status.model_validate(document) for document in result.cluster.statuses]
    first = next(status for status in statuses if status.recovery is not None)
    return first, [event.message for event in result.cluster.events.values() if event.reason == "RollingBack"]


async def test_reservation_of_the_worst_loss_precedes_the_successor() -> None:
    first, _ = await worst_of(Storm(partial_job(0.2), faults("1.75 kill shard 1")))
    shard = first.shards[1]
    assert (shard.incarnation, shard.floor_samples) == (2, 800)
    (reserved,) = shard.reserved
    assert reserved[0] == 800
    assert reserved[1] >= 1100  # what was trained when the shard died
    assert first.budget is not None
    assert first.budget.reserved == (reserved[1] - reserved[0]) / (2 * 2000)


async def test_reservation_of_one_loss_is_not_available_to_another() -> None:
    """Either loss alone would fit into what is left; the second one comes while the first is not settled."""
    first, text = await worst_of(Storm(partial_job(0.25, seconds=3), faults("0.5 kill two shards 0 for 1")))
    (reserved,) = first.shards[0].reserved
    assert first.ledger.limit_sample_shards / 2 < reserved[1] - reserved[0] <= first.ledger.limit_sample_shards
    assert len(text) == 1
    assert "exceeds the budget" in text[0]


def single_trainer(portion: float, shards: int, interval: dict[str, Any], mtbf_s: int = 1) -> dict[str, Any]:
    """One trainer, and any recovery."""
    changes: dict[str, Any] = {"snapshots__interval": interval, "failurePolicy__expectedJobMtbfSeconds": mtbf_s}
    return partial_job(portion, shards=shards, trainers=1, recovery={"mode": "Auto"}, **changes)


def every(seconds: int) -> dict[str, Any]:
    """A fixed interval."""
    return {"mode": "Fixed", "seconds": seconds}


def killed(portion: float, shards: int, seconds: int, script: str) -> Storm:
    """One trainer, and reports that are 1.5 s old."""
    return Storm(single_trainer(portion, shards, every(seconds)), faults(script), report_age_s=1.5)


#: A job that is trained before a shard has reported what it lost: found by the test above.
UNREPORTED = {
    "a successor dies unreported at the end": killed(
        0.9,
        2,
        3,
        "0.25 drain trainer 0; 4 kill shard 0; 2 kill shard 0",
    ),
    "the successor of one that is cut off dies unreported at the end": killed(
        0.1,
        3,
        1,
        "0 kill shard 0; 4 cut off shard 0; 2 kill shard 0",
    ),
    "a lone trainer's successor ends before it reports what it lost": Storm(
        single_trainer(0.1, 2, every(1)),
        faults("0 kill shard 0; 0.25 kill shard 0; 4 kill trainer 0"),
        report_age_s=1.5,
    ),
    "a successor restores before one that is cut off has trained to the end": Storm(
        single_trainer(0.2, 3, {"mode": "Auto"}, mtbf_s=10),
        faults(
            "2 kill shard 0; 0 kill two shards 0 for 2; 4 cut off shard 0 for 4; 2 kill shard 0; "
            "4 cut off shard 0 for 4"
        ),
        roster_delay_s=1.5,
        report_age_s=0.5,
    ),
    "a successor dies unreported at the end, and its last save is damaged": killed(
        0.9,
        2,
        3,
        "0.25 drain trainer 0; 4 kill shard 0; 2 damage save 0; 0 kill shard 0",
    ),
    "suspended at the end, where a rollback's shards have not reported": Storm(
        single_trainer(0.0, 2, every(1)),
        faults("0.5 drain trainer 0; 4 kill two shards 0; 0.25 kill shard 0; 1 kill shard 0; 3 suspend"),
        report_age_s=1.5,
    ),
    "a rollback after a successor that lost something ended before it reported so": Storm(
        single_trainer(0.0, 2, every(1)),
        faults("0.25 kill shard 0; 2 drain shard 0; 2 kill shard 0"),
        roster_delay_s=1.5,
        report_age_s=1.5,
    ),
    "a lone trainer dies in its first step, and its successor is resharded before it reports what it lost": Storm(
        single_trainer(0.0, 2, every(1)),
        faults("0.25 kill trainer 0; 1 reshard 0"),
        roster_delay_s=1.5,
        report_age_s=1.5,
    ),
    "a rollback right before the end": killed(
        0.1,
        2,
        1,
        "0.25 kill shard 0; 4 kill shard 0; 1 kill shard 0",
    ),
}


@pytest.mark.parametrize("name", UNREPORTED)
def test_unreported_loss_is_charged_by_the_end(name: str) -> None:
    run_storm(UNREPORTED[name])


async def test_late_report_charges_only_the_loss() -> None:
    result = await StormSimulation(UNREPORTED["a successor dies unreported at the end"]).run()
    assert charged(result.status) == missing(result)
    assert charged(result.status)[0]


#: Storms that were written by hand or found by the test above, and the number of rollbacks of each.
STORMS: dict[str, tuple[Storm, int]] = {
    "two deaths a second apart": (Storm(partial_job(0.2), faults("1.5 kill two shards 0 for 1")), 0),
    "two deaths a second apart, the second does not fit": (
        Storm(partial_job(0.1, seconds=3), faults("1 kill two shards 0 for 1")),
        1,
    ),
    "the newest save is damaged": (
        Storm(partial_job(0.2), faults("2 damage save 1; 0 kill shard 1")),
        0,
    ),
    "the newest save is damaged, so its anchor is, and the save before does not fit": (
        Storm(partial_job(0.1), faults("2.5 damage save 1; 0 kill shard 1")),
        2,
    ),
    "the store is down when a shard dies": (
        Storm(partial_job(0.1), faults("1.25 store down for 4; 1 kill shard 1")),
        1,
    ),
    "a save that a suspended job left is damaged": (
        Storm(
            single_trainer(0.0, 2, every(1)),
            faults("2 suspend for 4; 4 damage save 0"),
            roster_delay_s=1.5,
        ),
        2,
    ),
    "a rollback is interrupted": (
        Storm(partial_job(0.01), faults("2.25 kill shard 1; 0.5 kill shard 0")),
        2,
    ),
    "reports of two seconds ago": (Storm(partial_job(0.2), faults("2 kill two shards 0 for 0.5"), report_age_s=2.0), 0),
    "a shard that is cut off trains on, beyond what was set aside": (
        Storm(partial_job(0.25, seconds=3), faults("1 cut off shard 1 for 2"), roster_delay_s=1.5),
        1,
    ),
    "trainers end before they read that they are to go back": (
        Storm(partial_job(0.1, seconds=3), faults("3 cut off shard 1 for 2"), roster_delay_s=1.5),
        1,
    ),
    "the model is done before a replaced shard has reported what it lost": (
        Storm(
            partial_job(0.2) | {"shards": {"replicas": 3}},
            faults("2 kill two shards 0 for 4; 0.25 drain trainer 0; 0.5 cut off shard 1"),
            report_age_s=1.5,
        ),
        0,
    ),
    "a shard has not reported what it lost when others take its place": (
        Storm(partial_job(0.3, seconds=3), faults("0.75 kill shard 1; 1 reshard 2"), report_age_s=2.0),
        0,
    ),
    "others take the place of a shard that may have lost more than the budget allows": (
        Storm(partial_job(0.3, seconds=3), faults("0.75 cut off shard 1 for 1; 1.5 reshard 2"), report_age_s=2.0),
        1,
    ),
    "a resumed job finds an older dense save than it hoped for, which does not fit": (
        Storm(single_trainer(0.04, 2, every(1)), faults("1 cut off trainer 2 for 1; 0.5 suspend 1 for 1")),
        1,
    ),
    "the only trainer is cut off, trains on, and the next one ends before it reports": (
        Storm(partial_job(0.2, seconds=3, trainers=1), faults("2 cut off trainer 0 for 4"), report_age_s=0.5),
        0,
    ),
}


def test_row_update_count_before_the_last_step_is_an_upper_bound() -> None:
    """Trainers that went back push again what a shard lacks, and its last report is from the middle of that."""
    job = spec(
        recovery__onShardLoss="Degrade",
        shards={"replicas": 3, "spares": 1},
        trainers={"replicas": 2, "denseSync": "ShadowMA"},
        snapshots__interval=every(3),
        failurePolicy__expectedJobMtbfSeconds=1,
        failurePolicy__restartLimit={"count": 50},
        failurePolicy__startupDeadlineSeconds=600,
    )
    both = faults("2 kill trainer 1; 0 kill trainer 0")
    result = run_storm(Storm(job, (*faults("2 cut off shard 0"), *both), report_age_s=1.5))
    reported = [(shard.lost_row_updates, shard.lost_row_updates_exact) for shard in result.status.shards]
    assert reported == [(1, False), (0, True), (0, True)]
    assert missing_row_updates(result) == [0, 0, 0]


@pytest.mark.parametrize("name", STORMS)
def test_named_storm_has_its_rollbacks(name: str) -> None:
    storm, rollbacks = STORMS[name]
    result = run_storm(storm)
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == rollbacks, result.status.ledger.ranges
