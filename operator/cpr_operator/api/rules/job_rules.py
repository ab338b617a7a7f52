"""Rules of a job's name, members, saves, evaluations and accuracy budget, and of `spec.restoreFrom`."""

from __future__ import annotations

from cpr_contract.model import PAGE_SLOTS
from cpr_operator.api.rules.rule import Rule

#: A job's name begins its pods' names, which end in uid, role, index and incarnation.
MAX_NAME = 40
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME = Rule(
    "/metadata.name",
    f"must be a DNS-1035 label of at most {MAX_NAME} characters",
    "start with a letter, use only a-z, 0-9 and -, and leave room for the pods' suffixes",
    f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
)
OF_JOB = (
    Rule(
        "spec/shards.replicas",
        "must not exceed the number of rows of all tables",
        "lower it, or give spec.model.tables more rows",
        "self.model.tables.map(t, t.rows).sum() >= self.shards.replicas",
    ),
    Rule(
        "spec.trainers/denseSync",
        "a shadow mode needs at least two trainers",
        "remove it, or raise spec.trainers.replicas",
        "self.denseSync == 'AllReduce' || self.replicas > 1",
    ),
    Rule(
        "spec.trainers/workers",
        "must be Auto or 1 on a GPU",
        "remove it, or set spec.trainers.device to cpu",
        "!has(self.workers) || self.workers == 1 || self.workers == 'Auto' || self.device != 'cuda'",
    ),
    Rule(
        "spec/snapshots.strategy",
        "priority saves need spec.trainers.denseSync AllReduce",
        "remove it (the default is Full), or set spec.trainers.denseSync to AllReduce",
        "self.snapshots.strategy == 'Full' || self.trainers.denseSync == 'AllReduce'",
    ),
    Rule(
        "spec.snapshots.interval/seconds",
        "a Fixed interval needs seconds, and an Auto one has none",
        "state spec.snapshots.interval.seconds with mode Fixed only",
        "(self.mode == 'Fixed') == has(self.seconds)",
    ),
    Rule(
        "spec.snapshots.quantisation/bits",
        "Fixed quantisation needs bits, and other modes have none",
        "state spec.snapshots.quantisation.bits with mode Fixed only",
        "(self.mode == 'Fixed') == has(self.bits)",
    ),
    Rule(
        "spec/snapshots.strategy",
        "Growth ranks rows by the accumulators of RowWiseAdagrad",
        "choose another strategy, or the optimizer RowWiseAdagrad for all tables",
        "self.snapshots.strategy != 'Growth' || self.model.tables.all(t, "
        "(has(t.optimizer) ? t.optimizer.kind : self.model.sparseOptimizer.kind) == 'RowWiseAdagrad')",
    ),
    Rule(
        "spec/suspend",
        "MultiKueue copies no changes to a worker cluster, so it can neither suspend nor resume the job",
        "set spec.suspend to false, and delete the job to stop it",
        "!has(self.managedBy) || !self.suspend",
    ),
    Rule(
        "spec/snapshots.deleteWithJob",
        "MultiKueue deletes the job of a worker cluster once it has ended, and its saves would be deleted with it",
        "set spec.snapshots.deleteWithJob to false",
        "!has(self.managedBy) || !self.snapshots.deleteWithJob",
    ),
    Rule(
        "spec.security/certificates",
        "a job without encryption has no certificates",
        "set spec.security.encryption to TLS, or remove it",
        "!has(self.certificates) || (has(self.encryption) && self.encryption == 'TLS')",
    ),
)


# --- dynamic tables, which only merged steps change (ADR 46)

