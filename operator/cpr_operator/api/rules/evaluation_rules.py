"""Rules of evaluations on held-out rows."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

#: Trainers exchange the logits of all rows, 4 bytes each, and each keeps the labels and groups of all.
MAX_GROUPED = 2**22
RULES = (
    Rule(
        "spec",
        "spec.evaluation",
        "needs rows that are held out",
        "set spec.data.holdOut or spec.evaluation.uri, or everySamples to 0",
        "self.evaluation.everySamples == 0 || self.data.holdOut > 0.0 || has(self.evaluation.uri)",
    ),
    Rule(
        "spec",
        "spec.evaluation.uri",
        "Synthetic data has no other data to be scored on",
        "remove spec.evaluation.uri and set spec.data.holdOut, or choose another spec.data.format",
        "!has(self.evaluation.uri) || self.data.format != 'Synthetic'",
    ),
    Rule(
        "spec",
        "spec.evaluation.uri",
        "a job is scored on data of its own or on held-out rows, not on both",
        "remove spec.evaluation.uri or spec.data.holdOut",
        "!has(self.evaluation.uri) || self.data.holdOut == 0.0",
    ),
    Rule(
        "spec",
        "spec.evaluation",
        "needs spec.trainers.denseSync AllReduce, because in a shadow mode every trainer has another model",
        "set spec.trainers.denseSync to AllReduce, or everySamples to 0 and use cprjob evaluate",
        "self.evaluation.everySamples == 0 || self.trainers.denseSync == 'AllReduce'",
    ),
    Rule(
        "spec",
        "spec.evaluation.groupBy",
        "Synthetic data has no column to group by",
        "remove spec.evaluation.groupBy, or choose another spec.data.format",
        "!has(self.evaluation.groupBy) || self.data.format != 'Synthetic'",
    ),
    Rule(
        "spec.evaluation",
        "spec.evaluation.samples",
        f"scores by group take at most {MAX_GROUPED} rows",
        "lower it, or remove groupBy",
        f"!has(self.groupBy) || self.samples <= {MAX_GROUPED}",
    ),
    Rule(
        "spec.evaluation",
        "spec.evaluation.earlyStop.metric",
        "GAUC needs groups",
        "set spec.evaluation.groupBy, or choose another metric",
        "!has(self.earlyStop) || self.earlyStop.metric != 'GAUC' || has(self.groupBy)",
    ),
    Rule(
        "spec.evaluation",
        "spec.evaluation.earlyStop",
        "needs evaluations while the job trains",
        "set spec.evaluation.everySamples, or remove earlyStop",
        "!has(self.earlyStop) || self.everySamples > 0",
    ),
    Rule(
        "spec",
        "spec.evaluation.earlyStop",
        "needs spec.snapshots.quantisation.mode Exact, because the best model is read from a save",
        "remove spec.snapshots.quantisation, or earlyStop",
        "!has(self.evaluation.earlyStop) || self.snapshots.quantisation.mode == 'Exact'",
    ),
)
