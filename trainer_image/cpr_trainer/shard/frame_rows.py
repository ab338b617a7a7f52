"""The rows that frames of trainers name, as places in the arena of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.embedding.merged_rows import NamedRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.encoding import RowNames
from cpr_trainer.exchange.frames import Frame, FrameError, Operation

_NO_VALUES: Floats = np.empty(0, np.float32)


class FrameRows:
    """Finds the rows of lookups and pushes.

    If shards merge pushes, a rank pushes the rows that it looked up. Those of its last lookup stay until its next push,
    whose names are compared byte by byte, so that they are found once.
    """

    def __init__(
        self, job: JobSpec, placement: Placement, index: int, arena: Arena, dynamic: Sequence[DynamicRows]
    ) -> None:
        """Find the rows of shard `index`."""
        self._names = RowNames.of(job, placement)
        self._placement = placement
        self._index = index
        self._arena = arena
        self._dynamic = tuple(dynamic)
        self._pushes_lookups = job.per_step
        self._looked_up: dict[int, tuple[bytes, int, NamedRows]] = {}

    @property
    def largest_push_bytes(self) -> int:
        """The payload of a push of all rows."""
        value_bytes = self._names.encoding.gradient_type.itemsize
        return self._names.most_bytes(len(self._arena)) + self._arena.values * value_bytes

    def find(self, frame: Frame) -> NamedRows:
        """Return the rows that a frame names.

        Raises FrameError unless all are of this shard, in the order of the frame, and the payload has their size.
        """
        header, payload = frame.header, frame.payload
        is_lookup = header.operation is Operation.LOOKUP
        stays = is_lookup and self._pushes_lookups
        own = bytes(payload) if stays else b""
        if stays:
            payload = memoryview(own)  # row numbers may be views, and the next frame is received into the same memory
        names, count, rows = self._looked_up.pop(header.rank, (b"", -1, None))
        if rows is not None and count == header.count and bytes(payload[: len(names)]) == names:
            rest = payload[len(names) :]
        else:
            rows, rest = self._locate(payload, header.count)
        values = 0
        if not is_lookup:
            of_keys = (len(each) * band.dim for band, each in zip(self._dynamic, rows.keys, strict=True))
            values = self._arena.values_in(rows.slots) + sum(of_keys)
        if len(rest) != values * self._names.encoding.gradient_type.itemsize:
            raise FrameError(f"{header.payload_bytes} bytes are no {header.operation.name} of {header.count} rows")
        if stays:
            self._looked_up[header.rank] = own, header.count, rows
        return replace(rows, values=self._names.encoding.unpack_gradients(rest))

    def _locate(self, payload: memoryview, count: int) -> tuple[NamedRows, memoryview]:
        """Return the `count` rows that a payload begins with, without values, and the rest of it. Raises FrameError."""
        named, rest = self._names.unpack(payload, count)
        try:
            slots = self._placement.slots_on(self._index, named.numbers)
            keys = tuple(band.pages.locate(*each) for band, each in zip(self._dynamic, named.keys, strict=True))
        except ValueError as error:
            raise FrameError(str(error)) from error
        # With one dim, the count determines the size, and the order does not matter.
        if len(self._arena.segments) > 1 and not (slots[1:] > slots[:-1]).all():
            raise FrameError("rows of several dims are not in the order of their places")
        return NamedRows(named.numbers, slots, keys, _NO_VALUES), rest
