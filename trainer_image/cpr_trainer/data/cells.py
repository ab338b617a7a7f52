"""The cells of a column as numbers, labels, weights and names of groups, and what is wrong with them.

No loop goes over rows: every different text is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_contract.spec import LabelValuesSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.schema import MAX_WEIGHT, as_texts

#: The errors of bad rows of a block, by row: they are no samples.
RowErrors = dict[int, str]

_MAX_GROUP_NAME = 64
_LARGEST = float(np.finfo(np.float32).max)
_MAX_SHOWN_BYTES = 40
#: Marks a text that is none of a label's.
_UNKNOWN = 2


def numbers_of(column: Any) -> NDArray[np.float64]:
    """Return a column as float64 [n]: NaN if it is absent, infinite if it is not a number that float32 holds."""
    parsed = pa.chunked_array([_parsed(chunk) for chunk in column.chunks], pa.float64())
    values: NDArray[np.float64] = parsed.to_numpy()
    usable = np.abs(values) <= _LARGEST
    if usable.all():
        return values
    absent = parsed.is_null().to_numpy()
    return np.where(absent, np.nan, np.where(usable, values, np.inf))


def _parsed(column: Any) -> Any:
    """Return a column as pyarrow doubles: null if it is absent, NaN if it is not a number."""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.float64(), safe=False)
    present = pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, column.type), column)
    try:
        return present.cast(pa.float64())
    except pa.ArrowInvalid:  # Some cell is not a number: parse each different one.
        unique = present.dictionary_encode()
        values = pa.array([_parsed_cell(cell) for cell in unique.dictionary], pa.float64())
        return values.take(unique.indices)


def _parsed_cell(cell: Any) -> float:
    try:
        return float(cell.cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        return float("nan")


def groups_of(column: Any) -> NDArray[np.object_]:
    """Return the value of each row as text, str [n]; an absent one is empty. Equal values are one object."""
    parts = [np.empty(0, np.object_)]
    for values, places in _different_values(column):
        parts.append(np.array([*map(_group_name, values.to_pylist())], np.object_)[places])
    return np.concatenate(parts)


def _group_name(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    return text[:_MAX_GROUP_NAME]


def labels_of_texts(column: Any, known: LabelValuesSpec, errors: RowErrors) -> NDArray[np.uint8]:
    """Return the label of each row, uint8 [n]; rows with another text are noted in `errors`. An absent one is empty."""
    meanings = dict.fromkeys(known.negative, 0) | dict.fromkeys(known.positive, 1)
    parts = [np.empty(0, np.uint8)]
    for values, places in _different_values(column):
        texts = ((text or b"").decode("utf-8", "replace") for text in as_texts(values).to_pylist())
        parts.append(np.array([meanings.get(text, _UNKNOWN) for text in texts], np.uint8)[places])
    labels = np.concatenate(parts)
    expected = ", ".join(repr(text) for text in (*known.positive, *known.negative))
    add_errors(errors, f"column {known.label}", column, labels == _UNKNOWN, f"one of {expected}")
    return np.where(labels == _UNKNOWN, 0, labels).astype(np.uint8)


def _different_values(column: Any) -> Iterator[tuple[Any, Ints]]:
    """Yield for each chunk its different values, and a null after them, and the place of each row's among them."""
    for chunk in column.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        values = pa.concat_arrays([coded.dictionary, pa.nulls(1, coded.dictionary.type)])
        yield values, coded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)


def weights_of_samples(column: Any, name: str, errors: RowErrors) -> NDArray[np.float32]:
    """Return the weight of each row, float32 [n]; rows without a valid one are noted in `errors`."""
    found = numbers_of(column)
    valid = (found >= 0) & (found <= MAX_WEIGHT)
    add_errors(errors, f"column {name}", column, ~valid, f"a weight from 0 to {MAX_WEIGHT}")
    return np.where(valid, found, 0).astype(np.float32)


def add_errors(  # noqa: PLR0913, PLR0917 -- the parts of one sentence
    errors: RowErrors, what: str, cells: Any, wrong: NDArray[np.bool_], expected: str, rows: Ints | None = None
) -> None:
    """Note that `what` is not `expected`, for cells of a pyarrow array that are `wrong`; a row's first error stays.

    wrong: bool [k], one for each cell. rows: int64 [k], the row of each cell; None if there is one in each row.
    """
    for place in np.flatnonzero(wrong).tolist():
        row, value = place if rows is None else int(rows[place]), cells[place].as_py()
        if isinstance(value, bytes):
            value = value[:_MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")
        shown = "empty" if value in {None, ""} else repr(value)[: _MAX_SHOWN_BYTES + 2]
        errors.setdefault(row, f"{what} is {shown}, not {expected}")
