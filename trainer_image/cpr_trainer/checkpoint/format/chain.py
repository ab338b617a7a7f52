"""How complete saves are kept small: on which earlier ones the next stands, as pure rules.

The rules and their names are those of Check-N-Run (Eisenman et al., NSDI 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from cpr_contract.manifests import ManifestRef
from cpr_contract.spec import Rebase

#: A restore reads a chain one save after another.
_LONGEST_CHAIN = 32


@dataclass(frozen=True, slots=True)
class Link:
    """A complete save that the next may stand on.

    It holds `rows` rows, of changes up to `epoch` of the arena; a full save would have held `full_rows` then.
    """

    ref: ManifestRef
    epoch: int
    rows: int
    full_rows: int

    @property
    def size(self) -> float:
        """Its size; a full save's is 1."""
        return self.rows / self.full_rows if self.full_rows else 0.0


def basis(rule: Rebase, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return the saves that the next is to stand on, oldest first; empty if it is to be a full one.

    `links` are the last full save and all that were committed after it, oldest first.
    """
    if not links:
        return ()
    sizes = [link.size for link in links[1:]]
    match rule:
        case "Consecutive":
            return () if sum(sizes) >= 1 or len(links) >= _LONGEST_CHAIN else links
        case "OneShot":
            return links[:1]
        case "Intermittent":
            return () if pays(sizes) else links[:1]
        case _:
            assert_never(rule)


def pays(sizes: list[float]) -> bool:
    """Tell whether a full save pays now, after saves of `sizes` S_1 to S_i on the last full one (size 1).

    It does if F <= I: F = 1 + S_1 + ... + S_i is what a full save and as many small ones after it would take, if it
    went as it did; I = (i + 1) S_i what is to come without one, at least.
    """
    return bool(sizes) and 1 + sum(sizes) <= (len(sizes) + 1) * sizes[-1]
