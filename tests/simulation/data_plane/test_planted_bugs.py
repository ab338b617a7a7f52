"""Planted bugs, one at a time: each is found within a number of seeds.

Bugs of a dynamic table alone are planted in `unit/embedding/dynamic/test_table.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from cpr_trainer.checkpoint.anchor.retention import Retention
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.dynamic.entries import Rules
from cpr_trainer.embedding.dynamic.insertion import Insertions
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.embedding.dynamic.table import DynamicTables
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.link import Link
from cpr_trainer.exchange.outbox import Outbox, Push
from cpr_trainer.parity.parity_server import ParityStore
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Admission, ReplayBarrier
from cpr_trainer.shard.steps import DueStep, StepService
from simulation.data_plane.run import run_to_completion
from simulation.data_plane.workload import Workload, following, with_faults, with_keys

#: On a busy machine a test takes minutes.
pytestmark = pytest.mark.timeout(600)

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """A planted bug: `alter` draws the jobs, and one of the first `seeds` must find it.

    quickest: the seed that finds it in the least time as the product is now. It is run before the others.
    """

    plant: Callable[[Patch], None]
    seeds: int
    alter: Callable[[Workload], Workload] = lambda workload: workload
    quickest: int = 0


def rarely_saved(alter: Callable[[Workload], Workload]) -> Callable[[Workload], Workload]:
    return lambda workload: replace(alter(workload), interval_s=4.0)


def slowly(alter: Callable[[Workload], Workload]) -> Callable[[Workload], Workload]:
    """Let steps, and so the sums over trainers, take long: a kill hits one more often."""
    return lambda workload: replace(alter(workload), step_s=1.0)


def with_priority_saves(workload: Workload) -> Workload:
    """Save rows between cuts, although replay pushes them again after a restore. The operator refuses such a job."""
    rules = replace(workload.job.snapshots, strategy="MFU", fraction=0.5)
    altered = with_faults("kill_shard", snapshots=rules)(workload)
    return replace(altered, priority_interval_s=0.2)


def wrap(patch: Patch, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper` around a method; it gets that as its first argument."""
    before = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: wrapper(before, *arguments, **options))


def forget_at_the_acknowledgement(patch: Patch) -> None:
    def retain(before: Callable[..., None], outbox: Outbox, push: Push) -> None:
        before(outbox, replace(push, protected=False))

    wrap(patch, Outbox, "_retain", retain)


def wait_for_no_replay(patch: Patch) -> None:
    patch.setattr(ReplayBarrier, "closed", lambda _trainers: ReplayBarrier())


def leave_a_push_half_done(patch: Patch) -> None:
    patch.setattr(Arena, "reapply_last_push", lambda _arena: None)


def take_parts_of_flushes(patch: Patch) -> None:
    def add(before: Callable[..., None], store: ParityStore, flush: Any) -> None:
        (delta, *others) = flush.deltas
        some = replace(delta, at=delta.at[:5], change=delta.change[:5])
        before(store, replace(flush, deltas=(some, *others)))

    wrap(patch, ParityStore, "_add", add)


def pass_over_claims(patch: Patch) -> None:
    patch.setattr(sys.modules[Writer.__module__], "check_claims", lambda *_: None)


def keep_pushes_over_a_rollback(patch: Patch) -> None:
    def start_over(before: Callable[..., None], link: Link) -> None:
        pushes, link.pushes = link.pushes, Outbox()
        before(link)
        link.pushes = pushes

    wrap(patch, Link, "start_over", start_over)


def record_every_other_push(patch: Patch) -> None:
    numbers = count()

    def write(before: Callable[..., None], control_block: ShardControlBlock, retained: Any) -> None:
        if next(numbers) % 2:
            before(control_block, retained)

    wrap(patch, ShardControlBlock, "write", write)


def drop_updates_only_in_parity(patch: Patch) -> None:
    def note(before: Callable[..., None], link: Link, header: Any) -> None:
        before(link, header)
        link.pushes.forget(link.safe)

    wrap(patch, Link, "_note", note)


def apply_repeated_pushes(patch: Patch) -> None:
    service = sys.modules[Service.__module__]

    def admit(before: Callable[..., Admission], *arguments: Any, **options: Any) -> Admission:
        found = before(*arguments, **options)
        return Admission.APPLY if found is Admission.DROP else found

    wrap(patch, service, "admit_push", admit)


def merge_in_the_order_of_arrival(patch: Patch) -> None:
    def due(before: Callable[..., DueStep | None], position: int, held: Any, *others: Any) -> DueStep | None:
        found = before(position, held, *others)
        return found and replace(found, ranks=tuple(rank for rank in held if rank in found.ranks))

    wrap(patch, sys.modules[StepService.__module__], "due_step", due)


def apply_at_the_first_commit(patch: Patch) -> None:
    def due(before: Callable[..., DueStep | None], *arguments: Any) -> DueStep | None:
        *given, _ = arguments
        return before(*given, max((each.step for each in given[2] if each), default=0))

    wrap(patch, sys.modules[StepService.__module__], "due_step", due)


def sum_before_all_is_received(patch: Patch) -> None:
    patch.setattr(Exchange, "wait_received", lambda *_: None)


def read_before_the_step_before(patch: Patch) -> None:
    patch.setattr(StepService, "_may_read", lambda *_: True)


