"""`spec.restoreFrom`: what a job takes of another job's model, by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.spec import MAX_TABLES, Resized
from cpr_operator.api.model import ObjectName, SpecModel
from cpr_operator.api.model_spec import Name
from cpr_operator.api.rules import restore as rules

BY_TABLE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["table"]}


class MappedTable(SpecModel):
    """A table that starts from one that the anchor calls otherwise, or that is resized in its own way."""

    table: Name
    """The table in spec.model.tables."""
    source: Annotated[Name, Field(alias="from")]
    """The table of the anchor. It is taken by the tables that name it here, and by no other."""
    resized: Resized | None = None
    """What happens if the two have different numbers of rows. Default: restoreFrom.resized."""


class RestoreFrom(SpecModel):
    """Another job's model to start from. Tables are taken by name, and dense parameters by name and shape.

    The position in the data is not taken. Tables of one name must have the same ids, dim, and kind of optimizer.
    """

    job: ObjectName | None = None
    """A job in the same namespace with the same snapshots.store. Its result is taken, or its newest anchor if it has
    not succeeded. The key is chosen once, when this job starts. Until there is one, this job waits. Exactly one of job
    and anchor is required."""
    anchor: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The key of an anchor in the same store (status.result.key of its job)."""
    tables: Literal["ByName"] = "ByName"
    """How tables of the anchor are found."""
    missing: Literal["Fail", "Initialise"] = "Fail"
    """What this job has and the anchor has not: tables, and dense parameters and buffers by name and shape. Fail: the
    job fails. Initialise: it starts from first values."""
    extra: Literal["Fail", "Ignore"] = "Fail"
    """What the anchor has and this job has not: tables, and dense parameters and buffers by name and shape. Fail: the
    job fails. Ignore: it is left out."""
    resized: Resized = "Fail"
    """What happens to a table with another number of rows than in the anchor. Fail: the job fails. Rehash: row r starts
    from row r modulo the anchor's rows, which is where hashed ids had theirs. For hashed ids, and a multiple of the
    anchor's rows. Truncate: row r starts from row r, further rows of this job from first values, and further rows of
    the anchor are left out. For ids RowNumber."""
    map: (
        Annotated[
            tuple[MappedTable, ...],
            Field(min_length=1, max_length=MAX_TABLES, json_schema_extra=BY_TABLE),
            rules.MAPPED_ONCE.once("table"),
        ]
        | None
    ) = None
    """Tables whose name in the anchor is another one."""
    dense: Literal["ByName", "Initialise"] = "ByName"
    """ByName: the dense network starts from the anchor's parameters, buffers and optimizer state. Initialise: it starts
    from first values, whatever missing and extra say."""
