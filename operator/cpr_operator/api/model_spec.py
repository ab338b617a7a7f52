"""`spec.model`: embedding tables, the dense network over them, and the optimizers of both."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_contract.model import (
    MAX_FEATURES,
    MAX_NUMERIC,
    MAX_TABLES,
    DenseOptimizerKind,
    FeaturePooling,
    Ids,
    OutOfRange,
    PhaseKind,
    Pooling,
    RowOptimizer,
)
from cpr_operator.api.base import ColumnName, Entrypoint, SpecModel, Uri
from cpr_operator.api.rules import model_rules as rules

# The optimizers in `spec.model`: of the dense network, of the embedding tables, and of one table.


LearningRate = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, le=1)]


class Phase(SpecModel):
    """Some steps of a schedule. A phase begins at the level at which the one before ended, the first one at 1."""

    kind: PhaseKind
    """How the level changes. Constant: not at all. Warmup: in a line from `start`, to 1 in its last step. Linear: in a
    line to `end`. Cosine: along half a cosine wave to `end`. Polynomial: to `end` like (1 - done)^power, where done is
    the portion of the phase that is over. Step: times `factor` after each `every` steps."""
    steps: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """Number of steps of the job. After the last phase, the level stays as it is."""
    start: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The level before a Warmup. Default: 0."""
    end: Annotated[float, Field(ge=0, le=1000)] | None = None
    """The level to which Linear, Cosine and Polynomial lead. Default: 0."""
    power: Annotated[float, Field(gt=0, le=100)] | None = None
    """The power of a Polynomial."""
    every: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    """The number of steps between two changes of a Step."""
    factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    """What a Step multiplies the level by."""


#: Bounded because the API server prices rules over it for each table.
Schedule = Annotated[tuple[Phase, ...], Field(max_length=8)]


class DenseOptimizer(SpecModel):
    """The optimizer of the dense network. Its arithmetic is that of torch.optim."""

    kind: DenseOptimizerKind = "SGD"
    """The algorithm. For each parameter, SGD keeps nothing, or one value with a momentum, Adagrad one, Adam and AdamW
    two."""
    learning_rate: LearningRate = 0.1
    """The step size."""
    schedule: Schedule = ()
    """How the learning rate changes from step to step, in phases: learningRate is multiplied by a level. If absent, the
    level is always 1."""
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """SGD's momentum. Default: none."""
    nesterov: bool = False
    """Whether SGD's momentum is Nesterov's."""
    epsilon: Epsilon | None = None
    """Added to the square roots by which Adagrad, Adam and AdamW divide. Default: 1e-10 for Adagrad, 1e-8 for Adam and
    AdamW."""
    beta1: Decay | None = None
    """The decay rate of the mean of gradients of Adam and AdamW. Default: 0.9."""
    beta2: Decay | None = None
    """The decay rate of the mean of squared gradients of Adam and AdamW. Default: 0.999."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = None
    """How much parameters shrink: an L2 penalty in the gradient, but decoupled from it for AdamW. Default: 0.01 for
    AdamW, 0 for the others."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Gradients whose norm over all parameters is larger are scaled down to this norm before each step. Default: no
    limit."""


class TableOptimizer(SpecModel):
    """The optimizer of one embedding table."""

    kind: RowOptimizer
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none. All
    tables of one dim reserve the space of the largest. Adam is lazy: it updates the moments of a row only when the row
    has a gradient."""
    learning_rate: LearningRate
    """The step size."""
    schedule: Schedule = ()
    """How the learning rate changes from step to step, in phases: learningRate is multiplied by a level. If absent, the
    level is always 1."""
    epsilon: Epsilon | None = None
    """Added to the square roots by which RowWiseAdagrad, Adagrad and Adam divide. Default: 1e-8."""
    beta1: Decay | None = None
    """Adam's decay rate of the mean of gradients. Default: 0.9."""
    beta2: Decay | None = None
    """Adam's decay rate of the mean of squared gradients. Default: 0.999."""


