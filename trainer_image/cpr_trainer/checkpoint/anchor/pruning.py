"""Deletes saves that no restore can need any more, after each anchor: mark what is needed, sweep the rest."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from cpr_contract.manifests import MANIFEST, DenseManifest, ManifestRef, ShardManifest
from cpr_contract.reports import Problem
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import DamagedError, read_document
from cpr_trainer.checkpoint.format.names import SaveName, committed_in, dense_beside, parse_save, part_name, shard_save
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.store import Entry, MissingError, Store, StoreError, in_parallel

# What retention knows without a listing: the saves that its leader has seen committed, or has written itself.


#: A listing of so many objects after every anchor is no burden: a second of computing or less.
_FEW_OBJECTS = 10_000
#: What a thousand objects cost to list, in seconds of a processor that training computes on too; and the share of the
#: time that listing may take.
_LIST_S, _SHARE = 0.065, 0.01


@dataclass(frozen=True, slots=True)
class _Save:
    step: int
    keys: tuple[str, ...]
    chain: tuple[ManifestRef, ...]
    noted_s: float


class Written:
    """Committed saves by the keys of their manifests. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._saves: dict[str, _Save] = {}

    def note(self, anchor: AnchorRef, shards: Iterable[ShardManifest], now_s: float) -> None:
        """Remember an anchor that is committed, and the saves of all shards that it names."""
        # An anchor goes before what it stands on. Its own state is one part.
        part = anchor.key.removesuffix(MANIFEST) + part_name(0)
        self._saves[anchor.key] = _Save(anchor.step, (part,), (), now_s)
        for manifest in shards:
            parts = tuple(part.key for part in manifest.parts)
            self._saves[shard_save(manifest).manifest] = _Save(manifest.step, parts, manifest.chain, now_s)

    def stale(
        self,
        oldest_step: int,
        chains: Iterable[tuple[ManifestRef, ...]],
        by_s: float,
        spared: Collection[int] = (),
    ) -> tuple[str, ...]:
        """Return the keys of all objects of the saves before `oldest_step` that were noted by `by_s`.

        Those of the steps `spared` stay.
        Those stay on which a save stands that stays: one of that step or later, or noted since, or one of `chains`. A
        save that nobody noted is none the worse for it. It stands on what its shard's save at the anchor of
        `oldest_step` does, on that save, or on a later one.
        """
        staying = [
            save
            for save in self._saves.values()
            if save.step >= oldest_step or save.step in spared or save.noted_s > by_s
        ]
        live = [save.chain for save in staying]
        needed = {ref.key for chain in (*live, *chains) for ref in chain}
        return tuple(
            each
            for key, save in self._saves.items()
            if save.step < oldest_step and save.step not in spared and save.noted_s <= by_s and key not in needed
            for each in (key, *save.keys)
        )

    def forget(self, keys: Iterable[str]) -> None:
        """Forget the saves whose manifests are among these keys: they are deleted."""
        for key in self._saves.keys() & set(keys):
            del self._saves[key]


def listing_pause_s(objects: int) -> float:
    """Return how long to list nothing after a listing that found so many objects."""
    return 0.0 if objects <= _FEW_OBJECTS else objects / 1000 * _LIST_S / _SHARE


#: What is younger stays: somebody may be about to read it.
GRACE_S = 60.0


