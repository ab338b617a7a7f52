"""Rules between `spec.model` and `spec.data`: the data has what the model takes."""

from __future__ import annotations

from cpr_contract.spec import DENSE_FEATURES
from cpr_operator.api.rules.rule import Rule

NUMERIC = Rule(
    "spec",
    "spec.data",
    f"counts and numbers must be as many as spec.model.numeric, or {DENSE_FEATURES} at most if that is absent",
    "state in spec.model.numeric how many columns spec.data.columns.counts and numbers name together",
    "!has(self.data.columns) || (has(self.model.numeric)"
    " ? self.data.columns.counts.size() + self.data.columns.numbers.size() == self.model.numeric"
    f" : self.data.columns.counts.size() + self.data.columns.numbers.size() <= {DENSE_FEATURES})",
)
NUMERIC_COLUMNS = Rule(
    "spec",
    "spec.data",
    f"Criteo and Synthetic data have {DENSE_FEATURES} numeric features",
    "remove spec.model.numeric, or train data with spec.data.columns",
    "!has(self.model.numeric) || has(self.data.columns)",
)
ONE_LABEL = Rule(
    "spec",
    "spec.data",
    "the DLRM predicts one label",
    "name exactly one of spec.data.columns.labels and no targets, or state spec.model.entrypoint",
    "!has(self.data.columns) || has(self.model.entrypoint)"
    " || (self.data.columns.labels.size() == 1 && self.data.columns.targets.size() == 0)",
)
CATEGORIES = Rule(
    "spec",
    "spec.data",
    "each table needs exactly one category, and with features there are none",
    "name as many spec.data.columns.categories as there are spec.model.tables, in the tables' order; with"
    " spec.model.features name none",
    "!has(self.data.columns) || self.data.columns.categories.size()"
    " == (has(self.model.features) ? 0 : self.model.tables.size())",
)
FEATURE_COLUMNS = Rule(
    "spec",
    "spec.data",
    "features need data with columns",
    "use CSV, TSV, Parquet or Custom, or remove spec.model.features",
    "!has(self.model.features) || has(self.data.columns)",
)
FEATURE_PREDICTED = Rule(
    "spec",
    "spec.data",
    "a predicted column cannot be a feature",
    "correct the columns of spec.model.features, or spec.data.columns.labels and targets",
    "!has(self.model.features) || !has(self.data.columns) || !self.model.features.exists(f,"
    " f.column in self.data.columns.labels || f.column in self.data.columns.targets || (has(f.weights)"
    " && (f.weights in self.data.columns.labels || f.weights in self.data.columns.targets)))",
)
SYNTHETIC_IDS = Rule(
    "spec",
    "spec.data",
    "Synthetic data has texts as ids, which are hashed by CPR64",
    "remove ids from spec.model.tables, or train data in files",
    "self.data.format != 'Synthetic' || self.model.tables.all(t, t.ids == 'CPR64')",
)
#: Whether some column has bags.
_POOLS = (
    "(has(self.model.features) ? self.model.features.exists(f, has(f.pooling))"
    " : self.model.tables.exists(t, has(t.pooling)))"
)
BAGS = Rule(
    "spec",
    "spec.data",
    "a table with pooling needs bags of ids",
    "use Parquet or Custom with lists, use CSV or TSV with spec.data.columns.separator, or remove pooling from"
    " spec.model.tables",
    f"!{_POOLS} || self.data.format in ['Parquet', 'Custom']"
    " || (has(self.data.columns) && has(self.data.columns.separator))",
)
POOLED = Rule(
    "spec",
    "spec.data",
    "a separator of ids needs a table with pooling",
    "state pooling for the tables in spec.model.tables that take bags, or remove spec.data.columns.separator",
    f"!has(self.data.columns) || !has(self.data.columns.separator) || {_POOLS}",
)
RULES = (
    NUMERIC,
    NUMERIC_COLUMNS,
    CATEGORIES,
    FEATURE_COLUMNS,
    FEATURE_PREDICTED,
    ONE_LABEL,
    SYNTHETIC_IDS,
    BAGS,
    POOLED,
)
