"""The rules of the schema alone: bounds, enumerations, patterns, required fields."""

from __future__ import annotations

from support.data_cases import TEXTS
from support.documents import (
    ABSENT,
    AUC_DROP,
    BAG,
    BUILT,
    CRITEO,
    CROSSED,
    CSV,
    DELTA,
    FEATURES,
    LAKE,
    NUMBERED,
    OWN_MODEL,
    PARQUET,
    Case,
    Edits,
    bound,
)
from support.dynamic_cases import DYNAMIC_BOUNDS
from support.follow_cases import FOLLOW_BOUNDS
from support.kafka_cases import KAFKA_BOUNDS


def many_features(count: int) -> Edits:
    return {"spec.model.features": [{"name": f"f{i}", "column": f"c{i}", "table": "ab"[i % 2]} for i in range(count)]}


def many_numbers(count: int) -> Edits:
    names = [f"n{i}" for i in range(count)]
    return {"spec.model.numeric": count, "spec.data.columns.counts": [], "spec.data.columns.numbers": names}


EVALUATED: Edits = {"spec.evaluation.everySamples": 10, "spec.data.holdOut": 0.1}


def _stop(**changes: object) -> Edits:
    return {"spec.evaluation.earlyStop": {"metric": "AUC", "patience": 1} | changes}


