"""`spec.restoreFrom`: the model of another job to start from, by the names of its tables and parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.choices import Dense, Extra, Missing
from cpr_contract.model import MAX_TABLES
from cpr_contract.spec import Resized
from cpr_operator.api.base import ObjectName, SpecModel
from cpr_operator.api.model_spec import Name
from cpr_operator.api.rules import job_rules as rules

LabelValue = Annotated[str, Field(max_length=63)]
BY_TABLE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["table"]}


class MappedTable(SpecModel):
    """A table that has another name in the anchor, or its own rule for resizing."""

    table: Name
    """The table in spec.model.tables."""
    source: Annotated[Name, Field(alias="from")]
    """The table of the anchor. It is taken by the tables that name it here, and by no other."""
    resized: Resized | None = None
    """The rule if the two have different numbers of rows. Default: restoreFrom.resized."""


class Requirement(SpecModel):
    """A requirement on one label, as in a label selector of Kubernetes."""

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """The relation of the label to the values. A job without the label matches NotIn."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """The values, for In and NotIn."""


class LatestOf(SpecModel):
    """A choice of jobs by their labels. All of matchLabels and matchExpressions must hold."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=16)] | None = None
    """Labels with their values."""
    match_expressions: Annotated[tuple[Requirement, ...], Field(max_length=16)] | None = None
    """Further requirements on labels."""
    none: Literal["Wait", "Initialise"] = "Wait"
    """The rule if no such job has succeeded, as on the first day of a series. Wait: this job waits for one.
    Initialise: it starts from initial values."""


class RestoreFrom(SpecModel):
    """Another job's model to start from. Tables are taken by name, and dense parameters by name and shape.

    The position in the data is not taken. Tables of one name must have the same ids, dim, and kind of optimizer.
    """

    job: ObjectName | None = None
    """A job in the same namespace with the same snapshots.store. Its result is taken, or its newest anchor if it has
    not succeeded. The key is chosen once, when this job starts. Until there is one, this job waits. Exactly one of
    job, anchor and latestOf is required."""
    anchor: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The key of an anchor in the same store (status.result.key of its job)."""
    latest_of: LatestOf | None = None
    """The job among those of the same namespace with these labels that succeeded last. Its result is taken. It is
    chosen once, when this job starts. A job with these labels that was created before this one and is not over is
    waited for."""
    tables: Literal["ByName"] = "ByName"
    """The matching of tables in the anchor."""
    missing: Missing = "Fail"
    """The rule for tables, and for dense parameters and buffers by name and shape, that only this job has. Fail: the
    job fails. Initialise: they start from initial values."""
    extra: Extra = "Fail"
    """The rule for tables, and for dense parameters and buffers by name and shape, that only the anchor has. Fail: the
    job fails. Ignore: they are left out."""
    resized: Resized = "Fail"
    """The rule for a table with another number of rows than in the anchor. Fail: the job fails. Rehash: row r starts
    from row r modulo the anchor's rows, which is where hashed ids had theirs. For hashed ids, and a multiple of the
    anchor's rows. Truncate: row r starts from row r, further rows of this job from initial values, and further rows of
    the anchor are left out. For ids RowNumber."""
    map: (
        Annotated[
            tuple[MappedTable, ...],
            Field(min_length=1, max_length=MAX_TABLES, json_schema_extra=BY_TABLE),
            rules.MAPPED_ONCE.once("table"),
        ]
        | None
    ) = None
    """Tables that have another name in the anchor."""
    dense: Dense = "ByName"
    """ByName: the dense network starts from the anchor's parameters, buffers and optimizer state. Initialise: it starts
    from initial values, and missing and extra do not apply to it."""
