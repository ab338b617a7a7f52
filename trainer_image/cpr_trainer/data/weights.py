"""Weights of ids: a list beside each bag, of as many numbers as that has ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpr_trainer.data.columns import Input
from cpr_trainer.data.faults import Faults, blame
from cpr_trainer.data.lists import Present, flat
from cpr_trainer.data.numbers import numbers_of


def weights_of(table: Any, used: Input, separator: str | None, present: Present, faults: Faults) -> NDArray[np.float32]:
    """Return the weight of each id of a feature that is `present`, float32 [k].

    Rows with a weight that is no finite number, or with more or fewer weights than ids, absent ones included, are noted
    in `faults`; the weights there mean nothing.
    """
    name = str(used.weights)
    values, sizes = [pa.array([], pa.binary())], [np.empty(0, np.int64)]
    for chunk in table.column(name).chunks:
        every, of_bags = flat(chunk, separator)
        values.append(every)
        sizes.append(of_bags)
    cells, of_rows = pa.chunked_array(values[1:] or values), np.concatenate(sizes)
    fits = of_rows == present.sizes
    for row in np.flatnonzero(~fits).tolist():
        told = f"column {name} has {of_rows[row]} weights for {present.sizes[row]} ids in column {used.column}"
        faults.setdefault(row, told)
    kept = np.repeat(fits, present.sizes) & present.kept  # of the ids
    beside = np.zeros(len(cells), np.bool_)  # and of the weights, the same ones
    beside[np.repeat(fits, of_rows)] = present.kept[np.repeat(fits, present.sizes)]
    found = numbers_of(cells)[beside]
    wrong = ~np.isfinite(found)
    rows = np.repeat(np.arange(len(of_rows)), of_rows)[beside]
    blame(faults, f"a weight in column {name}", cells.filter(pa.array(beside)), wrong, "a number", rows)
    weights = np.zeros(len(present.kept), np.float32)
    weights[kept] = np.where(wrong, 0, found)
    return weights[present.kept]
