"""What retention knows without a listing: the saves that its leader has seen committed, or has written itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cpr_contract.manifests import MANIFEST, ManifestRef, ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.names import part_name, shard_save

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
