"""The parity that a shard keeps for others, and the rows of a lost shard computed from it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cpr_trainer.parity.coding import Image
from cpr_trainer.parity.flush import Flush, Moment, Point


@dataclass(frozen=True, slots=True, eq=False)
class PartPosition:
    """Up to where a parity has one member's part: at a `point`, of which `complete` and `mark` say what its flush said.

    `last` is that flush, and `former` where it stood before, as long as it can be taken back.
    """

    point: Point
    complete: bool = False
    mark: str = ""
    last: Flush | None = None
    former: PartPosition | None = None

    def after(self, flush: Flush) -> PartPosition:
        """Return where the parity stands with one flush more."""
        former = replace(self, last=None, former=None)
        return PartPosition(flush.after, flush.complete, flush.mark, flush, former)


class ParityStore:
    """The parity of one stripe. `build` names it: one that begins anew, from zeros, has another name.

    Names must not come again in another process: let the first be random. One thread.
    """

    def __init__(self, data_shards: int, shapes: Sequence[tuple[int, int, int]], build: int) -> None:
        """Keep parity of `data_shards` parts. shapes: rows of a part, their dim and width of state, by segment."""
        self.build = build
        self._shapes = tuple(shapes)
        self._images = self._zeros()
        self._positions = [PartPosition(Point(build))] * data_shards

    @classmethod
    def size_bytes(cls, shapes: Sequence[tuple[int, int, int]]) -> int:
        """Return how much memory a parity takes."""
        return sum(rows * (4 * (dim + width) + 1) for rows, dim, width in shapes)

    def position(self, part: int) -> PartPosition:
        """Return up to where the part of the `part`-th member is in here."""
        return self._positions[part]

    @property
    def points(self) -> tuple[Point, ...]:
        """Where the part of each member stands."""
        return tuple(position.point for position in self._positions)

    def take(self, part: int, flush: Flush) -> None:
        """Take a member's flush into the parity.

        Nothing happens if it is in here already, or goes into a parity of before. If it does not follow what is in
        here, that cannot be told from the rest of the parity, which begins anew. `position` says which it was.
        Raises ValueError for a flush of other rows than there are.
        """
        position = self._positions[part]
        self._check(flush)
        if flush.before.build != self.build or flush.after == position.point:
            return
        if flush.before != position.point:
            self.reset()
            return
        self._add(flush)
        self._positions[part] = position.after(flush)

    def undo(self, part: int, moment: Moment) -> bool:
        """Go back to a member's flush of a moment, its last or the one before; whether that can be done."""
        position = self._positions[part]
        if position.point.moment == moment:
            return True
        if position.last is None or position.former is None or position.former.point.moment != moment:
            return False
        self._add(position.last)
        self._positions[part] = position.former
        return True

    def reset(self) -> None:
        """Begin anew, from zeros: all members have to send their parts again."""
        self.build += 1
        self._positions = [PartPosition(Point(self.build))] * len(self._positions)
        self._images = ()  # goes first: there is no room for two
        self._images = self._zeros()

    def read(self, segment: int, first: int, end: int) -> Image:
        """Return a copy of some rows, which goes with `points` as they are now."""
        return self._images[segment][first:end].copy()

    def _zeros(self) -> tuple[Image, ...]:
        """New memory, which is touched as flushes come: to overwrite old memory would keep trainers waiting."""
        return tuple(Image.zeros(*shape) for shape in self._shapes)

    def _add(self, flush: Flush) -> None:
        for image, delta in zip(self._images, flush.deltas, strict=True):
            image.add_at(delta.at, delta.change)

    def _check(self, flush: Flush) -> None:
        if len(flush.deltas) != len(self._images):
            raise ValueError(f"a flush has {len(flush.deltas)} segments, and this parity {len(self._images)}")
        for image, delta in zip(self._images, flush.deltas, strict=True):
            change = delta.change
            fits = change.rows.shape[1:] == image.rows.shape[1:] and change.state.shape[1:] == image.state.shape[1:]
            if not fits or (len(delta.at) and int(delta.at.max()) >= len(image)):
                raise ValueError("a flush has rows that this parity does not have")


# Rows of a lost shard, from the parity of a stripe and its other members: all as of the same flushes, or not at all.
#
# Nobody is stopped for it. A holder gives some of its parity together with the points at which its members stand in it,
# and each member gives its rows as of its point. If one has moved on meanwhile, the reader asks for these rows again.


#: A flush takes a fraction of a second, and a question a few milliseconds: who fails so often has lost the thread.
_TRIES = 50


class ParityUnavailableError(Exception):
    """Parity does not have the rows: a holder began anew, or another member of the stripe is not what is in there."""


class Stripe(Protocol):
    """The parity of one part of the lost shard, and the stripe's members. Raises OSError, ParityUnavailableError."""

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        """Return rows of the parity, and where each member stands in it at that moment."""
        ...

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """Return rows of the member whose part this is, as they are in the parity at a point; None: not any more."""
        ...


def rows_of(stripe: Stripe, part: int, point: Point, segment: int, rows: range) -> Image:
    """Return some rows of the lost part, as it stands in the parity at this point.

    Raises ParityUnavailableError, or what `stripe` raises.
    """
    for _ in range(_TRIES):
        parity, points = stripe.parity(segment, rows)
        if points[part] != point:
            raise ParityUnavailableError(f"the parity of part {part} was built anew")
        for other, at in enumerate(points):
            if other == part or not at.number:
                continue
            image = stripe.member(other, at, segment, rows)
            if image is None:
                break
            parity.add(image)
        else:
            return parity
    raise ParityUnavailableError(f"members of the stripe of part {part} do not have the rows that are in its parity")
