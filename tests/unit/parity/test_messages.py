"""Messages between shards survive the wire, and invalid ones are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.parity.coding import Image, PartShape
from cpr_trainer.parity.flush import Delta, Flush, Point
from cpr_trainer.parity.messages import (
    PositionQuery,
    Read,
    Rows,
    document_of,
    most_bytes,
    pack,
    pack_flush,
    pack_rows,
    unpack_flush,
    unpack_image,
)
from support.parity_ring import same

SHAPES = [PartShape(40, 5, 1), PartShape(9, 2, 0), PartShape(30, 3, 6, value_bytes=2)]


def image_of(count: int, shape: PartShape, seed: int) -> Image:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256**shape.value_bytes, (count, shape.dim), f"u{shape.value_bytes}")
    state = rng.integers(0, 2**32, (count, shape.width), np.uint32)
    return Image(rows, state, rng.integers(0, 2, count, np.uint8))


def flush_of(counts: tuple[int, ...], mark: str = "{}", seed: int = 0) -> Flush:
    deltas = tuple(
        Delta(np.arange(count, dtype=np.uint32), image_of(count, shape, seed))
        for count, shape in zip(counts, SHAPES, strict=True)
    )
    return Flush(Point(3), Point(3, 2**53 - 1, 7), True, mark, deltas)  # noqa: FBT003 -- complete


def frame_of(header: Header, parts: list[object]) -> Frame:
    payload = b"".join(bytes(memoryview(part)) for part in parts)  # type: ignore[arg-type]
    assert header.payload_bytes == len(payload)
    return Frame(header, memoryview(payload))


@settings(deadline=None, max_examples=30)
@given(st.tuples(*(st.integers(0, rows) for rows, *_ in SHAPES)), st.text(max_size=40))
def test_flush_survives_the_wire(counts: tuple[int, ...], mark: str) -> None:
    flush = flush_of(counts, mark, sum(counts))
    header, parts = pack_flush(5, flush)
    assert header.operation is Operation.FLUSH
    assert header.generation == 5
    assert header.payload_bytes <= most_bytes(SHAPES)
    found = unpack_flush(frame_of(header, parts), SHAPES)
    assert (found.before, found.after, found.complete, found.mark) == (flush.before, flush.after, True, mark)
    for mine, theirs in zip(found.deltas, flush.deltas, strict=True):
        assert np.array_equal(mine.at, theirs.at)
        assert same(mine.change, theirs.change)


def test_rows_survive_the_wire() -> None:
    image = image_of(7, SHAPES[2], 3)
    header, parts = pack_rows(1, Rows(known=True), image)
    found = unpack_image(Frame(header, memoryview(bytearray().join(map(bytes, parts)))), 7, SHAPES[2])
    assert same(found, image)


def test_damaged_flush_is_refused() -> None:
    frame = frame_of(*pack_flush(1, flush_of((20, 4, 10))))
    payload = bytes(frame.payload)
    counts, negative = b'"counts":[20,4,10]', b'"counts":[-20,4,1]'
    assert counts in payload
    damaged = {
        **{payload[:-cut]: "bytes" for cut in (1, 8, 100, 700)},
        payload + bytes(8): "after the last",
        payload.replace(counts, negative): None,
    }
    for each, message in damaged.items():
        with pytest.raises(FrameError, match=message):
            unpack_flush(Frame(frame.header, memoryview(each)), SHAPES)
    with pytest.raises(FrameError, match="segments"):
        unpack_flush(frame, SHAPES[:2])


def test_invalid_document_is_refused() -> None:
    frame = frame_of(*pack(Operation.READ, 1, Read(0, 0, 1)))
    assert document_of(Read, frame) == Read(0, 0, 1)
    for wrong in (
        replace(frame, header=frame.header._replace(count=2**20)),
        frame_of(*pack(Operation.READ, 1, PositionQuery((1, 2)))),
    ):
        with pytest.raises(FrameError):
            document_of(Read, wrong)
