"""Counts of dynamic tables: from the shards' reports into the status, and to the condition TableTooSmall."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.reports import Problem, ShardState, TableCounts
from cpr_operator.api.model_spec import Table
from cpr_operator.api.status import DynamicTable
from cpr_operator.reconcile import ReconcileInput, first_round, reconcile
from cpr_operator.reconcile.polling import TABLES_S
from simulation.control_plane.run import input_in_mid_training
from support.reconcile_inputs import shard_report, then, with_report, with_shard, with_spec, without_reports

PAGE = 4096
TABLES = (
    Table(name="site", rows=100),
    Table(name="user", rows=PAGE, ids="Dynamic"),
    Table(name="item", rows=9 * PAGE, ids="Dynamic"),
)
USER = TableCounts("user", PAGE, 10, 1, admitted=20, evicted=6, expired=4, dropped=0, full=6)
ITEM = replace(USER, name="item", slots=3 * PAGE, entries=3 * PAGE - 1)


async def input_with_tables() -> ReconcileInput:
    """A job that trains on three shards, which all report the same counts."""
    observed = with_spec(await input_in_mid_training(1), "model", tables=TABLES)
    assert len(observed.job.status.shards) == 3
    for index in range(3):
        observed = with_report(observed, f"shard/{index}", tables=(USER, ITEM))
    return observed


async def test_status_has_the_sums_over_all_shards() -> None:
    observed = await input_with_tables()
    more = replace(ITEM, entries=5, waiting=0, evicted=9, full=12, dropped=3)
    user, item = reconcile(with_report(observed, "shard/2", tables=(USER, more))).status.tables
    assert user == DynamicTable(
        name="user", capacity=3 * PAGE, entries=30, occupancy_percent=0, waiting=3, admitted=60, evicted=18, expired=12,
        dropped=0, full=18, updated=observed.now,
    )  # fmt: skip
    assert item == DynamicTable(
        name="item", capacity=9 * PAGE, entries=6 * PAGE + 3, occupancy_percent=66, waiting=2, admitted=60, evicted=21,
        expired=12, dropped=3, full=24, updated=observed.now,
    )  # fmt: skip


async def test_status_keeps_its_counts_until_all_shards_have_counted() -> None:
    observed = await input_with_tables()
    outcome = reconcile(observed)
    later = then(observed, outcome)
    other = with_report(later, "shard/0", tables=(replace(USER, entries=11), ITEM))
    assert reconcile(other).status.tables[0].entries == 31
    restoring = with_report(other, "shard/1", tables=(), state=ShardState.RESTORING)
    past = shard_report(later, 1).counters
    of_the_past = with_report(other, "shard/1", counters=replace(past, generation=past.generation - 1))
    for incomplete in (without_reports(other, "shard/1"), restoring, of_the_past):
        assert reconcile(incomplete).status.tables == outcome.status.tables


async def test_all_shards_are_polled_for_counts_now_and_then() -> None:
    def polled(observed: ReconcileInput) -> set[str]:
        return {f"{pod.role}/{pod.index}" for pod in first_round(observed)}

    shards = {f"shard/{index}" for index in range(3)}
    observed = await input_with_tables()
    assert polled(observed) == {"trainer/0"} | shards, "nothing is known yet"
    outcome = reconcile(observed)
    assert polled(then(observed, outcome, later_s=0.9 * TABLES_S)) == {"trainer/0"}
    assert polled(then(observed, outcome, later_s=TABLES_S)) == {"trainer/0"} | shards


async def test_shard_with_a_problem_is_polled_until_it_has_none() -> None:
    """A poll for counts finds the problem. Without further polls, the condition would change in between."""
    observed = await input_with_tables()
    problem = Problem("StoreUnreachable", "It is away.", "Wait.")
    found = with_report(observed, "shard/1", problem=problem)
    later = then(found, reconcile(found))
    assert {(pod.role, pod.index) for pod in first_round(later)} == {("trainer", 0), ("shard", 1)}
    assert len(first_round(with_shard(later, 1, problem=""))) == 1


async def test_dropped_gradients_are_a_warning_with_the_field() -> None:
    observed = await input_with_tables()
    conditions = {each.type for each in reconcile(observed).status.conditions}
    assert "TableTooSmall" not in conditions
    drops = with_report(observed, "shard/1", tables=(USER, replace(ITEM, dropped=1)))
    outcome = reconcile(drops)
    (condition,) = (each for each in outcome.status.conditions if each.type == "TableTooSmall")
    assert (condition.status, condition.reason) == ("True", "GradientsDropped")
    assert condition.message.endswith("raise spec.model.tables[2].rows in a new job")
    assert [(event.type, event.message) for event in outcome.events if event.reason == "TableTooSmall"] == [
        ("Warning", condition.message)
    ]
    again = reconcile(then(observed, outcome))
    assert condition in again.status.conditions, "a restarted shard counts from 0"
    assert "TableTooSmall" not in {event.reason for event in again.events}
