"""CPRJob documents, good and bad: one table for pydantic and for a real API server."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpr_operator.api.rules import GUESSED_SENSITIVITY, MOST_PORTION

Document = dict[str, Any]
Edits = Mapping[str, Any]

#: As an edit's value: take the field away.
GONE = object()


def minimal() -> Document:
    """The shortest manifest: everything else has a default."""
    return {
        "apiVersion": "cprjob.io/v1alpha1",
        "kind": "CPRJob",
        "metadata": {"name": "minimal"},
        "spec": {
            "image": "trainer",
            "accuracyBudget": {"portionOfLostSamples": 0.1},
            "model": {
                "embeddingDim": 4,
                "bottomMlp": [8, 4],
                "topMlp": [8, 1],
                "tables": [{"name": "a", "rows": 10}, {"name": "b", "rows": 5}],
            },
            "data": {"format": "Synthetic", "samples": 1000},
            "snapshots": {"store": {"endpoint": "http://store:9000", "bucket": "saves"}},
        },
    }


def edited(edits: Edits, base: Document | None = None) -> Document:
    """`base` (or the minimal manifest) with values set or taken away at dotted paths; numbers index lists."""
    document = copy.deepcopy(base if base is not None else minimal())
    for path, value in edits.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        node: Any = document
        for part in parents:
            node = node[part] if isinstance(part, int) else node.setdefault(part, {})
        if value is GONE:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)
    return document


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


@dataclass(frozen=True, slots=True)
class Change:
    """A rule about changes: from the minimal manifest with `before`, with that status, to one more edit."""

    name: str
    good: Edits
    bad: Edits
    says: str
    before: Edits
    status: Edits


CRITEO: Edits = {"spec.data": {"format": "Criteo", "uri": "s3://clicks/day", "epochs": 1}}
COLUMNS = {"label": "click", "counts": ["age"], "numbers": ["price"], "categories": ["user", "item"]}
PARQUET: Edits = {"spec.data": {"format": "Parquet", "uri": "s3://clicks/day=*/", "columns": COLUMNS, "epochs": 1}}
CSV: Edits = PARQUET | {"spec.data.format": "CSV"}
THIRTEEN = [str(number) for number in range(1, 14)]
AUC_DROP: Edits = {"spec.accuracyBudget": {"type": "AUCDrop", "aucDrop": {"limit": 0.0005, "sensitivity": 0.002}}}
#: The largest AUC drop that needs no sensitivity.
MOST_GUESSED = MOST_PORTION * GUESSED_SENSITIVITY

#: Rules that the schema cannot say.
RULES = (
    Case("metadata.name", {"metadata.name": "a" + 38 * "-" + "z"}, {"metadata.name": 41 * "a"}, "DNS-1035"),
    Case("metadata.name", {"metadata.name": "a1"}, {"metadata.name": "1a"}, "DNS-1035"),
    Case(
        "spec.model.bottomMlp",
        {"spec.model.bottomMlp": [4]},
        {"spec.model.bottomMlp": [4, 8]},
        "must end in embeddingDim",
    ),
    Case("spec.model.topMlp", {"spec.model.topMlp": [1]}, {"spec.model.topMlp": [1, 2]}, "must end in 1"),
    Case("spec.model.tables", {"spec.model.tables.1.name": "c"}, {"spec.model.tables.1.name": "a"}),
    Case(
        "spec.shards.replicas",
        {"spec.shards.replicas": 15},
        {"spec.shards.replicas": 16},
        "more shards than rows in all tables",
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
        "spec.data.columns.numbers",
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.data.columns.numbers": GONE},
        CSV | {"spec.data.columns.counts": THIRTEEN},
        "the model takes 13 numeric features",
    ),
    Case(
        "spec.data.columns.counts",
        CSV | {"spec.data.columns.counts": ["clicks"]},
        CSV | {"spec.data.columns.counts": ["click"]},
        "the label cannot be a feature",
    ),
    Case(
        "spec.data.columns.numbers",
        CSV | {"spec.data.columns.numbers": []},
        CSV | {"spec.data.columns.numbers": ["price", "click"]},
        "the label cannot be a feature",
    ),
    Case(
        "spec.data.columns.categories",
        CSV,
        CSV | {"spec.data.columns.categories.1": "click"},
        "the label cannot be a feature",
    ),
    Case(
        "spec.data",
        PARQUET,
        PARQUET | {"spec.data.columns.categories": ["user"]},
        "each table needs a category of its own",
    ),
    Case(
        "spec.snapshots.interval.seconds",
        {"spec.snapshots.interval": {"mode": "Fixed", "seconds": 60}},
        {"spec.snapshots.interval": {"mode": "Fixed"}},
        "a Fixed interval needs seconds",
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
        "spec.recovery.mode",
        {"spec.recovery.mode": "Full", "spec.accuracyBudget.portionOfLostSamples": 0},
        {"spec.recovery.mode": "Partial", "spec.accuracyBudget.portionOfLostSamples": 0},
        "mode Partial cannot keep a budget of 0",
    ),
    Case(
        "spec.recovery.mode",
        AUC_DROP | {"spec.recovery.mode": "Partial"},
        AUC_DROP | {"spec.recovery.mode": "Partial", "spec.accuracyBudget.aucDrop.limit": 0},
        "mode Partial cannot keep a budget of 0",
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
        "another type has none",
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
        "another type has none",
    ),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.25, "sensitivity": 0.5}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.26, "sensitivity": 0.5}},
        "allows more than a portion of 0.5",
    ),
    Case(
        "spec.accuracyBudget.aucDrop.limit",
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": MOST_GUESSED}},
        AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 1.01 * MOST_GUESSED}},
        "allows more than a portion of 0.5",
    ),
)

#: What the schema says by itself: bounds, enumerations, patterns, required fields.
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
    Case(
        "spec.model.embeddingDim",
        {"spec.model.embeddingDim": 4096, "spec.model.bottomMlp": [4096]},
        {"spec.model.embeddingDim": 4097, "spec.model.bottomMlp": [4097]},
    ),
    Case("spec.model.bottomMlp", {"spec.model.bottomMlp": 16 * [4]}, {"spec.model.bottomMlp": 17 * [4]}),
    Case("spec.model.topMlp[0]", {"spec.model.topMlp": [65536, 1]}, {"spec.model.topMlp": [65537, 1]}),
    Case(
        "spec.model.tables",
        {"spec.model.tables": [{"name": f"t{i}", "rows": 1} for i in range(26)]},
        {"spec.model.tables": [{"name": f"t{i}", "rows": 1} for i in range(27)]},
    ),
    Case("spec.model.tables[0].rows", {"spec.model.tables.0.rows": 2**40}, {"spec.model.tables.0.rows": 0}),
    Case("spec.model.tables[0].name", {"spec.model.tables.0.name": "user_id-2"}, {"spec.model.tables.0.name": "User"}),
    Case(
        "spec.model.denseOptimizer.kind",
        {"spec.model.denseOptimizer.kind": "Adagrad"},
        {"spec.model.denseOptimizer.kind": "RowWiseAdagrad"},
    ),
    Case(
        "spec.model.sparseOptimizer.learningRate",
        {"spec.model.sparseOptimizer.learningRate": 0.001},
        {"spec.model.sparseOptimizer.learningRate": 0},
    ),
    Case("spec.data.uri", CRITEO | {"spec.data.uri": "/data/day"}, CRITEO | {"spec.data.uri": "ftp://host/day"}),
    Case("spec.data.format", CSV | {"spec.data.format": "TSV"}, CSV | {"spec.data.format": "ORC"}),
    Case(
        "spec.data.columns.label",
        CSV | {"spec.data.columns.label": "a label"},
        CSV | {"spec.data.columns.label": ""},
    ),
    Case(
        "spec.data.columns.categories",
        PARQUET,
        PARQUET | {"spec.data.columns.categories": GONE},
    ),
    Case("spec.data.shuffleRows", {"spec.data.shuffleRows": 1024}, {"spec.data.shuffleRows": 1000}),
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
    Case("spec.snapshots.storedBits", {"spec.snapshots.storedBits": 3}, {"spec.snapshots.storedBits": 16}),
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

STARTED: Edits = {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}
SUSPENDED: Edits = {"startTime": "2026-01-01T00:00:00Z", "phase": "Suspended"}
BUDGET: Edits = STARTED | {"budget": {"limit": 0.1, "spent": 0.03, "reserved": 0.02, "remaining": 0.05}}
FROZEN = "cannot be changed once the job has started"
BELOW_SPENT = "spec.accuracyBudget: may not be lowered below what is spent and reserved"
TEMPLATE = {"metadata": {"labels": {"team": "ads"}}}


def _frozen(field: str, edits: Edits) -> Change:
    """A field that is free before the start and frozen after it."""
    return Change(field, {"spec.suspend": True}, edits, f"spec.{field}: {FROZEN}", before={}, status=STARTED)


CHANGES = (
    _frozen("image", {"spec.image": "other"}),
    _frozen("recovery", {"spec.recovery.mode": "Full"}),
    _frozen("model", {"spec.model.tables.0.rows": 11}),
    _frozen("data", {"spec.data.samples": 1001}),
    _frozen("trainers.replicas", {"spec.trainers.replicas": 2}),
    _frozen("snapshots", {"spec.snapshots.restoreFrom": "a/b"}),
    _frozen("snapshots", {"spec.snapshots.interval": {"mode": "Fixed", "seconds": 5}}),
    _frozen("failurePolicy", {"spec.failurePolicy.silenceSeconds": 11}),
    Change(
        "ttl is always free",
        {"spec.ttlSecondsAfterFinished": 5},
        {"spec.image": "other"},
        FROZEN,
        before={},
        status=SUSPENDED,
    ),
    Change(
        "shards while running",
        {"spec.suspend": True},
        {"spec.shards.replicas": 3},
        "spec.shards.replicas: can only be changed while the job is suspended; set spec.suspend to true",
        before={},
        status=STARTED,
    ),
    Change(
        "shards while suspended",
        {"spec.shards.replicas": 3},
        {"spec.shards.replicas": 3, "spec.suspend": False},
        "spec.shards.replicas: can only be changed while the job is suspended",
        before={"spec.suspend": True},
        status=SUSPENDED,
    ),
    Change(
        "shards while pods still flush",
        {"spec.ttlSecondsAfterFinished": 5},
        {"spec.shards.replicas": 3},
        "spec.shards.replicas: can only be changed while the job is suspended",
        before={"spec.suspend": True},
        status=SUSPENDED | {"phase": "Suspending"},
    ),
    Change(
        "template while running",
        {"spec.accuracyBudget.portionOfLostSamples": 0.2},
        {"spec.shards.template": TEMPLATE},
        "spec.shards.template: can only be changed while the job is suspended",
        before={},
        status=STARTED,
    ),
    Change(
        "template while suspended",
        {"spec.trainers.template": TEMPLATE},
        {"spec.trainers.template": TEMPLATE, "spec.suspend": False},
        "spec.trainers.template: can only be changed while the job is suspended",
        before={"spec.suspend": True},
        status=SUSPENDED,
    ),
    Change(
        "template while pods still flush",
        {"spec.ttlSecondsAfterFinished": 5},
        {"spec.trainers.template": TEMPLATE},
        "spec.trainers.template: can only be changed while the job is suspended",
        before={"spec.suspend": True},
        status=SUSPENDED | {"phase": "Suspending"},
    ),
    Change(
        "budget above spent",
        {"spec.accuracyBudget.portionOfLostSamples": 0.05},
        {"spec.accuracyBudget.portionOfLostSamples": 0.04},
        BELOW_SPENT,
        before={},
        status=BUDGET,
    ),
    Change(
        "AUC budget above spent",
        {"spec.accuracyBudget.aucDrop.limit": 0.0001},
        {"spec.accuracyBudget.aucDrop.sensitivity": 0.0101},
        BELOW_SPENT,
        before=AUC_DROP,
        status=BUDGET,
    ),
    Change(
        "AUC budget by the guess above spent",
        {"spec.accuracyBudget.aucDrop": {"limit": 0.0501 * GUESSED_SENSITIVITY}},
        {"spec.accuracyBudget.aucDrop": {"limit": 0.0499 * GUESSED_SENSITIVITY}},
        BELOW_SPENT,
        before=AUC_DROP,
        status=BUDGET,
    ),
    Change(
        "from a portion to an AUC budget above spent",
        {"spec.accuracyBudget": {"type": "AUCDrop", "aucDrop": {"limit": 0.06, "sensitivity": 1}}},
        {"spec.accuracyBudget": {"type": "AUCDrop", "aucDrop": {"limit": 0.04, "sensitivity": 1}}},
        BELOW_SPENT,
        before={},
        status=BUDGET,
    ),
    Change(
        "a budget that is overspent already may stay",
        {"spec.suspend": True},
        {"spec.accuracyBudget.portionOfLostSamples": 0.11},
        BELOW_SPENT,
        before={},
        status=STARTED | {"budget": {"limit": 0.1, "spent": 0.12, "reserved": 0, "remaining": 0}},
    ),
)
