"""Rules of a job's name, members and saves."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

#: A job's name begins its pods' names, which end in uid, role, index and incarnation.
MAX_NAME = 40
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME = Rule(
    "",
    "metadata.name",
    f"must be a DNS-1035 label of at most {MAX_NAME} characters",
    "start with a letter, use only a-z, 0-9 and -, and leave room for the pods' suffixes",
    f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
)
ROWS = Rule(
    "spec",
    "spec.shards.replicas",
    "must not exceed the number of rows of all tables",
    "lower it, or give spec.model.tables more rows",
    "self.model.tables.map(t, t.rows).sum() >= self.shards.replicas",
)
DENSE_SYNC = Rule(
    "spec.trainers",
    "spec.trainers.denseSync",
    "a shadow mode needs at least two trainers",
    "remove it, or raise spec.trainers.replicas",
    "self.denseSync == 'AllReduce' || self.replicas > 1",
)
WORKERS = Rule(
    "spec.trainers",
    "spec.trainers.workers",
    "must be 1 on a GPU",
    "remove it, or set spec.trainers.device to cpu",
    "self.workers == 1 || self.device != 'cuda'",
)
PRIORITY_LOCKSTEP = Rule(
    "spec",
    "spec.snapshots.strategy",
    "priority saves need spec.trainers.denseSync AllReduce",
    "remove it (the default is Full), or set spec.trainers.denseSync to AllReduce",
    "self.snapshots.strategy == 'Full' || self.trainers.denseSync == 'AllReduce'",
)
FIXED_INTERVAL = Rule(
    "spec.snapshots.interval",
    "spec.snapshots.interval.seconds",
    "a Fixed interval needs seconds, and an Auto one has none",
    "state spec.snapshots.interval.seconds with mode Fixed only",
    "(self.mode == 'Fixed') == has(self.seconds)",
)
FIXED_BITS = Rule(
    "spec.snapshots.quantisation",
    "spec.snapshots.quantisation.bits",
    "Fixed quantisation needs bits, and other modes have none",
    "state spec.snapshots.quantisation.bits with mode Fixed only",
    "(self.mode == 'Fixed') == has(self.bits)",
)
GROWTH = Rule(
    "spec",
    "spec.snapshots.strategy",
    "Growth ranks rows by the accumulators of RowWiseAdagrad",
    "choose another strategy, or the optimizer RowWiseAdagrad for all tables",
    "self.snapshots.strategy != 'Growth' || self.model.tables.all(t, "
    "(has(t.optimizer) ? t.optimizer.kind : self.model.sparseOptimizer.kind) == 'RowWiseAdagrad')",
)
RULES = (
    ROWS,
    DENSE_SYNC,
    WORKERS,
    PRIORITY_LOCKSTEP,
    FIXED_INTERVAL,
    FIXED_BITS,
    GROWTH,
)
