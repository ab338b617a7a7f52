"""What the schema says by itself: bounds, enumerations, patterns, required fields."""

from __future__ import annotations

from support.documents import (
    AUC_DROP,
    BAG,
    BUILT,
    CRITEO,
    CSV,
    FEATURES,
    GONE,
    LAKE,
    NUMBERED,
    OWN_MODEL,
    PARQUET,
    Case,
    Edits,
)


def many_features(count: int) -> Edits:
    return {"spec.model.features": [{"name": f"f{i}", "column": f"c{i}", "table": "ab"[i % 2]} for i in range(count)]}


def many_numbers(count: int) -> Edits:
    names = [f"n{i}" for i in range(count)]
    return {"spec.model.numeric": count, "spec.data.columns.counts": [], "spec.data.columns.numbers": names}


EVALUATED: Edits = {"spec.evaluation.everySamples": 10, "spec.data.holdOut": 0.1}


def _stop(**changes: object) -> Edits:
    return {"spec.evaluation.earlyStop": {"metric": "AUC", "patience": 1} | changes}


BOUNDS = (
    Case("spec.image", {"spec.image": "i"}, {"spec.image": GONE}),
    Case("spec.image", {"spec.image": 512 * "i"}, {"spec.image": ""}),
    Case("spec.suspend", {"spec.suspend": True}, {"spec.suspend": "yes"}),
    Case("spec.ttlSecondsAfterFinished", {"spec.ttlSecondsAfterFinished": 0}, {"spec.ttlSecondsAfterFinished": -1}),
    Case("spec.accuracyBudget", {"spec.accuracyBudget": {"portionOfLostSamples": 0}}, {"spec.accuracyBudget": GONE}),
    Case(
        "spec.accuracyBudget.type",
        {"spec.accuracyBudget.type": "PortionOfLostSamples"},
        {"spec.accuracyBudget.type": "LogLossRise"},
    ),
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
    Case(
        "spec.accuracyBudget.portionOfLostSamples",
        {"spec.accuracyBudget.portionOfLostSamples": 0.999},
        {"spec.accuracyBudget.portionOfLostSamples": 1},
    ),
    Case(
        "spec.accuracyBudget.portionOfLostSamples",
        {"spec.accuracyBudget.portionOfLostSamples": 0},
        {"spec.accuracyBudget.portionOfLostSamples": -0.1},
    ),
    Case("spec.recovery.mode", {"spec.recovery.mode": "Full"}, {"spec.recovery.mode": "Sometimes"}),
    Case("spec.recovery.replay.mode", {"spec.recovery.replay.mode": "Off"}, {"spec.recovery.replay.mode": False}),
    Case("spec.recovery.replay.memory", {"spec.recovery.replay.memory": "8Mi"}, {"spec.recovery.replay.memory": "8M"}),
    Case(
        "spec.model.embeddingDim",
        {"spec.model.embeddingDim": 4096, "spec.model.bottomMlp": [4096]},
        {"spec.model.embeddingDim": 4097, "spec.model.bottomMlp": [4097]},
    ),
    Case("spec.model.bottomMlp", {"spec.model.bottomMlp": 16 * [4]}, {"spec.model.bottomMlp": 17 * [4]}),
    Case("spec.model.entrypoint", OWN_MODEL, {"spec.model.entrypoint": "my.package"}),
    Case("spec.model.topMlp[0]", {"spec.model.topMlp": [65536, 1]}, {"spec.model.topMlp": [65537, 1]}),
    Case(
        "spec.model.tables",
        {"spec.model.tables": [{"name": f"t{i}", "rows": 1} for i in range(1024)]},
        {"spec.model.tables": [{"name": f"t{i}", "rows": 1} for i in range(1025)]},
    ),
    Case("spec.model.features", FEATURES | many_features(2048), FEATURES | many_features(2049)),
    Case("spec.model.features", FEATURES, FEATURES | {"spec.model.features": []}),
    Case("spec.model.features[0].column", FEATURES, FEATURES | {"spec.model.features.0.column": ""}),
    Case("spec.model.features[0].table", FEATURES, FEATURES | {"spec.model.features.0.table": GONE}),
    Case(
        "spec.model.features[0].pooling",
        FEATURES | {"spec.model.features.0.pooling": "Mean"},
        FEATURES | {"spec.model.features.0.pooling": "Max"},
    ),
    Case(
        "spec.model.features[0].maxLength",
        FEATURES | {"spec.model.features.0.pooling": "Mean", "spec.model.features.0.maxLength": 65536},
        FEATURES | {"spec.model.features.0.pooling": "Mean", "spec.model.features.0.maxLength": 0},
    ),
    Case("spec.data.columns.numbers", CSV | many_numbers(4096), CSV | many_numbers(4097) | {"spec.model.numeric": 1}),
    Case(
        "spec.model.numeric",
        CSV | {"spec.model.numeric": 0, "spec.data.columns.counts": [], "spec.data.columns.numbers": []},
        CSV | {"spec.model.numeric": -1},
    ),
    Case("spec.model.tables[0].dim", {"spec.model.tables.0.dim": 4096}, {"spec.model.tables.0.dim": 4097}),
    Case("spec.model.tables[0].dim", {"spec.model.tables.0.dim": 1}, {"spec.model.tables.0.dim": 0}),
    Case("spec.model.tables[0].rows", {"spec.model.tables.0.rows": 2**40}, {"spec.model.tables.0.rows": 0}),
    Case("spec.model.tables[0].name", {"spec.model.tables.0.name": "user_id-2"}, {"spec.model.tables.0.name": "User"}),
    Case(
        "spec.model.denseOptimizer.kind",
        {"spec.model.denseOptimizer.kind": "Adagrad"},
        {"spec.model.denseOptimizer.kind": "RowWiseAdagrad"},
    ),
    *(
        Case(
            f"spec.model.denseOptimizer.{field}",
            {f"spec.model.denseOptimizer.{field}": good},
            {f"spec.model.denseOptimizer.{field}": bad},
        )
        for field, good, bad in (("momentum", 0.99, 1), ("weightDecay", 0, -0.1), ("clipNorm", 0.5, 0))
    ),
    Case(
        "spec.model.denseOptimizer.schedule[0].steps",
        {"spec.model.denseOptimizer.schedule": 8 * [{"kind": "Constant", "steps": 1}]},
        {"spec.model.denseOptimizer.schedule": [{"kind": "Constant", "steps": 0}]},
    ),
    Case(
        "spec.model.denseOptimizer.schedule",
        {"spec.model.denseOptimizer.schedule": []},
        {"spec.model.denseOptimizer.schedule": 9 * [{"kind": "Constant", "steps": 1}]},
    ),
    Case(
        "spec.model.sparseOptimizer.learningRate",
        {"spec.model.sparseOptimizer.learningRate": 0.001},
        {"spec.model.sparseOptimizer.learningRate": 0},
    ),
    Case(
        "spec.model.sparseOptimizer.kind",
        {"spec.model.sparseOptimizer.kind": "Adam"},
        {"spec.model.sparseOptimizer.kind": "AdamW"},
    ),
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
    Case("spec.data.uri", CRITEO | {"spec.data.uri": "/data/day"}, CRITEO | {"spec.data.uri": "ftp://host/day"}),
    Case("spec.data.uri", CRITEO | {"spec.data.uri": "gs://clicks/day/"}, CRITEO | {"spec.data.uri": "gs://clicks"}),
    Case("spec.data.uri", CRITEO | {"spec.data.uri": "hdfs://n:8020/day"}, CRITEO | {"spec.data.uri": "hdfs:///day"}),
    Case(
        "spec.data.uri",
        CRITEO | {"spec.data.uri": "abfss://day@clicks.dfs.core.windows.net/*"},
        CRITEO | {"spec.data.uri": "abfss://clicks.dfs.core.windows.net/day"},
    ),
    Case("spec.data.format", CSV | {"spec.data.format": "TSV"}, CSV | {"spec.data.format": "ORC"}),
    Case(
        "spec.data.columns.labels[0]",
        CSV | {"spec.data.columns.labels": ["a label"]},
        CSV | {"spec.data.columns.labels": [""]},
    ),
    Case(
        "spec.data",
        PARQUET,
        PARQUET | {"spec.data.columns.categories": GONE},
    ),
    Case(
        "spec.model.tables[1].pooling",
        PARQUET | BAG | {"spec.model.tables.1.pooling": "Sum"},
        PARQUET | {"spec.model.tables.1.pooling": "Max"},
    ),
    Case(
        "spec.model.tables[0].hashSeed",
        CRITEO | {"spec.model.tables.0.ids": "XXH64", "spec.model.tables.0.hashSeed": 2**31 - 1},
        CRITEO | {"spec.model.tables.0.ids": "XXH64", "spec.model.tables.0.hashSeed": -1},
    ),
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
    Case(
        "spec.model.tables[0].outOfRange",
        CRITEO | NUMBERED | {"spec.model.tables.0.outOfRange": "Fail"},
        CRITEO | NUMBERED | {"spec.model.tables.0.outOfRange": "Clip"},
    ),
    Case(
        "spec.data.columns.separator",
        CSV | BAG | {"spec.data.columns.separator": "\u00b7"},
        CSV | BAG | {"spec.data.columns.separator": "||"},
    ),
    Case(
        "spec.data.columns.separator",
        CSV | BAG | {"spec.data.columns.separator": ","},
        CSV | BAG | {"spec.data.columns.separator": '"'},
    ),
    Case("spec.data.shuffleRows", {"spec.data.shuffleRows": 1024}, {"spec.data.shuffleRows": 1000}),
    Case("spec.evaluation.everySamples", {"spec.evaluation.everySamples": 0}, {"spec.evaluation.everySamples": -1}),
    Case(
        "spec.evaluation.groupBy",
        CSV | {"spec.evaluation.groupBy": 128 * "u"},
        CSV | {"spec.evaluation.groupBy": 129 * "u"},
    ),
    Case("spec.evaluation.uri", CSV | {"spec.evaluation.uri": "s3://b/k"}, CSV | {"spec.evaluation.uri": "http://b/k"}),
    Case("spec.evaluation.earlyStop.patience", {**EVALUATED, **_stop(patience=1)}, {**EVALUATED, **_stop(patience=0)}),
    Case(
        "spec.evaluation.earlyStop.minImprovement",
        {**EVALUATED, **_stop(minImprovement=0)},
        {**EVALUATED, **_stop(minImprovement=-0.1)},
    ),
    Case("spec.evaluation.earlyStop.metric", {**EVALUATED, **_stop()}, {**EVALUATED, **_stop(metric="F1")}),
    Case("spec.evaluation.samples", {"spec.evaluation.samples": 1}, {"spec.evaluation.samples": 0}),
    Case("spec.data.holdOut", {"spec.data.holdOut": 0.5}, {"spec.data.holdOut": 0.6}),
    Case("spec.data.batchSize", {"spec.data.batchSize": 1}, {"spec.data.batchSize": 0}),
    Case("spec.data.seed", {"spec.data.seed": 2**31 - 1}, {"spec.data.seed": 1.5}),
    Case("spec.trainers.replicas", {"spec.trainers.replicas": 256}, {"spec.trainers.replicas": 257}),
    Case("spec.shards.replicas", {"spec.shards.replicas": 1}, {"spec.shards.replicas": 0}),
    Case(
        "spec.shards.template",
        {"spec.shards.template": {"spec": {"nodeSelector": {"disk": "fast"}}}},
        {"spec.shards.template": []},
    ),
    Case(
        "spec.snapshots.store.endpoint",
        {"spec.snapshots.store.endpoint": "file:///saves"},
        {"spec.snapshots.store.endpoint": "ftp://store"},
    ),
    Case(
        "spec.data.store.endpoint",
        CRITEO | {"spec.data.store": {"endpoint": "http://lake:9000/"}},
        CRITEO | {"spec.data.store": {"endpoint": "file:///lake"}},
    ),
    Case("spec.data.store.endpoint", CRITEO | LAKE, CRITEO | {"spec.data.store": {"region": "eu-1"}}),
    Case(
        "spec.data.store.credentialsSecret",
        CRITEO | LAKE | {"spec.data.store.credentialsSecret": "lake"},
        CRITEO | LAKE | {"spec.data.store.credentialsSecret": "The Lake"},
    ),
    Case("spec.snapshots.store.bucket", {"spec.snapshots.store.bucket": "a.b"}, {"spec.snapshots.store.bucket": GONE}),
    Case(
        "spec.snapshots.store.caBundle.name",
        {"spec.snapshots.store.caBundle": {"name": "ca"}},
        {"spec.snapshots.store.caBundle": {"key": "ca"}},
    ),
    Case("spec.snapshots.keep", {"spec.snapshots.keep": 2}, {"spec.snapshots.keep": 1}),
    Case("spec.snapshots.rebase", {"spec.snapshots.rebase": "OneShot"}, {"spec.snapshots.rebase": "Never"}),
    Case("spec.snapshots.strategy", {"spec.snapshots.strategy": "MFU"}, {"spec.snapshots.strategy": "LFU"}),
    Case("spec.snapshots.fraction", {"spec.snapshots.fraction": 1}, {"spec.snapshots.fraction": 0}),
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
    Case(
        "spec.snapshots.maxBytesPerSecond",
        {"spec.snapshots.maxBytesPerSecond": 1 << 20},
        {"spec.snapshots.maxBytesPerSecond": 1000},
    ),
    Case(
        "spec.failurePolicy.restartLimit.count",
        {"spec.failurePolicy.restartLimit.count": 0},
        {"spec.failurePolicy.restartLimit.count": 1001},
    ),
    Case(
        "spec.failurePolicy.silenceSeconds",
        {"spec.failurePolicy.silenceSeconds": 1},
        {"spec.failurePolicy.silenceSeconds": 0},
    ),
    Case("spec.data.batchSzie", {"spec.data.batchSize": 1}, {"spec.data.batchSzie": 1}),
)
