"""Rules about changes: for each one that is admitted and one that is refused, from a document with a status."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpr_operator.api.rules.job_rules import GUESSED_SENSITIVITY
from support.documents import ABSENT, AUC_DROP, CRITEO, Edits
from support.follow_cases import FOLLOW
from support.rule_cases import MANAGED


@dataclass(frozen=True, slots=True)
class Change:
    """A rule about changes: from the minimal manifest with `before`, with that status, to one more edit.

    always: the rule holds before the start, too.
    """

    name: str
    good: Edits
    bad: Edits
    message: str
    before: Edits = field(default_factory=dict)
    status: Edits = field(default_factory=lambda: STARTED)
    always: bool = False


STARTED: Edits = {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}
SUSPENDED: Edits = {"startTime": "2026-01-01T00:00:00Z", "phase": "Suspended"}
BUDGET: Edits = STARTED | {"budget": {"limit": 0.1, "spent": 0.03, "reserved": 0.02, "remaining": 0.05}}
FROZEN = "cannot be changed once the job has started"
BELOW_SPENT = "spec.accuracyBudget: must not be lowered below the spent and reserved portions"
TEMPLATE = {"metadata": {"labels": {"team": "ads"}}}


def _frozen(path: str, edits: Edits, **before: Any) -> Change:
    """A field that is free before the start and frozen after it."""
    return Change(path, {"spec.suspend": True}, edits, f"spec.{path}: {FROZEN}", **before)


CHANGES = (
    _frozen("image", {"spec.image": "other"}),
    *(
        Change(
            f"managedBy {way}",
            {"spec.image": "other"},
            edits,
            "spec.managedBy: cannot be changed",
            before=before,
            status={"phase": "Pending"},
            always=True,
        )
        for way, before, edits in (
            ("of a job that waits", MANAGED, {"spec.managedBy": ABSENT}),
            ("of a job of this cluster", {}, MANAGED),
        )
    ),
    Change(
        "a job in a worker cluster of MultiKueue",
        {"metadata.labels": {"team": "ads"}},
        {"spec.ttlSecondsAfterFinished": 5},
        "spec: cannot be changed after MultiKueue has created the job in a worker cluster",
        before=MANAGED,
    ),
    Change(
        "recovery.mode",
        {"spec.recovery": {"deadlineSeconds": 3600, "onDeadline": "Fail"}},
        {"spec.recovery.mode": "Full"},
        f"spec.recovery.mode: {FROZEN}",
    ),
    _frozen("recovery.onShardLoss", {"spec.recovery.onShardLoss": "Degrade"}, before={"spec.shards.replicas": 2}),
    _frozen("recovery.replay", {"spec.recovery.replay": {"mode": "Off"}}),
    _frozen("recovery.redundancy", {"spec.recovery.redundancy": {"dataShards": 1}}, before={"spec.shards.replicas": 2}),
    _frozen(
        "recovery.redundancy",
        {"spec.recovery.redundancy": ABSENT},
        before={"spec.shards.replicas": 2, "spec.recovery": {"redundancy": {"dataShards": 1}}},
    ),
    _frozen("model", {"spec.model.tables.0.rows": 11}),
    _frozen("data", {"spec.data.samples": 1001}),
    _frozen("data", {"spec.data.follow": {}}, before=CRITEO),
    _frozen("data", {"spec.data.follow": ABSENT, "spec.data.epochs": 1}, before=FOLLOW),
    _frozen("data", {"spec.data.follow.until": "2026-12-31T00:00:00Z"}, before=FOLLOW),
    _frozen("evaluation", {"spec.evaluation.samples": 10}),
    _frozen("trainers.denseSync", {"spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}}),
    _frozen("trainers.sparseUpdates", {"spec.trainers.sparseUpdates": "PerPush"}),
    _frozen("trainers.sparseUpdates", {"spec.trainers.sparseUpdates": "PerStep"}, before={"spec.trainers.replicas": 2}),
    _frozen("trainers.precision", {"spec.trainers.precision": "bf16"}),
    _frozen("trainers.prefetch", {"spec.trainers.prefetch": 2}),
    _frozen("trainers.device", {"spec.trainers.device": "cuda"}),
    Change(
        "workers, whose absence is Auto",
        {"spec.trainers.workers": "Auto"},
        {"spec.trainers.workers": 2},
        f"spec.trainers.workers: {FROZEN}",
    ),
    _frozen("trainers.workers", {"spec.trainers.workers": ABSENT}, before={"spec.trainers.workers": 2}),
    _frozen("snapshots", {"spec.snapshots.restoreFrom": "a/b"}),
    _frozen("snapshots", {"spec.snapshots.interval": {"mode": "Fixed", "seconds": 5}}),
    _frozen("publish", {"spec.publish": {"to": "file:///models"}}),
    _frozen("restoreFrom", {"spec.restoreFrom": {"anchor": "a/b"}}),
    _frozen("restoreFrom", {"spec.restoreFrom": ABSENT}, before={"spec.restoreFrom": {"job": "yesterday"}}),
    _frozen("restoreFrom", {"spec.restoreFrom.job": "today"}, before={"spec.restoreFrom": {"job": "yesterday"}}),
    _frozen("failurePolicy.silenceSeconds", {"spec.failurePolicy.silenceSeconds": 11}),
    _frozen("failurePolicy.restartLimit", {"spec.failurePolicy.restartLimit.count": 11}),
    _frozen("failurePolicy.expectedJobMtbfSeconds", {"spec.failurePolicy.expectedJobMtbfSeconds": 11}),
    Change(
        "startup deadline while suspended",
        {"spec.failurePolicy.startupDeadlineSeconds": 3600},
        {"spec.failurePolicy.startupDeadlineSeconds": 3600, "spec.suspend": False},
        "spec.failurePolicy.startupDeadlineSeconds: can only be changed while the job is suspended",
        before={"spec.suspend": True},
        status=SUSPENDED,
    ),
    Change(
        "startup deadline of a job that was given back",
        {"spec.failurePolicy.startupDeadlineSeconds": 3600, "spec.suspend": True},
        {"spec.failurePolicy.startupDeadlineSeconds": 3600},
        "spec.failurePolicy.startupDeadlineSeconds: can only be changed while the job is suspended",
        status=SUSPENDED,
    ),
    Change(
        "ttl is always free", {"spec.ttlSecondsAfterFinished": 5}, {"spec.image": "other"}, FROZEN, status=SUSPENDED
    ),
    Change(
        "shards while running",
        {"spec.suspend": True},
        {"spec.shards.replicas": 3},
        "spec.shards.replicas: can only be changed while the job is suspended; set spec.suspend to true",
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
        "shards in a shadow mode",
        {"spec.ttlSecondsAfterFinished": 5},
        {"spec.shards.replicas": 3},
        "spec.shards.replicas: cannot be changed in a shadow mode",
        before={"spec.suspend": True, "spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}},
        status=SUSPENDED,
    ),
    Change(
        "trainers in lockstep",
        {"spec.trainers.replicas": 2},
        {"spec.trainers": {"replicas": 3, "denseSync": "ShadowMA"}},
        "spec.trainers.denseSync: cannot be changed",
    ),
    Change(
        "trainers in a shadow mode",
        {"spec.trainers.replicas": 3},
        {"spec.trainers": {"replicas": 3, "denseSync": "ShadowBMUF"}},
        "spec.trainers.denseSync: cannot be changed",
        before={"spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}},
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
        status=BUDGET,
    ),
    Change(
        "budget of exactly what is spent and reserved, which binary fractions do not add up to",
        {"spec.accuracyBudget.portionOfLostSamples": 0.3},
        {"spec.accuracyBudget.portionOfLostSamples": 0.299999},
        BELOW_SPENT,
        before={"spec.accuracyBudget.portionOfLostSamples": 0.4},
        status=STARTED | {"budget": {"limit": 0.4, "spent": 0.1, "reserved": 0.2, "remaining": 0.1}},
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
        status=BUDGET,
    ),
    Change(
        "a budget that is overspent already may stay",
        {"spec.suspend": True},
        {"spec.accuracyBudget.portionOfLostSamples": 0.11},
        BELOW_SPENT,
        status=STARTED | {"budget": {"limit": 0.1, "spent": 0.12, "reserved": 0, "remaining": 0}},
    ),
)
