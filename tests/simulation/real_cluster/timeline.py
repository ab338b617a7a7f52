"""The timeline of a storm: one seed decides which faults are injected when, so a storm can be repeated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from simulation.real_cluster.failpoints.fault import Fault

#: Number of faults in a round, and the seconds within which they begin.
TOGETHER = (2, 3)
SPREAD_S = 8.0


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that begins `after_s` into its round and lasts for `holds_s`; `dice` chooses the members that it hits."""

    fault: Fault
    after_s: float
    holds_s: float
    dice: int

    def __str__(self) -> str:
        lasts = f" for {self.holds_s:.0f} s" if self.holds_s else ""
        return f"{self.fault.name} after {self.after_s:.1f} s{lasts}"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that come together. The next round begins when all that these did is over."""

    number: int
    injections: tuple[Injection, ...]

    def __str__(self) -> str:
        return f"round {self.number}: {', '.join(map(str, self.injections))}"


def timeline(seed: int, faults: Sequence[Fault]) -> Iterator[Round]:
    """Yield the rounds of a storm, without end.

    Faults are drawn without replacement: none comes again before all others have come, except that a fault waits for a
    later round if another one of its round takes what it needs. Raises ValueError if no two faults can come together.
    """
    random, remaining = Random(seed), list[Fault]()
    for number in count(1):
        chosen: list[Fault] = []
        for _ in range(random.choice(TOGETHER)):
            following = _next(remaining, chosen)
            if following is None:
                remaining += random.sample(faults, len(faults))
                following = _next(remaining, chosen)
            if following is None:
                break
            remaining.remove(following)
            chosen.append(following)
        if len(chosen) < TOGETHER[0]:
            raise ValueError(f"nothing can come together with {[fault.name for fault in chosen]}")
        yield Round(number, tuple(_injection(fault, random) for fault in chosen))


def _next(remaining: Sequence[Fault], chosen: Sequence[Fault]) -> Fault | None:
    """The first fault of the deck that goes together with those that were drawn."""
    taken = frozenset[str]().union(*(fault.takes for fault in chosen))
    return next((fault for fault in remaining if fault not in chosen and not fault.takes & taken), None)


def _injection(fault: Fault, random: Random) -> Injection:
    after_s, holds_s = random.uniform(0, SPREAD_S), random.uniform(*fault.holds_s)
    return Injection(fault, round(after_s, 1), round(holds_s, 1), random.getrandbits(32))
