"""The saves of the leader: the thread that commits anchors and the dense state.

The thread does all the writing. It retries and reports errors of the store, and training does not wait for them. Any
other error is raised on the main thread: a job without saves must not look healthy.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from types import MappingProxyType

import safetensors.torch
from torch import Tensor

from cpr_contract.manifests import DenseManifest, ManifestRef, Part, Ranges, ShardManifest, WorkersManifest
from cpr_contract.pinned_data import DataManifest
from cpr_contract.reports import Problem, SaveRef
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.checkpoint.anchor.retention import Retention
from cpr_trainer.checkpoint.format.documents import DamagedError, exists, read_shard_manifest, write_once
from cpr_trainer.checkpoint.format.keys import part_name, place_of
from cpr_trainer.checkpoint.format.records import find_anchor, read_anchor, restore_frozen, write_vocabularies
from cpr_trainer.exchange import SaveState
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.store import BucketMissingError, ExistsError, Store, StoreError, StoreFullError, checksum
from cprjob_serving.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

_POLL_S = 0.05
#: Acknowledgements of a shard report its commits; without traffic the store is polled at this interval.
_POLL_STORE_S = 5.0
#: The dense state of a cut is saved alone only after a pause of this many times the last duration: a large one would
#: delay anchors.
_DENSE_PAUSE = 20


@dataclass(frozen=True, slots=True, eq=False)
class DenseCopy:
    """The dense state after a step, copied; `meta` is its manifest without parts."""

    meta: DenseManifest
    tensors: Mapping[str, Tensor]


@dataclass(slots=True, eq=False)
class Cut:
    """A cut that is not an anchor yet. `shards[i]` is the incarnation of shard i that must commit it."""

    dense: DenseCopy
    shards: tuple[int, ...]
    began: float
    found: dict[int, tuple[ShardManifest, ManifestRef]] = field(default_factory=dict)
    polled: float = 0.0


@dataclass(frozen=True, slots=True)
class Saves:
    """The state of saves; the fields are those of the leader's report.

    `void` is the step of the last cut that a shard did not survive, 0 without one.
    """

    anchors: tuple[AnchorRef, ...] = ()
    dense_save: SaveRef | None = None
    saves: int = 0
    commit_s: float | None = None
    void: int = 0
    problem: Problem | None = None


class AnchorCommitter:
    """Saves of one generation, by the leader of one group.

    `saved` returns the newest acknowledged save of each shard; `incarnations` the shards' incarnations in the newest
    roster. `keep` anchors stay, and `pruner` deletes others as `recorded` allows (see `Retention`); `anchors` are the
    newest `keep` of the existing ones, oldest first. `frozen` documents and `vocabularies` of tables, by name, were
    written by the first leader and hold until the job ends; lost ones are written again before each anchor. `committed`
    is called after each anchor. `failing`: the last request to the store failed.
    """

    def __init__(  # noqa: PLR0913 -- the store, two views of the job, and choices
        self,
        store: Store,
        saved: Callable[[], tuple[SaveState, ...]],
        incarnations: Callable[[], tuple[int, ...]],
        keep: int,
        *,
        pruner: Pruner,
        recorded: Callable[[], str],
        anchors: tuple[AnchorRef, ...],
        rng: random.Random,
        frozen: Sequence[DataManifest | WorkersManifest | None] = (),
        vocabularies: Mapping[str, Vocabulary] = MappingProxyType({}),
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = Saves(anchors=anchors)
        self.failing = False
        self._store = store
        self._saved = saved
        self._incarnations = incarnations
        self._keep = keep
        self._retention = Retention(pruner, rng, recorded, lambda anchor: _best_step_of(store, anchor), anchors)
        self._rng = rng
        self._frozen = frozen
        self._vocabularies = vocabularies
        self._committed = committed
        self._failure: BaseException | None = None
        self._cut: Cut | None = None
        self._dense: DenseCopy | None = None
        self._dense_began = self._dense_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, on the thread that trains."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End after the current call to the store; an uncommitted cut is dropped."""
        self._ended.set()
        self._thread.join()

    @property
    def oldest_step(self) -> int:
        """See `Retention`."""
        return self._retention.oldest_step

    @property
    def busy(self) -> bool:
        """True if a cut is not committed yet."""
        return self._cut is not None

    def offer_cut(self, dense: DenseCopy) -> None:
        """Commit an anchor of this state once all shards have committed the same step.

        The dense state is saved alone before that: a single trainer that dies resumes from the cut without an anchor.
        """
        now = monotonic()
        self._cut = Cut(dense, self._incarnations(), now)
        if now - self._dense_began >= _DENSE_PAUSE * self._dense_s:
            self._dense = dense

    def offer_dense(self, dense: DenseCopy) -> None:
        """Save this state soon; a newer one replaces it."""
        self._dense = dense

    def anchor_of(self, step: int) -> AnchorRef | None:
        """Return the anchor of a step, if it is committed."""
        return next((anchor for anchor in self.state.anchors if anchor.step == step), None)

    def _run(self) -> None:
        delays: Iterator[float] | None = None
        try:
            while not self._ended.is_set():
                try:
                    store_used = self._advance()
                except (StoreError, DamagedError) as error:
                    if isinstance(error, BucketMissingError):
                        self._cut = None  # its saves are gone with the bucket; the next cut comes at its time
                    self.failing = True
                    self._note(problem=problem_of(error))
                    if isinstance(error, StoreFullError):
                        self._retention.tick(full=True)
                    delays = delays or backoff(self._rng, first_s=0.2, cap_s=5.0)
                    self._ended.wait(next(delays))
                    continue
                if store_used:  # without a request the store may still be failing
                    delays, self.failing = None, False
                self._retention.tick(full=any(state.store_full for state in self._saved()))
                if not self.failing and self.state.problem != self._retention.problem:
                    self._note(problem=self._retention.problem)
                self._ended.wait(_POLL_S)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self._failure = error

    def _note(self, **fields: object) -> None:
        self.state = replace(self.state, **fields)  # type: ignore[arg-type]

    def _advance(self) -> bool:
        """Do all that is possible now; return whether the store was used. Raises StoreError: call it again."""
        dense = self._dense
        if dense is not None:
            self._dense_began = monotonic()
            self._note(dense_save=write_dense(self._store, dense) or self.state.dense_save)
            self._dense_s = monotonic() - self._dense_began
            if self._dense is dense:
                self._dense = None
        cut = self._cut
        store_used = cut is not None and self._advance_cut(cut)
        return store_used or dense is not None

    def _advance_cut(self, cut: Cut) -> bool:
        incarnations = self._incarnations()
        store_used = self._find_manifests(cut, incarnations)
        missing = [index for index in range(len(cut.shards)) if index not in cut.found]
        replaced = [i for i, now in enumerate(incarnations) if i in missing and now != cut.shards[i]]
        if replaced:
            _LOG.info("cut %d is void: shards %s were replaced before they committed it", cut.dense.meta.step, replaced)
            self._cut = None
            self._note(void=cut.dense.meta.step)
        elif given_up := [i for i in missing if self._saved()[i].given_up_step == cut.dense.meta.step]:
            # The next cut comes at its time: another one now would fail for the same reason.
            _LOG.warning("cut %d is void: shards %s gave up their saves", cut.dense.meta.step, given_up)
            self._cut = None
        elif not missing:
            self._commit(cut)
            return True
        return store_used

    def _find_manifests(self, cut: Cut, incarnations: tuple[int, ...]) -> bool:
        """Read the manifests of shards with an acknowledged commit, of replaced ones, and periodically of all.

        Return whether the store was used.
        """
        meta, now = cut.dense.meta, monotonic()
        saved, store_used = self._saved(), False
        poll_all = now - cut.polled > _POLL_STORE_S
        if poll_all:
            cut.polled = now
        for index, incarnation in enumerate(cut.shards):
            due = poll_all or incarnations[index] != incarnation or saved[index].step >= meta.step
            if index not in cut.found and due:
                store_used = True
                found = read_shard_manifest(self._store, meta.job_uid, meta.generation, index, incarnation, meta.step)
                if found is not None:
                    cut.found[index] = found
        return store_used

    def _commit(self, cut: Cut) -> None:
        meta = cut.dense.meta
        found = [cut.found[index] for index in range(len(cut.shards))]
        refs, lost = tuple(ref for _, ref in found), tuple(manifest.lost for manifest, _ in found)
        for frozen in self._frozen:
            restore_frozen(self._store, frozen)
        if self._vocabularies:
            write_vocabularies(self._store, meta.job_uid, self._vocabularies)
        try:
            anchor = commit_anchor(self._store, meta, cut.dense.tensors, refs, lost)
        except ExistsError:
            existing = find_anchor(self._store, meta.job_uid, meta.generation, meta.step)
            if existing is None:
                raise
            anchor = existing
        anchors = (*(a for a in self.state.anchors if a.key != anchor.key), anchor)[-self._keep :]
        self._note(
            anchors=anchors,
            dense_save=SaveRef(anchor.key, anchor.step, anchor.samples),
            saves=self.state.saves + 1,
            commit_s=monotonic() - cut.began,
        )
        self._cut = None
        self._retention.keep(anchors, (manifest for manifest, _ in found), meta.best_step)
        self._committed()


