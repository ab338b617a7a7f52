"""The columns that feed a model: their names, and which Arrow types they may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES, FeaturePooling, ModelSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec, LabelValuesSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.errors import DataError
from cprjob_serving.hashes import U64
from cprjob_serving.vocabulary import Vocabulary

#: The Criteo layout has no header: columns go by their numbers.
CRITEO_NAMES = tuple(str(number) for number in range(1, 2 + DENSE_FEATURES + CATEGORICAL_FEATURES))
MAX_TABLE_ROWS = 2**31 - 1
#: The largest weight of a sample. Sums of weights are counted in fixed point, see `cpr_trainer.evaluation`.
MAX_WEIGHT = 1_000_000
#: Marks an id without a row; its sample is a bad row.
NO_ROW = -1
_MAX_SHOWN_NAMES = 50


@dataclass(frozen=True, slots=True)
class Input:
    """A categorical column and the table that its ids lead to, as a feature, see `FeatureSpec`.

    `vocabulary` is that of the table, once it is known. `integers`: ids are whole numbers, in any notation.
    """

    column: str
    table: TableSpec
    pooling: FeaturePooling | None = None
    max_length: int | None = None
    weights: str | None = None
    integers: bool = False
    vocabulary: Vocabulary | None = None

    @property
    def has_bags(self) -> bool:
        """True if a sample has any number of ids here, False if it has exactly one."""
        return self.pooling is not None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that feed a model. `counts` and `numbers` are the first of `width` numeric features.

    `separator` stands between the ids of a bag, and between their weights, in text. `group` is no input: the scores of
    its values are reported separately. `sample_weight` has the weights of samples. Labels of `label_values` are texts.
    """

    labels: tuple[str, ...]
    targets: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    inputs: tuple[Input, ...]
    separator: str | None = None
    width: int = DENSE_FEATURES
    group: str | None = None
    sample_weight: str | None = None
    label_values: tuple[LabelValuesSpec, ...] = ()

    @property
    def predicted(self) -> tuple[str, ...]:
        """The labels, then the targets."""
        return (*self.labels, *self.targets)

    @property
    def numeric(self) -> tuple[str, ...]:
        """The columns of single numbers."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        texts = {each.label for each in self.label_values}
        predicted = (name for name in self.predicted if name not in texts)
        return (*predicted, *self.counts, *self.numbers, *weight)

    @property
    def bags(self) -> frozenset[str]:
        """The columns of any number of ids."""
        return frozenset(each.column for each in self.inputs if each.has_bags)

    @property
    def weights(self) -> tuple[str, ...]:
        """The columns of weights of ids, each once."""
        return tuple(dict.fromkeys(each.weights for each in self.inputs if each.weights is not None))

    @property
    def ids_type(self) -> type[np.int32 | np.int64]:
        """The type of ids: rows of tables fit into 4 bytes, keys of dynamic tables take 8."""
        return np.int64 if any(each.table.ids == "Dynamic" for each in self.inputs) else np.int32

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        group = () if self.group is None else (self.group,)
        inputs = (each.column for each in self.inputs)
        return tuple(dict.fromkeys((*self.predicted, *self.numeric, *inputs, *self.weights, *group)))


def columns_of(data: DataSpec, model: ModelSpec) -> Columns:
    """Return the columns that feed a model. Raises DataError if `data` names none, or others than the model takes."""
    if data.format == "Criteo":
        check_fixed_layout(data, model)
        names = CRITEO_NAMES[1:]
        categories = names[DENSE_FEATURES : DENSE_FEATURES + len(model.tables)]
        inputs = tuple(map(Input, categories, model.tables))
        return Columns(CRITEO_NAMES[:1], (), names[:DENSE_FEATURES], (), inputs)
    columns = data.columns
    if columns is None:
        raise DataError(f"{data.format} data needs a mapping of its columns.", "State data.columns.")
    numeric = len(columns.counts + columns.numbers)
    if numeric != model.dense_width and (model.numeric is not None or numeric > DENSE_FEATURES):
        raise DataError(
            f"The model takes {model.dense_width} counts and numbers, data.columns names {numeric}.",
            "State the number of them in model.numeric.",
        )
    return Columns(
        columns.labels,
        columns.targets,
        columns.counts,
        columns.numbers,
        _inputs(model, columns),
        columns.separator,
        model.dense_width,
        sample_weight=columns.weight,
        label_values=columns.label_values,
    )


def _inputs(model: ModelSpec, columns: ColumnsSpec) -> tuple[Input, ...]:
    """Return the inputs of the tables: the features, or a category for each."""
    integers, categories = frozenset(columns.integers), columns.categories
    if not model.features:
        if len(categories) != len(model.tables):
            raise DataError(
                f"The model has {len(model.tables)} tables, data.columns {len(categories)} categories.",
                "Name a category for each table, in the tables' order.",
            )
        return tuple(
            Input(name, table, table.pooling, integers=name in integers)
            for name, table in zip(categories, model.tables, strict=True)
        )
    return tuple(
        Input(each.column, model.tables[place], each.pooling, each.max_length, each.weights, each.column in integers)
        for each, place in zip(model.features, model.feature_tables, strict=True)
    )


def check_fixed_layout(data: DataSpec, model: ModelSpec) -> None:
    """Raise DataError if a model states which columns it takes, and data with columns of its own."""
    if model.features or model.numeric is not None:
        raise DataError(
            f"{data.format} data has columns of its own.", "Remove model.features and model.numeric, or use a table."
        )


def check_bags(data: DataSpec, model: ModelSpec) -> None:
    """Raise DataError if a feature takes bags, and such data has none."""
    has_separator = data.columns is not None and data.columns.separator is not None
    pools = any(each.pooling for each in model.features or model.tables)
    if pools and data.format in {"Criteo", "CSV", "TSV", "Synthetic"} and not has_separator:
        raise DataError(
            f"{data.format} data has no bags of ids, and a table pools.",
            "Use Parquet with lists, or CSV or TSV with data.columns.separator; or remove the table's pooling.",
        )


def check_tables(tables: Sequence[TableSpec], most: int) -> None:
    """Raise DataError if data with up to `most` categories cannot feed `tables`: table t takes the t-th."""
    if not 1 <= len(tables) <= most:
        raise DataError(
            f"The model has {len(tables)} tables, the data {most} categorical columns.",
            f"Give the model 1 to {most} tables.",
        )
    for table in tables:
        if table.ids != "Dynamic" and not 1 <= table.rows <= MAX_TABLE_ROWS:
            raise DataError(
                f"Table {table.name} has {table.rows} rows.",
                f"Give it 1 to {MAX_TABLE_ROWS}; ids take 4 bytes.",
            )


def check_columns(columns: Columns | None, present: Sequence[str], where: str, schema: pa.Schema | None = None) -> None:
    """Raise DataError for a column that is missing, there twice, or of a type that does not fit its use in the job."""
    if columns is None:
        return
    counts = Counter(present)
    for name in columns.used:
        if (count := counts[name]) != 1:
            known = ", ".join(present[:_MAX_SHOWN_NAMES]) + (", ..." if len(present) > _MAX_SHOWN_NAMES else "")
            raise DataError(
                f"{where} has {count or 'no'} columns {name!r}; its columns are {known}.",
                "Correct data.columns (and data.header: without a header, columns go by their numbers, from 1).",
            )
    if schema is not None:
        _check_types(columns, schema, where)


def _check_types(columns: Columns, schema: pa.Schema, where: str) -> None:
    for name in columns.numeric:
        if not is_number(kind := schema.field(name).type):
            raise DataError(f"{where}: column {name} is {kind}, not a number.", "Correct data.columns.")
    for name in (each.label for each in columns.label_values):
        if not is_category(kind := schema.field(name).type):
            remedy = "Correct data.columns.labelValues, or write 0 and 1."
            raise DataError(f"{where}: column {name} is {kind}, not text or an integer.", remedy)
    for name in columns.weights:
        if not (is_list(kind := schema.field(name).type) and is_number(kind.value_type)):
            raise DataError(f"{where}: column {name} is {kind}, not a list of numbers.", "Correct model.features.")
    for used in columns.inputs:
        _check_category(used, schema.field(used.column).type, where)


def _check_category(used: Input, kind: Any, where: str) -> None:
    """Raise DataError unless a category is text or an integer, or a list of them if the input takes bags."""
    ids = kind.value_type if used.has_bags and is_list(kind) else kind
    fits = (ids is not kind) == used.has_bags
    if fits and (is_category(ids) or (used.integers and is_number(ids))):
        return
    if used.has_bags:
        expected = "a list of texts or integers"
        remedy = "Correct data.columns, or remove the pooling of the table that it feeds: that is for lists."
    else:
        expected = "text or an integer"
        remedy = "Correct data.columns: a category is one text or integer a sample; lists need a table with a pooling."
    if fits and is_number(ids):
        remedy = "If its ids are whole numbers (a null makes integers floats), name it in data.columns.integers."
    raise DataError(f"{where}: column {used.column} is {kind}, not {expected}.", remedy)


def is_list(kind: Any) -> bool:
    """Return True for lists of any lengths or of one."""
    types = pa.types
    return any((types.is_list(kind), types.is_large_list(kind), types.is_fixed_size_list(kind)))


def is_number(kind: Any) -> bool:
    """Return True for integers, floats, booleans and decimals."""
    types = pa.types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def is_text(kind: Any) -> bool:
    """Return True for texts and bytes."""
    types = pa.types
    return any((types.is_string(kind), types.is_large_string(kind), types.is_binary(kind), types.is_large_binary(kind)))


def is_category(kind: Any) -> bool:
    """Return True for texts, integers and booleans."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_category(kind.value_type)
    return types.is_integer(kind) or types.is_boolean(kind) or is_text(kind)


def as_texts(values: Any) -> Any:
    """Return an array of texts, integers or booleans as the bytes that stand for them in text."""
    plain = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return values.cast(pa.string() if plain else pa.binary()).cast(pa.binary())


def count_features(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Return log(1 + max(count, 0)), float32, of any shape; missing counts come as 0.

    The columns are counts: the few negative ones (-1, -2) are marks for "unknown" and are treated as missing.
    Computed in double precision, so that the rounded result is the same on every machine.
    """
    return np.log1p(np.maximum(counts, 0).astype(np.float64)).astype(np.float32)


def ids_of_hashes(found: U64, target: TableSpec) -> Ints:
    """Return the row of each hashed value in a table, int64 [n] in [0, rows).

    With the ids `Dynamic` it is the key: all 64 bits of the hash, viewed as int64.
    """
    return found.view(np.int64) if target.ids == "Dynamic" else (found % np.uint64(target.rows)).astype(np.int64)
