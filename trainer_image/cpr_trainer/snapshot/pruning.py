"""Deletes saves that no restore can need any more: mark what is needed, sweep the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cpr_contract.manifests import MANIFEST, ManifestRef, ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot.commit import read_document
from cpr_trainer.snapshot.names import SaveName, committed_in, parse_save
from cpr_trainer.store import Entry, Store, in_parallel

#: What is younger stays: somebody may be about to read it.
GRACE_S = 60.0


class Pruner:
    """Prunes the saves of one job. Remembers which saves stand on which, so that each manifest is read once."""

    def __init__(self, store: Store, job_uid: str, grace_s: float = GRACE_S) -> None:
        self._store = store
        self._job_uid = job_uid
        self._grace_s = grace_s
        self._chains: dict[str, tuple[ManifestRef, ...]] = {}

    def prune(self, keep: tuple[AnchorRef, ...]) -> int:
        """Delete saves before the oldest anchor in `keep` that no later one stands on; return how many objects went.

        Manifests go before parts, so that nothing half deleted looks like a save. What was never committed goes too.
        With nothing to keep, nothing is deleted. Raises StoreError; DamagedError if a save that is needed cannot be
        read: nobody knows what it stands on.
        """
        if not keep:
            return 0
        oldest_step = min(anchor.step for anchor in keep)
        entries = self._store.list(f"{self._job_uid}/")
        live = [save.manifest for save in committed_in(entry.key for entry in entries) if save.step >= oldest_step]
        self._read([key for key in live if "/shard-" in key and key not in self._chains])
        self._chains = {key: self._chains[key] for key in live if key in self._chains}
        doomed = stale(entries, oldest_step, self._chains, self._grace_s)
        self._store.delete(key for key in doomed if key.endswith("/" + MANIFEST))
        self._store.delete(key for key in doomed if not key.endswith("/" + MANIFEST))
        return len(doomed)

    def _read(self, keys: list[str]) -> None:
        read = in_parallel(lambda key: read_document(self._store, ShardManifest, key)[0].chain, keys)
        self._chains |= dict(zip(keys, read, strict=True))


def stale(
    entries: Iterable[Entry], oldest_step: int, chains: Mapping[str, tuple[ManifestRef, ...]], grace_s: float
) -> tuple[str, ...]:
    """Return the keys of saves before `oldest_step` that none of `chains` names; origins are of no save, and stay.

    The newest save of a shard is never among them: the anchor of `oldest_step` holds a save of every shard. A save goes
    whole, once its newest object is older than `grace_s`; the newest object of all tells the store's time.
    """
    needed = {ref.key for chain in chains.values() for ref in chain}
    old: dict[SaveName, list[str]] = defaultdict(list)
    touched_s: dict[SaveName, float] = defaultdict(float)
    now_s = 0.0
    for entry in entries:
        now_s = max(now_s, entry.modified_s)
        save = parse_save(entry.key)
        if save is not None and save.step < oldest_step and save.manifest not in needed:
            old[save].append(entry.key)
            touched_s[save] = max(touched_s[save], entry.modified_s)
    return tuple(key for save, keys in old.items() if touched_s[save] <= now_s - grace_s for key in keys)