class Pruner:
    """Prunes the saves of one job. Remembers which saves stand on which, so that each manifest is read once.

    Where a job has many objects they are listed rarely, and in between only saves go that were noted. `clock` returns
    seconds.
    """

    def __init__(
        self, store: Store, job_uid: str, grace_s: float = GRACE_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._job_uid = job_uid
        self._grace_s = grace_s
        self._clock = clock
        self._chains: dict[str, tuple[ManifestRef, ...]] = {}
        self._written = Written()
        self._list_at_s = clock()
        self._objects = 0

    def note(self, anchor: AnchorRef, shards: Iterable[ShardManifest]) -> None:
        """Remember an anchor that was committed since the last listing, and the saves of all shards that it names."""
        self._written.note(anchor, shards, self._clock())

    def prune(self, keep: tuple[AnchorRef, ...], spared: Collection[int] = ()) -> int:
        """Delete what is superfluous, as far as that is known or it is time to list; return how many objects went.

        spared: steps whose saves stay, besides those from the oldest of `keep` on.
        Raises as `superfluous` does.
        """
        if not keep:
            return 0
        oldest_step, now_s = min(anchor.step for anchor in keep), self._clock()
        if now_s >= self._list_at_s:
            doomed = tuple(entry.key for entry in self.superfluous(oldest_step, spared=spared))
            self._list_at_s = now_s + listing_pause_s(self._objects)
        else:
            chains = self._live_chains(oldest_step, spared)
            doomed = self._written.stale(oldest_step, chains, now_s - self._grace_s, spared)
        delete_objects(self._store, doomed)
        self._written.forget(doomed)
        return len(doomed)

    def superfluous(self, oldest_step: int, now_s: float = 0.0, spared: Collection[int] = ()) -> tuple[Entry, ...]:
        """Return the objects of saves before `oldest_step`, that of an anchor, on which no save stands that stays.

        What was never committed is among them. `now_s`: it is that late already, whatever the objects say. Saves of
        the steps `spared` stay. Raises StoreError; DamagedError if a save that is needed cannot be read: nobody knows
        what it stands on.
        """
        entries = self._store.list(f"{self._job_uid}/")
        self._objects = len(entries)
        staying = young_steps(entries, self._grace_s, now_s).union(spared)
        saves = committed_in(entry.key for entry in entries)
        live = [save.manifest for save in saves if save.step >= oldest_step or save.step in staying]
        self._read([key for key in live if "/shard-" in key and key not in self._chains])
        self._chains = {key: self._chains[key] for key in live if key in self._chains}
        return stale(entries, oldest_step, self._chains, self._grace_s, now_s, spared=spared)

    def _live_chains(self, oldest_step: int, spared: Collection[int]) -> Iterator[tuple[ManifestRef, ...]]:
        """Yield the chains of the saves that were live at the last listing and are still."""
        for key, chain in self._chains.items():
            save = parse_save(key)
            if save is not None and (save.step >= oldest_step or save.step in spared):
                yield chain

    def _read(self, keys: list[str]) -> None:
        read = in_parallel(lambda key: read_document(self._store, ShardManifest, key)[0].chain, keys)
        self._chains |= dict(zip(keys, read, strict=True))


def stale(  # noqa: PLR0913 -- what there is, and three reasons to let it stay
    entries: Iterable[Entry],
    oldest_step: int,
    chains: Mapping[str, tuple[ManifestRef, ...]],
    grace_s: float,
    now_s: float = 0.0,
    *,
    spared: Collection[int] = (),
) -> tuple[Entry, ...]:
    """Return the objects of saves before `oldest_step` that none of `chains` names; origins are of no save, and stay.

    A dense save of `oldest_step` goes too if its group has committed the anchor of that step, which holds the same
    state. The newest save of a shard is never among them: the anchor of `oldest_step` holds a save of every shard.
    Those of `young_steps`, and of the steps `spared`, stay.
    """
    needed = {ref.key for chain in chains.values() for ref in chain}
    entries = tuple(entries)
    committed = committed_in(entry.key for entry in entries)
    doubled = {dense_beside(save) for save in committed if save.kind == "Anchor" and save.step == oldest_step}
    staying = young_steps(entries, grace_s, now_s).union(spared)
    old: dict[SaveName, list[Entry]] = defaultdict(list)
    for entry in entries:
        save = parse_save(entry.key)
        if save is None or save.manifest in needed or save.step in staying:
            continue
        if save.step < oldest_step or save.folder in doubled:
            old[save].append(entry)
    return tuple(entry for found in old.values() for entry in found)


def young_steps(entries: Iterable[Entry], grace_s: float, now_s: float = 0.0) -> set[int]:
    """Return the steps of which an object is not older than `grace_s`.

    An anchor is committed after the saves that it names, and all of them must go at once: without one of them it would
    look damaged. The newest object of all tells the store's time, or `now_s` if that is later.
    """
    touched_s: dict[int, float] = defaultdict(float)
    for entry in entries:
        now_s = max(now_s, entry.modified_s)
        if (save := parse_save(entry.key)) is not None:
            touched_s[save.step] = max(touched_s[save.step], entry.modified_s)
    return {step for step, at_s in touched_s.items() if at_s > now_s - grace_s}


def on_line(anchors: Iterable[tuple[int, int]], forks: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return those anchors (generation, step) that the newest generation can go back to, oldest first.

    `forks` says at which step each generation but the first began. Of a generation, only anchors up to the step at
    which a later one began are on the line. Raises KeyError naming a generation whose beginning is not known.
    """
    found = sorted(anchors)
    limits, limit = dict[int, float](), float("inf")
    for generation in sorted({generation for generation, _ in found} | set(forks), reverse=True):
        limits[generation] = limit
        if generation > 1:
            limit = min(limit, forks[generation])
    return tuple((generation, step) for generation, step in found if step <= limits[generation])


def everything(store: Store, job_uid: str, spared: Iterable[str] = ()) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return all objects of a job but those that the anchors `spared` (keys of their manifests) need.

    And those of the keys that cannot be read, so that nothing is kept for them: other jobs name them, who may name
    anything. Raises StoreError.
    """
    kept, unreadable = set[str](), list[str]()
    for anchor in spared:
        if not _names_anchor(job_uid, anchor):
            unreadable.append(anchor)
            continue
        try:
            kept.update(needed_by(store, anchor))
        except DamagedError:
            unreadable.append(anchor)
    return tuple(entry for entry in store.list(f"{job_uid}/") if entry.key not in kept), tuple(unreadable)


def _names_anchor(job_uid: str, key: str) -> bool:
    """Whether a key is that of an anchor's manifest: no other object of the store is looked at."""
    save = parse_save(key)
    inside = key.startswith(f"{job_uid}/") and ".." not in key.split("/")
    return inside and save is not None and (save.kind, save.manifest) == ("Anchor", key)


def needed_by(store: Store, anchor: str) -> tuple[str, ...]:
    """Return the keys of all objects that an anchor is restored from; none if it is not there.

    Raises StoreError; DamagedError if it is there and cannot be read.
    """
    try:
        dense, _ = read_document(store, DenseManifest, anchor)
        saves = in_parallel(lambda ref: read_document(store, ShardManifest, ref.key)[0], dense.shards)
        bases = {ref.key for save in saves for ref in save.chain}
        saves += in_parallel(lambda key: read_document(store, ShardManifest, key)[0], bases)
    except MissingError:  # nobody can restore it
        return ()
    parts = (*dense.parts, *(part for save in saves for part in save.parts))
    return (anchor, *(ref.key for ref in dense.shards), *bases, *(part.key for part in parts))


def delete_saves(store: Store, entries: Iterable[Entry]) -> None:
    """Delete objects, manifests before parts, so that nothing half deleted looks like a save. Raises StoreError."""
    delete_objects(store, [entry.key for entry in entries])


def delete_objects(store: Store, keys: Sequence[str]) -> None:
    """Delete objects by their keys as `delete_saves` does. Raises StoreError."""
    store.delete(key for key in keys if key.endswith("/" + MANIFEST))
    store.delete(key for key in keys if not key.endswith("/" + MANIFEST))


# Retention: what no restore needs any more goes after each anchor, and a sweep that fails is repeated and told.


_LOG = logging.getLogger(__name__)

#: Between two sweeps that fail: each may list everything that the job has.
_FIRST_S, _LONGEST_S = 1.0, 60.0


#: The operator may be away for so long before the anchors that it knows of go.
_UNRECORDED_S = 3600.0


class Retention:
    """Sweeps by `pruner`. `problem` is why the last sweep failed, None once one has succeeded. For one thread.

    `recorded` returns the key of the newest anchor that the job's status holds. The operator can roll the job back to
    none that came later, so a sweep that would not leave it waits, for an hour at most.
    """

    def __init__(self, pruner: Pruner, rng: random.Random, recorded: Callable[[], str]) -> None:
        self.problem: Problem | None = None
        self._pruner = pruner
        self._rng = rng
        self._recorded = recorded
        self._keep: tuple[AnchorRef, ...] = ()
        self._spared: Collection[int] = ()
        self._asked_s = 0.0
        self._next_s = 0.0
        self._delays = self._fresh_delays()

    def keep(
        self, anchors: tuple[AnchorRef, ...], shards: Iterable[ShardManifest], spared: Collection[int] = ()
    ) -> None:
        """Ask for a sweep that leaves these anchors, oldest first; the last one is of the saves `shards`.

        spared: steps whose saves stay as well.
        """
        if not self._keep:
            self._asked_s = monotonic()
        self._keep, self._spared = anchors, spared
        self._pruner.note(anchors[-1], shards)

    def turn(self) -> None:
        """Sweep if that was asked for, the status holds an anchor that stays, and no attempt failed just now."""
        if not self._keep or (self.problem is not None and monotonic() < self._next_s):
            return
        known = self._recorded() in {anchor.key for anchor in self._keep}
        if not known and monotonic() - self._asked_s < _UNRECORDED_S:
            return
        try:
            self._pruner.prune(self._keep, self._spared)
        except (StoreError, DamagedError) as error:
            if self.problem is None:
                _LOG.warning("old saves are not deleted: %s", error)
            self.problem = problem_of(error)
            self._next_s = monotonic() + next(self._delays)
        else:
            self.problem, self._keep, self._delays = None, (), self._fresh_delays()

    def _fresh_delays(self) -> Iterator[float]:
        return backoff(self._rng, first_s=_FIRST_S, cap_s=_LONGEST_S)