_NO_DYNAMIC = "!self.model.tables.exists(t, t.ids == 'Dynamic')"
OF_DYNAMIC = (
    Rule(
        "spec/shards.replicas",
        f"shards hold whole pages of {PAGE_SLOTS} rows of a dynamic table, and some would have no row",
        f"lower it, or give a table of spec.model.tables with the ids Dynamic {PAGE_SLOTS} rows for each shard",
        f"{_NO_DYNAMIC} || self.model.tables.exists(t, t.ids == 'Dynamic'"
        f" && (t.rows + {PAGE_SLOTS - 1}) / {PAGE_SLOTS} >= self.shards.replicas)"
        " || self.model.tables.map(t, t.ids == 'Dynamic' ? 0 : t.rows).sum() >= self.shards.replicas",
    ),
    Rule(
        "spec/trainers.denseSync",
        "a dynamic table changes by common steps, and in a shadow mode trainers take none",
        "set it to AllReduce, or choose other ids than Dynamic in spec.model.tables",
        f"self.trainers.denseSync == 'AllReduce' || {_NO_DYNAMIC}",
    ),
    Rule(
        "spec/trainers.sparseUpdates",
        "a dynamic table changes by merged steps, so updates cannot be PerPush",
        "set it to Auto, or choose other ids than Dynamic in spec.model.tables",
        f"self.trainers.sparseUpdates != 'PerPush' || {_NO_DYNAMIC}",
    ),
    Rule(
        "spec/recovery.onShardLoss",
        "with Degrade trainers continue without a lost shard, and a dynamic table needs the steps of all",
        "set it to Pause, or choose other ids than Dynamic in spec.model.tables",
        f"self.recovery.onShardLoss == 'Pause' || {_NO_DYNAMIC}",
    ),
    Rule(
        "spec/snapshots.strategy",
        "a row that is saved between cuts may stand in the place of another id of a dynamic table",
        "remove it (the default is Full), or choose other ids than Dynamic in spec.model.tables",
        f"self.snapshots.strategy == 'Full' || {_NO_DYNAMIC}",
    ),
)


# --- evaluations on held-out rows

#: Trainers exchange the logits of all rows, 4 bytes each, and each keeps the labels and groups of all.
MAX_GROUPED = 2**22
OF_EVALUATION = (
    Rule(
        "spec.evaluation.earlyStop/patience",
        "training ends by patience, by a target, or by both",
        "state spec.evaluation.earlyStop.patience or target",
        "has(self.patience) || has(self.target)",
    ),
    Rule(
        "spec/evaluation",
        "needs rows that are held out",
        "set spec.data.holdOut or spec.evaluation.uri, or everySamples to 0",
        "self.evaluation.everySamples == 0 || self.data.holdOut > 0.0 || has(self.evaluation.uri)",
    ),
    Rule(
        "spec/evaluation.uri",
        "Synthetic data has no other data to be scored on",
        "remove spec.evaluation.uri and set spec.data.holdOut, or choose another spec.data.format",
        "!has(self.evaluation.uri) || self.data.format != 'Synthetic'",
    ),
    Rule(
        "spec/evaluation.uri",
        "a job is scored on data of its own or on held-out rows, not on both",
        "remove spec.evaluation.uri or spec.data.holdOut",
        "!has(self.evaluation.uri) || self.data.holdOut == 0.0",
    ),
    Rule(
        "spec/evaluation",
        "needs spec.trainers.denseSync AllReduce, because in a shadow mode every trainer has another model",
        "set spec.trainers.denseSync to AllReduce, or everySamples to 0 and use cprjob evaluate",
        "self.evaluation.everySamples == 0 || self.trainers.denseSync == 'AllReduce'",
    ),
    Rule(
        "spec/evaluation.groupBy",
        "Synthetic data has no column to group by",
        "remove spec.evaluation.groupBy, or choose another spec.data.format",
        "!has(self.evaluation.groupBy) || self.data.format != 'Synthetic'",
    ),
    Rule(
        "spec.evaluation/samples",
        f"scores by group take at most {MAX_GROUPED} rows",
        "lower it, or remove groupBy",
        f"!has(self.groupBy) || self.samples <= {MAX_GROUPED}",
    ),
    Rule(
        "spec.evaluation/earlyStop.metric",
        "GAUC needs groups",
        "set spec.evaluation.groupBy, or choose another metric",
        "!has(self.earlyStop) || self.earlyStop.metric != 'GAUC' || has(self.groupBy)",
    ),
    Rule(
        "spec.evaluation/earlyStop",
        "needs evaluations while the job trains",
        "set spec.evaluation.everySamples, or remove earlyStop",
        "!has(self.earlyStop) || self.everySamples > 0",
    ),
    Rule(
        "spec/evaluation.earlyStop",
        "needs spec.snapshots.quantisation.mode Exact, because the best model is read from a save",
        "remove spec.snapshots.quantisation, or earlyStop",
        "!has(self.evaluation.earlyStop) || self.snapshots.quantisation.mode == 'Exact'",
    ),
    Rule(
        "spec.publish/everySamples",
        "cannot be combined with everySeconds",
        "remove one of them",
        "!has(self.everySamples) || !has(self.everySeconds)",
    ),
    Rule(
        "spec/publish.to",
        "an s3:// place is at the endpoint of spec.snapshots.store, which is a folder",
        "give file:///folder, or store the saves in S3",
        "!has(self.publish) || self.publish.to.startsWith('file:') || "
        "!self.snapshots.store.endpoint.startsWith('file:')",
    ),
)


