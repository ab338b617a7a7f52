"""`ModelSpec`: the model of a CPRJob in the spec of its pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from cpr_contract.choices import Precision

#: Columns of the Criteo layout: a label, then these.
DENSE_FEATURES = 13
CATEGORICAL_FEATURES = 26
#: Maximum inputs of a model.
MAX_TABLES = 1024
MAX_FEATURES = 2048
MAX_NUMERIC = 4096
#: Maximum labels and targets of a model. Their scores must fit into a termination message of 4 KiB.
MAX_PREDICTED = 8

#: The reduction of a bag's vectors to one.
Pooling = Literal["Sum", "Mean"]
#: The input from a feature with any number of ids: one vector, or with "None" the sequence of all vectors.
FeaturePooling = Literal["Sum", "Mean", "None"]
#: The mapping from an id to a row of its table: the id is the row's number, has a row of its own, is hashed, or gets a
#: row of its own when it is trained (ADR 46).
Ids = Literal["CPR64", "RowNumber", "Vocabulary", "XXH64", "Murmur3", "Dynamic"]
#: The slots of a page of a dynamic table. Shards hold whole pages, so its capacity is a multiple.
PAGE_SLOTS = 4096
#: The measure by which a dynamic table evicts entries, the least first.
EvictionScore = Literal["LastStep", "Pushes"]
#: The vector of a key before its first push.
FirstValue = Literal["Random", "Zero"]
#: The treatment of an id without a row: the sample is bad, or the id has the row `DEFAULT_ROW`.
OutOfRange = Literal["Fail", "DefaultRow"]
DEFAULT_ROW = 0
#: The kinds of phases of a learning rate, and of the optimizers of the dense network and of embedding rows.
PhaseKind = Literal["Constant", "Warmup", "Linear", "Cosine", "Polynomial", "Step"]
DenseOptimizerKind = Literal["SGD", "Adagrad", "Adam", "AdamW"]
RowOptimizer = Literal["SGD", "RowWiseAdagrad", "Adagrad", "Adam"]


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """Some steps of a learning rate. Levels are portions of the `learning_rate`, and 1 before the first phase.

    Warmup changes the level from `start` to 1. Linear, Cosine and Polynomial change it from the end of the last phase
    to `end`. Step multiplies it by `factor` after each `every` steps. Constant keeps it. `power` is for Polynomial.
    """

    kind: PhaseKind
    steps: int
    start: float = 0.0
    end: float = 0.0
    power: float = 1.0
    every: int = 1
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The optimizer of the dense network, as torch.optim has it.

    `momentum` and `nesterov` are for SGD, `epsilon` for all others, `beta1` and `beta2` for Adam and AdamW.
    `weight_decay` is added to the gradient as an L2 penalty; AdamW subtracts it from the parameters instead.
    Gradients with a norm above `clip_norm` are scaled down to it; None: no clipping.
    """

    kind: DenseOptimizerKind
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    epsilon: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: tuple[PhaseSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class SparseOptimizerSpec:
    """The optimizer of embedding rows. `epsilon` is for all but SGD, `beta1` and `beta2` are for Adam."""

    kind: RowOptimizer
    learning_rate: float
    epsilon: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: tuple[PhaseSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class DynamicSpec:
    """The rules of a table with the ids `Dynamic`. Steps are those of the job.

    A key gets a row at its `min_steps`-th step with a push. If both of its buckets are full, the table evicts the entry
    with the least `score`: the last step with a push, or the number of such steps, halved every `halving_steps` (0:
    never). An entry without a push for `ttl_steps` expires (0: never). `default` is the vector of a key without a row.
    """

    min_steps: int = 1
    score: EvictionScore = "LastStep"
    halving_steps: int = 0
    ttl_steps: int = 0
    default: FirstValue = "Random"


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table. In a model that states no features, table t takes the t-th categorical column.

    With a `pooling` a sample has a bag of any number of ids there, without one exactly one id. The defaults of
    `optimizer` and `dim` are the model's. `out_of_range` is for the ids `RowNumber` and `Vocabulary`, `hash_seed` for
    `XXH64`, `Murmur3` and `Dynamic`. With the ids `Vocabulary`, value i, from 0, has row i + 1. Values come from the
    file at the URI `vocabulary`, or are those with at least `min_count` occurrences in the data. Rows have the type
    `precision`, their optimizer's state is float32.

    With the ids `Dynamic`, `rows` is the capacity, and `dynamic` has the rules.
    """

    name: str
    rows: int
    pooling: Pooling | None = None
    optimizer: SparseOptimizerSpec | None = None
    dim: int | None = None
    ids: Ids = "CPR64"
    out_of_range: OutOfRange = "Fail"
    hash_seed: int = 0
    vocabulary: str | None = None
    min_count: int | None = None
    precision: Precision = "fp32"
    dynamic: DynamicSpec | None = None

    @property
    def id_scheme(self) -> str:
        """The mapping from ids to rows. A save's rows are meaningless to a table with another scheme."""
        return f"{self.ids} with seed {self.hash_seed}" if self.ids in {"XXH64", "Murmur3", "Dynamic"} else self.ids


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A named input of the network: vectors of `table` for the ids in a `column`.

    Without a `pooling` a sample has exactly one id, with one any number. Only the last `max_length` ids are used.
    `weights` is a column with a weight for each id.
    """

    name: str
    column: str
    table: str
    pooling: FeaturePooling | None = None
    max_length: int | None = None
    weights: str | None = None


#: Dim and precision; for dynamic tables the kind of optimizer, and the rules.
_Band = tuple[int, Precision, tuple[RowOptimizer, DynamicSpec] | None]


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """The cross network of DCN V2: `layers` with weights that are products of two matrices of the rank `rank`."""

    layers: int
    rank: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model. `entrypoint`, as "package.module:factory", builds the dense network; without one it is a DLRM.

    `bottom_mlp` and `top_mlp` are the DLRM's layer widths after the input; they end in embedding_dim and 1. With an
    entrypoint they are its own arguments, and may be empty. Between them the DLRM has dot products, or the network
    `cross`. The network predicts the `labels`, 0 or 1, then the `targets`, numbers, each with one output.

    With `features` the network gets these by name, and several may share a table; without, each table is one feature.
    `numeric` is the number of numeric features; without it there are DENSE_FEATURES, padded with zeros. With
    `has_weights` the loss and the scores of each sample are weighted.
    """

    embedding_dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    tables: tuple[TableSpec, ...]
    dense_optimizer: OptimizerSpec
    sparse_optimizer: SparseOptimizerSpec
    entrypoint: str | None = None
    labels: tuple[str, ...] = ("label",)
    targets: tuple[str, ...] = ()
    features: tuple[FeatureSpec, ...] = ()
    numeric: int | None = None
    cross: CrossSpec | None = None
    has_weights: bool = False

    @property
    def dense_width(self) -> int:
        """The number of numeric features of a sample."""
        return DENSE_FEATURES if self.numeric is None else self.numeric

    @property
    def feature_tables(self) -> tuple[int, ...]:
        """The table of each feature, as an index into `tables`. Raises KeyError if no table has its name."""
        if not self.features:
            return tuple(range(len(self.tables)))
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a sample's logits and of its labels: one number, or a vector of all predictions."""
        outputs = len(self.labels) + len(self.targets)
        return () if outputs == 1 else (outputs,)

    @property
    def table_optimizers(self) -> tuple[SparseOptimizerSpec, ...]:
        """The optimizer of each table."""
        return tuple(table.optimizer or self.sparse_optimizer for table in self.tables)

    @property
    def table_dims(self) -> tuple[int, ...]:
        """The length of each table's vectors."""
        return tuple(table.dim or self.embedding_dim for table in self.tables)

    @property
    def table_ids(self) -> tuple[tuple[str, str], ...]:
        """Name and `id_scheme` of each table with other ids than CPR64."""
        return tuple((table.name, table.id_scheme) for table in self.tables if table.ids != "CPR64")

    @property
    def dims(self) -> tuple[int, ...]:
        """The distinct lengths of vectors, in the order of the tables."""
        return tuple(dict.fromkeys(self.table_dims))

    @property
    def table_precisions(self) -> tuple[Precision, ...]:
        """The precision of each table."""
        return tuple(table.precision for table in self.tables)

    @property
    def has_dynamic_tables(self) -> bool:
        """True if a table has the ids `Dynamic`."""
        return any(table.dynamic is not None for table in self.tables)

    @property
    def bands(self) -> tuple[int, ...]:
        """The band of each table, counted from 0.

        Tables of one dim and precision are a band; dynamic ones, if they also have one kind of optimizer and one set of
        rules.
        """
        return tuple(map(self._bands.index, self._band_of_tables))

    @property
    def band_dims(self) -> tuple[int, ...]:
        """The length of the vectors of each band. Bands of one dim differ in precision, or are of dynamic tables."""
        return tuple(dim for dim, _, _ in self._bands)

    @property
    def band_precisions(self) -> tuple[Precision, ...]:
        """The precision of each band."""
        return tuple(precision for _, precision, _ in self._bands)

    @property
    def dynamic_tables(self) -> tuple[int, ...]:
        """The tables with the ids `Dynamic`, as indices into `tables`."""
        return tuple(place for place, table in enumerate(self.tables) if table.dynamic is not None)

    @property
    def _bands(self) -> tuple[_Band, ...]:
        return tuple(dict.fromkeys(self._band_of_tables))

    @property
    def _band_of_tables(self) -> Iterator[_Band]:
        """Yield what identifies the band of each table."""
        for dim, table, optimizer in zip(self.table_dims, self.tables, self.table_optimizers, strict=True):
            yield dim, table.precision, None if table.dynamic is None else (optimizer.kind, table.dynamic)


def state_width(kind: RowOptimizer, dim: int) -> int:
    """Return the number of float32 values that an optimizer keeps per row of `dim` values; first values are zero."""
    match kind:
        case "SGD":
            return 0
        case "RowWiseAdagrad":
            return 1
        case "Adagrad":
            return dim
        case "Adam":
            return 2 * dim
        case _:
            assert_never(kind)
