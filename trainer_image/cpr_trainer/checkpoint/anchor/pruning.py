"""Deletes saves that no restore can need any more, by mark and sweep. `retention` calls it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time

from cpr_contract.manifests import MANIFEST, DenseManifest, ManifestRef, ShardManifest
from cpr_contract.pinned_data import DataPin, data_pin_key
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.data_pins import newest_restatement, superseded
from cpr_trainer.checkpoint.format.documents import DamagedError, read_document
from cpr_trainer.checkpoint.format.keys import SaveName, committed_in, dense_of_anchor, parse_save, part_name, place_of
from cpr_trainer.checkpoint.format.pins import pinned_steps
from cpr_trainer.store import Entry, MissingError, Store, in_parallel

#: Listing this many objects after every anchor is cheap: at most a second of computing.
_FEW_OBJECTS = 10_000
#: The CPU seconds to list a thousand objects during training; and the share of the time that listing may take.
_LIST_S, _SHARE = 0.065, 0.01
#: Younger objects stay, unless the store is full: a reader may be about to use them.
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Save:
    step: int
    keys: tuple[str, ...]
    chain: tuple[ManifestRef, ...]
    noted_s: float


def listing_pause_s(objects: int) -> float:
    """Return the pause after a listing that found this many objects."""
    return 0.0 if objects <= _FEW_OBJECTS else objects / 1000 * _LIST_S / _SHARE


class Pruner:
    """Prunes the saves of one job, and its data pins. It caches the chains of saves, to read each manifest once.

    Many objects are listed rarely; between listings only noted saves are deleted. `clock` returns seconds.
    """

    def __init__(
        self, store: Store, job_uid: str, grace_s: float = GRACE_S, clock: Callable[[], float] = monotonic
    ) -> None:
        self._store = store
        self._job_uid = job_uid
        self._grace_s = grace_s
        self._clock = clock
        self._chains: dict[str, tuple[ManifestRef, ...]] = {}
        self._noted: dict[str, _Save] = {}  # since the last listing, by the keys of their manifests
        self._restated = 1, 0  # the newest data pin that restates, and its first segment
        self._listed_s = float("-inf")
        self._objects = 0

    def note(self, anchor: AnchorRef, shards: Iterable[ShardManifest]) -> None:
        """Remember an anchor that was committed since the last listing, and the saves of all shards that it names."""
        # An anchor is deleted before the saves that it names. Its own state is one part.
        part, now_s = anchor.key.removesuffix(MANIFEST) + part_name(0), self._clock()
        self._noted[anchor.key] = _Save(anchor.step, (part,), (), now_s)
        for manifest in shards:
            parts = tuple(part.key for part in manifest.parts)
            self._noted[place_of(manifest).manifest] = _Save(manifest.step, parts, manifest.chain, now_s)

    def prune(self, keep: tuple[AnchorRef, ...], retained: Collection[int] = (), *, full: bool = False) -> bool:
        """Delete superfluous saves: the known ones, or all if a listing is due.

        Return whether any saves stay only because they are young, so that a later sweep deletes more.
        retained: steps with saves that stay, in addition to those from the oldest of `keep` on. full: the store is
        full, so nothing is too young, and many objects are listed once a `GRACE_S`. Pinned anchors stay in any case.
        Raises as `superfluous` does.
        """
        if not keep:
            return False
        retained = self._with_pinned(retained)
        oldest_step, now_s = min(anchor.step for anchor in keep), self._clock()
        grace_s, pause_s = 0.0 if full else self._grace_s, listing_pause_s(self._objects)
        if now_s >= self._listed_s + (min(pause_s, GRACE_S) if full else pause_s):
            found, young = self._sweep(oldest_step, 0.0, retained, grace_s)
            to_delete = tuple(entry.key for entry in found)
            self._listed_s = now_s
        else:
            saves = ((parse_save(key), chain) for key, chain in self._chains.items())
            live = (chain for save, chain in saves if save and (save.step >= oldest_step or save.step in retained))
            to_delete, young = self._stale_noted(oldest_step, live, now_s - grace_s, retained)
        delete_saves(self._store, to_delete)
        for key in self._noted.keys() & set(to_delete):
            del self._noted[key]
        return young

    def superfluous(self, oldest_step: int, now_s: float = 0.0, retained: Collection[int] = ()) -> tuple[Entry, ...]:
        """Return the objects of saves before `oldest_step`, that of an anchor, in no chain of a save that stays.

        Uncommitted saves are among them, and superseded data pins. `now_s`: the time, at least, as the objects' times
        may be earlier. Saves of the steps `retained` stay, and of pinned anchors. Raises StoreError; DamagedError if a
        save that stays cannot be read, because its chain is unknown, or the newest data pin that restates.
        """
        return self._sweep(oldest_step, now_s, self._with_pinned(retained), self._grace_s)[0]

    def _with_pinned(self, retained: Collection[int]) -> frozenset[int]:
        return frozenset(retained) | pinned_steps(self._store, self._job_uid, time())

    def _sweep(
        self, oldest_step: int, now_s: float, retained: Collection[int], grace_s: float
    ) -> tuple[tuple[Entry, ...], bool]:
        """Return the superfluous objects, and whether saves before `oldest_step` stay because they are young."""
        entries = self._store.list(f"{self._job_uid}/")
        self._objects = len(entries)
        young = young_steps(entries, grace_s, now_s)
        staying = young.union(retained)
        saves = committed_in(entry.key for entry in entries)
        live = [save.manifest for save in saves if save.step >= oldest_step or save.step in staying]
        unread = [key for key in live if "/shard-" in key and key not in self._chains]
        read = in_parallel(lambda key: read_document(self._store, ShardManifest, key)[0].chain, unread)
        chains = self._chains | dict(zip(unread, read, strict=True))
        self._chains = {key: chains[key] for key in live if key in chains}
        found = stale(entries, oldest_step, self._chains, staying) + self._superseded_pins(entries)
        return found, any(step < oldest_step and step not in retained for step in young)

    def _superseded_pins(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        if (number := newest_restatement(entries)) != self._restated[0]:
            pin, _ = read_document(self._store, DataPin, data_pin_key(self._job_uid, number))
            self._restated = number, pin.first_needed
        return superseded(entries, self._restated[1])

    def _stale_noted(
        self,
        oldest_step: int,
        chains: Iterable[tuple[ManifestRef, ...]],
        by_s: float,
        retained: Collection[int],
    ) -> tuple[tuple[str, ...], bool]:
        """Return the keys of all objects of the saves before `oldest_step` that were noted by `by_s`.

        Also return whether there are saves before that step which were noted later. Saves of the steps `retained` stay,
        and so do those in the chain of a save that stays: one of `oldest_step` or later, one noted after `by_s`, or one
        of `chains`. Saves that are not noted are safe, too: their chains are that of their shard's save at the anchor
        of `oldest_step`, that save, or later ones.
        """
        before = {k: save for k, save in self._noted.items() if save.step < oldest_step and save.step not in retained}
        old = {key: save for key, save in before.items() if save.noted_s <= by_s}
        live = [save.chain for key, save in self._noted.items() if key not in old]
        needed = {ref.key for chain in (*live, *chains) for ref in chain}
        keys = (each for key, save in old.items() if key not in needed for each in (key, *save.keys))
        return tuple(keys), len(old) < len(before)


def stale(
    entries: Iterable[Entry], oldest_step: int, chains: Mapping[str, tuple[ManifestRef, ...]], staying: Collection[int]
) -> tuple[Entry, ...]:
    """Return the objects of saves before `oldest_step` that none of `chains` names; restore records stay.

    A dense save of `oldest_step` is included if its group has committed the anchor of that step, which has the same
    state. The newest save of a shard never is: the anchor of `oldest_step` names a save of every shard. Saves of
    the steps `staying` stay.
    """
    needed = {ref.key for chain in chains.values() for ref in chain}
    entries = tuple(entries)
    committed = committed_in(entry.key for entry in entries)
    duplicates = {dense_of_anchor(save) for save in committed if save.kind == "Anchor" and save.step == oldest_step}
    old: dict[SaveName, list[Entry]] = defaultdict(list)
    for entry in entries:
        save = parse_save(entry.key)
        if save is None or save.manifest in needed or save.step in staying:
            continue
        if save.step < oldest_step or save.folder in duplicates:
            old[save].append(entry)
    return tuple(entry for found in old.values() for entry in found)


def young_steps(entries: Iterable[Entry], grace_s: float, now_s: float = 0.0) -> set[int]:
    """Return the steps with an object that is not older than `grace_s`.

    An anchor is committed after the saves that it names, and all of them are deleted at once: without one it would look
    damaged. The current time is that of the newest object, or `now_s` if that is later.
    """
    touched_s: dict[int, float] = defaultdict(float)
    for entry in entries:
        now_s = max(now_s, entry.modified_s)
        if (save := parse_save(entry.key)) is not None:
            touched_s[save.step] = max(touched_s[save.step], entry.modified_s)
    return {step for step, at_s in touched_s.items() if at_s > now_s - grace_s}


def on_lineage(anchors: Iterable[tuple[int, int]], forks: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return those anchors (generation, step) that the newest generation can go back to, oldest first.

    `forks` are the steps at which each generation but the first began. A generation's anchors count up to the step at
    which a later one began. Raises KeyError naming a generation with an unknown beginning.
    """
    found = sorted(anchors)
    limits, limit = dict[int, float](), float("inf")
    for generation in sorted({generation for generation, _ in found} | set(forks), reverse=True):
        limits[generation] = limit
        if generation > 1:
            limit = min(limit, forks[generation])
    return tuple((generation, step) for generation, step in found if step <= limits[generation])


