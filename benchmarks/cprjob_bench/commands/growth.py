"""The growth of a cost with a size: points, the exponent of a curve, and whether it exceeds linear growth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from statistics import linear_regression

#: A larger exponent is marked. Logarithms and noise raise that of linear growth by less.
LINEAR = 1.1


@dataclass(frozen=True, slots=True)
class Point:
    """The total cost at a size; `label` is the size as the user states it."""

    label: str
    size: float
    cost: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The total costs at growing sizes. size_unit, cost_unit: nouns for people, such as `shards` and `bytes`."""

    size_unit: str
    cost_unit: str
    points: tuple[Point, ...]

    @property
    def exponent(self) -> float | None:
        """The power of the size that fits the costs best, by least squares of logarithms; None for a single size."""
        return exponent_of((point.size, point.cost) for point in self.points)

    @property
    def defect(self) -> str | None:
        """The reason for a mark: growth faster than linear. None without."""
        found = self.exponent
        if found is None or found <= LINEAR:
            return None
        return f"{self.cost_unit} grow with {self.size_unit} to the power {found:.2f}, above {LINEAR}"


def exponent_of(points: Iterable[tuple[float, float]]) -> float | None:
    """Return the slope of cost over size, both positive, in logarithms; None for fewer than two sizes."""
    logs = [(log(size), log(cost)) for size, cost in points]
    if len({size for size, _ in logs}) < 2:  # noqa: PLR2004 -- a line needs two points
        return None
    return linear_regression(*zip(*logs, strict=True)).slope
