"""Writes a shard's saves to the store, on a thread of their own: parts first, several at once, the manifest last."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import call
from queue import SimpleQueue
from time import monotonic
from typing import Protocol, TypeVar

from cpr_contract.manifests import ManifestRef, Part, RestoreRecord, ShardManifest
from cpr_trainer.checkpoint.format.documents import read_manifest, write_once
from cpr_trainer.checkpoint.format.keys import part_name, place_of
from cpr_trainer.checkpoint.format.parts import rows_per_part, shape_of
from cpr_trainer.checkpoint.format.quantise import encode_rows, value_bits
from cpr_trainer.checkpoint.format.records import check_claims, rewrite_restore_record
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, Save, SavedShard, SaveFailed, SaveOutcome
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.buffer import RowBuffer
from cpr_trainer.embedding.capture import Capture, EndedError, UndoLogFullError
from cpr_trainer.embedding.priority import Tracker
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import backoff, problem_of, retry
from cpr_trainer.store import (
    BucketMissingError,
    Buffer,
    ExistsError,
    Store,
    StoreError,
    StoreFullError,
    Throttle,
    in_parallel,
)

_LOG = logging.getLogger(__name__)

#: Parts that are uploaded at once: their buffers are most of a save's memory.
_PARTS_AT_ONCE = 3
_POLL_S = 0.05
#: A save that failed because its bucket is gone may be repeated after this pause.
_WITHOUT_BUCKET_S = 1.0

Result = TypeVar("Result")


class Retry(Protocol):
    """Repeats a request to the store until it succeeds, or the save is obsolete."""

    def __call__(self, attempt: Callable[[], Result], /) -> Result:
        """Return the result of `attempt`. Raises the error that ends the save."""


class Writer:
    """Writes the saves of one arena, one at a time, with buffers of its own for the parts."""

    def __init__(
        self,
        store: Store,
        arena: Arena,
        bytes_per_s: int | None = None,
        process_number: int = 1,
        *,
        respect_claims: bool = False,
    ) -> None:
        """Write at most `bytes_per_s` unless a save is urgent; None: no limit. `process_number` is for names of parts.

        respect_claims: discard a save if a later incarnation claimed the shard before the commit.
        """
        self._store = store
        self._process_number = process_number
        self._heeds_claims = respect_claims
        self._bytes_per_s = bytes_per_s
        self._epochs = arena.epochs
        self._segments = arena.segments
        self._uncommitted: list[str] = []
        sizes = [rows_per_part(len(segment), segment.row_bytes) for segment in arena.segments]
        most_bytes = max(size * each.row_bytes for size, each in zip(sizes, arena.segments, strict=True))
        self._free: SimpleQueue[RowBuffer] = SimpleQueue()
        for _ in range(_PARTS_AT_ONCE):
            self._free.put(RowBuffer(max(sizes), most_bytes))

    def write(
        self, draft: ShardManifest, capture: Capture, retry: Retry = call, tracker: Tracker | None = None
    ) -> ShardManifest:
        """Write the rows of `capture` in `draft.bits`, and return the manifest that will commit them.

        Each request is sent once, unless `retry` repeats it. The rows are reported to the `tracker`, too. Raises the
        errors of `capture` and `retry`, and DivergedError for values that cannot be quantised.
        """
        folder, limit = place_of(draft).folder, self._bytes_per_s
        self._uncommitted = []
        throttle = None if limit is None else Throttle(limit, lambda: capture.urgent)
        parts = in_parallel(
            lambda item: self._write_part(
                folder + part_name(item[0], self._process_number), item[1], draft, retry, throttle
            ),
            enumerate(self._filled(capture, tracker)),
            threads=_PARTS_AT_ONCE,
            background=True,
        )
        return replace(draft, rows=sum(part.rows for part in parts), parts=parts)

    def commit(self, manifest: ShardManifest, retry: Retry = call, record: RestoreRecord | None = None) -> SavedShard:
        """Commit the written parts, unless a base is gone.

        The restore record of the incarnation is written first, if it is missing or damaged: restores follow these
        records. Raises the errors of `retry`; DamagedError; ExistsError if another save has this name; OvertakenError.
        """
        for base in manifest.chain:
            retry(partial(read_manifest, self._store, ShardManifest, base, manifest.layout))
        if record is not None:
            retry(partial(rewrite_restore_record, self._store, record))
        committed, ref = retry(partial(self._write_manifest, manifest))
        if self._heeds_claims:
            retry(partial(check_claims, self._store, committed))
        return SavedShard(committed, ref, self._epochs.changed_rows)

    def withdraw(self, step: int) -> None:
        """Delete the parts of the last save, of this step, unless its manifest may be in the store. Logs StoreError."""
        to_delete, self._uncommitted = self._uncommitted, []
        try:
            self._store.delete(to_delete)
        except StoreError as error:
            _LOG.warning("parts of the save of step %d are not deleted: %s", step, error)

    def _write_manifest(self, manifest: ShardManifest) -> tuple[ShardManifest, ManifestRef]:
        """Write the manifest, or return that of an earlier process, if it had committed the same save.

        The parts of the two have different names. Two priority saves never count as the same, because they may have
        different rows of one step.
        """
        key = place_of(manifest).manifest
        parts, self._uncommitted = self._uncommitted, []  # an attempt with a lost answer may commit them
        try:
            return manifest, write_once(self._store, key, manifest)
        except StoreFullError:
            self._uncommitted = parts
            raise
        except ExistsError:
            found, ref = read_manifest(self._store, ShardManifest, ManifestRef(key, ""), manifest.layout)
            if manifest.kind == "Priority" or replace(found, rows=manifest.rows, parts=manifest.parts) != manifest:
                raise
            return found, ref

    def _filled(self, capture: Capture, tracker: Tracker | None) -> Iterator[RowBuffer]:
        while True:
            buffer = self._free.get()
            buffer.used = 0
            try:
                filled = capture.fill(buffer)
                if filled and tracker is not None:
                    tracker.wrote(*buffer.filled)
            except BaseException:
                self._free.put(buffer)
                raise
            if not filled:
                self._free.put(buffer)
                return
            yield buffer

    def _write_part(
        self, key: str, buffer: RowBuffer, draft: ShardManifest, retry: Retry, throttle: Throttle | None
    ) -> Part:
        try:
            slots, rows, state = buffer.filled
            place, segment = next(each for each in enumerate(self._segments) if slots[0] < each[1].end)
            places = slots + (draft.spans[place][0] - segment.first)
            bits = value_bits(draft.bits, segment.precision)
            shape = shape_of(places, rows.shape[1], bits, state=state.shape[1])
            pieces: list[Buffer] = [shape.head(places), encode_rows(rows, bits).data, state.data]
            self._uncommitted.append(key)
            crc32c = retry(lambda: self._store.put(key, pieces, throttle=throttle))
            return Part(key, shape.size_bytes, crc32c, shape.rows, shape.first, shape.span)
        finally:
            self._free.put(buffer)


class WriterThread:
    """Writes one save at a time; a newer one replaces an uncommitted one.

    `report` is called with the outcomes of each save, on this thread or those of its parts; not any more for a replaced
    save. A save is immutable except `may_commit`, and its capture has the arena's lock: the threads share nothing else.
    If a save is replaced or given up on a full store, its parts are deleted, because the next save needs their space.
    """

    def __init__(self, writer: Writer, report: Callable[[SaveOutcome], None], rng: random.Random) -> None:
        self._writer = writer
        self._report = report
        self._rng = rng
        self._changed = threading.Condition()
        self._save: Save | None = None
        self._closing = self._full = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """True if everything that was submitted is committed, given up, replaced or discarded."""
        with self._changed:
            return self._save is None

    def submit(self, save: Save | None) -> None:
        """Write this save, None for none, in the place of an uncommitted one."""
        with self._changed:
            dropped, self._save = self._save, save
            self._changed.notify_all()
        if dropped is not None:
            dropped.capture.end()

    def close(self) -> None:
        """End the thread after its current call to the store."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._save is not None)
                save = self._save
            if self._closing or save is None:
                return
            try:
                outcome: Committed | GivenUp | BaseException | None = self._write(save)
            except BaseException as error:  # noqa: BLE001 -- the main thread raises it
                outcome = error
            save.capture.end()
            if self._full and not self._closing and not isinstance(outcome, Committed):
                self._writer.withdraw(save.draft.step)
            with self._changed:
                if self._save is save:
                    self._save = None
                    if outcome is not None:
                        self._report(outcome)

    def _write(self, save: Save) -> Committed | GivenUp | None:
        """Try until the save is committed or given up; None if another one replaced it."""
        started, self._full = monotonic(), False
        retry = partial(self._retry, save)
        try:
            manifest = self._writer.write(save.draft, save.capture, retry, save.tracker)
            while not save.may_commit.wait(_POLL_S):
                self._check(save)
            saved = self._writer.commit(manifest, retry, save.restore_record)
        except EndedError:
            return None
        except TrainerError as error:
            _LOG.warning("the save of step %d is given up: %s", save.draft.step, error)
            return GivenUp(save, problem_of(error))
        return Committed(save, saved, monotonic() - started)

    def _retry(self, save: Save, attempt: Callable[[], Result]) -> Result:
        """Return the result of `attempt`, repeated until it succeeds. Raises EndedError, UndoLogFullError, ExistsError.

        BucketMissingError ends the save, because its parts and its bases are gone with the bucket. Only a flush
        continues: no later save can replace it.
        """

        def check_and_attempt() -> Result:
            self._check(save)
            return attempt()

        def pause(error: StoreError, delay_s: float) -> None:
            if isinstance(error, ExistsError):
                raise error
            if isinstance(error, BucketMissingError) and save.draft.kind != "Flush":
                self._pause(save, _WITHOUT_BUCKET_S)
                raise error
            _LOG.warning("save of step %d: %s", save.draft.step, error)
            self._full = self._full or isinstance(error, StoreFullError)
            self._report(SaveFailed(problem_of(error)))
            self._pause(save, max(delay_s, error.retry_after_s))

        return retry(check_and_attempt, StoreError, backoff(self._rng), pause)

    def _pause(self, save: Save, delay_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._save is not save, delay_s)

    def _check(self, save: Save) -> None:
        if self._closing or self._save is not save:
            raise EndedError
        if save.capture.undo_log_full:
            raise UndoLogFullError
