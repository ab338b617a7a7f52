"""Bits of a value in saves, by the restores that are expected of a row."""

from typing import Any

import pytest

from cpr_operator import policy
from cpr_operator.policy.inputs import Bits, bits_for


def inputs(**changes: object) -> policy.Inputs:
    """Ten shards, one lost at each failure; the job lasts a hundred mean times between failures."""
    values: dict[str, Any] = {
        "mode": "Partial",
        "limit": 0.1,
        "shards": 10,
        "estimate": policy.prior(3600.0),
        "total_samples": 360_000,
        "samples_per_s": 1.0,
        "fixed_bits": None,
    }
    return policy.Inputs(**(values | changes))


@pytest.mark.parametrize(
    ("restores", "bits"), [(0, 2), (1, 2), (1.1, 3), (3, 3), (3.5, 4), (19.9, 4), (20, 8), (1000, 8)]
)
def test_bits_follow_from_the_expected_restores(restores: float, bits: Bits) -> None:
    assert bits_for(restores) == bits


@pytest.mark.parametrize(
    ("changes", "bits"),
    [
        ({}, 4),  # 100 failures, and each row sees one in ten
        ({"shards": 100}, 2),
        ({"saved_samples": 270_000}, 3),
        ({"saved_samples": 270_000, "restored": 8.0}, 4),
        ({"mode": "Full"}, 8),  # a rollback restores all rows
        ({"mode": "Full", "fixed_bits": 3}, 3),
        ({"fixed_bits": 32}, 32),
    ],
)
def test_expected_restores_follow_the_mode(changes: dict[str, object], bits: Bits) -> None:
    plan = policy.plan(inputs(**changes))
    assert plan.stored_bits == bits
    assert (f"saved with {bits} bits" in plan.reason) is ("fixed_bits" not in changes)
