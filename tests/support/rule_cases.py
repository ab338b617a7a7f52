"""Rules that the schema cannot say: for each a document that keeps it and one that breaks it.

One table for pydantic and for a real API server; `bound_cases` and `change_cases` are the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.api.rules.budget import GUESSED_SENSITIVITY, MOST_PORTION
from support.documents import (
    AUC_DROP,
    BAG,
    COLUMNS,
    CRITEO,
    CSV,
    FEATURES,
    GONE,
    LISTED,
    NUMBERED,
    OWN_MODEL,
    PARQUET,
    SEPARATED,
    Edits,
)

THIRTEEN = [str(number) for number in range(1, 14)]
BAGS: Edits = {"spec.model.features.1.pooling": "Sum"}
SEQUENCE: Edits = {"spec.model.features.1.pooling": "None"}
SEVEN, EIGHT = ([f"bought_{number}" for number in range(count)] for count in (7, 8))
#: The largest AUC drop that needs no sensitivity.
MOST_GUESSED = MOST_PORTION * GUESSED_SENSITIVITY

ROW_WISE = {"kind": "RowWiseAdagrad", "learningRate": 0.1}
ADAM = {"kind": "Adam", "learningRate": 0.1, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}
#: A field of a sparse optimizer, a kind that has it, one that has not, and what is said then.
HYPERPARAMETERS = (
    ("epsilon", "Adagrad", "SGD", "SGD has no epsilon"),
    ("beta1", "Adam", "Adagrad", "only Adam has beta1"),
    ("beta2", "Adam", "SGD", "only Adam has beta2"),
)


#: A phase that is as it should be, one that is not, and what is said then.
PHASES = (
    (
        {"kind": "Warmup", "steps": 5, "start": 0.1},
        {"kind": "Linear", "steps": 5, "start": 0.1},
        "only a Warmup has a start",
    ),
    (
        {"kind": "Cosine", "steps": 5, "end": 0.1},
        {"kind": "Constant", "steps": 5, "end": 0.1},
        "only Linear, Cosine and Polynomial have an end",
    ),
    (
        {"kind": "Polynomial", "steps": 5, "power": 2},
        {"kind": "Polynomial", "steps": 5},
        "a Polynomial needs a power",
    ),
    (
        {"kind": "Linear", "steps": 5},
        {"kind": "Linear", "steps": 5, "power": 2},
        "a Polynomial needs a power, and other kinds have none",
    ),
    (
        {"kind": "Step", "steps": 5, "every": 2, "factor": 0.5},
        {"kind": "Step", "steps": 5, "every": 2},
        "a Step needs every and factor",
    ),
    (
        {"kind": "Constant", "steps": 5},
        {"kind": "Constant", "steps": 5, "every": 2, "factor": 0.5},
        "other kinds have neither",
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One rule: edits of the minimal manifest that keep it and that break it.

    `field` is the one that `validate` names; `says` what both pydantic and the API server answer (empty: only the field
    is compared, because each says it in its own words).
    """

    field: str
    good: Edits
    bad: Edits
    says: str = ""


