"""Copy-on-write: what a capture gives out is what the rows were when it began, whatever pushes come between."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.model import SparseOptimizerSpec
from cpr_trainer.embedding import capture as capture_module
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.buffer import RowBuffer
from cpr_trainer.embedding.capture import READ_TIMEOUT_S, Capture, EndedError, UndoLogFullError
from cpr_trainer.embedding.optimizers import Assignment
from cpr_trainer.embedding.segments import Segment

SGD = Assignment((1,), (SparseOptimizerSpec("SGD", 1.0),))
Values = dict[int, list[float]]


def new_arena(*rows: int, log_rows: int = 1 << 20, width: int = 2) -> Arena:
    """Return segments with these numbers of rows, of 3, 4, ... values. All rows differ; a log takes `log_rows` rows."""
    segments = []
    for number, count in enumerate(rows):
        values = np.arange(count * (3 + number), dtype=np.float32).reshape(count, 3 + number)
        states = np.arange(count * width, dtype=np.float32).reshape(count, width) + np.float32(0.5)
        segments.append(Segment(sum(rows[:number]), values, states))
    arena = Arena(segments, SGD)
    arena._logs = tuple(RowBuffer.like(segment, min(len(segment), log_rows)) for segment in segments)
    return arena


def push(arena: Arena, *slots: int) -> bool:
    at = np.array(sorted(slots))
    return arena.apply(at, at, [np.ones_like(rows) for rows in arena.read(at)], 1)


def values_of(arena: Arena, slots: list[int]) -> Values:
    return {
        slot: [*segment.rows[at].tolist(), *segment.state[at].tolist()]
        for segment, inside in arena.parted(np.array(slots, np.int64))
        for at in inside.tolist()
        for slot in [at + segment.first]
    }


def fill(capture: Capture, buffer: RowBuffer) -> Values | None:
    buffer.used = 0
    if not capture.fill(buffer):
        return None
    slots, rows, state = buffer.filled
    assert (np.diff(slots) > 0).all(), "ascending, and each once"
    found = zip(slots.tolist(), rows.tolist(), state.tolist(), strict=True)
    return {slot: [*row, *values] for slot, row, values in found}


def read_all(capture: Capture, arena: Arena, size: int = 4) -> Values:
    buffer = RowBuffer.like(arena.segments[0], size)
    found: Values = {}
    while (part := fill(capture, buffer)) is not None:
        assert not found.keys() & part.keys(), "no row comes twice"
        found |= part
    return found


def test_stalled_reader_loses_its_capture_and_the_push_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = new_arena(10, log_rows=3)
    push(arena, *range(10))
    capture, clock = arena.capture_changes(0), iter((5.0, 5.0 + READ_TIMEOUT_S, 5.1 + READ_TIMEOUT_S))
    monkeypatch.setattr(capture_module, "monotonic", lambda: next(clock))
    assert not push(arena, *range(10))
    assert (push(arena, *range(10)), capture.undo_log_full) == (False, False)
    assert (push(arena, *range(10)), capture.undo_log_full) == (True, True)
    with pytest.raises(UndoLogFullError):
        read_all(capture, arena)
    expected = values_of(arena, list(range(10)))
    assert read_all(arena.capture_changes(0), arena) == expected, "the next one has everything"


def test_push_waits_for_a_reader_that_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = new_arena(20, log_rows=3)
    push(arena, *range(20))
    capture, clock = arena.capture_changes(0), iter((5.0, 6.0 + READ_TIMEOUT_S))
    monkeypatch.setattr(capture_module, "monotonic", lambda: next(clock))
    assert not push(arena, *range(20))
    fill(capture, RowBuffer.like(arena.segments[0], 3))
    assert not push(arena, *range(20))
    assert not capture.undo_log_full


def test_filling_log_is_read_first_and_becomes_urgent_if_it_keeps_filling() -> None:
    arena = new_arena(100, log_rows=20)
    push(arena, *range(100))
    capture, buffer = arena.capture_changes(0), RowBuffer.like(arena.segments[0], 5)
    push(arena, *range(90, 95))
    assert (fill(capture, buffer) or {}).keys() == set(range(5)), "a quarter is not much"
    push(arena, 95)
    assert (fill(capture, buffer) or {}).keys() == set(range(91, 96)), "the newest first"
    push(arena, *range(80, 89))
    at_half = capture.urgent
    push(arena, 89)
    beyond = capture.urgent
    fill(capture, buffer)
    assert (at_half, beyond) == (False, True), "half is enough for what comes"
    assert not capture.urgent, "the log has free rows again"


@pytest.mark.parametrize("why", ["ended", "undo_log_full", "expedited"])
def test_capture_with_a_waiting_reader_is_urgent(why: str) -> None:
    arena = new_arena(10, log_rows=5)
    push(arena, *range(10))
    capture = arena.capture_changes(0)
    assert not capture.urgent
    if why == "ended":
        capture.end()
    elif why == "undo_log_full":
        capture.undo_log_full = True
    else:
        capture.expedited = True
    assert capture.urgent


@pytest.mark.parametrize("chosen", [True, False])
def test_a_new_capture_ends_the_one_before(*, chosen: bool) -> None:
    arena = new_arena(10)
    push(arena, *range(10))
    old = arena.capture_rows(np.array([2, 3])) if chosen else arena.capture_changes(0)
    push(arena, 3)
    expected = values_of(arena, list(range(10)))
    new = arena.capture_changes(0)
    with pytest.raises(EndedError):
        read_all(old, arena)
    old.end()
    assert read_all(new, arena) == expected


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_interleaving_of_pushes_and_reads(data: st.DataObject) -> None:
    """Against a plain copy taken when the capture began."""
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    rows = sum(sizes)
    arena = new_arena(*sizes, log_rows=data.draw(st.integers(1, rows)), width=data.draw(st.sampled_from([0, 1, 6])))
    some = st.lists(st.integers(0, rows - 1), unique=True, min_size=1)
    for _ in range(data.draw(st.integers(0, 3))):
        push(arena, *data.draw(some))
    if data.draw(st.booleans()):
        selected = sorted(data.draw(some))
        capture = arena.capture_rows(np.array(selected))
    else:
        selected = np.flatnonzero(arena.epochs.of).tolist()
        capture = arena.capture_changes(0)
    expected, found = values_of(arena, selected), Values()
    buffer = RowBuffer(7, data.draw(st.integers(1, 7)) * 44)
    with pytest.MonkeyPatch.context() as patch:
        block = data.draw(st.integers(1, 5))
        patch.setattr("cpr_trainer.embedding.capture._block_rows", lambda _segment: block)
        patch.setattr(capture_module, "_WIDEST", data.draw(st.integers(1, 3)))
        waiting: list[int] = []
        while True:
            if bool(waiting) or data.draw(st.booleans()):
                waiting, before = waiting or data.draw(some), values_of(arena, list(range(rows)))
                if push(arena, *waiting):
                    waiting = []
                else:
                    assert values_of(arena, list(range(rows))) == before, "a push that has to wait changes nothing"
            part = fill(capture, buffer)
            if part is None:
                break
            assert not found.keys() & part.keys(), "no row comes twice"
            found |= part
    assert found == expected
    assert not arena.epochs.chosen(np.arange(rows)).any(), "no mark is left"


def test_pushes_on_another_thread_do_not_disturb_a_reader() -> None:
    rows = 50_000
    arena = new_arena(rows)
    push(arena, *range(rows))
    before = arena.rows.copy()
    stop = threading.Event()
    generator = np.random.default_rng(1)

    def go_on() -> None:
        while not stop.is_set():
            push(arena, *generator.choice(rows, 500, replace=False).tolist())

    capture = arena.capture_changes(0)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        buffer, seen = RowBuffer.like(arena.segments[0], 1000), np.zeros(rows, np.bool_)
        while capture.fill(buffer):
            slots = buffer.slots[: buffer.used]
            assert np.array_equal(buffer.rows[: buffer.used], before[slots])
            seen[slots] = True
            buffer.used = 0
    finally:
        stop.set()
        thread.join()
    assert seen.all()
