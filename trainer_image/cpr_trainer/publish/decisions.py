"""Decisions of a publisher, as pure functions: the next anchor, the kind of the next entry, objects to delete."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from cpr_contract.manifests import ManifestRef
from cpr_contract.spec import PublishSpec
from cpr_trainer.checkpoint.format.keys import committed_in
from cprjob_serving.chain import Entry, entries_in, entry_key, sequence_of

#: The longest chain of deltas. A follower without a model reads all of them.
LONGEST_CHAIN = 64

_ANCHOR = re.compile(r".+/gen-(\d+)/dense/.+")


@dataclass(frozen=True, slots=True, order=True)
class AnchorName:
    """An anchor by its key. A later one is greater: a rollback begins a generation, at an earlier step."""

    generation: int
    step: int
    group: int
    key: str

    @classmethod
    def of_entry(cls, entry: Entry) -> Self:
        """Return the published anchor, of any group."""
        return cls(entry.generation, entry.step, 0, entry.anchor)

    def is_after(self, published: Self) -> bool:
        """Return whether this is another anchor than the published one, and of a later time."""
        return self.key != published.key and (self.generation, self.step) >= (published.generation, published.step)


def anchors_in(keys: Iterable[str]) -> tuple[AnchorName, ...]:
    """Return the anchors with a manifest among the keys of a job, the newest last."""
    found = []
    for save in committed_in(keys):
        match = _ANCHOR.fullmatch(save.folder)
        if match is not None and save.kind == "Anchor":
            found.append(AnchorName(int(match[1]), save.step, save.writer, save.manifest))
    return tuple(sorted(found))


def is_due(  # noqa: PLR0913, PLR0917 -- all that the time depends on
    spec: PublishSpec, newest: AnchorName, samples: int, last: Entry | None, job_uid: str, now_s: float, *, final: bool
) -> bool:
    """Return whether an anchor is to be published now. samples: trained as of it. last: the newest entry of the chain.

    final: the process ends.
    """
    if last is None or last.job_uid != job_uid:
        return True
    if not newest.is_after(AnchorName.of_entry(last)):
        return False
    if final or spec.format != last.format:
        return True
    if spec.every_samples is not None:
        return newest.generation != last.generation or samples - last.samples >= spec.every_samples
    return not is_early(spec, last, job_uid, now_s)


def is_early(spec: PublishSpec, last: Entry | None, job_uid: str, now_s: float) -> bool:
    """Return whether the time between two publications of the job is not over, so that no anchor need be looked for."""
    if spec.every_s is None or last is None or last.job_uid != job_uid or last.format != spec.format:
        return False
    return 0 <= now_s - last.time_s < spec.every_s  # a clock that was set back must not stop publications


def wants_base(chain: Sequence[Entry], job_uid: str, form: str) -> bool:
    """Return whether the next entry is a base. chain: the newest base and the deltas after it; empty without one."""
    if not chain or chain[0].job_uid != job_uid or chain[0].format != form:
        return True
    base, *deltas = chain
    return len(deltas) >= LONGEST_CHAIN or sum(each.size_bytes for each in deltas) > base.size_bytes


def saves_apart(old: Sequence[ManifestRef], new: Sequence[ManifestRef]) -> tuple[list[int], list[int]]:
    """Return the places of saves in only one of two chains, oldest first: in the old one, and in the new one.

    Rows in none of them are in the same newest save of both chains, or in no save.
    """
    both = set(old) & set(new)
    return tuple([place for place, ref in enumerate(chain) if ref not in both] for chain in (old, new))  # type: ignore[return-value]


def superfluous(
    keys: Collection[str], bases: Collection[int], entries: Mapping[int, Entry], keep: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return entries to delete, oldest first, and then files.

    keys: all objects of the chain. bases: the sequence numbers of bases. entries: those that are to stay, by number.
    The newest `keep` bases stay with all later entries. A file that none of them names stays while its attempt may be
    under way: it is of a later entry than the newest one.
    """
    staying = sorted(bases)[-keep:]
    if not staying:
        return (), ()
    numbers = {key: number for key in keys if (number := sequence_of(key)) is not None}
    present = sorted(entries_in(keys))
    newest = max(present, default=0)
    named = {each.key for number, entry in entries.items() if number >= staying[0] for each in entry.files}
    old = tuple(entry_key(number) for number in present if number < staying[0])
    files = (key for key, number in numbers.items() if key != entry_key(number) and number <= newest)
    return old, tuple(sorted(key for key in files if key not in named))