def _best_step_of(store: Store, anchor: AnchorRef) -> int:
    """Return the step of an anchor's best evaluation; 0 if the anchor cannot be read. Raises StoreError."""
    try:
        return read_anchor(store, anchor).best_step
    except DamagedError:
        return 0


def write_dense(store: Store, dense: DenseCopy) -> SaveRef | None:
    """Save a dense state; None if an anchor of that very step is there already. Raises StoreError."""
    try:
        saved = save_dense(store, dense.meta, dense.tensors)
    except ExistsError:
        return None
    return SaveRef(saved.key, dense.meta.step, dense.meta.samples)


def save_dense(
    store: Store, meta: DenseManifest, tensors: Mapping[str, Tensor], process_number: int = 1
) -> ManifestRef:
    """Write a dense state, CPU tensors of any dtype and shape, none sharing memory with another; commit its manifest.

    `process_number` distinguishes the parts of several writers. Only one of them can commit the save. Raises
    StoreError; ExistsError if this group committed another state at this step.
    """
    name = place_of(meta)
    data = safetensors.torch.save(dict(tensors))
    part = Part(name.folder + part_name(0, process_number), len(data), checksum(data))
    if not exists(store, name.manifest):  # committed parts are never overwritten
        store.put(part.key, data)
    return write_once(store, name.manifest, replace(meta, parts=(part,)))


def commit_anchor(  # noqa: PLR0913 -- the dense state, and the saves of the shards
    store: Store,
    meta: DenseManifest,
    tensors: Mapping[str, Tensor],
    shards: tuple[ManifestRef, ...],
    lost: tuple[Ranges, ...],
    *,
    process_number: int = 1,
) -> AnchorRef:
    """Write the dense state of a cut and commit its anchor: `shards[i]` is shard i's save, `lost[i]` its lost ranges.

    Raises as `save_dense`.
    """
    if not shards:
        raise ValueError("an anchor names the saves of all shards")
    ref = save_dense(store, replace(meta, shards=shards, lost=lost), tensors, process_number)
    return AnchorRef(ref.key, ref.digest, meta.generation, meta.step, meta.samples)
