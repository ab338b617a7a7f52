"""`spec.model`: embedding tables, and the dense network over them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from cpr_contract.spec import Pooling
from cpr_operator.api import rules
from cpr_operator.api.model import SpecModel
from cpr_operator.api.optimizers import DenseOptimizer, SparseOptimizer, TableOptimizer

#: package.module:factory, in names that Python has.
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
#: In the place of a field that is wrong itself, and was told so.
_UNKNOWN = object()
Dim = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=65536)]
Layers = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]


class Table(SpecModel):
    """One embedding table; the t-th table takes the t-th categorical column."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9_]*[a-z0-9])?$")]
    """A name that no other table of the job has."""
    rows: Annotated[int, Field(ge=1, le=2**40)]
    """Rows; ids are hashed into them."""
    pooling: Pooling | None = None
    """For a column with a bag of any number of ids a sample: the table gives the Sum or the Mean of their vectors, and
    zeros for an empty bag. Absent: a sample has one id."""
    optimizer: TableOptimizer | None = None
    """The optimizer of this table; nothing of it is taken from sparseOptimizer. Absent: sparseOptimizer."""
    dim: Dim | None = None
    """Width of this table's vectors. A DLRM projects them to embeddingDim; an entrypoint gets them as they are. Absent:
    embeddingDim."""


class ModelSpec(SpecModel):
    """Embedding tables, and a dense network over them: a DLRM, or one of your own.

    A DLRM has 13 numeric features through a bottom MLP, embeddings, dot interaction, and a top MLP.
    """

    embedding_dim: Dim
    """Width of the embedding vectors of tables that state no dim, and of all vectors in a DLRM's interaction."""
    entrypoint: Annotated[str, Field(max_length=256, pattern=ENTRYPOINT)] | None = None
    """package.module:factory in the image: builds the dense network, a torch.nn.Module from numeric features and
    embeddings to logits. Absent: a DLRM."""
    bottom_mlp: Layers | None = None
    """Layer widths of the bottom MLP after its input; the last is embeddingDim. A DLRM needs it; an entrypoint may read
    it."""
    top_mlp: Layers | None = None
    """Layer widths of the top MLP after the interaction; the last is 1. A DLRM needs it; an entrypoint may read it."""
    tables: Annotated[
        tuple[Table, ...],
        Field(
            min_length=1,
            max_length=26,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """The embedding tables, in the order of the data's categorical columns."""
    dense_optimizer: DenseOptimizer = DenseOptimizer()
    """The optimizer of both MLPs."""
    sparse_optimizer: SparseOptimizer = SparseOptimizer()
    """The optimizer of the embedding tables that state none of their own."""

    @field_validator("bottom_mlp")
    @classmethod
    def _bottom_ends_in_dim(cls, value: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        fits = value is not None and value[-1] == info.data.get("embedding_dim", value[-1])
        rules.BOTTOM_MLP.require(fits or info.data.get("entrypoint", _UNKNOWN) is not None)
        return value

    @field_validator("top_mlp")
    @classmethod
    def _top_ends_in_one(cls, value: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        fits = value is not None and value[-1] == 1
        rules.TOP_MLP.require(fits or info.data.get("entrypoint", _UNKNOWN) is not None)
        return value

    @field_validator("tables")
    @classmethod
    def _names_differ(cls, value: tuple[Table, ...]) -> tuple[Table, ...]:
        rules.TABLES.require(len({table.name for table in value}) == len(value))
        return value