class SparseOptimizer(TableOptimizer):
    """The optimizer of the embedding tables that have no optimizer of their own."""

    kind: RowOptimizer = "RowWiseAdagrad"
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none.
    Adam is lazy: it updates the moments of a row only when the row has a gradient."""
    learning_rate: LearningRate = 0.1
    """The step size."""


Dim = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=65536)]
Layers = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
Name = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")]
#: Lists of named elements, which the API server keeps unique.
BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class BuiltVocabulary(SpecModel):
    """How a vocabulary is made of the data."""

    min_count: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    """A value gets a row of its own if it occurs at least so often in the training data."""


class Vocabulary(SpecModel):
    """The values that have a row of their own: those of a file, or of the data. State uri or build."""

    uri: Uri | None = None
    """A text file with one value per line, or a Parquet file with one column: s3://bucket/key, file:///path or a path.
    The first value gets row 1. The job copies the values into its store when it begins."""
    build: BuiltVocabulary | None = None
    """The values of the training data, the most frequent one first. When it begins, the job counts them in one pass
    over its data, and keeps them in its store."""


class Table(SpecModel):
    """One embedding table. Without features, the t-th table takes the t-th categorical column."""

    name: Name
    """The table's name, unique in the job."""
    rows: Annotated[int, Field(ge=1, le=2**40)]
    """Number of rows."""
    ids: Ids = "CPR64"
    """How an id becomes a row. RowNumber: an id is the number of its row, an integer from 0 to rows - 1, and no two ids
    share a row. CPR64, XXH64, Murmur3: an id is hashed, so it may be any text or integer, and some ids share a row.
    XXH64 and Murmur3 (x64_128, its first 64 bits) are taken modulo rows, as other systems can do too. Vocabulary: each
    value of a file, or of the data, has a row of its own, from row 1 on."""
    vocabulary: Vocabulary | None = None
    """For the ids Vocabulary: their values."""
    out_of_range: OutOfRange | None = None
    """For RowNumber and Vocabulary: what happens to an id without a row, and to a missing one. Fail: the row of data is
    a bad one, see maxBadLines. DefaultRow: the id gets row 0. For RowNumber, text that is no integer always makes a bad
    row. Default: DefaultRow if the vocabulary is built, else Fail."""
    hash_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The seed of XXH64 or Murmur3. Default: 0."""
    pooling: Pooling | None = None
    """How the vectors of a bag of ids are combined, for a column with any number of ids per sample: Sum or Mean. An
    empty bag gives zeros. If absent, each sample has one id. With features, state it there."""
    optimizer: TableOptimizer | None = None
    """The optimizer of this table. It replaces sparseOptimizer as a whole. Default: sparseOptimizer."""
    dim: Dim | None = None
    """Width of this table's vectors. A DLRM projects them to embeddingDim. An entrypoint gets them unchanged. Default:
    embeddingDim."""


class Feature(SpecModel):
    """What the network gets by one name: the vectors of the ids in a column. Several features may share a table."""

    name: Name
    """The feature's name, unique in the job."""
    column: ColumnName
    """The column of the data that has the ids."""
    table: Name
    """The name of the table that has their vectors."""
    pooling: FeaturePooling | None = None
    """For a column with any number of ids per sample. Sum, Mean: their vectors become one; an empty bag gives zeros.
    None: the network gets the sequence of vectors and its length, which needs an entrypoint. If absent, each sample has
    one id."""
    max_length: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Of more ids in a sample, the last ones are used. Default: all are used."""
    weights: ColumnName | None = None
    """The column with a list of weights, one for each id. Sum multiplies the vectors by them, and a sequence brings
    them along. Default: no weights."""


class ModelSpec(SpecModel):
    """Embedding tables, and a dense network over them: a DLRM, or your own.

    A DLRM consists of a bottom MLP over the numeric features, embeddings, their dot interaction, and a top MLP.
    """

    embedding_dim: Dim
    """Width of the embedding vectors of tables without a dim, and of all vectors in a DLRM's interaction."""
    entrypoint: Entrypoint | None = None
    """package.module:factory in the image, which builds the dense network: a torch.nn.Module from numeric features and
    embeddings to logits. Default: a DLRM."""
    bottom_mlp: Layers | None = None
    """Layer widths of the bottom MLP after its input. The last must be embeddingDim. Required for a DLRM. An entrypoint
    may read it."""
    top_mlp: Layers | None = None
    """Layer widths of the top MLP after the interaction. The last must be 1. Required for a DLRM. An entrypoint may
    read it."""
    tables: Annotated[
        tuple[Table, ...],
        Field(min_length=1, max_length=MAX_TABLES, json_schema_extra=BY_NAME),
        rules.TABLES.once("name"),
    ]
    """The embedding tables. Without features, they are in the order of the data's categorical columns."""
    features: (
        Annotated[
            tuple[Feature, ...],
            Field(min_length=1, max_length=MAX_FEATURES, json_schema_extra=BY_NAME),
            rules.FEATURE_NAMES.once("name"),
        ]
        | None
    ) = None
    """What the network gets of the tables, by name. It replaces data.columns.categories and the pooling of tables.
    Default: one feature for each table."""
    numeric: Annotated[int, Field(ge=0, le=MAX_NUMERIC)] | None = None
    """Number of numeric features: data.columns.counts and numbers together. Default: 13, and columns that are not
    there are zeros."""
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    """The optimizer of the dense network."""
    sparse_optimizer: SparseOptimizer = SparseOptimizer()
    """The optimizer of the embedding tables that have no optimizer of their own."""
