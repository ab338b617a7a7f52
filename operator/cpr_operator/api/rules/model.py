"""Rules within `spec.model`, but for its optimizers."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

BOTTOM_MLP = Rule(
    "spec.model",
    "spec.model.bottomMlp",
    "must end in embeddingDim",
    "set its last width to spec.model.embeddingDim, or state spec.model.entrypoint",
    "has(self.entrypoint) || (has(self.bottomMlp) && self.bottomMlp[self.bottomMlp.size() - 1] == self.embeddingDim)",
)
TOP_MLP = Rule(
    "spec.model",
    "spec.model.topMlp",
    "must end in 1",
    "append a last layer of width 1, or state spec.model.entrypoint",
    "has(self.entrypoint) || (has(self.topMlp) && self.topMlp[self.topMlp.size() - 1] == 1)",
)
TABLES = Rule(
    "",
    "spec.model.tables",
    "table names must be unique",
    "rename the tables that share a name",
    "",  # the API server enforces it by the list type `map`
)
OUT_OF_RANGE = Rule(
    "spec.model.tables[]",
    "spec.model.tables.outOfRange",
    "only the ids RowNumber have a range",
    "remove it, or set ids to RowNumber",
    "self.ids == 'RowNumber' || !has(self.outOfRange)",
)
HASH_SEED = Rule(
    "spec.model.tables[]",
    "spec.model.tables.hashSeed",
    "only the hashes XXH64 and Murmur3 have a seed",
    "remove it, or set ids to one of these",
    "self.ids in ['XXH64', 'Murmur3'] || !has(self.hashSeed)",
)
FEATURE_NAMES = Rule(
    "",
    "spec.model.features",
    "feature names must be unique",
    "rename the features that share a name",
    "",  # the API server enforces it by the list type `map`
)
FEATURE_TABLES = Rule(
    "spec.model",
    "spec.model.features",
    "a feature names a table that there is not",
    "correct its table, or add that to spec.model.tables",
    "!has(self.features) || sets.contains(self.tables.map(t, t.name), self.features.map(f, f.table))",
    # The operator reports larger models (InvalidSpec).
    skip_on_server="has(self.features) && self.features.size() * self.tables.size() > 100000",
)
TABLE_POOLING = Rule(
    "spec.model",
    "spec.model.features",
    "with features, tables have no pooling",
    "state pooling in spec.model.features, and remove it from spec.model.tables",
    "!has(self.features) || !self.tables.exists(t, has(t.pooling))",
)
SEQUENCES = Rule(
    "spec.model",
    "spec.model.features",
    "the DLRM takes no sequences",
    "set pooling to Sum or Mean, or state spec.model.entrypoint",
    "!has(self.features) || has(self.entrypoint) || !self.features.exists(f, has(f.pooling) && f.pooling == 'None')",
)
MAX_LENGTH = Rule(
    "spec.model.features[]",
    "spec.model.features.maxLength",
    "only bags and sequences have a length",
    "remove it, or state pooling",
    "has(self.pooling) || !has(self.maxLength)",
)
WEIGHTS = Rule(
    "spec.model.features[]",
    "spec.model.features.weights",
    "only sums and sequences take weights",
    "remove it, or set pooling to Sum or None; divide weights by their sum in the data for a weighted mean",
    "!has(self.weights) || (has(self.pooling) && self.pooling in ['Sum', 'None'])",
)
RULES = (
    BOTTOM_MLP,
    TOP_MLP,
    TABLES,
    OUT_OF_RANGE,
    HASH_SEED,
    FEATURE_NAMES,
    FEATURE_TABLES,
    TABLE_POOLING,
    SEQUENCES,
    MAX_LENGTH,
    WEIGHTS,
)
