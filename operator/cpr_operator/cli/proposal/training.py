"""Batches, epochs, held-out rows and the network, by the number of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cpr_contract.requests import DataStats
from cpr_operator.cli.proposal.columns import Use
from cpr_operator.cli.proposal.label import Label

#: A pass over the data has about this many steps, if the batch is within its bounds.
_STEPS = 1000
_LEAST_BATCH, _LARGEST_BATCH = 128, 2048
_FEW, _MANY = 1_000_000, 10_000_000
_HELD_OUT = 0.1
#: With fewer rows, a tenth of them scores no model.
_LEAST_ROWS = 500
#: A column with fewer different values does not group the rows of one user or item.
_LEAST_GROUPS = 20
_EVALUATIONS_PER_EPOCH = 2


@dataclass(frozen=True, slots=True)
class Decision:
    """A value of the manifest, and the reason."""

    value: int | float
    reason: str


def batch_size(rows: int) -> Decision:
    """Return the samples of a step."""
    power = 2 ** round(math.log2(max(1, rows / _STEPS)))
    size = min(max(power, _LEAST_BATCH), _LARGEST_BATCH)
    return Decision(size, f"{math.ceil(rows / size):,} steps for {rows:,} rows")


def hold_out(data: DataStats, label: Label, ids: Sequence[Use]) -> Decision:
    """Return the portion of rows at the end that is not trained; 0 if these rows are not like the others."""
    columns = {each.name: each for each in data.columns}
    if columns[label.column].ordered:
        return Decision(0, "rows are in the order of the label, so the last ones have one value")
    if data.rows < _LEAST_ROWS:
        return Decision(0, f"{data.rows:,} rows are too few")
    grouped = [use.column.name for use in ids if use.column.ordered and (use.column.distinct or 0) >= _LEAST_GROUPS]
    if grouped:
        return Decision(
            0, f"rows are in the order of {grouped[0]}, so the last ones have values that were never trained"
        )
    return Decision(_HELD_OUT, "the last rows score the model")


def epochs(rows: int, *, evaluated: bool) -> Decision:
    """Return the most passes over the data."""
    if not evaluated:
        return Decision(1, "without held-out rows no score shows when more passes overfit")
    if rows < _FEW:
        return Decision(3, "at most, for few rows: early stopping ends the job when the score falls")
    if rows < _MANY:
        return Decision(2, "at most: early stopping ends the job when the score falls")
    return Decision(1, "models of clicks overfit in a second pass")


def evaluation_samples(rows: int, held_out: float) -> Decision:
    """Return the number of samples between two evaluations."""
    every = max(1, math.ceil(rows * (1 - held_out) / _EVALUATIONS_PER_EPOCH))
    return Decision(every, "twice a pass")


def bad_rows(data: DataStats, label: Label, passes: int) -> Decision | None:
    """Return the rows that may be left out; None if each row can be read, and has a label."""
    bad = data.bad + label.missing
    if not bad:
        return None
    if data.read is not None:  # more of them in the other rows, with a margin
        bad = math.ceil(2 * bad * data.rows / data.read)
    return Decision(bad * passes, f"{data.bad:,} damaged rows and {label.missing:,} without a label, in each pass")
