"""Which saves a restore may take, newest first: pure decisions on what was listed.

A save of an incarnation is on the lineage if nobody chose before it was written: all saves of the newest incarnation
that ever served, then those of its parent up to the save it restored, and so on. `origin.json` records each choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cpr_contract.manifests import Origin
from cpr_trainer.snapshot.names import SaveName, parse_save


@dataclass(frozen=True, slots=True)
class Candidate:
    """One save that may be restored; whether it verifies shows when it is loaded.

    `kind`: `Save` is of this generation, `Anchor` the one that this generation starts from, `RestoreFrom` another job's
    anchor, `Seed` the first values. `key` and `digest` name the manifest (empty for `Seed`; no digest for `Save`).
    `writer` is the incarnation (of a shard's save) or the group (of a dense save) of a `Save`, else None. `step` is
    where training stands once it is restored. A `damage` that is known already is raised when it is loaded.
    """

    kind: Literal["Save", "Anchor", "RestoreFrom", "Seed"]
    layout: str
    step: int
    key: str = ""
    digest: str = ""
    writer: int | None = None
    damage: str = ""


def shard_lineage(
    origins: Mapping[int, Origin | None], saves: Iterable[SaveName], incarnation: int, layout: str
) -> tuple[Candidate, ...]:
    """Return the saves of one shard and generation that `incarnation` may restore, newest first.

    `origins` holds what each incarnation restored, None where the record cannot be read; an incarnation without one
    never served. `saves` are the committed saves, in any order. Only incarnations below `incarnation` count. Where the
    line breaks (an unreadable record), a candidate with its `damage` stands last.
    """
    saves = tuple(saves)
    found: list[Candidate] = []
    writer = max((number for number in origins if number < incarnation), default=None)
    chosen: SaveName | None = None  # of `writer`, by the child visited last; None for the newest: nobody has chosen yet
    while writer is not None:
        own = (save for save in saves if save.writer == writer and (chosen is None or save.age <= chosen.age))
        found += (_save(save, layout) for save in sorted(own, key=lambda save: save.age, reverse=True))
        origin = origins.get(writer)
        if origin is None or not _leads_back(origin):
            found.append(_broken(writer, layout))
            break
        writer = origin.parent_incarnation
        chosen = parse_save(origin.parent.key) if origin.parent else None
    return tuple(found)


def dense_lineage(saves: Iterable[SaveName], layout: str, at_most_step: int | None) -> tuple[Candidate, ...]:
    """Return the dense saves of one generation, newest group first, each group's newest step first.

    A later group began with the state it names, so a late save of an earlier leader never comes before its successor's.
    """
    usable = (save for save in saves if at_most_step is None or save.step <= at_most_step)
    return tuple(_save(save, layout) for save in sorted(usable, key=lambda s: (s.writer, s.age), reverse=True))


def _leads_back(origin: Origin) -> bool:
    """Tell whether an origin names either no parent, or an earlier incarnation and a save of it."""
    if origin.parent is None or origin.parent_incarnation is None:
        return origin.parent is None and origin.parent_incarnation is None
    chosen = parse_save(origin.parent.key)
    return chosen is not None and chosen.writer == origin.parent_incarnation < origin.incarnation


def _save(save: SaveName, layout: str) -> Candidate:
    return Candidate("Save", layout, save.step, save.manifest, writer=save.writer)


def _broken(writer: int, layout: str) -> Candidate:
    damage = f"records no readable origin for incarnation {writer}: its parent's saves cannot be told from late ones"
    return Candidate("Save", layout, 0, key="the lineage", writer=writer, damage=damage)
