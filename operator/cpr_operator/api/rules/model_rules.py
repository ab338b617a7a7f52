"""Rules within `spec.model`: tables, the network, optimizers and their schedules."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

TABLES = Rule(
    "/spec.model.tables",
    "table names must be unique",
    "rename the tables that share a name",
    "",  # the API server enforces it by the list type `map`
)
FEATURE_NAMES = Rule(
    "/spec.model.features",
    "feature names must be unique",
    "rename the features that share a name",
    "",  # the API server enforces it by the list type `map`
)
OF_MODEL = (
    Rule(
        "spec.model/bottomMlp",
        "must end in embeddingDim",
        "set its last width to spec.model.embeddingDim, or state spec.model.entrypoint",
        "has(self.entrypoint)"
        " || (has(self.bottomMlp) && self.bottomMlp[self.bottomMlp.size() - 1] == self.embeddingDim)",
    ),
    Rule(
        "spec.model/topMlp",
        "must end in 1",
        "append a last layer of width 1, or state spec.model.entrypoint",
        "has(self.entrypoint) || (has(self.topMlp) && self.topMlp[self.topMlp.size() - 1] == 1)",
    ),
    Rule(
        "spec.model.interaction/kind",
        "DCNv2 needs layers and rank, and other kinds have neither",
        "state layers and rank with the kind DCNv2 only",
        "(self.kind == 'DCNv2') == has(self.layers) && (self.kind == 'DCNv2') == has(self.rank)",
    ),
    Rule(
        "spec.model/interaction",
        "only the DLRM has it, not a network of spec.model.entrypoint",
        "remove spec.model.interaction or spec.model.entrypoint",
        "!has(self.entrypoint) || self.interaction.kind == 'Dot'",
    ),
    TABLES,
    Rule(
        "spec.model.tables[]/outOfRange",
        "only the ids RowNumber and Vocabulary have a range",
        "remove it, or set ids to one of these",
        "self.ids in ['RowNumber', 'Vocabulary'] || !has(self.outOfRange)",
    ),
    Rule(
        "spec.model.tables[]/vocabulary",
        "the ids Vocabulary need a vocabulary, and others have none",
        "state vocabulary.uri or vocabulary.build with ids: Vocabulary only",
        "(self.ids == 'Vocabulary') == has(self.vocabulary)",
    ),
    Rule(
        "spec.model.tables[].vocabulary/",
        "a vocabulary is that of a file, or built",
        "state one of uri and build",
        "has(self.uri) != has(self.build)",
    ),
    Rule(
        "spec.model.tables[]/hashSeed",
        "only the ids XXH64, Murmur3 and Dynamic are hashed with a seed",
        "remove it, or set ids to one of these",
        "self.ids in ['XXH64', 'Murmur3', 'Dynamic'] || !has(self.hashSeed)",
    ),
    *(
        Rule(
            f"spec.model.tables[]/{field}",
            f"only the ids Dynamic have {field}",
            "remove it, or set ids to Dynamic",
            f"self.ids == 'Dynamic' || !has(self.{field})",
        )
        for field in ("admission", "eviction", "ttlSteps", "default")
    ),
    Rule(
        "spec.model.tables[].eviction/halvingSteps",
        "only the score Pushes is halved",
        "remove it, or set score to Pushes",
        "self.score == 'Pushes' || !has(self.halvingSteps)",
    ),
    FEATURE_NAMES,
    Rule(
        "spec.model/features",
        "a feature names a table that does not exist",
        "correct it, or add it to spec.model.tables",
        "!has(self.features) || sets.contains(self.tables.map(t, t.name), self.features.map(f, f.table))",
        # The operator reports larger models (InvalidSpec).
        skip_on_server="has(self.features) && self.features.size() * self.tables.size() > 100000",
    ),
    Rule(
        "spec.model/features",
        "with features, tables have no pooling",
        "state pooling in spec.model.features, and remove it from spec.model.tables",
        "!has(self.features) || !self.tables.exists(t, has(t.pooling))",
    ),
    Rule(
        "spec.model/features",
        "the DLRM takes no sequences",
        "set pooling to Sum or Mean, or state spec.model.entrypoint",
        "!has(self.features) || has(self.entrypoint)"
        " || !self.features.exists(f, has(f.pooling) && f.pooling == 'None')",
    ),
    Rule(
        "spec.model.features[]/maxLength",
        "only bags and sequences have a length",
        "remove it, or state pooling",
        "has(self.pooling) || !has(self.maxLength)",
    ),
    Rule(
        "spec.model.features[]/weights",
        "only sums and sequences take weights",
        "remove it, or set pooling to Sum or None; divide weights by their sum in the data for a weighted mean",
        "!has(self.weights) || (has(self.pooling) && self.pooling in ['Sum', 'None'])",
    ),
)


# --- optimizers and schedules

_DENSE, _SPARSE, _TABLE = "spec.model.denseOptimizer", "spec.model.sparseOptimizer", "spec.model.tables[].optimizer"
_ALL = (_SPARSE, _TABLE, _DENSE)
_ADAMS = {_DENSE: ("Adam", "AdamW"), _SPARSE: ("Adam",), _TABLE: ("Adam",)}
_DECAYS = ("Linear", "Cosine", "Polynomial")


#: The rules of each phase of a schedule: message, remedy and CEL.
_PHASES = (
    ("only a Warmup has a start", "remove start, or set kind to Warmup", "self.kind == 'Warmup' || !has(self.start)"),
    (
        f"only {', '.join(_DECAYS[:-1])} and {_DECAYS[-1]} have an end",
        "remove end, or set kind to one of them",
        f"self.kind in {list(_DECAYS)} || !has(self.end)",
    ),
    (
        "a Polynomial needs a power, and other kinds have none",
        "state power with the kind Polynomial only",
        "(self.kind == 'Polynomial') == has(self.power)",
    ),
    (
        "a Step needs every and factor, and other kinds have neither",
        "state every and factor with the kind Step only",
        "(self.kind == 'Step') == has(self.every) && (self.kind == 'Step') == has(self.factor)",
    ),
)
OF_OPTIMIZERS = (
    Rule(
        f"{_DENSE}/momentum",
        "only SGD has a momentum",
        "remove it, or set kind to SGD",
        "self.kind == 'SGD' || !has(self.momentum)",
    ),
    Rule(
        f"{_DENSE}/nesterov",
        "needs a momentum",
        "state momentum, or remove nesterov",
        "!self.nesterov || has(self.momentum)",
    ),
    *(
        Rule(
            f"{at}/epsilon",
            "SGD has no epsilon",
            "remove it, or choose another kind",
            "self.kind != 'SGD' || !has(self.epsilon)",
        )
        for at in _ALL
    ),
    *(
        Rule(
            f"{at}/{beta}",
            f"only {' and '.join(kinds)} {'has' if len(kinds) == 1 else 'have'} {beta}",
            "remove it, or set kind to Adam",
            f"self.kind in {list(kinds)} || !has(self.{beta})",
        )
        for at, kinds in _ADAMS.items()
        for beta in ("beta1", "beta2")
    ),
    *(Rule(f"{at}.schedule[]/", *phase) for at in _ALL for phase in _PHASES),
)
