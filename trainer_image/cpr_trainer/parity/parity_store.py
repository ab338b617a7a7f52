"""The parity that a shard keeps for others. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpr_trainer.parity.coding import Image
from cpr_trainer.parity.flush import Flush, Moment, Point


@dataclass(frozen=True, slots=True, eq=False)
class PartPosition:
    """The position of one member's part in a parity: the `point`, and `complete` and `mark` of the flush.

    `last` is that flush, and `former` the position before, while the flush can be undone.
    """

    point: Point
    complete: bool = False
    mark: str = ""
    last: Flush | None = None
    former: PartPosition | None = None

    def after(self, flush: Flush) -> PartPosition:
        """Return the position after one more flush."""
        former = replace(self, last=None, former=None)
        return PartPosition(flush.after, flush.complete, flush.mark, flush, former)


class ParityStore:
    """The parity of one stripe. `build` names it: after a reset to zeros it has another name.

    Names must be unique across processes: make the first one random. Not thread-safe.
    """

    def __init__(self, data_shards: int, shapes: Sequence[tuple[int, int, int]], build: int) -> None:
        """Allocate parity of `data_shards` parts. shapes: rows of a part, their dim and width of state, by segment."""
        self.build = build
        self._shapes = tuple(shapes)
        self._images = self._zeros()
        self._positions = [PartPosition(Point(build))] * data_shards

    @classmethod
    def size_bytes(cls, shapes: Sequence[tuple[int, int, int]]) -> int:
        """Return the memory of a parity."""
        return sum(rows * (4 * (dim + width) + 1) for rows, dim, width in shapes)

    def position(self, part: int) -> PartPosition:
        """Return the position of the `part`-th member's part."""
        return self._positions[part]

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all members' parts."""
        return tuple(position.point for position in self._positions)

    def take(self, part: int, flush: Flush) -> None:
        """Apply a member's flush to the parity.

        A flush that is applied already, or belongs to an earlier build, is ignored. One that does not follow the
        applied ones resets the parity, because the member's part cannot be removed from it. `position` shows the
        outcome. Raises ValueError for a flush of rows that do not exist.
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
        """Go back to a member's flush of a moment, its last or the one before; return whether that is possible."""
        position = self._positions[part]
        if position.point.moment == moment:
            return True
        if position.last is None or position.former is None or position.former.point.moment != moment:
            return False
        assert position.last.before == position.former.point, "the last flush does not follow the former point"
        self._add(position.last)
        self._positions[part] = position.former
        return True

    def reset(self) -> None:
        """Reset the parity to zeros: all members have to send their parts again."""
        self.build += 1
        self._positions = [PartPosition(Point(self.build))] * len(self._positions)
        self._images = ()  # freed first: there is no memory for two
        self._images = self._zeros()

    def read(self, segment: int, first: int, end: int) -> Image:
        """Return a copy of some rows, which belongs to the current `points`."""
        return self._images[segment][first:end].copy()

    def _zeros(self) -> tuple[Image, ...]:
        """Return new memory, which flushes touch later: clearing old memory would delay trainers."""
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
