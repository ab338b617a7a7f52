"""`spec.model`: the embedding tables, and the dense network over them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.choices import Precision
from cpr_contract.model import (
    MAX_FEATURES,
    MAX_NUMERIC,
    MAX_TABLES,
    DynamicSpec,
    EvictionScore,
    FeaturePooling,
    FirstValue,
    Ids,
    OutOfRange,
    Pooling,
)
from cpr_operator.api.base import ColumnName, Entrypoint, SpecModel, Uri
from cpr_operator.api.optimizer_spec import DenseOptimizer, SparseOptimizer, TableOptimizer
from cpr_operator.api.rules import model_rules as rules

Dim = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=65536)]
Layers = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
#: The clock of a dynamic table has 32 bits.
Steps = Annotated[int, Field(ge=0, le=2**32 - 1)]
Name = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")]
#: Lists of named elements, which the API server keeps unique.
BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class BuiltVocabulary(SpecModel):
    """A vocabulary that is built from the data."""

    min_count: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    """A value gets a row if it occurs at least this often in the training data."""


class Vocabulary(SpecModel):
    """The values that have a row of their own: those of a file, or of the data. State uri or build."""

    uri: Uri | None = None
    """A text file with one value per line, or a Parquet file with one column: s3://bucket/key, file:///path or a path.
    The first value gets row 1. The job copies the values into its store when it begins."""
    build: BuiltVocabulary | None = None
    """The values of the training data, the most frequent one first. When it begins, the job counts them in one pass
    over its data, and keeps them in its store."""


class Admission(SpecModel):
    """The admission of ids to a dynamic table."""

    min_steps: Annotated[int, Field(ge=1, le=255)] = 1
    """An id gets a row in its minSteps-th step with a push. With 1 it is the first one."""


class Eviction(SpecModel):
    """The choice of the row that a dynamic table takes back, where the place of a new id is full."""

    score: EvictionScore = "LastStep"
    """The row with the least score is taken back. LastStep: its last step with a push. Pushes: its number of steps with
    a push."""
    halving_steps: Steps | None = None
    """For Pushes: the number is halved at each multiple of this many steps of the job. Default: 0, never."""


class Table(SpecModel):
    """One embedding table. Without features, the t-th table takes the t-th categorical column."""

    name: Name
    """The table's name, unique in the job."""
    rows: Annotated[int, Field(ge=1, le=2**40)]
    """Number of rows. With the ids Dynamic: the capacity, which is rounded up to a multiple of 4096."""
    ids: Ids = "CPR64"
    """The mapping of ids to rows. RowNumber: an id is the number of its row, an integer from 0 to rows - 1, and no two
    ids share a row. CPR64, XXH64, Murmur3: an id is hashed, so it may be any text or integer, and some ids share a row.
    XXH64 and Murmur3 (x64_128, its first 64 bits) are taken modulo rows, as other systems can do too. Vocabulary: each
    value of a file, or of the data, has a row of its own, from row 1 on. Dynamic: an id gets a row of its own when it
    is trained, and the table takes rows back once it is full. It needs trainers.denseSync AllReduce."""
    vocabulary: Vocabulary | None = None
    """For the ids Vocabulary: their values."""
    out_of_range: OutOfRange | None = None
    """For RowNumber and Vocabulary: the handling of an id without a row, and of a missing one. Fail: the row of data is
    a bad one, see maxBadLines. DefaultRow: the id gets row 0. For RowNumber, text that is no integer always makes a bad
    row. Default: DefaultRow if the vocabulary is built, else Fail."""
    hash_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The seed of XXH64, Murmur3 or Dynamic. Default: 0."""
    admission: Admission | None = None
    """For Dynamic: when an id gets a row. Default: in its first step with a push."""
    eviction: Eviction | None = None
    """For Dynamic: which row is taken back for a new id. Default: the one whose last push is the longest ago."""
    ttl_steps: Steps | None = None
    """For Dynamic: an id without a push for more than this many steps loses its row. Default: 0, never."""
    default: FirstValue | None = None
    """For Dynamic: the vector of an id without a row, and of a new row before its first gradient. Random: as the first
    values of other tables, by data.seed, table and id. Zero: zeros. Default: Random."""
    pooling: Pooling | None = None
    """The combination of the vectors of a bag of ids, for a column with any number of ids per sample: Sum or Mean. An
    empty bag gives zeros. If absent, each sample has one id. With features, state it there."""
    optimizer: TableOptimizer | None = None
    """The optimizer of this table. It replaces sparseOptimizer as a whole. Default: sparseOptimizer."""
    dim: Dim | None = None
    """Width of this table's vectors. A DLRM projects them to embeddingDim. An entrypoint gets them unchanged. Default:
    embeddingDim."""
    precision: Precision = "fp32"
    """The type of this table's rows in memory, in saves and in parity. bf16: bfloat16, two bytes per value. Updates are
    computed in float32 and rounded stochastically, and the optimizer's state stays float32."""

    @property
    def dynamic_rules(self) -> DynamicSpec | None:
        """The rules of a table with the ids Dynamic."""
        if self.ids != "Dynamic":
            return None
        admission, eviction = self.admission or Admission(), self.eviction or Eviction()
        return DynamicSpec(
            min_steps=admission.min_steps,
            score=eviction.score,
            halving_steps=eviction.halving_steps or 0,
            ttl_steps=self.ttl_steps or 0,
            default=self.default or "Random",
        )


class Feature(SpecModel):
    """An input of the network: the vectors of the ids in a column. Several features may share a table."""

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
    """The maximum number of ids of a sample: the last ones are used. Default: all are used."""
    weights: ColumnName | None = None
    """The column with a list of weights, one for each id. Sum multiplies the vectors by them, and a sequence brings
    them along. Default: no weights."""


class Interaction(SpecModel):
    """The part of a DLRM between bottom and top MLP, over the bottom MLP's output and the embedding vectors."""

    kind: Literal["Dot", "DCNv2"] = "Dot"
    """Dot: the dot products of all pairs of vectors. DCNv2: a low-rank cross network over all vectors, one after the
    other."""
    layers: Annotated[int, Field(ge=1, le=16)] | None = None
    """For DCNv2: number of its layers."""
    rank: Width | None = None
    """For DCNv2: the rank of the matrices of its layers."""


class ModelSpec(SpecModel):
    """Embedding tables, and a dense network over them: a DLRM, or your own.

    A DLRM consists of a bottom MLP over the numeric features, embeddings, their interaction, and a top MLP.
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
    interaction: Interaction = Interaction()
    """The interaction of a DLRM. Default: dot products."""
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
    """The inputs of the network, by name. It replaces data.columns.categories and the pooling of tables.
    Default: one feature for each table."""
    numeric: Annotated[int, Field(ge=0, le=MAX_NUMERIC)] | None = None
    """Number of numeric features: data.columns.counts and numbers together. Default: 13, and columns that are not
    there are zeros."""
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    """The optimizer of the dense network."""
    sparse_optimizer: SparseOptimizer = SparseOptimizer()
    """The optimizer of the embedding tables that have no optimizer of their own."""
