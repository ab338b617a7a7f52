"""Which columns of a file feed the model, and how text formats write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpr_contract.spec import CATEGORICAL_FEATURES, DENSE_FEATURES, ColumnsSpec, DataSpec, TableSpec
from cpr_trainer.errors import DataError

#: The Criteo layout has no header: columns go by their numbers.
CRITEO_NAMES = tuple(str(number) for number in range(1, 2 + DENSE_FEATURES + CATEGORICAL_FEATURES))
_SHOWN_NAMES = 50


@dataclass(frozen=True, slots=True)
class Dialect:
    """How lines are written. `header`: files begin with a line of names. `columns`: how many there are, if known."""

    delimiter: str
    quotes: bool
    header: bool
    columns: int | None = None


CRITEO = Dialect("\t", quotes=False, header=False, columns=len(CRITEO_NAMES))


def dialect_of(data: DataSpec) -> Dialect:
    """Return how the text that `data` names is written."""
    if data.format == "Criteo":
        return CRITEO
    comma = data.format == "CSV"
    return Dialect("," if comma else "\t", quotes=comma, header=data.header)


def columns_of(data: DataSpec, tables: int) -> ColumnsSpec:
    """Return the columns that feed a model of so many tables. Raises DataError if `data` names none, or not so many."""
    if data.format == "Criteo":
        names = CRITEO_NAMES[1:]
        categories = names[DENSE_FEATURES : DENSE_FEATURES + tables]
        return ColumnsSpec(CRITEO_NAMES[:1], names[:DENSE_FEATURES], (), categories)
    if data.columns is None:
        raise DataError(f"{data.format} data needs a mapping of its columns.", "State data.columns.")
    if len(data.columns.counts + data.columns.numbers) > DENSE_FEATURES:
        raise DataError(f"The model takes {DENSE_FEATURES} counts and numbers.", "Shorten data.columns.")
    if len(data.columns.categories) != tables:
        raise DataError(
            f"The model has {tables} tables, data.columns {len(data.columns.categories)} categories.",
            "Name a category for each table, in the tables' order.",
        )
    return data.columns


def check_bags(data: DataSpec, tables: Sequence[TableSpec]) -> None:
    """Raise DataError if a table pools, and there are no bags in such data."""
    has_separator = data.columns is not None and data.columns.separator is not None
    if any(table.pooling for table in tables) and data.format != "Parquet" and not has_separator:
        raise DataError(
            f"{data.format} data has no bags of ids, and a table pools.",
            "Use Parquet with lists, or CSV or TSV with data.columns.separator; or remove the table's pooling.",
        )


def check_names(columns: ColumnsSpec, present: Sequence[str], uri: str) -> None:
    """Raise DataError for a column that a file does not have, or has twice."""
    for name in used(columns):
        if (count := present.count(name)) != 1:
            known = ", ".join(present[:_SHOWN_NAMES]) + (", ..." if len(present) > _SHOWN_NAMES else "")
            raise DataError(
                f"{uri} has {count or 'no'} columns {name!r}; its columns are {known}.",
                "Correct data.columns (and data.header: without a header, columns go by their numbers, from 1).",
            )


def used(columns: ColumnsSpec) -> tuple[str, ...]:
    """Return the names of all columns that are read, each once."""
    return tuple(dict.fromkeys((*numeric(columns), *columns.categories)))


def numeric(columns: ColumnsSpec) -> tuple[str, ...]:
    """Return the names of the columns that hold numbers."""
    return (*columns.labels, *columns.targets, *columns.counts, *columns.numbers)
