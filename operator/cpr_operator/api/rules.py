"""Rules that a schema cannot express. Each is checked in CEL by the API server and in Python by the models.

A rule names the field and the remedy, and both sides give the same message. The models' validators
call `require`, and `crd` writes the CEL. Rules about changes have their Python side in `changes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

from pydantic_core import PydanticCustomError

from cpr_contract.spec import DENSE_FEATURES, MAX_PREDICTED

#: The error type by which `validate` knows a broken rule.
BROKEN_RULE = "rule"

#: A job's name begins its pods' names, which end in uid, role, index and incarnation.
MAX_NAME = 40
NAME_PATTERN = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")

#: The sensitivity of an AUC drop that states none. It is a guess above all measurements on real data,
#: also over two epochs (docs/calibration.md), because too high a value costs only time.
GUESSED_SENSITIVITY = 0.2
#: The largest portion of lost samples whose cost `cprjob calibrate` measures.
MOST_PORTION = 0.5


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `at` is the object that is CEL's `self`, as a path of API names; "" is the root.

    A list in the path stands for each of its elements.
    """

    at: str
    field: str
    message: str
    remedy: str
    cel: str

    @property
    def text(self) -> str:
        """The API server's message: field, message and remedy."""
        return f"{self.field}: {self.message}; {self.remedy}"

    def require(self, holds: object) -> None:
        """Raise pydantic's error unless the rule holds. Call it from a validator of `field`."""
        if not holds:
            context = {"field": self.field, "message": self.message, "remedy": self.remedy}
            raise PydanticCustomError(BROKEN_RULE, "{message}", context)


@dataclass(frozen=True, slots=True)
class BadPart:
    """An invalid part of a free-form field: its path below the field, what is wrong, and the remedy."""

    path: str
    message: str
    remedy: str

    def fail(self, field: str) -> NoReturn:
        """Raise pydantic's error about the part of `field`. Call it from a validator of `field`."""
        context = {"field": f"{field}.{self.path}", "message": self.message, "remedy": self.remedy}
        raise PydanticCustomError(BROKEN_RULE, "{message}", context)