RULES = (
    Case("metadata.name", {"metadata.name": "a" + 38 * "-" + "z"}, {"metadata.name": 41 * "a"}, "DNS-1035"),
    Case("metadata.name", {"metadata.name": "a1"}, {"metadata.name": "1a"}, "DNS-1035"),
    Case(
        "spec.model.bottomMlp",
        {"spec.model.bottomMlp": [4]},
        {"spec.model.bottomMlp": [4, 8]},
        "must end in embeddingDim",
    ),
    Case(
        "spec.model.bottomMlp",
        OWN_MODEL | {"spec.model.bottomMlp": GONE},
        {"spec.model.bottomMlp": GONE},
        "must end in embeddingDim",
    ),
    Case(
        "spec.model.topMlp",
        OWN_MODEL | {"spec.model.topMlp": GONE},
        {"spec.model.topMlp": GONE},
        "must end in 1",
    ),
    Case("spec.model.topMlp", {"spec.model.topMlp": [1]}, {"spec.model.topMlp": [1, 2]}, "must end in 1"),
    Case("spec.model.tables", {"spec.model.tables.1.name": "c"}, {"spec.model.tables.1.name": "a"}),
    Case(
        "spec.shards.replicas",
        {"spec.shards.replicas": 15},
        {"spec.shards.replicas": 16},
        "must not exceed the number of rows of all tables",
    ),
    Case(
        "spec.data.samples",
        CRITEO,
        {**CRITEO, "spec.data.samples": 10},
        "exactly one of epochs and samples",
    ),
    Case(
        "spec.data.samples",
        {**CRITEO, "spec.data.epochs": GONE, "spec.data.samples": 10},
        {"spec.data.samples": GONE},
        "exactly one of epochs and samples",
    ),
    Case(
        "spec.data.samples",
        {"spec.data.samples": 1},
        {"spec.data.samples": GONE, "spec.data.epochs": 1},
        "Synthetic data needs samples",
    ),
    Case("spec.data.uri", CRITEO, {"spec.data.uri": "s3://clicks/day"}, "Synthetic data is made by the trainers"),
    Case("spec.data.uri", CRITEO, CRITEO | {"spec.data.uri": GONE}, "data in files needs a uri"),
    Case("spec.data.uri", PARQUET, PARQUET | {"spec.data.uri": GONE}, "data in files needs a uri"),
    Case("spec.data.columns", PARQUET, PARQUET | {"spec.data.columns": GONE}, "CSV, TSV and Parquet need columns"),
    Case("spec.data.columns", CSV, CRITEO | {"spec.data.columns": COLUMNS}, "other formats have none"),
    Case(
        "spec.data.header",
        CSV | {"spec.data.header": False},
        PARQUET | {"spec.data.header": False},
        "only CSV and TSV files can lack a header",
    ),
    Case(
        "spec.data",
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.data.columns.numbers": GONE},
        CSV | {"spec.data.columns.counts": THIRTEEN},
        "or 13 at most if that is absent",
    ),
    Case(
        "spec.data",
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.model.numeric": 14},
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.model.numeric": 13},
        "must be as many as spec.model.numeric",
    ),
    Case("spec.data", CSV | {"spec.model.numeric": 2}, {"spec.model.numeric": 13}, "have 13 numeric features"),
    Case("spec.model.features", FEATURES, FEATURES | {"spec.model.features.1.name": "one"}),
    Case(
        "spec.model.features",
        FEATURES | {"spec.model.features.1.table": "b"},
        FEATURES | {"spec.model.features.1.table": "c"},
        "a feature names a table that there is not",
    ),
    Case(
        "spec.model.features",
        FEATURES | BAGS,
        FEATURES | BAGS | {"spec.model.tables.0.pooling": "Sum"},
        "with features, tables have no pooling",
    ),
    Case(
        "spec.model.features",
        FEATURES | SEQUENCE | OWN_MODEL,
        FEATURES | SEQUENCE,
        "the DLRM takes no sequences",
    ),
    Case(
        "spec.model.features[1].maxLength",
        FEATURES | BAGS | {"spec.model.features.1.maxLength": 50},
        FEATURES | {"spec.model.features.1.maxLength": 50},
        "only bags and sequences have a length",
    ),
    Case(
        "spec.model.features[1].weights",
        FEATURES | BAGS | {"spec.model.features.1.weights": "w"},
        FEATURES | {"spec.model.features.1.weights": "w"},
        "only sums and sequences take weights",
    ),
    Case(
        "spec.model.features[1].weights",
        FEATURES | OWN_MODEL | SEQUENCE | {"spec.model.features.1.weights": "w"},
        FEATURES | {"spec.model.features.1.pooling": "Mean", "spec.model.features.1.weights": "w"},
        "only sums and sequences take weights",
    ),
    Case(
        "spec.data",
        FEATURES,
        FEATURES | {"spec.data.columns.categories": ["user", "item"]},
        "with features there are none",
    ),
    Case("spec.data", FEATURES, LISTED | CRITEO, "features need data with columns"),
    Case(
        "spec.data",
        FEATURES,
        FEATURES | {"spec.model.features.1.column": "click"},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.model.features.1.weights": "price"},
        FEATURES | BAGS | {"spec.model.features.1.weights": "click"},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.data.format": "CSV"} | SEPARATED,
        FEATURES | BAGS | {"spec.data.format": "CSV"},
        "a table with pooling needs bags of ids",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.data.format": "TSV"} | SEPARATED,
        FEATURES | {"spec.data.format": "TSV"} | SEPARATED,
        "a separator of ids needs a table with pooling",
    ),
    Case(
        "spec.data.columns.labels",
        CSV,
        CSV | {"spec.data.columns.labels": GONE},
        "a model predicts 1 to 8 columns",
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.labels": SEVEN, "spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.labels": EIGHT, "spec.data.columns.targets": ["dwell"]},
        "a model predicts 1 to 8 columns",
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "buy"]},
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "click"]},
        "a column can be predicted only once",
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["click"]},
        "a column can be predicted only once",
    ),
    Case(
        "spec.data",
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "buy"]},
        CSV | {"spec.data.columns.labels": ["click", "buy"]},
        "the DLRM predicts one label",
    ),
    Case(
        "spec.data",
        CSV | OWN_MODEL | {"spec.data.columns.labels": GONE, "spec.data.columns.targets": ["dwell"]},
        CSV | {"spec.data.columns.labels": GONE, "spec.data.columns.targets": ["dwell"]},
        "the DLRM predicts one label",
    ),
    Case(
        "spec.data.columns.numbers",
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"], "spec.data.columns.numbers": ["dwell"]},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data.columns.counts",
        CSV | {"spec.data.columns.counts": ["clicks"]},
        CSV | {"spec.data.columns.counts": ["click"]},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data.columns.numbers",
        CSV | {"spec.data.columns.numbers": []},
        CSV | {"spec.data.columns.numbers": ["price", "click"]},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data.columns.categories",
        CSV,
        CSV | {"spec.data.columns.categories.1": "click"},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data",
        PARQUET,
        PARQUET | {"spec.data.columns.categories": ["user"]},
        "each table needs exactly one category",
    ),
    Case(
        "spec.data.columns",
        CSV | BAG | SEPARATED,
        PARQUET | BAG | SEPARATED,
        "only CSV and TSV have a separator of ids",
    ),
    Case("spec.data", CRITEO | NUMBERED, NUMBERED, "Synthetic data has texts as ids"),
    Case(
        "spec.model.tables[0].outOfRange",
        CRITEO | NUMBERED | {"spec.model.tables.0.outOfRange": "DefaultRow"},
        CRITEO | {"spec.model.tables.0.outOfRange": "Fail"},
        "only the ids RowNumber have a range",
    ),
    Case(
        "spec.model.tables[0].hashSeed",
        CRITEO | {"spec.model.tables.0.ids": "Murmur3", "spec.model.tables.0.hashSeed": 7},
        CRITEO | {"spec.model.tables.0.hashSeed": 7},
        "only the hashes XXH64 and Murmur3 have a seed",
    ),
    Case("spec.data", PARQUET | BAG, BAG, "a table with pooling needs bags of ids"),
    Case("spec.data", CSV | BAG | SEPARATED, CSV | BAG, "a table with pooling needs bags of ids"),
    Case("spec.data", CSV | BAG | SEPARATED, CSV | SEPARATED, "a separator of ids needs a table with pooling"),
    Case(
        "spec.trainers.denseSync",
        {"spec.trainers": {"denseSync": "ShadowEASGD", "replicas": 2}},
        {"spec.trainers": {"denseSync": "ShadowEASGD", "replicas": 1}},
        "a shadow mode needs at least two trainers",
    ),
    Case(
        "spec.trainers.workers",
        {"spec.trainers": {"device": "cpu", "workers": 2}},
        {"spec.trainers": {"device": "cuda", "workers": 2}},
        "must be 1 on a GPU",
    ),
    Case(
        "spec.trainers.workers",
        {"spec.trainers": {"device": "cuda", "workers": 1}},
        {"spec.trainers": {"workers": 64, "device": "cuda"}},
        "must be 1 on a GPU",
    ),
    Case(
        "spec.snapshots.interval.seconds",
        {"spec.snapshots.interval": {"mode": "Fixed", "seconds": 60}},
        {"spec.snapshots.interval": {"mode": "Fixed"}},
        "a Fixed interval needs seconds",
    ),
    Case(
        "spec.snapshots.quantisation.bits",
        {"spec.snapshots.quantisation": {"mode": "Fixed", "bits": 4}},
        {"spec.snapshots.quantisation": {"mode": "Fixed"}},
        "Fixed quantisation needs bits",
    ),
    Case(
        "spec.snapshots.quantisation.bits",
        {"spec.snapshots.quantisation": {"mode": "Auto"}},
        {"spec.snapshots.quantisation": {"mode": "Auto", "bits": 4}},
        "other modes have none",
    ),
    Case(
        "spec.snapshots.interval.seconds",
        {"spec.snapshots.interval": {}},
        {"spec.snapshots.interval": {"seconds": 60}},
        "an Auto one has none",
    ),
    Case(
        "spec.snapshots.strategy",
        {"spec.snapshots.strategy": "Growth"},
        {"spec.snapshots.strategy": "Growth", "spec.model.sparseOptimizer": {"kind": "SGD"}},
        "accumulators of RowWiseAdagrad",
    ),
    Case(
        "spec.snapshots.strategy",
        {"spec.snapshots.strategy": "Growth", "spec.model.tables.1.optimizer": ROW_WISE},
        {"spec.snapshots.strategy": "Growth", "spec.model.tables.1.optimizer": ADAM},
        "accumulators of RowWiseAdagrad",
    ),
    Case(
        "spec.snapshots.strategy",
        {
            "spec.snapshots.strategy": "Growth",
            "spec.model.sparseOptimizer": {"kind": "Adagrad"},
            "spec.model.tables.0.optimizer": ROW_WISE,
            "spec.model.tables.1.optimizer": ROW_WISE,
        },
        {
            "spec.snapshots.strategy": "Growth",
            "spec.model.sparseOptimizer": {"kind": "Adagrad"},
            "spec.model.tables.0.optimizer": ROW_WISE,
        },
        "accumulators of RowWiseAdagrad",
    ),
    *(
        Case(
            f"spec.model.sparseOptimizer.{field}",
            {"spec.model.sparseOptimizer": {"kind": kind, field: 0.5}},
            {"spec.model.sparseOptimizer": {"kind": other, field: 0.5}},
            says,
        )
        for field, kind, other, says in HYPERPARAMETERS
    ),
    *(
        Case(
            f"spec.model.tables[1].optimizer.{field}",
            {"spec.model.tables.1.optimizer": {"kind": kind, "learningRate": 0.1, field: 0.5}},
            {"spec.model.tables.1.optimizer": {"kind": other, "learningRate": 0.1, field: 0.5}},
            says,
        )
        for field, kind, other, says in HYPERPARAMETERS
    ),
    *(
        Case(
            f"spec.model.denseOptimizer.{field}",
            {"spec.model.denseOptimizer": {"kind": kind, field: 0.5}},
            {"spec.model.denseOptimizer": {"kind": other, field: 0.5}},
            says,
        )
        for field, kind, other, says in (
            ("momentum", "SGD", "Adam", "only SGD has a momentum"),
            ("epsilon", "AdamW", "SGD", "SGD has no epsilon"),
            ("beta1", "Adam", "Adagrad", "only Adam and AdamW have beta1"),
            ("beta2", "AdamW", "SGD", "only Adam and AdamW have beta2"),
        )
    ),
    *(
        Case(
            f"{where}.schedule[0]", {at: optimizer | {"schedule": [good]}}, {at: optimizer | {"schedule": [bad]}}, says
        )
        for where, at, optimizer in (
            ("spec.model.denseOptimizer", "spec.model.denseOptimizer", {}),
            ("spec.model.sparseOptimizer", "spec.model.sparseOptimizer", {}),
            ("spec.model.tables[1].optimizer", "spec.model.tables.1.optimizer", ROW_WISE),
        )
        for good, bad, says in PHASES
    ),
    Case(
        "spec.model.denseOptimizer.nesterov",
        {"spec.model.denseOptimizer": {"momentum": 0.9, "nesterov": True}},
        {"spec.model.denseOptimizer": {"nesterov": True}},
        "needs a momentum",
    ),
    Case(
        "spec.evaluation",
        {"spec.evaluation": {"everySamples": 10}, "spec.data.holdOut": 0.1},
        {"spec.evaluation": {"everySamples": 10}},
        "needs rows that are held out",
    ),
    Case(
        "spec.evaluation",
        {"spec.evaluation": {"everySamples": 0}, "spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}},
        {
            "spec.evaluation": {"everySamples": 10},
            "spec.data.holdOut": 0.1,
            "spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"},
        },
        "needs spec.trainers.denseSync AllReduce",
    ),
    Case(
        "spec.snapshots.strategy",
        {"spec.snapshots.strategy": "SSU"},
        {"spec.snapshots.strategy": "SSU", "spec.trainers": {"denseSync": "ShadowMA", "replicas": 2}},
        "priority saves need spec.trainers.denseSync AllReduce",
    ),
    Case(
        "spec.recovery.mode",
        {"spec.recovery.mode": "Full", "spec.accuracyBudget.portionOfLostSamples": 0},
        {"spec.recovery.mode": "Partial", "spec.accuracyBudget.portionOfLostSamples": 0},
        "mode Partial needs a budget above 0",
    ),
    Case(
        "spec.recovery.onShardLoss",
        {"spec.recovery": {"onShardLoss": "Degrade"}, "spec.accuracyBudget.portionOfLostSamples": 0.01},
        {"spec.recovery": {"onShardLoss": "Degrade"}, "spec.accuracyBudget.portionOfLostSamples": 0},
        "mode Full and a budget of 0 do not allow",
    ),
    Case(
        "spec.recovery.onShardLoss",
        {"spec.recovery": {"onShardLoss": "Pause", "mode": "Full"}},
        {"spec.recovery": {"onShardLoss": "Degrade", "mode": "Full"}},
        "mode Full and a budget of 0 do not allow",
    ),
    Case(
        "spec.recovery.onShardLoss",
        {"spec.recovery": {"onShardLoss": "Degrade"}, "spec.shards.replicas": 2},
        {"spec.recovery": {"onShardLoss": "Degrade"}, "spec.shards.replicas": 1},
        "needs at least two shards",
    ),
    Case(
        "spec.recovery.redundancy",
        {"spec.recovery": {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": 1}}, "spec.shards.replicas": 2},
        {"spec.recovery": {"replay": {"mode": "Off"}, "redundancy": {"dataShards": 1}}, "spec.shards.replicas": 2},
        "needs trainers that push again",
    ),
    Case(
        "spec.recovery.redundancy.dataShards",
        {"spec.recovery": {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": 2}}, "spec.shards.replicas": 3},
        {"spec.recovery": {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": 3}}, "spec.shards.replicas": 3},
        "must be lower than the number of shards",
    ),
    Case(
        "spec.recovery.mode",
        AUC_DROP | {"spec.recovery.mode": "Partial"},
        AUC_DROP | {"spec.recovery.mode": "Partial", "spec.accuracyBudget.aucDrop.limit": 0},
        "mode Partial needs a budget above 0",
    ),
    Case(
        "spec.accuracyBudget.portionOfLostSamples",
        {"spec.accuracyBudget.type": "PortionOfLostSamples"},
        {"spec.accuracyBudget": {}},
        "a budget of type PortionOfLostSamples needs portionOfLostSamples",
    ),
    Case(
        "spec.accuracyBudget.portionOfLostSamples",
        AUC_DROP,
        AUC_DROP | {"spec.accuracyBudget.portionOfLostSamples": 0.1},
        "other types have none",
    ),
    Case(
        "spec.accuracyBudget.aucDrop",
        AUC_DROP,
        {"spec.accuracyBudget": {"type": "AUCDrop"}},
        "a budget of type AUCDrop needs aucDrop",
    ),
    Case(
        "spec.accuracyBudget.aucDrop",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.0005}},
        {"spec.accuracyBudget.aucDrop": {"limit": 0.0005}},
        "other types have none",
    ),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.25, "sensitivity": 0.5}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.26, "sensitivity": 0.5}},
        "allows a portion of lost samples above 0.5",
    ),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": MOST_GUESSED}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 1.01 * MOST_GUESSED}},
        "allows a portion of lost samples above 0.5",
    ),
)