def commit_for_itself_alone(patch: Patch) -> None:
    def commit(before: Callable[..., None], *arguments: Any, **_for_all: Any) -> None:
        before(*arguments)

    wrap(patch, Exchange, "commit", commit)


def expire_by_the_time_of_day(patch: Patch) -> None:
    """Take a tenth of a second for a step."""
    module = sys.modules[StepService.__module__]

    def oldest(before: Callable[..., int], rules: Rules, _step: int) -> int:
        return before(rules, int(10 * (module.monotonic() - 1000)))

    wrap(patch, Rules, "oldest_live", oldest)


def look_keys_up_as_of_the_step_before(patch: Patch) -> None:
    wrap(patch, DynamicRows, "read", lambda before, table, keys, step: before(table, keys, step - 1))


def insert_in_the_order_of_a_hash_table(patch: Patch) -> None:
    rng = np.random.default_rng(0)

    def insert(before: Callable[..., Insertions], table: DynamicTables, pairs: Any, *others: Any) -> Insertions:
        order = rng.permutation(pairs.shape[1])
        found, places = before(table, pairs[:, order], *others), np.argsort(order)
        return Insertions(found.slots[places], found.evicts[places], found.full[places])

    wrap(patch, DynamicTables, "_insert", insert)


def need_the_newest_anchor_alone(patch: Patch) -> None:
    """Drop the segments before the newest anchor, although the job can go back to the one before."""

    def tick(before: Callable[..., None], retention: Retention) -> None:
        before(retention)
        retention.oldest_step = retention.oldest_step and retention._anchors[-1].step

    wrap(patch, Retention, "tick", tick)


KILLS = ("kill_shard", "kill_again")
TRAINERS = ("kill_trainer", "kill_in_push")
MERGED_KEYS = with_keys(with_faults("reset", trainers=2))
BUGS = {
    "forget at the acknowledgement": Bug(forget_at_the_acknowledgement, 5, with_faults(*KILLS)),
    "no barrier until all have caught up": Bug(
        wait_for_no_replay, 10, with_faults(*KILLS, trainers=3, sparse_updates="PerPush")
    ),
    "a half applied push stays half applied": Bug(
        leave_a_push_half_done, 30, with_faults("kill_between_lines", trainers=1)
    ),
    "a flush is taken in parts": Bug(take_parts_of_flushes, 5, with_faults("reset", shards=4, parity_shards=2)),
    "a late commit counts, although a successor has chosen": Bug(
        pass_over_claims, 20, with_faults("replace_live", "store_slow"), quickest=13
    ),
    "priority saves with replay": Bug(lambda _: None, 10, with_priority_saves, quickest=1),
    "pushes outlive a rollback": Bug(keep_pushes_over_a_rollback, 10, with_faults("roll_back")),
    "a push is acknowledged before it is recorded": Bug(record_every_other_push, 10, with_faults("kill_server")),
    "updates that only parity holds are dropped": Bug(
        drop_updates_only_in_parity, 10, rarely_saved(with_faults("kill_two", shards=3, parity_shards=1))
    ),
    "contributions are merged in the order of arrival": Bug(
        merge_in_the_order_of_arrival, 10, with_faults("clog", trainers=3, sparse_updates="PerStep")
    ),
    "a step is applied at the first commit": Bug(
        apply_at_the_first_commit, 5, slowly(with_faults("kill_in_commit", trainers=3, sparse_updates="PerStep"))
    ),
    "a sum begins before all shards have the contributions": Bug(
        sum_before_all_is_received, 20, with_faults(*TRAINERS, trainers=3, shards=3, sparse_updates="PerStep")
    ),
    "a lookup is answered before the step before": Bug(
        read_before_the_step_before, 5, with_faults("clog", trainers=2, sparse_updates="PerStep")
    ),
    "the leader of a job that stops commits for itself alone": Bug(
        commit_for_itself_alone,
        10,
        slowly(with_faults("stop_without_follower", trainers=3, sparse_updates="PerStep")),
        quickest=8,
    ),
    "keys expire by the time of day": Bug(expire_by_the_time_of_day, 5, MERGED_KEYS),
    "keys are looked up as of the step before": Bug(look_keys_up_as_of_the_step_before, 5, MERGED_KEYS),
    "new keys are inserted in the order of a hash table": Bug(insert_in_the_order_of_a_hash_table, 5, MERGED_KEYS),
    "data pins lack segments that the oldest anchor needs": Bug(
        need_the_newest_anchor_alone,
        14,
        following(with_faults("roll_back", "roll_back", trainers=2, sparse_updates="PerStep")),
        quickest=13,
    ),
    "a repeated push is applied again": Bug(
        apply_repeated_pushes,
        20,
        with_faults("kill_trainer", "clog", "clog", trainers=2, shards=3, sparse_updates="PerPush"),
        quickest=2,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found_by_its_seeds(name: str, monkeypatch: Patch) -> None:
    bug = BUGS[name]
    bug.plant(monkeypatch)
    found = None
    for seed in sorted(range(bug.seeds), key=lambda seed: seed != bug.quickest):
        try:
            run_to_completion(seed, bug.alter)
        except Exception as error:  # noqa: BLE001 -- any error is due to the bug
            found = error
            break
    assert found is not None, f"{bug.seeds} seeds ended well"
