"""Rows of a lost shard, from the parity of a stripe and its other members: all as of the same flushes, or not at all.

Nobody is stopped for it. A holder gives some of its parity together with the points at which its members stand in it,
and each member gives its rows as of its point. If one has moved on meanwhile, the reader asks for these rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cpr_trainer.parity.flush import Point
from cpr_trainer.parity.images import Image

#: A flush takes a fraction of a second, and a question a few milliseconds: who fails so often has lost the thread.
_TRIES = 50


class GoneError(Exception):
    """Parity does not have the rows: a holder began anew, or another member of the stripe is not what is in there."""


class Stripe(Protocol):
    """The parity of one part of the lost shard, and the members whose parts are in it. Raises OSError, GoneError."""

    def parity(self, segment: int, rows: range) -> tuple[Image, Sequence[Point]]:
        """Return rows of the parity, and where each member stands in it at that moment."""
        ...

    def member(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """Return rows of the member whose part this is, as they are in the parity at a point; None: not any more."""
        ...


def rows_of(stripe: Stripe, part: int, point: Point, segment: int, rows: range) -> Image:
    """Return some rows of the lost part, as it stands in the parity at this point.

    Raises GoneError, or what `stripe` raises.
    """
    for _ in range(_TRIES):
        parity, points = stripe.parity(segment, rows)
        if points[part] != point:
            raise GoneError(f"the parity of part {part} was built anew")
        for other, at in enumerate(points):
            if other == part or not at.number:
                continue
            image = stripe.member(other, at, segment, rows)
            if image is None:
                break
            parity.add(image)
        else:
            return parity
    raise GoneError(f"members of the stripe of part {part} do not have the rows that are in its parity")