BOUNDS = (
    bound("spec.image", "i", ABSENT),
    bound("spec.image", 512 * "i", ""),
    bound("spec.suspend", good=True, bad="yes"),
    bound("spec.ttlSecondsAfterFinished", 0, -1),
    bound("spec.accuracyBudget", {"portionOfLostSamples": 0}, ABSENT),
    bound("spec.accuracyBudget.window", 1, 0),
    bound("spec.accuracyBudget.type", "PortionOfLostSamples", "LogLossRise"),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": -0.001}},
    ),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.5, "sensitivity": 1}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"sensitivity": 1}},
    ),
    Case(
        "spec.accuracyBudget.aucDrop.sensitivity",
        AUC_DROP,
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0, "sensitivity": 0}},
    ),
    bound("spec.accuracyBudget.portionOfLostSamples", 0.999, 1),
    bound("spec.accuracyBudget.portionOfLostSamples", 0, -0.1),
    bound("spec.recovery.mode", "Full", "Sometimes"),
    bound("spec.recovery.replay.mode", good="Off", bad=False),
    bound("spec.recovery.replay.memory", "8Mi", "8M"),
    Case(
        "spec.model.embeddingDim",
        {"spec.model.embeddingDim": 4096, "spec.model.bottomMlp": [4096]},
        {"spec.model.embeddingDim": 4097, "spec.model.bottomMlp": [4097]},
    ),
    bound("spec.model.bottomMlp", 16 * [4], 17 * [4]),
    Case("spec.model.entrypoint", OWN_MODEL, {"spec.model.entrypoint": "my.package"}),
    Case("spec.model.topMlp[0]", {"spec.model.topMlp": [65536, 1]}, {"spec.model.topMlp": [65537, 1]}),
    bound(
        "spec.model.tables",
        [{"name": f"t{i}", "rows": 1} for i in range(1024)],
        [{"name": f"t{i}", "rows": 1} for i in range(1025)],
    ),
    Case("spec.model.features", FEATURES | many_features(2048), FEATURES | many_features(2049)),
    Case("spec.model.features", FEATURES, FEATURES | {"spec.model.features": []}),
    Case("spec.model.features[0].column", FEATURES, FEATURES | {"spec.model.features.0.column": ""}),
    Case("spec.model.features[0].table", FEATURES, FEATURES | {"spec.model.features.0.table": ABSENT}),
    bound("spec.model.features.0.pooling", "Mean", "Max", under=FEATURES),
    bound("spec.model.features.0.maxLength", 65536, 0, under=FEATURES | {"spec.model.features.0.pooling": "Mean"}),
    Case("spec.data.columns.numbers", CSV | many_numbers(4096), CSV | many_numbers(4097) | {"spec.model.numeric": 1}),
    Case(
        "spec.model.numeric",
        CSV | {"spec.model.numeric": 0, "spec.data.columns.counts": [], "spec.data.columns.numbers": []},
        CSV | {"spec.model.numeric": -1},
    ),
    bound("spec.model.interaction.layers", 16, 17, under=CROSSED),
    bound("spec.model.interaction.rank", 65536, 0, under=CROSSED),
    bound("spec.model.interaction.kind", "Dot", "Concat"),
    bound("spec.model.tables.0.dim", 4096, 4097),
    bound("spec.model.tables.0.dim", 1, 0),
    bound("spec.model.tables.0.precision", "bf16", "fp16"),
    bound("spec.model.tables.0.rows", 2**40, 0),
    bound("spec.model.tables.0.name", "user_id-2", "User"),
    bound("spec.model.denseOptimizer.kind", "Adagrad", "RowWiseAdagrad"),
    *(
        bound(f"spec.model.denseOptimizer.{field}", good, bad)
        for field, good, bad in (("momentum", 0.99, 1), ("weightDecay", 0, -0.1), ("clipNorm", 0.5, 0))
    ),
    Case(
        "spec.model.denseOptimizer.schedule[0].steps",
        {"spec.model.denseOptimizer.schedule": 8 * [{"kind": "Constant", "steps": 1}]},
        {"spec.model.denseOptimizer.schedule": [{"kind": "Constant", "steps": 0}]},
    ),
    bound("spec.model.denseOptimizer.schedule", [], 9 * [{"kind": "Constant", "steps": 1}]),
    bound("spec.model.sparseOptimizer.learningRate", 0.001, 0),
    bound("spec.model.sparseOptimizer.kind", "Adam", "AdamW"),
    Case(
        "spec.model.sparseOptimizer.beta2",
        {"spec.model.sparseOptimizer": {"kind": "Adam", "beta2": 0}},
        {"spec.model.sparseOptimizer": {"kind": "Adam", "beta2": 1}},
    ),
    Case(
        "spec.model.sparseOptimizer.epsilon",
        {"spec.model.sparseOptimizer": {"epsilon": 1}},
        {"spec.model.sparseOptimizer": {"epsilon": 0}},
    ),
    Case(
        "spec.model.tables[0].optimizer.kind",
        {"spec.model.tables.0.optimizer": {"kind": "SGD", "learningRate": 1}},
        {"spec.model.tables.0.optimizer": {"learningRate": 1}},
    ),
    Case(
        "spec.model.tables[0].optimizer.learningRate",
        {"spec.model.tables.0.optimizer": {"kind": "SGD", "learningRate": 1}},
        {"spec.model.tables.0.optimizer": {"kind": "SGD"}},
    ),
    bound("spec.data.uri", "/data/day", "ftp://host/day", under=CRITEO),
    bound("spec.data.uri", "gs://clicks/day/", "gs://clicks", under=CRITEO),
    bound("spec.data.uri", "hdfs://n:8020/day", "hdfs:///day", under=CRITEO),
    bound(
        "spec.data.uri",
        "abfss://day@clicks.dfs.core.windows.net/*",
        "abfss://clicks.dfs.core.windows.net/day",
        under=CRITEO,
    ),
    bound("spec.data.format", "JSONLines", "JSON", under=CSV),
    bound("spec.data.columns.labelValues.0.positive", ["yes"], [], under=CSV | TEXTS),
    bound("spec.data.columns.labelValues.0.negative.0", "", 65 * "n", under=CSV | TEXTS),
    bound("spec.data.columns.weight", "a weight", "", under=CSV),
    Case(
        "spec.data.columns.labels[0]",
        CSV | {"spec.data.columns.labels": ["a label"]},
        CSV | {"spec.data.columns.labels": [""]},
    ),
    Case("spec.data", PARQUET, PARQUET | {"spec.data.columns.categories": ABSENT}),
    Case(
        "spec.model.tables[1].pooling",
        PARQUET | BAG | {"spec.model.tables.1.pooling": "Sum"},
        PARQUET | {"spec.model.tables.1.pooling": "Max"},
    ),
    bound("spec.model.tables.0.hashSeed", 2**31 - 1, -1, under=CRITEO | {"spec.model.tables.0.ids": "XXH64"}),
    Case(
        "spec.model.tables[0].vocabulary.uri",
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {"uri": "s3://b/k"}},
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {"uri": "http://b/k"}},
    ),
    Case(
        "spec.model.tables[0].vocabulary.build.minCount",
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {"build": {"minCount": 1}}},
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {"build": {"minCount": 0}}},
    ),
    Case("spec.model.tables[0].ids", CRITEO | NUMBERED, CRITEO | {"spec.model.tables.0.ids": "MD5"}),
    bound("spec.model.tables.0.outOfRange", "Fail", "Clip", under=CRITEO | NUMBERED),
    *DYNAMIC_BOUNDS,
    bound("spec.data.columns.separator", "\u00b7", "||", under=CSV | BAG),
    bound("spec.data.columns.separator", ",", '"', under=CSV | BAG),
    bound("spec.data.csv.delimiter", "\x01", "::", under=CSV),
    bound("spec.data.csv.delimiter", "\t", "\n", under=CSV),
    bound("spec.data.csv.quote", "", "''", under=CSV),
    bound("spec.data.csv.escape", "\\", "", under=CSV),
    Case("spec.data.csv.trim", CSV | {"spec.data.csv.trim": True}, CSV | {"spec.data.csv.trim": "both"}),
    Case(
        "spec.data.csv.nullValues[0]",
        CSV | {"spec.data.csv.nullValues": ["\\N"]},
        CSV | {"spec.data.csv.nullValues": ["x" * 65]},
    ),
    Case(
        "spec.data.csv.boolean[0]",
        CSV | {"spec.data.csv.boolean": ["true", "false"]},
        CSV | {"spec.data.csv.boolean": [True, "false"]},
    ),
    bound("spec.data.version", 0, -1, under=DELTA),
    bound("spec.data.shuffleRows", 2**26, 2**26 + 1),
    bound("spec.evaluation.everySamples", 0, -1),
    bound("spec.evaluation.groupBy", 128 * "u", 129 * "u", under=CSV),
    bound("spec.evaluation.uri", "s3://b/k", "http://b/k", under=CSV),
    Case("spec.evaluation.earlyStop.target", {**EVALUATED, **_stop(target=0.8)}, {**EVALUATED, **_stop(target=0)}),
    Case("spec.evaluation.earlyStop.patience", {**EVALUATED, **_stop(patience=1)}, {**EVALUATED, **_stop(patience=0)}),
    Case(
        "spec.evaluation.earlyStop.minImprovement",
        {**EVALUATED, **_stop(minImprovement=0)},
        {**EVALUATED, **_stop(minImprovement=-0.1)},
    ),
    Case("spec.evaluation.earlyStop.metric", {**EVALUATED, **_stop()}, {**EVALUATED, **_stop(metric="F1")}),
    bound("spec.evaluation.samples", 1, 0),
    bound("spec.data.holdOut", 0.5, 0.6),
    bound("spec.data.batchSize", 1, 0),
    bound("spec.data.seed", 2**31 - 1, 1.5),
    bound("spec.trainers.replicas", 256, 257),
    bound("spec.trainers.sparseUpdates", "PerStep", "PerSample"),
    bound("spec.shards.replicas", 1, 0),
    bound("spec.shards.template", {"spec": {"nodeSelector": {"disk": "fast"}}}, []),
    bound("spec.snapshots.store.endpoint", "file:///saves", "ftp://store"),
    Case(
        "spec.data.store.endpoint",
        CRITEO | {"spec.data.store": {"endpoint": "http://lake:9000/"}},
        CRITEO | {"spec.data.store": {"endpoint": "file:///lake"}},
    ),
    Case("spec.data.store.endpoint", CRITEO | LAKE, CRITEO | {"spec.data.store": {"region": "eu-1"}}),
    bound("spec.data.store.credentialsSecret", "lake", "The Lake", under=CRITEO | LAKE),
    bound("spec.snapshots.store.bucket", "a.b", ABSENT),
    Case(
        "spec.snapshots.store.caBundle.name",
        {"spec.snapshots.store.caBundle": {"name": "ca"}},
        {"spec.snapshots.store.caBundle": {"key": "ca"}},
    ),
    bound("spec.snapshots.keep", 2, 1),
    bound("spec.snapshots.rebase", "OneShot", "Never"),
    bound("spec.snapshots.strategy", "MFU", "LFU"),
    bound("spec.snapshots.fraction", 1, 0),
    Case(
        "spec.snapshots.quantisation.mode",
        {"spec.snapshots.quantisation": {"mode": "Auto"}},
        {"spec.snapshots.quantisation": {"mode": "On"}},
    ),
    Case(
        "spec.snapshots.quantisation.bits",
        {"spec.snapshots.quantisation": {"mode": "Fixed", "bits": 3}},
        {"spec.snapshots.quantisation": {"mode": "Fixed", "bits": 16}},
    ),
    bound("spec.snapshots.maxBytesPerSecond", 1 << 20, 1000),
    bound("spec.failurePolicy.restartLimit.count", 0, 1001),
    bound("spec.failurePolicy.silenceSeconds", 1, 0),
    Case("spec.data.batchSzie", {"spec.data.batchSize": 1}, {"spec.data.batchSzie": 1}),
    *FOLLOW_BOUNDS,
    *KAFKA_BOUNDS,
)
