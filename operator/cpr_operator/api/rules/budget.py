"""Rules of the accuracy budget, and of what spends it."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

#: The sensitivity of an AUC drop that states none. It is a guess above all measurements on real data,
#: also over two epochs (docs/calibration.md), because too high a value costs only time.
GUESSED_SENSITIVITY = 0.2
#: The largest portion of lost samples whose cost `cprjob calibrate` measures.
MOST_PORTION = 0.5
PORTION_BUDGET = Rule(
    "spec.accuracyBudget",
    "spec.accuracyBudget.portionOfLostSamples",
    "a budget of type PortionOfLostSamples needs portionOfLostSamples, and other types have none",
    "state spec.accuracyBudget.portionOfLostSamples with type PortionOfLostSamples (the default) only",
    "(self.type == 'PortionOfLostSamples') == has(self.portionOfLostSamples)",
)
AUC_DROP_BUDGET = Rule(
    "spec.accuracyBudget",
    "spec.accuracyBudget.aucDrop",
    "a budget of type AUCDrop needs aucDrop, and other types have none",
    "state spec.accuracyBudget.aucDrop with type AUCDrop only",
    "(self.type == 'AUCDrop') == has(self.aucDrop)",
)
AUC_DROP_LIMIT = Rule(
    "spec.accuracyBudget.aucDrop",
    "spec.accuracyBudget.aucDrop.limit",
    f"allows a portion of lost samples above {MOST_PORTION}, beyond which no sensitivity is measured",
    f"lower it to {MOST_PORTION} * sensitivity ({GUESSED_SENSITIVITY} if absent), or state portionOfLostSamples",
    f"self.limit <= {MOST_PORTION} * (has(self.sensitivity) ? self.sensitivity : {GUESSED_SENSITIVITY})",
)
#: `AccuracyBudget.portion` in CEL, below the job's spec.
PORTION = (
    "(has({0}.aucDrop) ? {0}.aucDrop.limit"
    f" / (has({{0}}.aucDrop.sensitivity) ? {{0}}.aucDrop.sensitivity : {GUESSED_SENSITIVITY})"
    " : {0}.portionOfLostSamples)"
)
PARTIAL_NEEDS_BUDGET = Rule(
    "spec",
    "spec.recovery.mode",
    "mode Partial needs a budget above 0",
    "set it to Auto or Full, or raise spec.accuracyBudget",
    f"self.recovery.mode != 'Partial' || {PORTION.format('self.accuracyBudget')} > 0.0",
)
_PAUSES = "self.recovery.onShardLoss == 'Pause'"
DEGRADE_NEEDS_BUDGET = Rule(
    "spec",
    "spec.recovery.onShardLoss",
    "Degrade loses samples, which mode Full and a budget of 0 do not allow",
    "set it to Pause, or choose mode Auto or Partial and a spec.accuracyBudget above 0",
    f"{_PAUSES} || (self.recovery.mode != 'Full' && {PORTION.format('self.accuracyBudget')} > 0.0)",
)
DEGRADE_NEEDS_SHARDS = Rule(
    "spec",
    "spec.recovery.onShardLoss",
    "Degrade needs at least two shards",
    "set it to Pause, or raise spec.shards.replicas to at least 2",
    f"{_PAUSES} || self.shards.replicas > 1",
)
REDUNDANCY_NEEDS_REPLAY = Rule(
    "spec.recovery",
    "spec.recovery.redundancy",
    "parity is up to a second old, and needs trainers that push again what came later",
    "set spec.recovery.replay.mode to Auto, or remove redundancy",
    "!has(self.redundancy) || self.replay.mode == 'Auto'",
)
REDUNDANCY_SHARDS = Rule(
    "spec",
    "spec.recovery.redundancy.dataShards",
    "must be lower than the number of shards, because another shard keeps their parity",
    "lower it, or raise spec.shards.replicas",
    "!has(self.recovery.redundancy) || self.recovery.redundancy.dataShards < self.shards.replicas",
)
RULES = (
    PORTION_BUDGET,
    AUC_DROP_BUDGET,
    AUC_DROP_LIMIT,
    PARTIAL_NEEDS_BUDGET,
    DEGRADE_NEEDS_BUDGET,
    DEGRADE_NEEDS_SHARDS,
    REDUNDANCY_NEEDS_REPLAY,
    REDUNDANCY_SHARDS,
)
