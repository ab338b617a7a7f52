"""A shard killed at any stage of a save, of each kind, or of a restore restores a committed state.

The process and the folder are real. Rows are compared bit for bit with a model that applied the same pushes; one more
push compares the state of the optimizer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cpr_contract.roster import Counters
from support.killed_shard import KilledAt
from support.shard_job import shard_roster
from support.shard_scenario import BATCH, ShardScenario

pytestmark = pytest.mark.dist


def first_cut(scenario: ShardScenario) -> None:
    scenario.cut(1, 2, 3, 4)


def second_cut(scenario: ShardScenario) -> None:
    scenario.cut(1, 2, 3, 4)
    scenario.cut(5, 6, 7, 8)


def priority_save(scenario: ShardScenario) -> None:
    """A priority save is marked after step 6, and may be committed after step 9."""
    scenario.cut(1, 2, 3, 4)
    scenario.push(5, 6)
    scenario.shard.give(shard_roster(counters=Counters(2, 1, 1), priority_interval_s=0.01))
    scenario.wait_for(lambda: any(scenario.store.rglob("*-priority")) or scenario.dead())
    scenario.push(7, 8, 9)


def flush(scenario: ShardScenario) -> None:
    scenario.cut(1, 2, 3, 4)
    scenario.push(5, 6)
    scenario.shard.process.send(signal.SIGTERM)


KINDS: dict[str, tuple[Callable[[ShardScenario], None], str, tuple[int, int], tuple[int, int]]] = {
    # kind of save: its pushes, its folder, and the steps of (rows, progress) if it is not committed, and if it is
    "the first cut": (first_cut, "step-000000004", (0, 0), (4, 4)),
    "a cut on another": (second_cut, "step-000000008", (4, 4), (8, 8)),
    "the most important rows": (priority_save, "step-000000006-priority", (4, 4), (6, 4)),
    "a flush": (flush, "step-000000006-flush", (4, 4), (6, 6)),
}
STAGES: dict[str, tuple[str, str, bool]] = {
    # stage: the object that is being written, its state at the kill, whether the save counts
    "before the first part": ("part-00000", "before", False),
    "half of the first part": ("part-00000", "half", False),
    "between two parts": ("part-00001", "after", False),
    "before the manifest": ("manifest.json", "before", False),
    "half of the manifest": ("manifest.json", "half", False),
    "after the manifest": ("manifest.json", "after", True),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_shard_killed_while_it_saves_restores_a_committed_state(kind: str, stage: str, tmp_path: Path) -> None:
    save, folder, without, with_it = KINDS[kind]
    object_name, moment, counts = STAGES[stage]
    rows_step, progress_step = with_it if counts else without
    with ShardScenario(tmp_path) as scenario:
        scenario.start(KilledAt(f"/{folder}/{object_name}", moment))
        scenario.join()
        save(scenario)
        assert scenario.shard.end() == -signal.SIGKILL
        scenario.start()
        report = scenario.shard.wait_ready()
        assert report.restored_samples == BATCH * progress_step
        scenario.assert_rows(scenario.expected(*range(1, rows_step + 1)))


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_shard_killed_while_it_records_its_restore_restores_again(moment: str, tmp_path: Path) -> None:
    with ShardScenario(tmp_path) as scenario:
        scenario.start()
        scenario.join()
        scenario.cut(1, 2, 3, 4)
        scenario.push(5, 6)
        scenario.shard.kill()
        scenario.start(KilledAt("inc-0002/origin.json", moment))
        assert scenario.shard.end() == -signal.SIGKILL
        scenario.start()
        assert scenario.shard.wait_ready().restored_samples == BATCH * 4
        scenario.assert_rows(scenario.expected(1, 2, 3, 4))


def test_restored_priority_rows_are_in_the_next_save(tmp_path: Path) -> None:
    """Rows of a priority save are in no complete save, so the next save must have them."""
    with ShardScenario(tmp_path) as scenario:
        scenario.start(KilledAt("step-000000006-priority/manifest.json", "after"))
        scenario.join()
        priority_save(scenario)
        assert scenario.shard.end() == -signal.SIGKILL
        scenario.start()
        scenario.join()
        scenario.cut(10)
        scenario.shard.kill()
        scenario.start()
        assert scenario.shard.wait_ready().restored_samples == BATCH * 10
        scenario.assert_rows(scenario.expected(1, 2, 3, 4, 5, 6, 10))
