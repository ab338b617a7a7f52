"""Pins that restate: trainers begin with the newest, and drop what no kept anchor needs. Others are deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.codec import from_json, to_json
from cpr_contract.pinned_data import DataPin, data_pin_key
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.checkpoint.format import data_pins
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.store import StoreUnreachableError
from cpr_trainer.trainer.followed_data import DataLooks
from support.file_folder import Folder
from support.followed_files import BATCH, DATA, Reader, arrivals_of, look
from support.memory_store import MemoryStore


def filled(monkeypatch: pytest.MonkeyPatch, count: int, every: int, needed: int = 1000) -> MemoryStore:
    """Return a store with `count` pins, each of a file of one batch; anchors need `needed` before the newest."""
    monkeypatch.setattr(data_pins, "RESTATE_EVERY", every)
    folder, store = Folder(), MemoryStore()
    looks = DataLooks(DATA, "uid", store, arrivals_of(folder), lambda: (len(folder.files) - 1 - needed) * BATCH)
    for number in range(count):
        folder.write(f"{number:03d}", BATCH)
        assert len(look(looks)) == 1
    return store


def pins_in(store: MemoryStore) -> list[int]:
    return [int(key[-15:-5]) for key in sorted(store.objects)]


def prune(store: MemoryStore) -> None:
    """Delete what a leader with an anchor deletes."""
    Pruner(store, "uid").prune((AnchorRef("", "", 1, 1000, 1000 * BATCH),))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9, 10, 31])
def test_trainer_begins_at_the_newest_restatement(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    store = filled(monkeypatch, count, every=3)
    newest = (count - 1) // 3 * 3 + 1
    store.delete(data_pin_key("uid", number) for number in range(2, newest) if not data_pins.restates(number))
    reader = Reader(store)
    reader.read()
    assert reader.followed.order.steps == count
    assert [reader.step(step)[0][0] for step in range(1, count + 1)] == [f"{number:03d}" for number in range(count)]


def test_restatement_has_the_segments_that_are_needed_and_the_names_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 7, every=3, needed=1)
    pin = from_json(DataPin, store.get(data_pin_key("uid", 7)))
    assert [segment.number for segment in pin.segments] == [5, 6]
    assert (pin.first_needed, pin.names) == (5, tuple(f"{number:03d}" for number in range(5)))
    reader = Reader(store)
    reader.read()
    assert reader.followed.names == {f"{number:03d}" for number in range(7)}
    assert reader.step(6)[0][0] == "005"
    with pytest.raises(ValueError, match=r"step 5 is outside 6\.\.7"):
        reader.step(5)


def test_pins_before_those_that_the_newest_restatement_needs_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 12, every=3, needed=2)
    newest, whole = data_pin_key("uid", 10), store.get(data_pin_key("uid", 10))
    store.put(newest, whole[:-9])
    with pytest.raises(DamagedError):
        prune(store)
    assert pins_in(store) == list(range(1, 13)), "nothing is deleted while the restatement cannot be read"
    store.put(newest, whole)
    prune(store)
    assert pins_in(store) == [8, 9, 10, 11, 12]
    reader = Reader(store)
    reader.read()
    assert [reader.step(step)[0][0] for step in range(10, 13)] == ["009", "010", "011"]


def test_pins_stay_until_a_restatement_needs_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 9, every=1000, needed=1)
    prune(store)
    assert pins_in(store) == list(range(1, 10))


def test_trainer_drops_segments_that_are_not_needed_and_keeps_the_numbers_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of a step are those that a trainer takes which begins with the newest restatement."""
    all_pins, store = filled(monkeypatch, 8, every=3, needed=2), MemoryStore()
    slow, late = Reader(store), Reader(store)
    for number in range(1, 9):
        store.put(data_pin_key("uid", number), all_pins.get(data_pin_key("uid", number)))
        slow.read()
        assert [each.number for each in slow.followed.segments] == list(range(max(number - 3, 0), number))
        assert len(slow.followed.order.segments) == min(number, 3)
    late.read()
    for step in (6, 7, 8):
        assert slow.step(step) == late.step(step)
    starts = [each.followed.order.segments[0].first_row for each in (slow, late)]
    assert starts == [5 * BATCH, BATCH], "the newest restatement has the segment before"


def test_trainer_continues_with_the_restatement_that_superseded_its_next_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    store, later = filled(monkeypatch, 2, every=3), filled(monkeypatch, 12, every=3, needed=2)
    reader, get = Reader(store), store.get

    def get_and_prune(key: str) -> bytes:
        """After the second pin is read, the others come, and the first ones go."""
        found = get(key)
        if key == data_pin_key("uid", 2):
            store.objects |= later.objects
            prune(store)
        return found

    monkeypatch.setattr(store, "get", get_and_prune)
    reader.read()
    assert reader.followed.number == 12
    assert [reader.step(step)[0][0] for step in range(10, 13)] == ["009", "010", "011"]


def test_files_of_pins_before_a_failed_request_are_returned_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 3, every=1000)
    reader, get = Reader(store), store.get

    def fail(key: str) -> bytes:
        if key == data_pin_key("uid", 3):
            raise StoreUnreachableError("No answer.", "Wait.")
        return get(key)

    monkeypatch.setattr(store, "get", fail)
    with pytest.raises(StoreUnreachableError):
        reader.read()
    monkeypatch.setattr(store, "get", get)
    reader.read()
    assert [reader.step(step)[0][0] for step in (1, 2, 3)] == ["000", "001", "002"]


def test_names_of_files_that_were_moved_away_are_dropped_but_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_pins, "RESTATE_EVERY", 3)
    folder, store, oldest = Folder(), MemoryStore(), [0]
    looks = DataLooks(DATA, "uid", store, arrivals_of(folder), lambda: oldest[0])
    for number in range(30):
        folder.files.clear()
        folder.write(f"{number:03d}", BATCH)
        oldest[0] = number * BATCH
        assert len(look(looks)) == 1
        assert len(looks.followed.names) <= 4
    oldest[0] = 30 * BATCH
    folder.write("zzz", BATCH)
    look(looks)
    folder.files.clear()
    for number in range(4):
        oldest[0] += BATCH
        folder.write(f"yyy{number}", BATCH)
        (pin,) = look(looks)
        assert pin.late == (f"yyy{number}",), "zzz is pinned, although it was moved away"


def test_follower_reads_up_to_the_pin_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 4, every=1000)
    reader = Reader(store)
    reader.read(up_to=2)
    assert (reader.followed.number, reader.followed.order.steps) == (2, 2)
    reader.read(up_to=1)
    assert reader.followed.number == 2, "an older pin names nothing new"
    store.delete([data_pin_key("uid", 4)])
    with pytest.raises(DamagedError, match=r"pins/0000000004.json is missing"):
        reader.read(up_to=4)


def test_pin_that_does_not_follow_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(monkeypatch, 3, every=1000)
    second, third = (from_json(DataPin, store.get(data_pin_key("uid", number))) for number in (2, 3))
    for pin, changed, what in (
        (second, replace(second, late=("x",)), "pins/0000000003.json does not follow the pin before it"),
        (third, replace(third, number=4), "pins/0000000003.json is pin 4 of 1 segments"),
        (third, replace(third, segments=(replace(third.segments[0], first_sample=9),)), "not continue the samples"),
    ):
        store.put(data_pin_key("uid", pin.number), to_json(changed).encode())
        with pytest.raises(DamagedError, match=what):
            Reader(store).read()
        store.put(data_pin_key("uid", pin.number), to_json(pin).encode())
    reader = Reader(store)
    reader.read()
    assert reader.followed.number == 3
