"""The values of a column by which scores are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

#: The characters of a value that are looked at.
LONGEST_NAME = 64


def groups_of(column: Any) -> NDArray[np.object_]:
    """Return the value of each row as text, str [n]; an absent one is the empty text. Raises ArrowInvalid for lists.

    Equal values are the same object: it takes 8 bytes a row.
    """
    parts = [np.empty(0, np.object_)]
    for chunk in column.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        names = np.array([*map(_name, coded.dictionary.to_pylist()), ""], np.object_)
        parts.append(names[coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


def _name(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    return text[:LONGEST_NAME]
