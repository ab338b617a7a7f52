"""Rules beyond the schema, each with a document that it accepts and one that it rejects.

One table for pydantic and for a real API server; `bound_cases` and `change_cases` are the others.
"""

from __future__ import annotations

from cpr_operator.api.rules.job_rules import GUESSED_SENSITIVITY, MAX_GROUPED, MOST_PORTION
from support.data_cases import DATA
from support.documents import (
    ABSENT,
    AUC_DROP,
    CROSSED,
    CSV,
    OWN_MODEL,
    Case,
)
from support.dynamic_cases import DYNAMIC_RULES
from support.follow_cases import FOLLOW_RULES
from support.kafka_cases import KAFKA_RULES
from support.optimizer_cases import OPTIMIZERS, ROW_WISE

#: The largest AUC drop that needs no sensitivity.
MOST_GUESSED = MOST_PORTION * GUESSED_SENSITIVITY

OWN_ROWS = {"spec.evaluation.everySamples": 10, "spec.evaluation.uri": "/data/test/"}
STOP = {"metric": "AUC", "patience": 3}
ADAM = {"kind": "Adam", "learningRate": 0.1, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}


ISSUED = {"spec.security.certificates": {"issuerRef": {"name": "organisation"}}}
MANAGED = {"spec.managedBy": "kueue.x-k8s.io/multikueue"}

