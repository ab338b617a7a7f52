"""The publisher: looks for a newer anchor, compares it with what is published, and writes the next entry of the chain.

It may be killed at any moment: a new process derives its state from the chain and from the store.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cpr_contract.manifests import DenseManifest, dense_prefix
from cpr_contract.requests import ExportRequest
from cpr_contract.spec import JobSpec, PublishSpec
from cpr_trainer.checkpoint.anchor.pruning import listing_pause_s
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.pins import pin_key, write_pin
from cpr_trainer.checkpoint.format.records import read_fitting_anchor
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.export.model_folder import export_model, transform_of
from cpr_trainer.publish.comparison import Comparison
from cpr_trainer.publish.decisions import AnchorName, anchors_in, is_due, is_early, wants_base
from cpr_trainer.publish.row_digests import PublishedRows
from cpr_trainer.publish.target import Chain, Target
from cpr_trainer.store import MissingError, Store, StoreError
from cprjob_serving.chain import ChainError, Entry, Found

_LOG = logging.getLogger(__name__)

#: A pin is renewed once a `_RENEWED_S`, and outlives a publisher that was killed by less than `_PINNED_S`.
_PINNED_S, _RENEWED_S = 600.0, 60.0


class Publisher:
    """Publishes models of `job` from `store` into the chain in `target`, with temporary files in `scratch`.

    `clock` is the time in seconds since the epoch. For one thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- both stores, the job, and the process
        self, store: Store, target: Store, job: JobSpec, spec: PublishSpec, scratch: Path, clock: Callable[[], float]
    ) -> None:
        self._nonce = uuid.uuid4().hex[:12]
        self._store, self._job, self._spec, self._scratch, self._clock = store, job, spec, scratch, clock
        self._target = Target(target, self._nonce, spec.keep)
        self._anchors = _Anchors(store, job.job_uid, clock)
        self._published: tuple[Found, PublishedRows] | None = None
        self._pin = _Pin(store, job.job_uid, self._nonce, clock)
        self._unreadable = ""
        self.last: Entry | None = None

    def begin(self) -> None:
        """Check the target, and delete what earlier processes have left there. Raises StoreError."""
        self._target.probe()
        self._note(self._target.chain())
        self._target.prune()
        self._pin.start()  # at last, so that an error before lets the caller begin again

    def close(self) -> None:
        """Release all anchors. Raises StoreError."""
        self._pin.close()

    def look(self, *, final: bool = False) -> bool:
        """Publish the newest anchor if that is due; return whether there is a new entry. final: the process ends.

        Raises StoreError, DamagedError if the anchor has been deleted meanwhile: the next one may be read. OSError.
        """
        if not final and is_early(self._spec, self.last, self._job.job_uid, self._clock()):
            return False
        newest = self._anchors.newest()
        if newest is None or newest.key == self._unreadable or not self._may_be_due(newest, final=final):
            return False
        chain = self._target.chain()  # another publisher may have written to it
        self._note(chain)
        if not self._may_be_due(newest, final=final):
            return False
        self._pin.hold(newest.key, *((self.last.anchor,) if self.last else ()))
        try:
            until = self._read_anchor(newest.key)
            return self._is_due(newest, until.samples, final=final) and self._publish(newest, until, chain)
        except DamagedError:
            self._unreadable = newest.key
            raise

    def _may_be_due(self, newest: AnchorName, *, final: bool) -> bool:
        """Return whether an anchor is due if it has enough samples: its manifest is not read yet."""
        return self._is_due(newest, 2**62, final=final)

    def _is_due(self, newest: AnchorName, samples: int, *, final: bool) -> bool:
        return is_due(self._spec, newest, samples, self.last, self._job.job_uid, self._clock(), final=final)

    def _note(self, chain: Chain) -> None:
        last = chain.last
        self.last = None if last is None else last.entry
        if chain.newest:
            self._target.renew_hint(chain.newest)

    def _read_anchor(self, key: str) -> DenseManifest:
        return read_fitting_anchor(self._store, key, layout_hash(self._job.model), self._job.model.table_ids)

    def _publish(self, newest: AnchorName, until: DenseManifest, chain: Chain) -> bool:
        """Write the next entry; return False if another publisher was faster. Raises as `look` does."""
        with self._folder("model") as folder:
            published, entries = self._rows_of(chain), [found.entry for found in chain.entries]
            base = published is None or wants_base(entries, self._job.job_uid, self._spec.format)
            compared = None
            if published is not None:
                since = None if self.last is None else self._earlier_anchor(self.last.anchor)
                compared = Comparison(self._store, self._job, since, until, published)
                compared.read()
            if base or compared is None or self.last is None:
                export_model(self._store, self._job, ExportRequest(newest.key, self._spec.format), folder)
            else:
                request = ExportRequest(newest.key, self._spec.format, self.last.anchor)
                export_model(self._store, self._job, request, folder, compared.write)
            rows = PublishedRows.of_files(self._tables(folder), self._dynamic) if compared is None else compared.after()
            entry = self._entry(newest, until, chain, base=base)
            found = self._target.write(entry, folder, self.last)
        if found is None:
            _LOG.info("another publisher has written entry %d", entry.sequence)
            return False
        self.last, self._published = found.entry, (found, rows)
        self._pin.hold(newest.key)  # the next comparison begins with it
        _LOG.info("entry %d is of step %d, %s", entry.sequence, entry.step, "a base" if base else "a delta")
        if base:
            self._target.prune()
        return True

    def _entry(self, newest: AnchorName, until: DenseManifest, chain: Chain, *, base: bool) -> Entry:
        sequence = chain.newest + 1
        return Entry(
            sequence=sequence,
            base=sequence if base or chain.last is None else chain.last.entry.base,
            previous="" if base or chain.last is None else chain.last.digest,
            job=self._job.job_name,
            job_uid=self._job.job_uid,
            anchor=newest.key,
            generation=newest.generation,
            step=until.step,
            samples=until.samples,
            time_s=self._clock(),
            format=self._spec.format,
        )

    def _earlier_anchor(self, key: str) -> DenseManifest | None:
        try:
            return self._read_anchor(key)
        except (DamagedError, MissingError):
            return None

    def _rows_of(self, chain: Chain) -> PublishedRows | None:
        """Return the digests of the rows of the newest entry; None if it is of another job, or cannot be read."""
        last = chain.last
        if last is None or last.entry.job_uid != self._job.job_uid:
            return None
        if self._published is not None and self._published[0].digest == last.digest:
            return self._published[1]
        rows: PublishedRows | None = None
        try:
            for found in chain.entries:
                with self._folder("read") as folder:
                    tables = self._tables(folder)
                    by_path = {each.path: each for each in found.entry.files}
                    for path in tables.values():
                        self._target.fetch(by_path[path.relative_to(folder).as_posix()], path)
                    rows = PublishedRows.of_files(tables, self._dynamic) if rows is None else rows.after_delta(tables)
        except (ChainError, KeyError) as error:
            _LOG.warning("a new base is due: %s", error)
            return None
        return rows

    def _tables(self, folder: Path) -> dict[int, Path]:
        return {place: folder / table.file for place, table in enumerate(transform_of(self._job).tables)}

    @property
    def _dynamic(self) -> frozenset[int]:
        return frozenset(self._job.model.dynamic_tables)

    @contextmanager
    def _folder(self, name: str) -> Iterator[Path]:
        folder = self._scratch / f"{name}-{self._nonce}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _Anchors:
    """Finds the newest anchor of a job. All generations are listed only while the present one has no newer anchor."""

    def __init__(self, store: Store, job_uid: str, clock: Callable[[], float]) -> None:
        self._store, self._job_uid, self._clock = store, job_uid, clock
        self._newest: AnchorName | None = None
        self._listed_from_s = 0.0

    def newest(self) -> AnchorName | None:
        """Return the newest anchor; None if there is none. Raises StoreError."""
        known = self._newest
        if known is not None:
            listed = self._store.list(dense_prefix(self._job_uid, known.generation) + "/")
            self._newest = max((known, *anchors_in(entry.key for entry in listed)))
            if self._newest != known:
                return self._newest
        now_s = self._clock()
        if now_s >= self._listed_from_s:
            listed = self._store.list(f"{self._job_uid}/gen-")
            self._listed_from_s = now_s + listing_pause_s(len(listed))
            found = anchors_in(entry.key for entry in listed)
            self._newest = max((*found, *((known,) if known else ())), default=None)
        return self._newest


