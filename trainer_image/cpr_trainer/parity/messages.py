"""The messages between shards.

FLUSH has a flush, QUERY_POSITION and READ are requests, POSITION and ROWS are answers. The header's `count` is the
length of the document; arrays begin at the next multiple of 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.parity.coding import Image, PartShape
from cpr_trainer.parity.flush import Delta, Flush, Moment, Point

Document = TypeVar("Document")
#: Those of a part, by segment.
Shapes = Sequence[PartShape]

#: The limit of a document: the mark of a flush is the longest.
DOCUMENT_BYTES = 1 << 20
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class PositionQuery:
    """Requests the position of the sender's part in a parity, undone to a `moment` first, if possible."""

    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class PositionReply:
    """The position. complete, mark: those of the last flush. `former`: the moment before it, if it can be undone."""

    point: Point
    complete: bool
    mark: str
    former: Moment | None


@dataclass(frozen=True, slots=True)
class Read:
    """Requests rows [first, end) of a segment: of a parity, or with a `point` of `part` as of that point."""

    segment: int
    first: int
    end: int
    part: int = 0
    point: Point | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Precedes the rows, unless they are not `known`. For rows of a parity, `points` are those of its members."""

    known: bool
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class _FlushHead:
    before: Point
    after: Point
    complete: bool
    mark: str
    counts: tuple[int, ...]


def most_bytes(shapes: Shapes) -> int:
    """Return the limit of a flush's payload: every row of a part, and its number."""
    return DOCUMENT_BYTES + sum(each.rows * (4 + each.row_bytes + 4 * _ALIGNMENT) for each in shapes)


def pack(operation: Operation, generation: int, document: object, *arrays: NDArray[Any]) -> tuple[Header, list[Any]]:
    """Return the header of a frame and the parts of its payload. arrays: C-contiguous."""
    text = to_json(document).encode()
    parts: list[Any] = [text, b" " * (-len(text) % _ALIGNMENT)]
    for array in arrays:
        parts += [array, bytes(-array.nbytes % _ALIGNMENT)]
    size = sum(memoryview(part).nbytes for part in parts)
    return Header(operation, generation=generation, count=len(text), payload_bytes=size), parts


def pack_flush(generation: int, flush: Flush) -> tuple[Header, list[Any]]:
    """Return a FLUSH; the flush must not change before it is sent."""
    counts = tuple(len(delta.at) for delta in flush.deltas)
    head = _FlushHead(flush.before, flush.after, flush.complete, flush.mark, counts)
    arrays = [each for delta in flush.deltas for each in (delta.at, *_arrays(delta.change))]
    return pack(Operation.FLUSH, generation, head, *arrays)


def pack_rows(generation: int, answer: Rows, image: Image | None = None) -> tuple[Header, list[Any]]:
    """Return ROWS with an image."""
    return pack(Operation.ROWS, generation, answer, *(_arrays(image) if image is not None else ()))


def document_of(cls: type[Document], frame: Frame) -> Document:
    """Return the document of a frame. Raises FrameError."""
    if frame.header.count > min(DOCUMENT_BYTES, frame.payload.nbytes):
        raise FrameError(f"a document of {frame.header.count} bytes in a frame of {frame.payload.nbytes}")
    try:
        return from_json(cls, bytes(frame.payload[: frame.header.count]))
    except ContractError as error:
        raise FrameError(str(error)) from error


def unpack_flush(frame: Frame, shapes: Shapes) -> Flush:
    """Return the flush in a FLUSH; its arrays are a copy. Raises FrameError."""
    head, reader = document_of(_FlushHead, frame), _Arrays(frame.detached())
    if len(head.counts) != len(shapes):
        raise FrameError(f"a flush of {len(head.counts)} segments, not {len(shapes)}")
    deltas = tuple(
        Delta(reader.take((count,), np.uint32), reader.image(count, shape))
        for count, shape in zip(head.counts, shapes, strict=True)
    )
    reader.end()
    return Flush(head.before, head.after, head.complete, head.mark, deltas)


def unpack_image(frame: Frame, count: int, shape: PartShape) -> Image:
    """Return the rows in a ROWS, which share its memory. Raises FrameError."""
    reader = _Arrays(frame)
    image = reader.image(count, shape)
    reader.end()
    return image


class _Arrays:
    """Reads arrays from a frame, one after another. They share its memory."""

    def __init__(self, frame: Frame) -> None:
        count = frame.header.count
        self._payload = frame.payload
        self._at = count + -count % _ALIGNMENT

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        count = int(np.prod(shape))
        size = count * np.dtype(dtype).itemsize
        first, self._at = self._at, self._at + size + -size % _ALIGNMENT
        if min(shape) < 0 or self._at > len(self._payload):
            raise FrameError(f"arrays of more than the {len(self._payload)} bytes of the payload")
        return np.frombuffer(self._payload, dtype, count, first).reshape(shape)

    def image(self, count: int, shape: PartShape) -> Image:
        rows = self.take((count, shape.dim), f"u{shape.value_bytes}")
        state = self.take((count, shape.width), np.uint32)
        return Image(rows, state, self.take((count,), np.uint8))

    def end(self) -> None:
        if self._at != len(self._payload):
            raise FrameError(f"{len(self._payload) - self._at} bytes after the last array")


def _arrays(image: Image) -> tuple[NDArray[Any], ...]:
    return image.rows, image.state, image.touched