def everything(store: Store, job_uid: str, retained: Iterable[str] = ()) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return all objects of a job except those that the anchors `retained` (keys of their manifests) need.

    Also return the unreadable ones of these keys, for which nothing is retained: other jobs name them, and may name any
    key. Raises StoreError.
    """
    needed, unreadable = set[str](), list[str]()
    for anchor in retained:
        save, inside = parse_save(anchor), anchor.startswith(f"{job_uid}/") and ".." not in anchor.split("/")
        if not inside or save is None or (save.kind, save.manifest) != ("Anchor", anchor):
            unreadable.append(anchor)
            continue
        try:
            needed.update(needed_by(store, anchor))
        except DamagedError:
            unreadable.append(anchor)
    return tuple(entry for entry in store.list(f"{job_uid}/") if entry.key not in needed), tuple(unreadable)


def needed_by(store: Store, anchor: str) -> tuple[str, ...]:
    """Return the keys of all objects that a restore of an anchor needs; none if it is missing.

    Raises StoreError; DamagedError if it exists and cannot be read.
    """
    try:
        dense, _ = read_document(store, DenseManifest, anchor)
        saves = in_parallel(lambda ref: read_document(store, ShardManifest, ref.key)[0], dense.shards)
        bases = {ref.key for save in saves for ref in save.chain}
        saves += in_parallel(lambda key: read_document(store, ShardManifest, key)[0], bases)
    except MissingError:  # it cannot be restored
        return ()
    parts = (*dense.parts, *(part for save in saves for part in save.parts))
    return (anchor, *(ref.key for ref in dense.shards), *bases, *(part.key for part in parts))


def delete_saves(store: Store, keys: Sequence[str]) -> None:
    """Delete objects, manifests before parts, so that a partly deleted save has none. Raises StoreError."""
    store.delete(key for key in keys if key.endswith("/" + MANIFEST))
    store.delete(key for key in keys if not key.endswith("/" + MANIFEST))
