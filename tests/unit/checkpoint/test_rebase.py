from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.choices import Rebase
from cpr_contract.manifests import ManifestRef
from cpr_trainer.checkpoint.format.parts import Link, basis, pays


def links(*sizes: float) -> tuple[Link, ...]:
    """A full save of 1000 rows, and later ones of these sizes."""
    rows = (1000, *(round(1000 * size) for size in sizes))
    return tuple(Link(ManifestRef(str(i), ""), i + 1, n, 1000) for i, n in enumerate(rows))


@pytest.mark.parametrize(
    ("rule", "sizes", "base"),
    [
        ("Consecutive", (), 1),
        ("Consecutive", (0.2, 0.2, 0.2), 4),
        ("Consecutive", (0.5, 0.2, 0.3), 0),  # a restore would read a full save's worth of small ones
        ("Consecutive", (0.0,) * 31, 0),  # and not more than 32 saves
        ("Consecutive", (0.0,) * 30, 31),
        ("OneShot", (), 1),
        ("OneShot", (0.5, 0.8, 0.9), 1),
        ("Intermittent", (), 1),
        ("Intermittent", (0.3, 0.5, 0.55), 1),
        ("Intermittent", (0.26, 0.4, 0.5, 0.57), 0),
        ("Intermittent", (1.0,), 0),
    ],
)
def test_base_of_the_next_save(rule: Rebase, sizes: tuple[float, ...], base: int) -> None:
    made = links(*sizes)
    assert basis(rule, made) == made[:base]


# Fractions of 1,024 add up exactly, in whatever order.
@given(st.lists(st.integers(0, 1023).map(lambda parts: parts / 1024), min_size=1))
def test_the_intermittent_rule_is_that_of_check_n_run(sizes: list[float]) -> None:
    full = 1.0
    for size in sizes:
        full += size
    assert pays(sizes) == (full <= (len(sizes) + 1) * sizes[-1])
