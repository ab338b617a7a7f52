"""Rules of what a job takes of another job's model."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

SOURCE = Rule(
    "spec.restoreFrom",
    "spec.restoreFrom.anchor",
    "exactly one of job and anchor is required",
    "state spec.restoreFrom.job, the name of a job, or spec.restoreFrom.anchor, a key",
    "has(self.job) != has(self.anchor)",
)
ONE_ANCHOR = Rule(
    "spec",
    "spec.restoreFrom",
    "spec.snapshots.restoreFrom names an anchor as well",
    "remove one of them: spec.snapshots.restoreFrom is for the same model",
    "!has(self.restoreFrom) || !has(self.snapshots.restoreFrom)",
)
MAPPED_TABLES = Rule(
    "spec",
    "spec.restoreFrom",
    "map names a table that this job has not",
    "correct table in spec.restoreFrom.map, or add it to spec.model.tables",
    "!has(self.restoreFrom) || !has(self.restoreFrom.map)"
    " || sets.contains(self.model.tables.map(t, t.name), self.restoreFrom.map.map(m, m.table))",
    # The operator reports larger models (InvalidSpec).
    skip_on_server="has(self.restoreFrom) && has(self.restoreFrom.map)"
    " && self.restoreFrom.map.size() * self.model.tables.size() > 10000",
)
#: The API server knows it from the schema.
MAPPED_ONCE = Rule(
    "spec.restoreFrom",
    "spec.restoreFrom.map",
    "names a table twice",
    "state each table once",
    "",
)
RULES = (SOURCE, ONE_ANCHOR, MAPPED_TABLES)
