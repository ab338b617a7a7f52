"""Which types of Arrow may be a number, a category, a bag or its weights."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cpr_trainer.data.columns import Columns, Input
from cpr_trainer.errors import DataError


def known_types(schema: pa.Schema, columns: Columns | None) -> pa.Schema:
    """Return a schema to cast a table to: views are plain types, and a column of nulls has the type that is used.

    A writer that finds nothing but nulls in a file has no other type for them; other files have one.
    """
    numbers = frozenset() if columns is None else frozenset(columns.numeric)
    weights = frozenset() if columns is None else frozenset(columns.weights)
    bags = frozenset() if columns is None else columns.bags

    def known(field: pa.Field) -> pa.Field:
        single = pa.float64() if field.name in numbers | weights else pa.string()
        return field.with_type(_known(field.type, pa.list_(single) if field.name in bags | weights else single, single))

    return pa.schema([known(field) for field in schema])


def _known(kind: Any, of_nulls: Any, of_absent_values: Any) -> Any:
    types = pa.types
    if types.is_null(kind):
        return of_nulls
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind) and (value := _known(kind.value_type, of_nulls, of_nulls)) != kind.value_type:
        return value
    if not (_is_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind)):
        return kind
    value = _known(kind.value_type, of_absent_values, of_absent_values)
    return kind if _is_list(kind) and value == kind.value_type else pa.large_list(value)


def check_types(columns: Columns, schema: pa.Schema, where: str) -> None:
    """Raise DataError for a column of an Arrow schema whose values cannot be what the job takes them for."""
    for name in columns.numeric:
        if not _is_number(kind := schema.field(name).type):
            raise DataError(f"{where}: column {name} is {kind}, not a number.", "Correct data.columns.")
    for name in columns.weights:
        if not (_is_list(kind := schema.field(name).type) and _is_number(kind.value_type)):
            raise DataError(f"{where}: column {name} is {kind}, not a list of numbers.", "Correct model.features.")
    for each in columns.inputs:
        _check_category(each, schema.field(each.column).type, where)


def _check_category(used: Input, kind: Any, where: str) -> None:
    """Raise DataError for a category that is no text and no integer, or no list of them where it has to be one."""
    ids = kind.value_type if used.has_bags and _is_list(kind) else kind
    fits = (ids is not kind) == used.has_bags
    if fits and (is_category(ids) or (used.integers and _is_number(ids))):
        return
    if used.has_bags:
        wanted = "a list of texts or integers"
        remedy = "Correct data.columns, or remove the pooling of the table that it feeds: that is for lists."
    else:
        wanted = "text or an integer"
        remedy = "Correct data.columns: a category is one text or integer a sample; lists need a table with a pooling."
    if fits and _is_number(ids):
        remedy = "If its ids are whole numbers (a null makes integers floats), name it in data.columns.integers."
    raise DataError(f"{where}: column {used.column} is {kind}, not {wanted}.", remedy)


def _is_list(kind: Any) -> bool:
    types = pa.types
    return any((types.is_list(kind), types.is_large_list(kind), types.is_fixed_size_list(kind)))


def _is_number(kind: Any) -> bool:
    types = pa.types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def is_category(kind: Any) -> bool:
    """Whether values are texts, integers or booleans."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_category(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return types.is_integer(kind) or types.is_boolean(kind) or any(is_text(kind) for is_text in texts)


def as_texts(values: Any) -> Any:
    """Return an array of texts, integers or booleans as one of the bytes that stand for them in text."""
    plain = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return values.cast(pa.string() if plain else pa.binary()).cast(pa.binary())
