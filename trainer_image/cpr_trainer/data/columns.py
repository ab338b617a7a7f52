"""Which columns of a file feed the model, and how text formats write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES, FeaturePooling, ModelSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.errors import DataError
from cprjob_serving.vocabulary import Vocabulary

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


@dataclass(frozen=True, slots=True)
class Input:
    """A categorical column, and what its ids lead to: a feature, see `FeatureSpec`, over a table.

    `vocabulary` is that of the table, once it is known. `integers`: ids are whole numbers, however they are written.
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
        """Whether a sample has any number of ids there, and not exactly one."""
        return self.pooling is not None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that feed a model. `counts` and `numbers` are the first of `width` numeric features.

    `separator` stands between the ids of a bag, and between their weights, in text. `group` feeds nothing: scores are
    told by its values.
    """

    labels: tuple[str, ...]
    targets: tuple[str, ...]
    counts: tuple[str, ...]
    numbers: tuple[str, ...]
    inputs: tuple[Input, ...]
    separator: str | None = None
    width: int = DENSE_FEATURES
    group: str | None = None

    @property
    def predicted(self) -> tuple[str, ...]:
        """The labels, then the targets."""
        return (*self.labels, *self.targets)

    @property
    def numeric(self) -> tuple[str, ...]:
        """All that hold single numbers."""
        return (*self.predicted, *self.counts, *self.numbers)

    @property
    def bags(self) -> frozenset[str]:
        """Those that hold any number of ids."""
        return frozenset(each.column for each in self.inputs if each.has_bags)

    @property
    def weights(self) -> tuple[str, ...]:
        """Those that hold weights of ids, each once."""
        return tuple(dict.fromkeys(each.weights for each in self.inputs if each.weights is not None))

    @property
    def used(self) -> tuple[str, ...]:
        """All that are read, each once."""
        group = () if self.group is None else (self.group,)
        return tuple(dict.fromkeys((*self.numeric, *(each.column for each in self.inputs), *self.weights, *group)))


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
            "State in model.numeric how many there are.",
        )
    return Columns(
        columns.labels,
        columns.targets,
        columns.counts,
        columns.numbers,
        _inputs(model, columns),
        columns.separator,
        model.dense_width,
    )


def check_fixed_layout(data: DataSpec, model: ModelSpec) -> None:
    """Raise DataError if a model states which columns it takes, and data with columns of its own."""
    if model.features or model.numeric is not None:
        raise DataError(
            f"{data.format} data has columns of its own.", "Remove model.features and model.numeric, or use a table."
        )


def check_bags(data: DataSpec, model: ModelSpec) -> None:
    """Raise DataError if a feature takes bags, and there are none in such data."""
    has_separator = data.columns is not None and data.columns.separator is not None
    pools = any(each.pooling for each in model.features or model.tables)
    if pools and data.format not in {"Parquet", "Custom"} and not has_separator:
        raise DataError(
            f"{data.format} data has no bags of ids, and a table pools.",
            "Use Parquet with lists, or CSV or TSV with data.columns.separator; or remove the table's pooling.",
        )


def check_names(columns: Columns, present: Sequence[str], uri: str) -> None:
    """Raise DataError for a column that a file does not have, or has twice."""
    counts = Counter(present)
    for name in columns.used:
        if (count := counts[name]) != 1:
            known = ", ".join(present[:_SHOWN_NAMES]) + (", ..." if len(present) > _SHOWN_NAMES else "")
            raise DataError(
                f"{uri} has {count or 'no'} columns {name!r}; its columns are {known}.",
                "Correct data.columns (and data.header: without a header, columns go by their numbers, from 1).",
            )


def _inputs(model: ModelSpec, columns: ColumnsSpec) -> tuple[Input, ...]:
    """Return what feeds the tables: the features, or a category for each."""
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