NAME = Rule(
    "",
    "metadata.name",
    f"must be a DNS-1035 label of at most {MAX_NAME} characters",
    "start with a letter, use only a-z, 0-9 and -, and leave room for the pods' suffixes",
    f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('{NAME_PATTERN.pattern}')",
)
BOTTOM_MLP = Rule(
    "spec.model",
    "spec.model.bottomMlp",
    "must end in embeddingDim",
    "set its last width to spec.model.embeddingDim, or state spec.model.entrypoint",
    "has(self.entrypoint) || (has(self.bottomMlp) && self.bottomMlp[self.bottomMlp.size() - 1] == self.embeddingDim)",
)
TOP_MLP = Rule(
    "spec.model",
    "spec.model.topMlp",
    "must end in 1",
    "append a last layer of width 1, or state spec.model.entrypoint",
    "has(self.entrypoint) || (has(self.topMlp) && self.topMlp[self.topMlp.size() - 1] == 1)",
)
TABLES = Rule(
    "",
    "spec.model.tables",
    "table names must be unique",
    "rename the tables that share a name",
    "",  # the API server enforces it by the list type `map`
)
OUT_OF_RANGE = Rule(
    "spec.model.tables",
    "spec.model.tables.outOfRange",
    "only the ids RowNumber have a range",
    "remove it, or set ids to RowNumber",
    "self.all(t, t.ids == 'RowNumber' || !has(t.outOfRange))",
)
SEEDED_IDS = ("XXH64", "Murmur3")
HASH_SEED = Rule(
    "spec.model.tables",
    "spec.model.tables.hashSeed",
    "only the hashes XXH64 and Murmur3 have a seed",
    "remove it, or set ids to one of these",
    f"self.all(t, t.ids in {list(SEEDED_IDS)} || !has(t.hashSeed))",
)
SPARSE_OPTIMIZER, TABLE_OPTIMIZER = "spec.model.sparseOptimizer", "spec.model.tables.optimizer"
DENSE_OPTIMIZER = "spec.model.denseOptimizer"
ADAMS = ("Adam", "AdamW")
MOMENTUM = Rule(
    DENSE_OPTIMIZER,
    f"{DENSE_OPTIMIZER}.momentum",
    "only SGD has a momentum",
    "remove it, or set kind to SGD",
    "self.kind == 'SGD' || !has(self.momentum)",
)
NESTEROV = Rule(
    DENSE_OPTIMIZER,
    f"{DENSE_OPTIMIZER}.nesterov",
    "needs a momentum",
    "state momentum, or remove nesterov",
    "!self.nesterov || has(self.momentum)",
)
#: By the path of the optimizer.
EPSILON = {
    where: Rule(
        where,
        f"{where}.epsilon",
        "SGD has no epsilon",
        "remove it, or choose another kind",
        "self.kind != 'SGD' || !has(self.epsilon)",
    )
    for where in (SPARSE_OPTIMIZER, TABLE_OPTIMIZER, DENSE_OPTIMIZER)
}
#: By the field.
BETAS = {
    f"{where}.{beta}": Rule(
        where,
        f"{where}.{beta}",
        f"only {' and '.join(kinds)} {'has' if len(kinds) == 1 else 'have'} {beta}",
        "remove it, or set kind to Adam",
        f"self.kind in {list(kinds)} || !has(self.{beta})",
    )
    for where, kinds in ((SPARSE_OPTIMIZER, ("Adam",)), (TABLE_OPTIMIZER, ("Adam",)), (DENSE_OPTIMIZER, ADAMS))
    for beta in ("beta1", "beta2")
}
_DECAYS = ("Linear", "Cosine", "Polynomial")
#: By the path of the optimizer: what each phase of its schedule has.
SCHEDULE = {
    where: tuple(
        Rule(f"{where}.schedule", f"{where}.schedule", message, remedy, f"self.all(p, {cel})")
        for message, remedy, cel in (
            ("only a Warmup has a start", "remove start, or set kind to Warmup", "p.kind == 'Warmup' || !has(p.start)"),
            (
                f"only {', '.join(_DECAYS[:-1])} and {_DECAYS[-1]} have an end",
                "remove end, or set kind to one of them",
                f"p.kind in {list(_DECAYS)} || !has(p.end)",
            ),
            (
                "a Polynomial needs a power, and other kinds have none",
                "state power with the kind Polynomial only",
                "(p.kind == 'Polynomial') == has(p.power)",
            ),
            (
                "a Step needs every and factor, and other kinds have neither",
                "state every and factor with the kind Step only",
                "(p.kind == 'Step') == has(p.every) && (p.kind == 'Step') == has(p.factor)",
            ),
        )
    )
    for where in (DENSE_OPTIMIZER, SPARSE_OPTIMIZER, TABLE_OPTIMIZER)
}
ROWS = Rule(
    "spec",
    "spec.shards.replicas",
    "must not exceed the number of rows of all tables",
    "lower it, or give spec.model.tables more rows",
    "self.model.tables.map(t, t.rows).sum() >= self.shards.replicas",
)
EPOCHS_OR_SAMPLES = Rule(
    "spec.data",
    "spec.data.samples",
    "state exactly one of epochs and samples",
    "remove one of the two, or add one",
    "has(self.epochs) != has(self.samples)",
)
SYNTHETIC = Rule(
    "spec.data",
    "spec.data.samples",
    "Synthetic data needs samples and has no epochs",
    "state spec.data.samples instead of spec.data.epochs",
    "self.format != 'Synthetic' || !has(self.epochs)",
)
SYNTHETIC_URI = Rule(
    "spec.data",
    "spec.data.uri",
    "Synthetic data is made by the trainers and has no uri",
    "remove spec.data.uri, or set spec.data.format to the format of the files there",
    "self.format != 'Synthetic' || !has(self.uri)",
)
FILES_URI = Rule(
    "spec.data",
    "spec.data.uri",
    "data in files needs a uri",
    "state the location of the files, as s3://bucket/key or file:///path",
    "self.format == 'Synthetic' || has(self.uri)",
)
COLUMNS = Rule(
    "spec.data",
    "spec.data.columns",
    "CSV, TSV and Parquet need columns, and other formats have none",
    "state spec.data.columns with these formats only",
    "(self.format in ['CSV', 'TSV', 'Parquet']) == has(self.columns)",
)
HEADER = Rule(
    "spec.data",
    "spec.data.header",
    "only CSV and TSV files can lack a header",
    "remove spec.data.header",
    "self.header || self.format in ['CSV', 'TSV']",
)
FEATURES = Rule(
    "spec.data.columns",
    "spec.data.columns.numbers",
    f"the model takes at most {DENSE_FEATURES} numeric features",
    f"name at most {DENSE_FEATURES} columns in counts and numbers together",
    f"self.counts.size() + self.numbers.size() <= {DENSE_FEATURES}",
)
PREDICTED = Rule(
    "spec.data.columns",
    "spec.data.columns.labels",
    f"a model predicts 1 to {MAX_PREDICTED} columns",
    "name them in labels, or in targets if they are not 0 or 1",
    f"self.labels.size() + self.targets.size() >= 1 && self.labels.size() + self.targets.size() <= {MAX_PREDICTED}",
)
PREDICTED_ONCE = Rule(
    "spec.data.columns",
    "spec.data.columns.labels",
    "a column can be predicted only once",
    "remove the duplicate from labels and targets",
    "(self.labels + self.targets).all(n, (self.labels + self.targets).exists_one(m, m == n))",
)
ONE_LABEL = Rule(
    "spec",
    "spec.data",
    "the DLRM predicts one label",
    "name exactly one of spec.data.columns.labels and no targets, or state spec.model.entrypoint",
    "!has(self.data.columns) || has(self.model.entrypoint)"
    " || (self.data.columns.labels.size() == 1 && self.data.columns.targets.size() == 0)",
)
#: By the list that must not name a label or a target.
LABEL = {
    field: Rule(
        "spec.data.columns",
        f"spec.data.columns.{field}",
        "a predicted column cannot be a feature",
        "remove it from the list, or correct spec.data.columns.labels and targets",
        f"!self.{field}.exists(name, name in self.labels || name in self.targets)",
    )
    for field in ("counts", "numbers", "categories")
}
CATEGORIES = Rule(
    "spec",
    "spec.data",
    "each table needs exactly one category",
    "name as many spec.data.columns.categories as there are spec.model.tables, in the tables' order",
    "!has(self.data.columns) || self.data.columns.categories.size() == self.model.tables.size()",
)
SEPARATOR = Rule(
    "spec.data",
    "spec.data.columns",
    "only CSV and TSV have a separator of ids",
    "remove spec.data.columns.separator, because bags are lists in Parquet",
    "!has(self.columns) || !has(self.columns.separator) || self.format in ['CSV', 'TSV']",
)
SYNTHETIC_IDS = Rule(
    "spec",
    "spec.data",
    "Synthetic data has texts as ids, which are hashed by CPR64",
    "remove ids from spec.model.tables, or train data in files",
    "self.data.format != 'Synthetic' || self.model.tables.all(t, t.ids == 'CPR64')",
)
BAGS = Rule(
    "spec",
    "spec.data",
    "a table with pooling needs bags of ids",
    "use Parquet with lists, use CSV or TSV with spec.data.columns.separator, or remove pooling from spec.model.tables",
    "!self.model.tables.exists(t, has(t.pooling)) || self.data.format == 'Parquet'"
    " || (has(self.data.columns) && has(self.data.columns.separator))",
)
POOLED = Rule(
    "spec",
    "spec.data",
    "a separator of ids needs a table with pooling",
    "state pooling for the tables in spec.model.tables that take bags, or remove spec.data.columns.separator",
    "!has(self.data.columns) || !has(self.data.columns.separator) || self.model.tables.exists(t, has(t.pooling))",
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
EVALUATION_ROWS = Rule(
    "spec",
    "spec.evaluation",
    "needs rows that are held out",
    "set spec.data.holdOut, or everySamples to 0",
    "self.evaluation.everySamples == 0 || self.data.holdOut > 0.0",
)
EVALUATION_LOCKSTEP = Rule(
    "spec",
    "spec.evaluation",
    "needs spec.trainers.denseSync AllReduce, because in a shadow mode every trainer has another model",
    "set spec.trainers.denseSync to AllReduce, or everySamples to 0 and use cprjob evaluate",
    "self.evaluation.everySamples == 0 || self.trainers.denseSync == 'AllReduce'",
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
STATIC = (
    NAME,
    BOTTOM_MLP,
    TOP_MLP,
    TABLES,
    OUT_OF_RANGE,
    HASH_SEED,
    MOMENTUM,
    NESTEROV,
    *EPSILON.values(),
    *BETAS.values(),
    *chain.from_iterable(SCHEDULE.values()),
    ROWS,
    EPOCHS_OR_SAMPLES,
    SYNTHETIC,
    SYNTHETIC_URI,
    FILES_URI,
    COLUMNS,
    HEADER,
    FEATURES,
    PREDICTED,
    PREDICTED_ONCE,
    *LABEL.values(),
    CATEGORIES,
    ONE_LABEL,
    SEPARATOR,
    SYNTHETIC_IDS,
    BAGS,
    POOLED,
    DENSE_SYNC,
    WORKERS,
    EVALUATION_ROWS,
    EVALUATION_LOCKSTEP,
    PRIORITY_LOCKSTEP,
    FIXED_INTERVAL,
    FIXED_BITS,
    GROWTH,
    PORTION_BUDGET,
    AUC_DROP_BUDGET,
    AUC_DROP_LIMIT,
    PARTIAL_NEEDS_BUDGET,
    DEGRADE_NEEDS_BUDGET,
    DEGRADE_NEEDS_SHARDS,
    REDUNDANCY_NEEDS_REPLAY,
    REDUNDANCY_SHARDS,
)
