"""When the leader sweeps, in virtual time: after anchors, when what was young has aged, and on a full store."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

import pytest

from cpr_contract.manifests import ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor import retention
from cpr_trainer.checkpoint.anchor.pruning import GRACE_S, Pruner
from cpr_trainer.checkpoint.anchor.retention import Retention
from cpr_trainer.checkpoint.format.keys import committed_in
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import StoreUnreachableError
from support.job_saves import JobBench
from support.memory_store import MemoryStore

FIRST, SECOND, THIRD = (AnchorRef(f"job/{step}", "", 1, step, 10 * step) for step in (1, 2, 3))


class Sweeper:
    """A pruner that remembers its sweeps: which steps were retained, and whether the store was full."""

    def __init__(self) -> None:
        self.sweeps: list[tuple[set[int], bool]] = []
        self.young = False
        self.error: Exception | None = None

    def note(self, _anchor: AnchorRef, _shards: Iterable[ShardManifest]) -> None: ...

    def prune(self, _keep: tuple[AnchorRef, ...], retained: Collection[int] = (), *, full: bool = False) -> bool:
        self.sweeps.append((set(retained), full))
        if self.error is not None:
            raise self.error
        return self.young


class Bench:
    """Retention over a sweeper. `recorded` is the anchor that the status holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, anchors: tuple[AnchorRef, ...] = ()) -> None:
        self.now_s, self.recorded, self.sweeper = 0.0, "", Sweeper()
        monkeypatch.setattr(retention, "monotonic", lambda: self.now_s)
        pruner: Pruner = self.sweeper  # type: ignore[assignment]
        self.best = {FIRST.key: 0, SECOND.key: 1}
        rng = random.Random(1)
        self.retention = Retention(pruner, rng, lambda: self.recorded, lambda each: self.best[each.key], anchors)

    def sweeps_at(self, now_s: float, *, full: bool = False) -> int:
        self.now_s = now_s
        self.retention.tick(full=full)
        return len(self.sweeper.sweeps)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_sweep_waits_until_the_status_holds_an_anchor_that_stays(bench: Bench) -> None:
    def after(*keep: AnchorRef) -> int:
        bench.retention.keep(keep, ())
        return bench.sweeps_at(bench.now_s)

    assert after(FIRST) == 0
    bench.recorded = FIRST.key
    assert after(FIRST, SECOND) == 1
    assert after(SECOND, THIRD) == 1, "the operator could roll back to none of them"
    bench.recorded = THIRD.key
    assert bench.retention.oldest_step == 1, "the operator could roll back to the first one until now"
    assert after(SECOND, THIRD) == 2
    assert bench.retention.oldest_step == 2
    bench.recorded = ""
    assert after(THIRD) == 2
    assert bench.sweeps_at(3599, full=True) == 2
    assert bench.sweeps_at(3601) == 3, "a store does not fill without an operator"


def test_sweep_is_repeated_once_young_saves_have_aged(bench: Bench) -> None:
    bench.recorded, bench.sweeper.young = FIRST.key, True
    bench.retention.keep((FIRST,), ())
    assert bench.sweeps_at(0) == 1
    assert bench.sweeps_at(GRACE_S - 1) == 1
    assert bench.sweeps_at(GRACE_S) == 2
    bench.sweeper.young = False
    assert bench.sweeps_at(2 * GRACE_S) == 3
    assert bench.sweeps_at(1e6) == 3, "nothing is left to delete"


def test_full_store_is_swept_at_once_and_then_now_and_again(bench: Bench) -> None:
    bench.recorded = FIRST.key
    bench.retention.keep((FIRST,), (), best_step=7)
    assert bench.sweeps_at(0) == 1
    assert bench.sweeps_at(10) == 1
    assert bench.sweeps_at(20, full=True) == 2
    assert bench.sweeps_at(21, full=True) == 2
    assert bench.sweeps_at(26, full=True) == 3
    assert bench.sweeper.sweeps == [({7}, False), ({7}, True), ({7}, True)]


def test_new_leader_sweeps_a_full_store_before_its_first_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, (FIRST, SECOND))
    assert bench.sweeps_at(1, full=True) == 0, "the operator has recorded no anchor"
    bench.recorded = SECOND.key
    assert bench.sweeps_at(2, full=True) == 1
    assert bench.sweeper.sweeps == [({1}, True)], "the best evaluation as of the second anchor stays"
    assert bench.retention.oldest_step == 1


def test_failed_sweep_is_repeated_later_though_the_store_is_full(bench: Bench) -> None:
    bench.recorded, bench.sweeper.error = FIRST.key, StoreUnreachableError("No answer.", "Wait.")
    bench.retention.keep((FIRST,), ())
    assert bench.sweeps_at(0, full=True) == 1
    assert bench.retention.problem is not None
    assert bench.sweeps_at(0.01, full=True) == 1
    bench.sweeper.error = None
    assert bench.sweeps_at(10) == 2
    assert bench.retention.problem is None


def test_job_that_fills_its_store_within_the_grace_of_its_saves_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the sweep the store takes five anchors, all younger than the grace, and `keep` is 2."""
    store = MemoryStore()
    bench, clock = JobBench(store), Bench(monkeypatch)
    bench.serve()
    pruner = Pruner(store, "uid", clock=lambda: clock.now_s)
    retained: tuple[AnchorRef, ...] = ()
    leader = Retention(pruner, random.Random(1), lambda: retained[-1].key, lambda _: 0)
    for step in range(1, 30):
        clock.now_s = 2.0 * step
        full = len(anchors_in(store)) >= 5
        leader.tick(full=full)
        assert len(anchors_in(store)) < 5, "a full store had free space before the next anchor"
        retained = (*retained, bench.anchor(step, full=True))[-2:]
        leader.keep(retained, ())
        leader.tick()
    assert {read_anchor(store, anchor).step for anchor in retained} == {28, 29}


def anchors_in(store: MemoryStore) -> list[str]:
    return [save.folder for save in committed_in(store.objects) if save.kind == "Anchor" and "/dense/" in save.folder]
