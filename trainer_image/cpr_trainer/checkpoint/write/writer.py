"""How a shard's save gets into the store: parts first, several at once, the manifest last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

from cpr_contract.manifests import Origin, Part, ShardManifest
from cpr_trainer.checkpoint.format.claims import check_claims
from cpr_trainer.checkpoint.format.documents import read_manifest, write_once
from cpr_trainer.checkpoint.format.names import part_name, shard_save
from cpr_trainer.checkpoint.format.origins import write_origin
from cpr_trainer.checkpoint.format.parts import rows_per_part, shape_of
from cpr_trainer.checkpoint.format.quantise import encode_rows
from cpr_trainer.checkpoint.write.save import SavedShard, Source
from cpr_trainer.store import Buffer, Store, Throttle, in_parallel
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.buffer import RowBuffer

#: Parts under way at once: their memory is most of what a save takes.
_PARTS_AT_ONCE = 3

Result = TypeVar("Result")


class Insist(Protocol):
    """Does something with the store until the store lets it, or the save is of no use any more."""

    def __call__(self, attempt: Callable[[], Result], /) -> Result:
        """Return what `attempt` returns in the end. Raises what ends the save."""
        ...


class Writer:
    """Writes the saves of one arena, one at a time; keeps the memory that parts need on their way."""

    def __init__(
        self, store: Store, arena: Arena, bytes_per_s: int | None = None, life: int = 1, *, heeds_claims: bool = False
    ) -> None:
        """Write at `bytes_per_s` at most what is not urgent; None: without a limit. `life` goes into names of parts.

        heeds_claims: a save that a later incarnation may not have found is none.
        """
        self._store = store
        self._life = life
        self._heeds_claims = heeds_claims
        self._bytes_per_s = bytes_per_s
        self._epochs = arena.epochs
        self._segments = arena.segments
        sizes = [rows_per_part(len(segment), segment.row_bytes) for segment in arena.segments]
        values = [size * segment.row_values for size, segment in zip(sizes, arena.segments, strict=True)]
        self._free: SimpleQueue[RowBuffer] = SimpleQueue()
        for _ in range(_PARTS_AT_ONCE):
            self._free.put(RowBuffer(max(sizes), max(values)))

    def write(self, draft: ShardManifest, source: Source, insist: Insist) -> ShardManifest:
        """Write the rows of `source` in `draft.bits`, and return the manifest that will commit them.

        Raises what `source` and `insist` raise; DivergedError for values that so few bits cannot hold.
        """
        folder, limit = shard_save(draft).folder, self._bytes_per_s
        throttle = None if limit is None else Throttle(limit, lambda: source.urgent)
        parts = in_parallel(
            lambda item: self._write_part(folder + part_name(item[0], self._life), item[1], draft, insist, throttle),
            enumerate(self._filled(source)),
            threads=_PARTS_AT_ONCE,
            background=True,
        )
        return replace(draft, rows=sum(part.rows for part in parts), parts=parts)

    def commit(self, manifest: ShardManifest, insist: Insist, origin: Origin | None = None) -> SavedShard:
        """Commit what was written, unless what it stands on is gone.

        Without its incarnation's `origin` nobody would find it: that is written first, if it is gone. Raises what
        `insist` raises; DamagedError; ExistsError if other content has this name; OvertakenError.
        """
        for base in manifest.chain:
            insist(partial(read_manifest, self._store, ShardManifest, base, manifest.layout))
        if origin is not None:
            insist(partial(write_origin, self._store, origin))
        ref = insist(lambda: write_once(self._store, shard_save(manifest).manifest, manifest))
        if self._heeds_claims:
            insist(partial(check_claims, self._store, manifest))
        return SavedShard(manifest, ref, self._epochs.changed_rows)

    def _filled(self, source: Source) -> Iterator[RowBuffer]:
        while True:
            buffer = self._free.get()
            buffer.used = 0
            try:
                filled = source.fill(buffer)
            except BaseException:
                self._free.put(buffer)
                raise
            if not filled:
                self._free.put(buffer)
                return
            yield buffer

    def _write_part(
        self, key: str, buffer: RowBuffer, draft: ShardManifest, insist: Insist, throttle: Throttle | None
    ) -> Part:
        try:
            slots, rows, state = buffer.filled
            place = next(place for place, segment in enumerate(self._segments) if slots[0] < segment.end)
            places = slots + (draft.spans[place][0] - self._segments[place].first)
            shape = shape_of(places, rows.shape[1], draft.bits, state=state.shape[1])
            pieces: list[Buffer] = [shape.head(places), encode_rows(rows, draft.bits).data, state.data]
            crc32c = insist(lambda: self._store.put(key, pieces, throttle=throttle))
            return Part(key, shape.size_bytes, crc32c, shape.rows, shape.first, shape.span)
        finally:
            self._free.put(buffer)