# --- the accuracy budget, and recovery

#: The sensitivity of an AUC drop that states none. It is a guess above all measurements on real data,
#: also over two epochs (docs/calibration.md), because too high a value costs only time.
GUESSED_SENSITIVITY = 0.2
#: The largest portion of lost samples that `cprjob calibrate` measures.
MOST_PORTION = 0.5
#: `AccuracyBudget.portion` in CEL, below the job's spec.
PORTION = (
    "(has({0}.aucDrop) ? {0}.aucDrop.limit"
    f" / (has({{0}}.aucDrop.sensitivity) ? {{0}}.aucDrop.sensitivity : {GUESSED_SENSITIVITY})"
    " : {0}.portionOfLostSamples)"
)
_PAUSES = "self.recovery.onShardLoss == 'Pause'"
_NOT_REQUIRED = "self.recovery.replay.mode != 'Required'"
_NOT_PER_STEP = "self.trainers.sparseUpdates != 'PerStep'"
OF_BUDGET = (
    Rule(
        "spec.accuracyBudget/portionOfLostSamples",
        "a budget of type PortionOfLostSamples needs portionOfLostSamples, and other types have none",
        "state spec.accuracyBudget.portionOfLostSamples with type PortionOfLostSamples (the default) only",
        "(self.type == 'PortionOfLostSamples') == has(self.portionOfLostSamples)",
    ),
    Rule(
        "spec.accuracyBudget/aucDrop",
        "a budget of type AUCDrop needs aucDrop, and other types have none",
        "state spec.accuracyBudget.aucDrop with type AUCDrop only",
        "(self.type == 'AUCDrop') == has(self.aucDrop)",
    ),
    Rule(
        "spec.accuracyBudget.aucDrop/limit",
        f"allows a portion of lost samples above {MOST_PORTION}, beyond which no sensitivity is measured",
        f"lower it to {MOST_PORTION} * sensitivity ({GUESSED_SENSITIVITY} if absent), or state portionOfLostSamples",
        f"self.limit <= {MOST_PORTION} * (has(self.sensitivity) ? self.sensitivity : {GUESSED_SENSITIVITY})",
    ),
    Rule(
        "spec/recovery.mode",
        "mode Partial needs a budget above 0",
        "set it to Auto or Full, or raise spec.accuracyBudget",
        f"self.recovery.mode != 'Partial' || {PORTION.format('self.accuracyBudget')} > 0.0",
    ),
    Rule(
        "spec/recovery.onShardLoss",
        "Degrade loses samples, which mode Full and a budget of 0 do not allow",
        "set it to Pause, or choose mode Auto or Partial and a spec.accuracyBudget above 0",
        f"{_PAUSES} || (self.recovery.mode != 'Full' && {PORTION.format('self.accuracyBudget')} > 0.0)",
    ),
    Rule(
        "spec/recovery.onShardLoss",
        "Degrade needs at least two shards",
        "set it to Pause, or raise spec.shards.replicas to at least 2",
        f"{_PAUSES} || self.shards.replicas > 1",
    ),
    Rule(
        "spec/recovery.replay.mode",
        "with onShardLoss Degrade trainers push nothing for a lost shard, so replay cannot be Required",
        "set it to Auto, or set spec.recovery.onShardLoss to Pause",
        f"{_NOT_REQUIRED} || {_PAUSES}",
    ),
    Rule(
        "spec/recovery.replay.mode",
        "in a shadow mode trainers do not wait for replayed pushes, so replay cannot be Required",
        "set it to Auto, or set spec.trainers.denseSync to AllReduce",
        f"{_NOT_REQUIRED} || self.trainers.denseSync == 'AllReduce'",
    ),
    Rule(
        "spec/recovery.replay.mode",
        "rows that are saved between cuts would have pushes applied twice, so replay cannot be Required",
        "set it to Auto, or remove spec.snapshots.strategy (the default is Full)",
        f"{_NOT_REQUIRED} || self.snapshots.strategy == 'Full'",
    ),
    Rule(
        "spec/trainers.sparseUpdates",
        "in a shadow mode trainers take no common steps, so updates cannot be PerStep",
        "set it to Auto, or set spec.trainers.denseSync to AllReduce",
        f"{_NOT_PER_STEP} || self.trainers.denseSync == 'AllReduce'",
    ),
    Rule(
        "spec/trainers.sparseUpdates",
        "with onShardLoss Degrade each trainer continues by itself without a lost shard, so updates cannot be PerStep",
        "set it to Auto, or set spec.recovery.onShardLoss to Pause",
        f"{_NOT_PER_STEP} || {_PAUSES}",
    ),
    Rule(
        "spec.recovery/onDeadline",
        "Fail needs a deadline",
        "state spec.recovery.deadlineSeconds, or remove onDeadline",
        "self.onDeadline == 'Suspend' || has(self.deadlineSeconds)",
    ),
    Rule(
        "spec.recovery/redundancy",
        "parity is up to a second old, and needs replay of later updates",
        "set spec.recovery.replay.mode to Auto or Required, or remove redundancy",
        "!has(self.redundancy) || self.replay.mode != 'Off'",
    ),
    Rule(
        "spec/recovery.redundancy.dataShards",
        "must be lower than the number of shards, because another shard keeps their parity",
        "lower it, or raise spec.shards.replicas",
        "!has(self.recovery.redundancy) || self.recovery.redundancy.dataShards < self.shards.replicas",
    ),
)


