"""Chooses the bits per value in saves. Each restore adds a quantisation error, so more restores need more bits."""

from __future__ import annotations

from cpr_operator.policy.inputs import Bits, Inputs
from cpr_operator.policy.law import Choice


def expected_restores(inputs: Inputs, choice: Choice) -> float:
    """The expected number of restores of a row in the whole job: those so far, and those still expected.

    Full recovery restores all rows at each failure, partial recovery those of the lost shards.
    """
    odds = inputs.odds
    share = 1.0 if choice.mode == "Full" else odds.lost / inputs.shards
    return inputs.restored + share * odds.left_s / odds.mtbf_s


def bits_for(restores: float) -> Bits:
    """The minimum bits for this number of restores of a row in the whole job (Check-N-Run, NSDI 2022, section 5.2)."""
    if restores <= 1:
        return 2
    if restores <= 3:  # noqa: PLR2004 -- the table of the paper
        return 3
    return 4 if restores < 20 else 8  # noqa: PLR2004 -- as above
