"""What is wrong with rows that are no samples, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints

#: What is wrong with rows of a block, by row.
Faults = dict[int, str]

_SHOWN_BYTES = 40


def blame(  # noqa: PLR0913, PLR0917 -- the parts of one sentence
    faults: Faults, what: str, cells: Any, wrong: NDArray[np.bool_], wanted: str, rows: Ints | None = None
) -> None:
    """Note that `what` is not `wanted` where cells of a pyarrow array are `wrong`; the first fault of a row stands.

    wrong: bool [k], one for each cell. rows: int64 [k], the row of each cell; None if there is one in each row.
    """
    for place in np.flatnonzero(wrong).tolist():
        row = place if rows is None else int(rows[place])
        faults.setdefault(row, f"{what} is {_shown(cells[place].as_py())}, not {wanted}")


def _shown(value: object) -> str:
    """Return a cell for a message, cut to 40 bytes."""
    if isinstance(value, bytes):
        value = value[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return "empty" if value in {None, ""} else repr(value)[: _SHOWN_BYTES + 2]
