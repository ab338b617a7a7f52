"""Arrow types that are not decoded as they are become plain ones with the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cpr_trainer.data.arrow_types import normalized

TEXTS = ["a", None, "", "a", "\u00e9"]
LISTS = [["a", "b"], None, [], ["c"], ["d", None]]
VIEW = pa.array(["x", "\u00e9"], pa.string_view())
CODED = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 1, 0], pa.uint32()), VIEW)


@pytest.mark.parametrize(
    ("array", "plain"),
    [
        (pa.array(TEXTS, pa.string_view()), pa.large_string()),
        (pa.array(TEXTS).cast(pa.binary()).cast(pa.binary_view()), pa.large_binary()),
        (CODED, pa.dictionary(pa.uint32(), pa.large_string())),
        (pc.run_end_encode(pa.array(TEXTS)), pa.string()),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(TEXTS, pa.string())), pa.string()),
        (pa.array(LISTS, pa.list_view(pa.string_view())), pa.large_list(pa.large_string())),
        (pa.array(LISTS, pa.large_list_view(pa.string())), pa.large_list(pa.string())),
        (pa.array(LISTS, pa.list_(pa.string_view())), pa.large_list(pa.large_string())),
        (pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string_view(), 2)), pa.large_list(pa.large_string())),
        (pa.ListArray.from_arrays([0, 2, 2, 5], CODED), pa.large_list(pa.dictionary(pa.uint32(), pa.large_string()))),
        (
            # Views may overlap, in any order.
            pa.ListViewArray.from_arrays(
                pa.array([2, 0], pa.int32()), pa.array([2, 3], pa.int32()), pa.array([*"abcd"])
            ),
            pa.large_list(pa.string()),
        ),
    ],
    ids=lambda each: str(each.type)[:60] if hasattr(each, "type") else "",
)
def test_any_type_of_texts_becomes_a_plain_one(array: Any, plain: pa.DataType) -> None:
    for part in (array, array.slice(1), array.slice(0, 1), array.slice(0, 0)):
        found = normalized(pa.table({"x": part}), None)["x"]
        assert found.type == plain
        assert found.to_pylist() == part.to_pylist()
        found.validate(full=True)
