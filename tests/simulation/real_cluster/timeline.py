"""What strikes when: drawn from one seed, by no clock and from no cluster, so that a storm can be had again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

#: How many faults come together, and within how many seconds they begin.
TOGETHER = (2, 3)
SPREAD_S = 8.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What the drawing has to know of a fault.

    `takes` names what it needs for itself: no two faults of a round take the same. It lasts for `holds_s`, between the
    two; (0, 0) if there is nothing to undo.
    """

    name: str
    takes: frozenset[str] = frozenset()
    holds_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that begins `after_s` of its round and lasts for `holds_s`; `dice` chooses whom it strikes."""

    fault: str
    after_s: float
    holds_s: float
    dice: int

    def __str__(self) -> str:
        lasts = f" for {self.holds_s:.0f} s" if self.holds_s else ""
        return f"{self.fault} after {self.after_s:.1f} s{lasts}"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that come together. The next round begins when all that these did is over."""

    number: int
    injections: tuple[Injection, ...]

    def __str__(self) -> str:
        return f"round {self.number}: {', '.join(map(str, self.injections))}"


def timeline(seed: int, kinds: Sequence[Kind]) -> Iterator[Round]:
    """Yield the rounds of a storm, without end.

    Faults are drawn without replacement: none comes again before all others have come, except that a fault waits for a
    later round if another one of its round takes what it needs. Raises ValueError if no two kinds can come together.
    """
    random, deck = Random(seed), list[Kind]()
    for number in count(1):
        chosen: list[Kind] = []
        for _ in range(random.choice(TOGETHER)):
            following = _next(deck, chosen)
            if following is None:
                deck += random.sample(kinds, len(kinds))
                following = _next(deck, chosen)
            if following is None:
                break
            deck.remove(following)
            chosen.append(following)
        if len(chosen) < TOGETHER[0]:
            raise ValueError(f"nothing can come together with {chosen}")
        yield Round(number, tuple(_injection(kind, random) for kind in chosen))


def _next(deck: Sequence[Kind], chosen: Sequence[Kind]) -> Kind | None:
    """The first card that fits to those that were dealt."""
    taken = frozenset[str]().union(*(kind.takes for kind in chosen))
    return next((kind for kind in deck if kind not in chosen and not kind.takes & taken), None)


def _injection(kind: Kind, random: Random) -> Injection:
    after_s, holds_s = random.uniform(0, SPREAD_S), random.uniform(*kind.holds_s)
    return Injection(kind.name, round(after_s, 1), round(holds_s, 1), random.getrandbits(32))
