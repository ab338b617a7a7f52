"""The thread that writes a shard's saves, for as long as they are of use.

The main thread gives it one save at a time and reads, as mail, what became of it. They share nothing else: a save is
immutable but for `may_commit`, and its capture has the arena's lock.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from cpr_trainer.checkpoint.write.save import Committed, GivenUp, News, Save, SaveFailed
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.store import BucketMissingError, ExistsError, StoreError
from cpr_trainer.tables.capture import EndedError, OutrunError

_LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

_POLL_S = 0.05
#: A save that its bucket vanished under may be made anew at once, but not more often.
_WITHOUT_BUCKET_S = 1.0


class WriterThread:
    """Writes one save at a time; a newer one takes the place of one that is not committed.

    `tell` hears of what becomes of each, on this thread or those of its parts; nothing more of one that was replaced.
    """

    def __init__(self, writer: Writer, tell: Callable[[News], None], rng: random.Random) -> None:
        self._writer = writer
        self._tell = tell
        self._rng = rng
        self._changed = threading.Condition()
        self._save: Save | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted is committed, given up, replaced or discarded."""
        with self._changed:
            return self._save is None

    def submit(self, save: Save) -> None:
        """Write this save as soon as the store lets us."""
        self._replace(save)

    def discard(self) -> None:
        """Drop a save that is not committed yet."""
        self._replace(None)

    def close(self) -> None:
        """End the thread after the store's call under way."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _replace(self, save: Save | None) -> None:
        with self._changed:
            dropped, self._save = self._save, save
            self._changed.notify_all()
        if dropped is not None:
            dropped.capture.end()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._save is not None)
                save = self._save
            if self._closing or save is None:
                return
            try:
                news: Committed | GivenUp | BaseException | None = self._write(save)
            except BaseException as error:  # noqa: BLE001 -- the main thread raises it
                news = error
            save.capture.end()
            with self._changed:
                if self._save is save:
                    self._save = None
                    if news is not None:
                        self._tell(news)

    def _write(self, save: Save) -> Committed | GivenUp | None:
        """Try until the save is committed, or is of no use; None if another took its place."""
        started = monotonic()
        try:
            manifest = self._writer.write(save.draft, save.source, lambda attempt: self._insist(save, attempt))
            while not save.may_commit.wait(_POLL_S):
                self._check(save)
            saved = self._writer.commit(manifest, lambda attempt: self._insist(save, attempt), save.origin)
        except EndedError:
            return None
        except TrainerError as error:
            _LOG.warning("the save of step %d is given up: %s", save.draft.step, error)
            return GivenUp(save, problem_of(error))
        return Committed(save, saved, monotonic() - started)

    def _insist(self, save: Save, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` returns once the store lets it. Raises EndedError, OutrunError, ExistsError.

        With its bucket, what was written of a save is gone, and what it stands on: BucketMissingError ends it. Only a
        flush goes on, since none comes after it.
        """
        delays = backoff(self._rng)
        while True:
            self._check(save)
            try:
                return attempt()
            except ExistsError:
                raise
            except StoreError as error:
                if isinstance(error, BucketMissingError) and save.draft.kind != "Flush":
                    self._pause(save, _WITHOUT_BUCKET_S)
                    raise
                _LOG.warning("save of step %d: %s", save.draft.step, error)
                self._tell(SaveFailed(problem_of(error)))
                delay_s = max(next(delays), error.retry_after_s)
            self._pause(save, delay_s)

    def _pause(self, save: Save, delay_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._save is not save, delay_s)

    def _check(self, save: Save) -> None:
        if self._closing or self._save is not save:
            raise EndedError
        if save.capture.outrun:
            raise OutrunError
