"""`ModelSpec`: the model of a CPRJob, as its pods see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

#: Columns of the Criteo layout: a label, then these.
DENSE_FEATURES = 13
CATEGORICAL_FEATURES = 26
#: How much a model may take in.
MAX_TABLES = 1024
MAX_FEATURES = 2048
MAX_NUMERIC = 4096
#: Labels and targets of one model. Their scores, by name, have to fit into a pod's last word of 4 KiB.
MAX_PREDICTED = 8

#: How the vectors of a bag become one.
Pooling = Literal["Sum", "Mean"]
#: What a network gets of a feature with any number of ids: one vector, or with "None" the sequence of all of them.
FeaturePooling = Literal["Sum", "Mean", "None"]
#: How an id becomes a row of its table: it is the row's number, a value with a row of its own, or it is hashed.
Ids = Literal["CPR64", "RowNumber", "Vocabulary", "XXH64", "Murmur3"]
#: What an id does that has no row: it makes the sample a bad one, or it is taken as `DEFAULT_ROW`.
OutOfRange = Literal["Fail", "DefaultRow"]
DEFAULT_ROW = 0
#: The kinds of phases of a learning rate, and of the optimizers of the dense network and of embedding rows.
PhaseKind = Literal["Constant", "Warmup", "Linear", "Cosine", "Polynomial", "Step"]
DenseOptimizerKind = Literal["SGD", "Adagrad", "Adam", "AdamW"]
RowOptimizer = Literal["SGD", "RowWiseAdagrad", "Adagrad", "Adam"]


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """Some steps of a learning rate. Levels are portions of the `learning_rate`, and 1 before the first phase.

    Warmup goes from `start` to 1, Linear, Cosine and Polynomial go from where the last phase ended to `end`, Step takes
    the level times `factor` after each `every` steps, Constant stays. `power` is for Polynomial.
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
    `weight_decay` is added to the gradient as an L2 penalty is, but by AdamW taken from the parameters themselves.
    Gradients with a norm above `clip_norm` are scaled down to it; None: none are.
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
class TableSpec:
    """One embedding table. In a model that states no features, table t takes the t-th categorical column.

    With a `pooling` a sample has a bag of any number of ids there, without one exactly one id. Without an `optimizer`
    it has that of the model, without a `dim` its embedding_dim. `out_of_range` is for the ids `RowNumber` and
    `Vocabulary`, `hash_seed` for `XXH64` and `Murmur3`. With the ids `Vocabulary`, value i, from 0, has row i + 1:
    `vocabulary` is the URI of the file of values, or they are those that the data has at least `min_count` times.
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

    @property
    def id_scheme(self) -> str:
        """What says which id has which row: rows of a save mean nothing to a table with another scheme."""
        return f"{self.ids} with seed {self.hash_seed}" if self.ids in {"XXH64", "Murmur3"} else self.ids


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """What a network gets by one name: vectors of `table` for the ids in a `column`.

    Without a `pooling` a sample has exactly one id, with one any number. Of more than `max_length` ids the last ones
    are kept. `weights` is a column with a weight for each id.
    """

    name: str
    column: str
    table: str
    pooling: FeaturePooling | None = None
    max_length: int | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is trained. `entrypoint`, as "package.module:factory", builds the dense network; without one it is a DLRM.

    `bottom_mlp` and `top_mlp` are the DLRM's layer widths after the input; they end in embedding_dim and 1. An
    entrypoint may read them as it likes, and they may be empty then. The network predicts the `labels`, 0 or 1, then
    the `targets`, numbers, each with one output.

    With `features` the network gets these by name, and several may share a table; without, each table is one feature.
    `numeric` says how many numeric features there are; without, there are DENSE_FEATURES, padded with zeros.
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

    @property
    def dense_width(self) -> int:
        """The number of numeric features a sample has."""
        return DENSE_FEATURES if self.numeric is None else self.numeric

    @property
    def feature_tables(self) -> tuple[int, ...]:
        """The table of each feature, as a place in `tables`. Raises KeyError if there is none of that name."""
        if not self.features:
            return tuple(range(len(self.tables)))
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What a sample has of logits, and of labels: one number, or a vector of as many as are predicted."""
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
        """Name and `id_scheme` of each table whose ids are not CPR64."""
        return tuple((table.name, table.id_scheme) for table in self.tables if table.ids != "CPR64")

    @property
    def dims(self) -> tuple[int, ...]:
        """The lengths that vectors have, each once, in the order of the tables: one, unless tables differ."""
        return tuple(dict.fromkeys(self.table_dims))

    @property
    def bands(self) -> tuple[int, ...]:
        """The band of each table, as a place in `dims`: tables of one dim are a band."""
        return tuple(map(self.dims.index, self.table_dims))


def state_width(kind: RowOptimizer, dim: int) -> int:
    """Return how many float32 an optimizer keeps of each row of `dim` values; first values are zero."""
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
