"""A dynamic table in plain loops, over all pages: what ADR 46 states, one key after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cpr_trainer.embedding.dynamic.entries import Rules

PAGE, BUCKET, GROUP = 4096, 32, 16


@dataclass
class Entry:
    key: int
    step: int
    count: int


@dataclass
class Outcome:
    """A step: the slot of each key after it, or None; the keys that are new; those evicted, in their order; counts."""

    slots: dict[int, int | None] = field(default_factory=dict)
    inserted: set[int] = field(default_factory=set)
    evicted: list[int] = field(default_factory=list)
    expired: int = 0
    waiting: int = 0
    dropped: int = 0
    full: int = 0


class ReferenceTable:
    """entries: by slot. cells: by number, the fingerprint, the count and the step."""

    def __init__(self, pages: int, rules: Rules) -> None:
        self.pages, self.rules = pages, rules
        self.entries = dict[int, Entry]()
        self.cells = dict[int, tuple[int, int, int]]()

    def buckets(self, key: int) -> tuple[range, range]:
        """The slots of a key's two buckets."""
        page, first = key * self.pages >> 64, key & 127
        second = (first + 1 + ((key >> 7 & 0xFFFF) * 127 >> 16)) % 128
        starts = (page * PAGE + bucket * BUCKET for bucket in (first, second))
        one, other = (range(start, start + BUCKET) for start in starts)
        return one, other

    def live(self, slot: int, step: int) -> bool:
        entry = self.entries.get(slot)
        return entry is not None and not self.is_over(entry.step, step)

    def is_over(self, last: int, step: int) -> bool:
        return self.rules.ttl_steps > 0 and step - last > self.rules.ttl_steps

    def find(self, key: int, step: int) -> int | None:
        slots = [slot for bucket in self.buckets(key) for slot in bucket if slot in self.entries]
        found = [slot for slot in slots if self.entries[slot].key == key and self.live(slot, step)]
        assert len(found) <= 1, "a key stands once"
        return found[0] if found else None

    def count_at(self, entry: Entry, step: int) -> int:
        every = self.rules.halving_steps
        return entry.count >> (step // every - entry.step // every) if every else entry.count

    def score(self, entry: Entry, step: int) -> int:
        return entry.step if self.rules.score == "LastStep" else self.count_at(entry, step)

    def apply(self, step: int, contributions: Iterable[Iterable[int]]) -> Outcome:
        keys = sorted(set[int]().union(*contributions))
        outcome, pinned, unknown = Outcome(), set[int](), list[int]()
        for key in keys:
            slot = self.find(key, step)
            outcome.slots[key] = slot
            if slot is None:
                unknown.append(key)
                continue
            self.entries[slot] = Entry(key, step, min(self.count_at(self.entries[slot], step) + 1, 2**32 - 2))
            pinned.add(slot)
        counts = self.count(unknown, step)
        due = sorted(
            (key for key in unknown if counts[key] >= self.rules.min_steps), key=lambda key: (-counts[key], key)
        )
        outcome.waiting = len(unknown) - len(due)
        for key in due:
            slot = self.slot_for(key, step, pinned, outcome)
            if slot is None:
                outcome.dropped += 1
                continue
            self.entries[slot] = Entry(key, step, counts[key])
            pinned.add(slot)
            outcome.slots[key] = slot
            outcome.inserted.add(key)
            if (cell := self.cell_of(key, step)) is not None:
                del self.cells[cell]
        return outcome

    def slot_for(self, key: int, step: int, pinned: set[int], outcome: Outcome) -> int | None:
        buckets = self.buckets(key)
        sizes = [sum(self.live(slot, step) for slot in bucket) for bucket in buckets]
        bucket = buckets[0] if sizes[0] <= sizes[1] else buckets[1]
        for slot in bucket:
            if not self.live(slot, step):
                outcome.expired += slot in self.entries
                return slot
        outcome.full += 1
        victims = [slot for bucket in buckets for slot in bucket if slot not in pinned]
        if not victims:
            return None
        entries = self.entries
        slot = min(victims, key=lambda slot: (self.score(entries[slot], step), entries[slot].key))
        outcome.evicted.append(entries[slot].key)
        return slot

    def group(self, key: int) -> tuple[range, int]:
        """The cells of a key's group, and its fingerprint."""
        page, inside = key * self.pages >> 64, key * self.pages >> 32 & 0xFFFFFFFF
        first = page * PAGE + (inside >> 24) * GROUP
        return range(first, first + GROUP), inside & 0xFFFFFF

    def cell_of(self, key: int, step: int) -> int | None:
        group, fingerprint = self.group(key)
        live = [each for each in group if each in self.cells and not self.is_over(self.cells[each][2], step)]
        return next((each for each in live if self.cells[each][0] == fingerprint), None)

    def count(self, keys: list[int], step: int) -> dict[int, int]:
        """Count the keys that have no slot; those that have a cell come first, so that no other key takes it."""
        if self.rules.min_steps == 1:
            return dict.fromkeys(keys, 1)
        counts, new = dict[int, int](), list[int]()
        for key in keys:
            cell = self.cell_of(key, step)
            if cell is None:
                new.append(key)
                continue
            fingerprint, count, last = self.cells[cell]
            if last < step:  # another key of the fingerprint may have counted this step
                self.cells[cell] = fingerprint, min(count + 1, 255), step
            counts[key] = self.cells[cell][1]
        for key in new:
            counts[key] = 1
            if self.cell_of(key, step) is None:
                group, fingerprint = self.group(key)
                ages = {each: self.age(each, step) for each in group}
                free = [each for each in group if ages[each] < step]
                if free:
                    self.cells[min(free, key=lambda each: (ages[each], each))] = fingerprint, 1, step
        return counts

    def age(self, cell: int, step: int) -> int:
        """The step of a cell's last count; -1 for an empty one."""
        last = self.cells[cell][2] if cell in self.cells else -1
        return -1 if self.is_over(last, step) else last

    def columns(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Yield each slot with its entry."""
        return ((slot, (each.key, each.step, each.count)) for slot, each in self.entries.items())