RULES = (
    Case("spec.suspend", MANAGED, MANAGED | {"spec.suspend": True}, "can neither suspend nor resume"),
    Case("spec.snapshots.deleteWithJob", MANAGED, MANAGED | {"spec.snapshots.deleteWithJob": True}, "its saves would"),
    Case("spec.security.certificates", ISSUED | {"spec.security.encryption": "TLS"}, ISSUED, "has no certificates"),
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
        OWN_MODEL | {"spec.model.bottomMlp": ABSENT},
        {"spec.model.bottomMlp": ABSENT},
        "must end in embeddingDim",
    ),
    Case(
        "spec.model.topMlp", OWN_MODEL | {"spec.model.topMlp": ABSENT}, {"spec.model.topMlp": ABSENT}, "must end in 1"
    ),
    Case("spec.model.topMlp", {"spec.model.topMlp": [1]}, {"spec.model.topMlp": [1, 2]}, "must end in 1"),
    Case("spec.model.interaction.kind", CROSSED, {"spec.model.interaction": {"kind": "DCNv2", "layers": 3}}, "needs"),
    Case(
        "spec.model.interaction.kind", CROSSED, {"spec.model.interaction": {"kind": "Dot", "rank": 8}}, "have neither"
    ),
    Case("spec.model.interaction", CROSSED, CROSSED | OWN_MODEL, "only the DLRM has it"),
    Case("spec.model.tables", {"spec.model.tables.1.name": "c"}, {"spec.model.tables.1.name": "a"}),
    Case(
        "spec.shards.replicas",
        {"spec.shards.replicas": 15},
        {"spec.shards.replicas": 16},
        "must not exceed the number of rows of all tables",
    ),
    Case(
        "spec.evaluation.earlyStop.patience",
        CSV | OWN_ROWS | {"spec.evaluation.earlyStop": {"metric": "AUC", "target": 0.8}},
        CSV | OWN_ROWS | {"spec.evaluation.earlyStop": {"metric": "AUC"}},
        "by patience, by a target, or by both",
    ),
    *DATA,
    *DYNAMIC_RULES,
    Case(
        "spec.trainers.denseSync",
        {"spec.trainers": {"denseSync": "ShadowEASGD", "replicas": 2}},
        {"spec.trainers": {"denseSync": "ShadowEASGD", "replicas": 1}},
        "a shadow mode needs at least two trainers",
    ),
    Case(
        "spec.trainers.workers",
        {"spec.trainers": {"device": "cuda", "workers": 1}},
        {"spec.trainers": {"device": "cuda", "workers": 2}},
        "must be Auto or 1 on a GPU",
    ),
    Case(
        "spec.trainers.workers",
        {"spec.trainers": {"device": "cuda", "workers": "Auto"}},
        {"spec.trainers": {"workers": 64, "device": "cuda"}},
        "must be Auto or 1 on a GPU",
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
    *OPTIMIZERS,
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
        "spec.evaluation",
        CSV | {"spec.evaluation": {"everySamples": 10, "uri": "/data/test/"}},
        CSV | {"spec.evaluation": {"everySamples": 10}},
        "needs rows that are held out",
    ),
    Case(
        "spec.evaluation.uri",
        CSV | {"spec.evaluation": {"uri": "/data/test/"}},
        {"spec.evaluation": {"uri": "/data/test/"}},
        "Synthetic data has no other data",
    ),
    Case(
        "spec.evaluation.uri",
        CSV | {"spec.evaluation": {"uri": "/data/test/"}, "spec.data.holdOut": 0},
        CSV | {"spec.evaluation": {"uri": "/data/test/"}, "spec.data.holdOut": 0.1},
        "not on both",
    ),
    Case(
        "spec.evaluation.groupBy",
        CSV | {"spec.evaluation": {"groupBy": "user"}},
        {"spec.evaluation": {"groupBy": "user"}},
        "Synthetic data has no column",
    ),
    Case(
        "spec.evaluation.samples",
        CSV | {"spec.evaluation": {"groupBy": "user", "samples": MAX_GROUPED}},
        CSV | {"spec.evaluation": {"groupBy": "user", "samples": MAX_GROUPED + 1}},
        "scores by group take at most",
    ),
    Case(
        "spec.evaluation.earlyStop.metric",
        CSV | OWN_ROWS | {"spec.evaluation.earlyStop": STOP | {"metric": "GAUC"}, "spec.evaluation.groupBy": "user"},
        CSV | OWN_ROWS | {"spec.evaluation.earlyStop": STOP | {"metric": "GAUC"}},
        "GAUC needs groups",
    ),
    Case(
        "spec.evaluation.earlyStop",
        {"spec.evaluation": {"everySamples": 10, "earlyStop": STOP}, "spec.data.holdOut": 0.1},
        {"spec.evaluation": {"earlyStop": STOP}},
        "needs evaluations while the job trains",
    ),
    Case(
        "spec.evaluation.earlyStop",
        {"spec.snapshots.quantisation": {"mode": "Auto"}},
        {
            "spec.evaluation": {"everySamples": 10, "earlyStop": STOP},
            "spec.data.holdOut": 0.1,
            "spec.snapshots.quantisation": {"mode": "Auto"},
        },
        "needs spec.snapshots.quantisation.mode Exact",
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
        "spec.publish.everySamples",
        {"spec.publish": {"to": "s3://models/clicks", "everySamples": 1000}},
        {"spec.publish": {"to": "s3://models/clicks", "everySamples": 1000, "everySeconds": 60}},
        "cannot be combined with everySeconds",
    ),
    Case(
        "spec.publish.to",
        {"spec.publish": {"to": "file:///models"}, "spec.snapshots.store.endpoint": "file:///saves"},
        {"spec.publish": {"to": "s3://models"}, "spec.snapshots.store.endpoint": "file:///saves"},
        "which is a folder",
    ),
    Case(
        "spec.restoreFrom.anchor",
        {"spec.restoreFrom": {"anchor": "uid/gen-0001/dense/group-0001/step-000000010/manifest.json"}},
        {"spec.restoreFrom": {"job": "yesterday", "anchor": "key"}},
        "exactly one of job, anchor and latestOf is required",
    ),
    Case(
        "spec.restoreFrom.anchor",
        {"spec.restoreFrom": {"job": "yesterday", "missing": "Initialise", "extra": "Ignore"}},
        {"spec.restoreFrom": {"missing": "Initialise"}},
        "exactly one of job, anchor and latestOf is required",
    ),
    Case(
        "spec.restoreFrom.anchor",
        {"spec.restoreFrom": {"latestOf": {"matchLabels": {"series": "clicks"}, "none": "Initialise"}}},
        {"spec.restoreFrom": {"job": "yesterday", "latestOf": {"matchLabels": {"series": "clicks"}}}},
        "exactly one of job, anchor and latestOf is required",
    ),
    Case(
        "spec.restoreFrom.latestOf.matchLabels",
        {"spec.restoreFrom.latestOf.matchExpressions": [{"key": "series", "operator": "In", "values": ["a", "b"]}]},
        {"spec.restoreFrom.latestOf": {"matchLabels": {}, "none": "Wait"}},
        "every job would match",
    ),
    Case(
        "spec.restoreFrom.latestOf.matchExpressions[0].values",
        {"spec.restoreFrom.latestOf.matchExpressions": [{"key": "series", "operator": "Exists"}]},
        {"spec.restoreFrom.latestOf.matchExpressions": [{"key": "series", "operator": "NotIn"}]},
        "In and NotIn need values",
    ),
    Case(
        "spec.restoreFrom",
        {"spec.snapshots.restoreFrom": "key"},
        {"spec.snapshots.restoreFrom": "key", "spec.restoreFrom": {"anchor": "key"}},
        "spec.snapshots.restoreFrom names an anchor as well",
    ),
    Case(
        "spec.restoreFrom",
        {
            "spec.restoreFrom": {
                "job": "yesterday",
                "map": [{"table": "a", "from": "old"}, {"table": "b", "from": "old"}],
            }
        },
        {"spec.restoreFrom": {"job": "yesterday", "map": [{"table": "c", "from": "old"}]}},
        "map names a table that is not in spec.model.tables",
    ),
    Case(
        "spec.restoreFrom.map",
        {"spec.restoreFrom": {"job": "yesterday", "map": [{"table": "a", "from": "old", "resized": "Rehash"}]}},
        {"spec.restoreFrom": {"job": "yesterday", "map": 2 * [{"table": "a", "from": "old"}]}},
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
        "spec.recovery.onDeadline",
        {"spec.recovery": {"onDeadline": "Fail", "deadlineSeconds": 3600}},
        {"spec.recovery": {"onDeadline": "Fail"}},
        "Fail needs a deadline",
    ),
    Case(
        "spec.recovery.redundancy",
        {"spec.recovery": {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": 1}}, "spec.shards.replicas": 2},
        {"spec.recovery": {"replay": {"mode": "Off"}, "redundancy": {"dataShards": 1}}, "spec.shards.replicas": 2},
        "needs replay of later updates",
    ),
    Case(
        "spec.recovery.replay.mode",
        {"spec.recovery": {"replay": {"mode": "Auto"}, "onShardLoss": "Degrade"}},
        {"spec.recovery": {"replay": {"mode": "Required"}, "onShardLoss": "Degrade"}},
        "push nothing for a lost shard, so replay cannot be Required",
    ),
    Case(
        "spec.recovery.replay.mode",
        {"spec.recovery": {"replay": {"mode": "Auto"}}, "spec.trainers": {"denseSync": "ShadowMA", "replicas": 2}},
        {"spec.recovery": {"replay": {"mode": "Required"}}, "spec.trainers": {"denseSync": "ShadowMA", "replicas": 2}},
        "trainers do not wait for replayed pushes, so replay cannot be Required",
    ),
    Case(
        "spec.recovery.replay.mode",
        {"spec.recovery": {"replay": {"mode": "Auto"}}, "spec.snapshots.strategy": "MFU"},
        {"spec.recovery": {"replay": {"mode": "Required"}}, "spec.snapshots.strategy": "MFU"},
        "would have pushes applied twice, so replay cannot be Required",
    ),
    Case(
        "spec.trainers.sparseUpdates",
        {"spec.trainers": {"sparseUpdates": "PerStep", "replicas": 2}},
        {"spec.trainers": {"sparseUpdates": "PerStep", "replicas": 2, "denseSync": "ShadowMA"}},
        "in a shadow mode trainers take no common steps, so updates cannot be PerStep",
    ),
    Case(
        "spec.trainers.sparseUpdates",
        {"spec.trainers": {"sparseUpdates": "Auto"}, "spec.recovery": {"onShardLoss": "Degrade"}},
        {"spec.trainers": {"sparseUpdates": "PerStep"}, "spec.recovery": {"onShardLoss": "Degrade"}},
        "continues by itself without a lost shard, so updates cannot be PerStep",
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
    *FOLLOW_RULES,
    *KAFKA_RULES,
)
