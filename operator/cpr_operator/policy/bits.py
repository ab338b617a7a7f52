"""How many bits saves store of a value: the more often a row is restored from few bits, the more it errs."""

from __future__ import annotations

from cpr_operator.policy.inputs import Bits, Inputs
from cpr_operator.policy.law import Choice


def expected_restores(inputs: Inputs, choice: Choice) -> float:
    """How often a row will have been restored at the end: so far, and by the failures still expected.

    Full recovery restores all rows at each failure, partial recovery those of the lost shards.
    """
    odds = inputs.odds
    share = 1.0 if choice.mode == "Full" else odds.lost / inputs.shards
    return inputs.restored + share * odds.left_s / odds.mtbf_s


def bits_for(restores: float) -> Bits:
    """The fewest bits for so many restores of a row in the whole job (Check-N-Run, NSDI 2022, section 5.2)."""
    if restores <= 1:
        return 2
    if restores <= 3:  # noqa: PLR2004 -- the table of the paper
        return 3
    return 4 if restores < 20 else 8  # noqa: PLR2004 -- as above
