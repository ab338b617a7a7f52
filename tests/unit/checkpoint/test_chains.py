"""Saves based on others: restored bit for bit, after any sequence of saves, losses and restores."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.choices import Rebase
from cpr_contract.manifests import RowUpdates
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.parts import basis
from cpr_trainer.checkpoint.format.records import write_restore_record
from support.memory_store import MemoryStore
from support.saves import ShardBench, Values, restore_record, same


def new_bench() -> ShardBench:
    bench = ShardBench(MemoryStore())
    write_restore_record(bench.store, restore_record(1))
    return bench


def restored(bench: ShardBench, number: int = 0, incarnation: int = 2) -> Values:
    return bench.values(bench.restore(bench.choices(incarnation)[number])[1])


def test_save_holds_the_rows_changed_since_its_base() -> None:
    bench = new_bench()
    bench.change(1, 2, 3)
    bench.save(10)
    bench.change(3, 4)
    second = bench.save(20, bench.links)
    at_20 = bench.values()
    bench.change(5)
    third = bench.save(30, bench.links)
    assert (second.manifest.rows, third.manifest.rows) == (2, 1)
    assert [ref.key for ref in third.manifest.chain] == [link.ref.key for link in bench.links[:2]]
    assert same(restored(bench), bench.values())
    assert same(restored(bench, 1), at_20)


@pytest.mark.parametrize("which", [0, 1])
def test_damaged_save_makes_those_based_on_it_unusable(which: int) -> None:
    bench = new_bench()
    bench.change(1)
    bench.save(5)
    at_5 = bench.values()
    bench.change(2)
    bench.save(10)  # a full one
    for step in (20, 30):
        bench.change(step)
        bench.save(step, bench.links)
    part = f"{bench.links[which].ref.key.rpartition('/')[0]}/part-00000"
    bench.store.put(part, b"spoilt")
    newest, *_ = bench.choices()
    with pytest.raises(DamagedError, match=part):
        bench.restore(newest)
    usable = []
    for candidate in bench.choices():
        try:
            usable.append(bench.restore(candidate)[0].step)
        except DamagedError:
            continue
    assert usable == ([5, 0] if which == 0 else [10, 5, 0])
    assert same(restored(bench, -2), at_5)


def test_a_chain_names_its_saves_by_digest() -> None:
    bench = new_bench()
    bench.change(1)
    first = bench.save(10)
    bench.change(2)
    bench.save(20, bench.links)
    data = bench.store.get(first.ref.key)
    bench.store.put(first.ref.key, data.replace(b'"samples":640', b'"samples":641'))
    with pytest.raises(DamagedError, match="digest"):
        restored(bench)


def test_priority_saves_make_rows_fresher_and_leave_the_rest() -> None:
    bench = new_bench()
    bench.change(1, 2, 3)
    bench.save(10, lost=((0, 64),))
    links = bench.links
    saved = bench.values()
    bench.change(2, 3, 4)
    bench.save_rows(12, 2, 4)
    bench.change(2)
    bench.save_rows(14, 2)
    after, local = bench.restore(bench.choices()[0])
    expected = saved[0].copy(), saved[1].copy()
    for slot in (2, 4):
        for part, now in zip(expected, bench.values(), strict=True):
            part[slot] = now[slot]
    assert same(bench.values(local), expected)
    assert (after.step, after.samples, after.lost) == (10, 640, ((0, 64),)), "progress is that of the complete save"
    assert [ref.key.split("/")[-2] for ref in after.replayed] == ["step-000000012-priority", "step-000000014-priority"]
    assert after.chain == links


def test_a_damaged_priority_save_is_left_out_and_named() -> None:
    bench = new_bench()
    bench.change(1, 2)
    base = bench.save(10, row_updates=RowUpdates((300, 400), lost=50)).ref.key
    expected = bench.values()
    bench.change(1)
    spoilt = bench.save_rows(12, 1, after=base, added_updates=20)
    bench.change(2)
    bench.save_rows(14, 2, after=spoilt.ref.key, added_updates=5)
    (part,) = spoilt.manifest.parts
    data = bytearray(bench.store.get(part.key))
    data[-1] ^= 1
    bench.store.put(part.key, data)
    after, local = bench.restore(bench.choices()[0])
    for values, now in zip(expected, bench.values(), strict=True):
        values[2] = now[2]
    assert same(bench.values(local), expected), "no row of the damaged part was restored"
    assert [error.key for error in after.damaged] == [part.key]
    assert len(after.replayed) == 1
    assert after.row_updates == RowUpdates((300, 400), lost=50, exact=False), "a bound"


ADDED = {
    # (after, added updates) of each priority save on the save at step 10, None for the key of the save itself;
    # the loss of 50 that remains, and whether it is exact
    "nothing": ((), 50, True),
    "one after another": (((None, 20), ("12", 5)), 25, True),
    "a strategy that does not count": (((None, 20), ("12", None)), 30, False),
    "made after a save that is not there": (((None, 20), ("elsewhere", 5)), 30, False),
    "made after another save": ((("elsewhere", 20),), 50, False),
}


@pytest.mark.parametrize("case", ADDED)
def test_rows_in_priority_saves_are_not_lost(case: str) -> None:
    saves, lost, exact = ADDED[case]
    bench = new_bench()
    bench.change(1, 2)
    keys: dict[str | None, str] = {None: bench.save(10, row_updates=RowUpdates((300, 400), lost=50)).ref.key}
    for step, (after, added) in zip((12, 14), saves, strict=False):
        saved = bench.save_rows(step, 1, after=keys.get(after, "elsewhere"), added_updates=added)
        keys[str(step)] = saved.ref.key
    found, _ = bench.restore(bench.choices()[0])
    assert found.row_updates == RowUpdates((300, 400), lost, exact)
    assert found.top == [*keys.values()][-1]


class ShardHistory:
    """A shard that trains, saves and dies, with its expected rows at each point."""

    def __init__(self, rule: Rebase, seed: int) -> None:
        self.bench = new_bench()
        self.rule = rule
        self.random = random.Random(seed)
        self.step = 0
        self.incarnation = 1
        self.saved = self.bench.values()
        self.fresh: dict[int, tuple[list[float], float]] = {}

    def train(self) -> None:
        slots = self.random.sample(range(80), self.random.randint(1, 20))
        self.bench.change(*slots, by=self.random.random())

    def save(self) -> None:
        self.step += 1
        self.bench.save(self.step, basis(self.rule, self.bench.links), incarnation=self.incarnation)
        self.saved, self.fresh = self.bench.values(), {}

    def give_up(self) -> None:
        self.bench.arena.capture_changes(0).end()

    def save_rows(self) -> None:
        self.step += 1
        slots = sorted(self.random.sample(range(80), self.random.randint(1, 10)))
        self.bench.save_rows(self.step, *slots, incarnation=self.incarnation)
        rows, state = self.bench.values()
        self.fresh |= {slot: (rows[slot].tolist(), state[slot].tolist()) for slot in slots}

    def die(self) -> None:
        self.incarnation += 1
        candidate = self.bench.choices(self.incarnation)[0]
        after, local = self.bench.restore(candidate)
        assert same(self.bench.values(local), self.expected())
        parent = {"parent": after.ref, "parent_incarnation": candidate.writer} if candidate.kind == "Save" else {}
        write_restore_record(
            self.bench.store, restore_record(self.incarnation, replayed=after.replayed, step=after.step, **parent)
        )
        self.bench.go_on(after, local)

    def fold(self) -> None:
        self.bench.arena.forget_epochs()
        self.bench.links = ()

    def expected(self) -> Values:
        rows, state = self.saved[0].copy(), self.saved[1].copy()
        for slot, (row, number) in self.fresh.items():
            rows[slot] = row
            state[slot] = number
        return rows, state


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(["Consecutive", "OneShot", "Intermittent"]),
    events=st.lists(st.sampled_from(["train", "save", "give_up", "save_rows", "die", "fold"]), max_size=30),
    seed=st.integers(0, 1000),
)
def test_shard_restores_its_expected_rows_after_any_events(rule: Rebase, events: list[str], seed: int) -> None:
    history = ShardHistory(rule, seed)
    for event in events:
        getattr(history, event)()
    history.die()