class _Pin:
    """Keeps anchors in the store: a thread renews the pin."""

    def __init__(self, store: Store, job_uid: str, nonce: str, clock: Callable[[], float]) -> None:
        self._store, self._job_uid, self._nonce, self._clock = store, job_uid, nonce, clock
        self._keys: tuple[str, ...] = ()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._renew, name="pin", daemon=True)

    def start(self) -> None:
        """Begin to renew the pin."""
        self._thread.start()

    def hold(self, *keys: str) -> None:
        """Pin these anchors of the job, and no others. Raises StoreError."""
        with self._lock:  # no renewal of the earlier keys may end after this
            self._keys = tuple(key for key in keys if key.startswith(f"{self._job_uid}/"))
            self._write()

    def close(self) -> None:
        """Delete the pin. Raises StoreError."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.delete([pin_key(self._job_uid, self._nonce)])

    def _write(self) -> None:
        write_pin(self._store, self._job_uid, self._nonce, self._keys, self._clock() + _PINNED_S)

    def _renew(self) -> None:
        while not self._over.wait(_RENEWED_S):
            try:
                with self._lock:
                    if self._keys:
                        self._write()
            except StoreError as error:
                _LOG.warning("%s is not renewed: %s", pin_key(self._job_uid, self._nonce), error)
