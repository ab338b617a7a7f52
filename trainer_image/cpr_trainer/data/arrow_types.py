"""Arrow tables in the types that are decoded: views, run-end encoded arrays and extensions become plain ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cpr_trainer.data.schema import Columns, is_list


def normalized(table: Any, columns: Columns | None) -> Any:
    """Return a table in the types of `normalized_schema`."""
    schema = normalized_schema(table.schema, columns)
    if schema.types == table.schema.types:
        return table
    # All columns at once: the time of each change of a table, and of each look at its schema, grows with its width.
    plain = [
        column
        if column.type == field.type
        else pa.chunked_array([_converted(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(plain, schema=schema.with_metadata(table.schema.metadata))


def normalized_schema(schema: pa.Schema, columns: Columns | None) -> pa.Schema:
    """Return a schema with plain types. A column of nulls gets the type of its use.

    A writer that finds only nulls in a file has no other type for them; other files have one.
    """
    numbers = frozenset() if columns is None else frozenset(columns.numeric)
    weights = frozenset() if columns is None else frozenset(columns.weights)
    bags = frozenset() if columns is None else columns.bags

    def normalized_field(field: pa.Field) -> pa.Field:
        single = pa.float64() if field.name in numbers | weights else pa.string()
        of_nulls = pa.list_(single) if field.name in bags | weights else single
        return field.with_type(_normalized_type(field.type, of_nulls, single))

    return pa.schema([normalized_field(field) for field in schema])


def _normalized_type(kind: Any, of_nulls: Any, of_absent_values: Any) -> Any:
    types = pa.types
    if types.is_null(kind):
        return of_nulls
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        inner = kind.value_type if types.is_run_end_encoded(kind) else kind.storage_type
        return _normalized_type(inner, of_nulls, of_absent_values)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _normalized_type(kind.value_type, of_nulls, of_nulls), kind.ordered)
    if not _has_lists(kind):
        return kind
    value = _normalized_type(kind.value_type, of_absent_values, of_absent_values)
    return kind if is_list(kind) and value == kind.value_type else pa.large_list(value)


def _has_lists(kind: Any) -> bool:
    return is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


def _converted(array: Any, kind: Any) -> Any:
    """Return an array in a type of `_normalized_type`. pyarrow's own casts of views of lists lose values."""
    if array.type == kind:
        return array
    if pa.types.is_run_end_encoded(array.type):
        return _converted(pc.run_end_decode(array), kind)
    if isinstance(array.type, pa.BaseExtensionType):
        return _converted(array.storage, kind)
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _converted(array.dictionary, kind.value_type))
    if not _has_lists(array.type):
        return array.cast(kind)
    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    values = _converted(array.flatten(), kind.value_type)
    return pa.LargeListArray.from_arrays(offsets, values, kind, mask=array.is_null())