# --- restoreFrom

#: The schema has it as the list type `map`.
MAPPED_ONCE = Rule(
    "spec.restoreFrom/map",
    "names a table twice",
    "state each table once",
    "",
)
OF_RESTORE = (
    Rule(
        "spec.restoreFrom/anchor",
        "exactly one of job, anchor and latestOf is required",
        "state spec.restoreFrom.job, the name of a job, spec.restoreFrom.anchor, a key, or spec.restoreFrom.latestOf,"
        " labels of jobs",
        "[has(self.job), has(self.anchor), has(self.latestOf)].filter(stated, stated).size() == 1",
    ),
    Rule(
        "spec.restoreFrom.latestOf/matchLabels",
        "every job would match",
        "state a label in spec.restoreFrom.latestOf.matchLabels or matchExpressions",
        "(has(self.matchLabels) && self.matchLabels.size() > 0)"
        " || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",
    ),
    Rule(
        "spec.restoreFrom.latestOf.matchExpressions[]/values",
        "In and NotIn need values, Exists and DoesNotExist have none",
        "correct values or operator",
        "(self.operator in ['In', 'NotIn']) == (self.values.size() > 0)",
    ),
    Rule(
        "spec/restoreFrom",
        "spec.snapshots.restoreFrom names an anchor as well",
        "remove one of them: spec.snapshots.restoreFrom is for the same model",
        "!has(self.restoreFrom) || !has(self.snapshots.restoreFrom)",
    ),
    Rule(
        "spec/restoreFrom",
        "map names a table that is not in spec.model.tables",
        "correct table in spec.restoreFrom.map, or add it to spec.model.tables",
        "!has(self.restoreFrom) || !has(self.restoreFrom.map)"
        " || sets.contains(self.model.tables.map(t, t.name), self.restoreFrom.map.map(m, m.table))",
        # The operator reports larger models (InvalidSpec).
        skip_on_server="has(self.restoreFrom) && has(self.restoreFrom.map)"
        " && self.restoreFrom.map.size() * self.model.tables.size() > 10000",
    ),
)
