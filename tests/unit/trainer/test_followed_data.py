"""Data that arrives is pinned once, and every trainer that reads its pins trains the same rows in the same steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import EarlyStopSpec, EvaluationSpec, FollowSpec
from cpr_trainer.checkpoint.format import data_pins
from cpr_trainer.data.arrivals import compare_looks, due_voids
from cpr_trainer.data.files import Index
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Version
from cpr_trainer.trainer.followed_data import DataLooks, check_follow
from support.file_folder import Folder
from support.followed_files import DATA, Reader, Row, arrivals_of, look, looks_of
from support.memory_store import MemoryStore
from support.shard_job import small_job

# --- Decisions


def test_file_is_settled_after_two_equal_looks() -> None:
    before = {"a": Version(1, "x"), "b": Version(1, "x"), "c": Version(1, "x")}
    now = {"a": Version(1, "x"), "b": Version(2, "x"), "c": Version(1, "y"), "d": Version(1, "x")}
    assert compare_looks(before, now, "") == (("a",), ())
    assert compare_looks(now, now, "b") == (("a", "b", "c", "d"), ("a",))


@pytest.mark.parametrize(
    ("known", "rows", "how", "voids"),
    [
        pytest.param(16, 7, {}, None, id="fewer rows than a batch wait"),
        pytest.param(16, 9, {}, 0, id="a whole batch is pinned at once"),
        pytest.param(20, 4, {"more": True}, 0, id="with the rest of the pins before"),
        pytest.param(16, 7, {"waits": True}, 1, id="trainers do not wait for the rest of a batch"),
        pytest.param(20, 0, {"waits": True}, 4, id="nor for that of the pins before"),
        pytest.param(16, 7, {"waits": True, "more": True}, None, id="unless files are on their way"),
        pytest.param(16, 0, {"waits": True}, None, id="nothing waits"),
        pytest.param(20, 1, {"ends": True, "more": True}, 3, id="the end fills the last batch"),
        pytest.param(16, 0, {"ends": True}, 0, id="an end without rows"),
    ],
)
def test_pin_is_due(known: int, rows: int, how: dict[str, Any], voids: int | None) -> None:
    assert due_voids(known, rows, 8, **how) == voids


# --- Looks, and the pins that they write


class Arrivals:
    """Files that come, grow before they are settled, and change; two leaders, and trainers that begin at any time."""

    def __init__(self, seed: int) -> None:
        self.rng, self.folder, self.store = random.Random(seed), Folder(), MemoryStore()
        self.leaders = [self.leader() for _ in range(2)]
        self.readers = [Reader(self.store)]

    def leader(self) -> DataLooks:
        return looks_of(self.store, self.folder)

    def look(self) -> None:
        """Look once, by any leader; perhaps it dies as it writes, or another takes its place."""
        place = self.rng.randrange(2)
        if self.rng.random() < 0.2:
            self.leaders[place] = self.leader()
        self.store.before_put = self._fail if self.rng.random() < 0.2 else lambda _: None
        try:
            look(self.leaders[place], 1, waits=self.rng.random() < 0.5)
        except InterruptedError:
            self.leaders[place] = self.leader()
        self.store.before_put = lambda _: None

    def file_comes(self, name: str) -> None:
        self.folder.write(name, self.rng.randint(0, 40))
        if self.rng.random() < 0.3:
            self.look()
            self.folder.write(name, self.rng.randint(0, 40))
        for _ in range(self.rng.randint(0, 4)):
            self.look()
        if self.rng.random() < 0.3:
            self.readers.append(Reader(self.store))
        for reader in self.readers:
            if self.rng.random() < 0.5:
                reader.read()

    @staticmethod
    def _fail(_key: str) -> None:
        raise InterruptedError


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_each_row_is_trained_once_for_any_leader_and_any_time_of_reading(seed: int) -> None:
    every, data_pins.RESTATE_EVERY = data_pins.RESTATE_EVERY, 3
    try:
        arrivals = Arrivals(seed)
        for name in arrivals.rng.sample(range(100), 12):
            arrivals.file_comes(f"{name:02d}")
        look(looks_of(arrivals.store, arrivals.folder, replace(DATA, follow=FollowSpec(1.0, idle="Finish"))), 6)
        known: dict[int, list[Row]] = {}
        for reader in (*arrivals.readers, Reader(arrivals.store)):
            reader.read()
            assert reader.followed.order.has_ended
            for step in range(1, reader.followed.order.steps + 1):
                assert known.setdefault(step, reader.step(step)) == reader.step(step)
    finally:
        data_pins.RESTATE_EVERY = every
    trained = Counter(row for rows in known.values() for row in rows)
    assert trained == Counter((name, row) for name, (rows, _) in arrivals.folder.files.items() for row in range(rows))


def test_leader_that_writes_a_pin_too_late_takes_the_one_in_the_store() -> None:
    folder, store = Folder(), MemoryStore()
    folder.write("1", 20)
    slow, fast = looks_of(store, folder), looks_of(store, folder)
    look(slow, 1)

    def overtake(_key: str) -> None:
        store.before_put = lambda _: None
        folder.write("2", 20)
        look(fast, 2)

    store.before_put = overtake
    (pin,) = look(slow, 1)
    assert pin.segments[0].files.uris == ("1", "2")
    assert slow.followed.names == {"1", "2"}


def test_pin_names_files_that_came_late() -> None:
    folder, store = Folder(), MemoryStore()
    folder.write("b", 8)
    looks = looks_of(store, folder)
    assert [pin.late for pin in look(looks)] == [()]
    folder.write("a", 8)
    folder.write("c", 8)
    (pin,) = look(looks)
    assert (pin.segments[0].files.uris, pin.late) == (("a", "c"), ("a",))


def test_damaged_file_is_named_and_one_that_is_replaced_waits() -> None:
    folder, store = Folder(), MemoryStore()
    folder.write("a", 8)
    folder.broken.add("a")
    looks = looks_of(store, folder)
    with pytest.raises(DataError, match="a cannot be read to its end"):
        look(looks)

    def replaced(uris: Sequence[str]) -> list[Index]:
        folder.write(uris[0], 9)
        return Folder.index(folder, uris)

    looks = DataLooks(DATA, "uid", store, arrivals_of(folder, replaced))
    assert look(looks) == [], "it is broken because it is being written"
    folder.broken.clear()
    assert look(looks) == [], "its index is of a later version than the looks"


def test_empty_file_is_pinned_with_the_next_rows_and_a_moved_one_may_go() -> None:
    folder, store = Folder(), MemoryStore()
    folder.write("a", 0)
    looks = looks_of(store, folder)
    assert look(looks, 3) == []
    folder.write("b", 8)
    (pin,) = look(looks)
    assert pin.segments[0].files.uris == ("a", "b")
    del folder.files["a"]
    folder.write("c", 8)
    assert [pin.segments[0].files.uris for pin in look(looks)] == [("c",)]


@pytest.mark.parametrize(("idle", "until_s", "now_s", "end"), [("Wait", 5.0, 5.0, True), ("Wait", 5.0, 4.0, False)])
def test_until_ends_by_a_pin(idle: Any, until_s: float, now_s: float, *, end: bool) -> None:
    folder, store = Folder(), MemoryStore()
    folder.write("a", 12)
    looks = looks_of(store, folder, replace(DATA, follow=FollowSpec(1.0, until_s, idle)))
    looks.look(waits=True, now_s=now_s)
    pin = looks.look(waits=True, now_s=now_s)
    assert pin is not None
    assert (pin.end, pin.segments[0].voids) == (end, 4 if end else 0)
    folder.write("b", 8)
    assert bool(look(looks, 4)) is not end, "no pin follows the last one"


def test_idle_job_does_not_finish_while_a_file_changes() -> None:
    folder, store = Folder(), MemoryStore()

    def appended(uris: Sequence[str]) -> list[Index]:
        folder.write(uris[0], 9)
        return Folder.index(folder, uris)

    data = replace(DATA, follow=FollowSpec(1.0, idle="Finish"))
    assert [pin.end for pin in look(looks_of(store, folder, data), 1)] == []
    folder.write("a", 12)
    first = look(looks_of(store, folder, data))
    assert [pin.end for pin in first] == [False]
    folder.write("b", 8)
    looks = DataLooks(data, "uid", store, arrivals_of(folder, appended))
    assert [pin.end for pin in look(looks, 3)] == []


def test_idle_job_that_is_to_finish_ends_once_all_files_are_trained() -> None:
    folder, store = Folder(), MemoryStore()
    looks = looks_of(store, folder, replace(DATA, follow=FollowSpec(1.0, idle="Finish")))
    assert look(looks, 3) == [], "no data has come yet"
    folder.write("a", 12)
    assert [pin.end for pin in look(looks, 3, waits=False)] == [False]
    folder.write("b", 1)
    assert look(looks, 1) == [], "a file is on its way"
    assert [(pin.end, pin.segments[0].voids) for pin in look(looks, 3)] == [(False, 3), (True, 0)]


def test_pin_of_another_leader_is_not_taken_for_trained() -> None:
    folder, store = Folder(), MemoryStore()
    data = replace(DATA, follow=FollowSpec(1.0, idle="Finish"))
    folder.write("a", 12)
    assert len(look(looks_of(store, folder, data))) == 1
    later = looks_of(store, folder, data)
    assert look(later, 1) == [], "it has read the pin now, and the trainers wait at the one before"
    assert [pin.end for pin in look(later, 1)] == [True]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"uri": None}, "data.uri: absent"),
        ({"epochs": 2}, "data.epochs above 1"),
        ({"samples": 100}, "data.samples"),
        ({"hold_out": 0.1}, "data.holdOut"),
        ({"format": "Iceberg", "uri": "/t/metadata/v3.metadata.json"}, "a metadata file as data.uri"),
    ],
)
def test_data_that_cannot_be_followed_is_refused_by_the_field(changes: dict[str, Any], field: str) -> None:
    job = small_job(Path("unused"))
    check_follow(replace(job, data=DATA))
    with pytest.raises(BadSpecError, match=f"data.follow and {field} do not go together"):
        check_follow(replace(job, data=replace(DATA, **changes)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"evaluation": EvaluationSpec(100, 1000)}, "evaluation of held-out rows"),
        ({"evaluation": EvaluationSpec(100, 1000, EarlyStopSpec("AUC", 2, 0.1), "s3://x/")}, "evaluation.earlyStop"),
        ({"dense_sync": "ShadowMA"}, "trainers.denseSync other than AllReduce"),
    ],
)
def test_job_that_cannot_follow_its_data_is_refused_by_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadSpecError, match=f"data.follow and {field} do not go together"):
        check_follow(replace(small_job(Path("unused")), data=DATA, **changes))
