"""The manifest of a job that trains the data of an inspection, with the reason for each line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES, MAX_NUMERIC, MAX_TABLES
from cpr_contract.requests import DataStats
from cpr_operator.api.cprjob_spec import API_VERSION, KIND
from cpr_operator.api.frozen_settings import replay_policy, sparse_updates
from cpr_operator.api.quantities import write_bytes
from cpr_operator.api.sizes import dense_size, shard_memory
from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.proposal import training
from cpr_operator.cli.proposal.columns import Use, uses_of
from cpr_operator.cli.proposal.commented import Block, Node, Value, plain
from cpr_operator.cli.proposal.label import Label, choose_label
from cpr_operator.cli.proposal.tables import Table, smaller, tables_of

_SHARDS = 2
#: Dims of vectors, and then rows of the largest table, from the best to the smallest.
_DIMS = (16, 8, 4)
_CAPACITIES = (2**24, 2**22, 2**20, 2**18)
#: The portion of this machine's memory that a local run may take.
_OF_MACHINE = 0.75
_LEARNING_RATE = 0.02
_BUDGET = 0.05
_WINDOW_ROWS = 2**19
#: A trainer's code with torch, and the blocks of data that it parses.
_TRAINER_BYTES = 1 << 30
_QUANTUM = 256 << 20
_BYTES_OF_VALUE = 64


@dataclass(frozen=True, slots=True)
class Target:
    """The name of the job, its data and image, and the memory of this machine in bytes."""

    name: str
    uri: str
    image: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A manifest, and the choices in it that a user may want to change."""

    manifest: Block
    label: Label
    numbers: tuple[Use, ...]
    ids: tuple[Use, ...]
    unused: tuple[Use, ...]


def propose(data: DataStats, target: Target, label: str | None, separator: str | None) -> Proposal:
    """Return a manifest for data with these statistics. `label` is the option, `separator` that of bags in text.

    Raises OptionError if the label is ambiguous, and DocumentError if no job can train the data.
    """
    data = _by_types(data)
    if len(data.columns) == 1:
        raise DocumentError(
            f"there is one column, {data.columns[0].name}: if its cells are separated by another character than a comma"
            " or a tab, write a manifest with data.csv.delimiter, or a file with commas"
        )
    if data.format == "Criteo":
        chosen, numbers, ids, rest = _criteo(data, label)
    else:
        chosen = choose_label(data.columns, label)
        uses = uses_of(data, chosen.column)
        numbers = tuple(use for use in uses if use.role in {"Count", "Number"})
        ids = tuple(use for use in uses if use.role in {"Ids", "Bag"})
        rest = tuple(use for use in uses if use.role not in {"Count", "Number", "Ids", "Bag"})
    if not ids:
        found = ", ".join(f"{use.column.name} ({use.reason})" for use in (*numbers, *rest))
        raise DocumentError(
            f"no column has ids, and each table of a DLRM needs one: {found or 'there is only the label'}"
        )
    if len(ids) > MAX_TABLES or len(numbers) > MAX_NUMERIC:
        raise DocumentError(
            f"there are {len(ids):,} columns of ids and {len(numbers):,} of numbers; a job has {MAX_TABLES:,} and"
            f" {MAX_NUMERIC:,} at most: write a file with fewer columns"
        )
    columns = _Columns(data, chosen, numbers, ids, rest, separator)
    manifest = _fitted(columns, target)
    return Proposal(manifest, chosen, numbers, ids, tuple(use for use in rest if use.role == "Unused"))


@dataclass(frozen=True, slots=True)
class _Columns:
    """The data, and the uses of its columns. `rest` are the weight of samples and columns that are left out."""

    data: DataStats
    label: Label
    numbers: tuple[Use, ...]
    ids: tuple[Use, ...]
    rest: tuple[Use, ...]
    separator: str | None


def _by_types(data: DataStats) -> DataStats:
    """Return the statistics with text as text. In formats with types, text of digits is no number."""
    if data.format in {"Criteo", "CSV", "TSV"}:
        return data
    columns = tuple(
        replace(each, kind="text", lowest=None, highest=None, whole=False)
        if each.kind in {"integer", "number"}
        else each
        for each in data.columns
    )
    return replace(data, columns=columns)


def _criteo(data: DataStats, option: str | None) -> tuple[Label, tuple[Use, ...], tuple[Use, ...], tuple[Use, ...]]:
    """Return the uses of the columns of Criteo's layout, which are fixed."""
    first, *others = data.columns
    if option not in {None, first.name}:
        raise OptionError(f"--label {option}: the label of Criteo's layout is its first column; leave the option out")
    label = replace(choose_label((first,), first.name), reason="the first column of Criteo's layout")
    counts = [Use(each, "Count", "a count of Criteo's layout") for each in others[:DENSE_FEATURES]]
    ids = [
        Use(replace(each, name=f"c{place}"), "Ids", "text")
        for place, each in enumerate(others[DENSE_FEATURES : DENSE_FEATURES + CATEGORICAL_FEATURES], 1)
    ]
    return label, tuple(counts), tuple(ids), ()


def _fitted(columns: _Columns, target: Target) -> Block:
    """Return the manifest with the widest vectors and the largest tables that this machine can hold."""
    tables, limit = tables_of(columns.ids, columns.data), _OF_MACHINE * target.memory_bytes
    sizes: list[tuple[int, int | None]] = [(dim, None) for dim in _DIMS]
    sizes += [(_DIMS[-1], capacity) for capacity in _CAPACITIES]
    for dim, capacity in sizes:
        held = tables if capacity is None else smaller(tables, capacity)
        unsized = _manifest(columns, target, held, dim, (_QUANTUM, _QUANTUM))
        spec = parse_document(plain(unsized))
        shard = shard_memory(spec, replay_policy(spec), sparse_updates(spec).mode).needed_bytes
        dense = dense_size(spec.model)
        trainer = _trainer_bytes(columns, held) + (0 if dense is None else dense.trainer_bytes)
        if _SHARDS * shard + trainer <= limit:
            return _manifest(columns, target, held, dim, (_rounded(shard), _rounded(trainer)))
    raise DocumentError(
        f"the smallest job takes more than {_OF_MACHINE:.0%} of the {target.memory_bytes >> 20:,} MiB of this machine:"
        " leave columns of ids out of the file, or use a larger machine"
    )


def _trainer_bytes(columns: _Columns, tables: Sequence[Table]) -> int:
    """Return the memory of a trainer: its process, two windows of samples, and the values of vocabularies."""
    id_bytes = 8 if any(table.is_dynamic for table in tables) else 4
    bag = sum(use.column.bag_mean or 1 for use in columns.ids)
    row = 4 * len(columns.numbers) + 4 + id_bytes * math.ceil(bag)
    values = sum(int(table.fields["rows"]) for table in tables if table.fields["ids"] == "Vocabulary")
    return _TRAINER_BYTES + 2 * row * min(columns.data.rows, _WINDOW_ROWS) + _BYTES_OF_VALUE * values


def _rounded(size: int) -> int:
    return _QUANTUM * math.ceil(size / _QUANTUM)


def _manifest(columns: _Columns, target: Target, tables: Sequence[Table], dim: int, memory: tuple[int, int]) -> Block:
    held_out = training.hold_out(columns.data, columns.label, columns.ids)
    spec: dict[str, Node] = {
        "image": Value(target.image, "the image of this release; cprjob run uses none"),
        "accuracyBudget": Value(
            {"portionOfLostSamples": _BUDGET}, "the samples that failures may cost; with replay they cost none"
        ),
        "model": _model(columns, tables, dim),
        "data": _data(columns, target.uri, held_out),
    }
    if held_out.value:
        spec["evaluation"] = _evaluation(columns.data.rows, held_out.value)
    return Block(
        {
            "apiVersion": Value(API_VERSION),
            "kind": Value(KIND),
            "metadata": Value({"name": target.name}, "by the name of the data"),
            "spec": Block(spec | _members(memory) | {"snapshots": _snapshots()}),
        }
    )


def _model(columns: _Columns, tables: Sequence[Table], dim: int) -> Block:
    numbers = len(columns.numbers)
    widest = f"{len(tables)} tables with vectors of {dim} values fit into {_OF_MACHINE:.0%} of this machine's memory"
    bottom = [64, dim] if numbers else [dim]
    rate = {"learningRate": _LEARNING_RATE}
    fields: dict[str, Node] = {
        "embeddingDim": Value(dim, widest),
        "bottomMlp": Value(bottom, f"{numbers} numbers in, a vector out" if numbers else "there are no numbers"),
        "topMlp": Value([64, 32, 1], "a small network: most of what a click log teaches is in its tables"),
    }
    if columns.data.format != "Criteo":
        fields["numeric"] = Value(numbers, "counts and numbers of data.columns")
    fields["denseOptimizer"] = Value({"kind": "Adagrad", **rate}, "as in examples/public_logs")
    fields["sparseOptimizer"] = Value({"kind": "RowWiseAdagrad", **rate}, "one value of state a row")
    rows = [Value(dict(table.fields), table.reason) for table in tables]
    return Block(fields | {"tables": Block(rows, "the t-th takes the t-th category")})


def _data(columns: _Columns, uri: str, held_out: training.Decision) -> Block:
    data, label = columns.data, columns.label
    passes = training.epochs(data.rows, evaluated=bool(held_out.value))
    batch = training.batch_size(data.rows)
    fields: dict[str, Node] = {
        "format": Value(data.format, "by the first bytes"),
        "uri": Value(uri, f"{data.files:,} files" if data.files > 1 else "on a cluster: s3://bucket/key"),
    }
    if data.format in {"CSV", "TSV"} and not data.header:
        fields["header"] = Value(False, "the first line has a number, so columns are numbered from 1")  # noqa: FBT003 -- a YAML value
    if data.format != "Criteo":
        fields["columns"] = _data_columns(columns)
    fields["epochs"] = Value(passes.value, passes.reason)
    fields["batchSize"] = Value(batch.value, batch.reason)
    fields["holdOut"] = Value(held_out.value, held_out.reason)
    if (bad := training.bad_rows(data, label, int(passes.value))) is not None:
        fields["maxBadLines"] = Value(bad.value, bad.reason)
    return Block(fields)


def _data_columns(columns: _Columns) -> Block:
    label, ids = columns.label, columns.ids
    fields: dict[str, Node] = {"labels": Value([label.column], label.reason)}
    if label.positive:
        values = {"label": label.column, "positive": [*label.positive], "negative": [*label.negative]}
        fields["labelValues"] = Block([Value(values, "the texts of 1 and of 0")])
    for use in (each for each in columns.rest if each.role == "Weight"):
        fields["weight"] = Value(use.column.name, use.reason)
    for field, role in (("counts", "Count"), ("numbers", "Number")):
        if chosen := [Value(use.column.name, use.reason) for use in columns.numbers if use.role == role]:
            fields[field] = Block(chosen)
    fields["categories"] = Block([Value(use.column.name, use.reason) for use in ids])
    if whole := [use.column.name for use in ids if use.whole]:
        fields["integers"] = Value(whole, "12 and 12.0 are one id")
    if columns.separator is not None:
        fields["separator"] = Value(columns.separator, "between the ids of a cell")
    unused = [f"{use.column.name} is left out: {use.reason}" for use in columns.rest if use.role == "Unused"]
    return Block(fields, notes=unused)


def _evaluation(rows: int, held_out: float) -> Block:
    every = training.evaluation_samples(rows, held_out)
    return Block(
        {
            "everySamples": Value(every.value, every.reason),
            "earlyStop": Value({"metric": "LogLoss", "patience": 2}, "the result is the best model, not the last one"),
        }
    )


def _members(memory: tuple[int, int]) -> dict[str, Node]:
    shard, trainer = memory
    return {
        "trainers": Block(
            {
                "replicas": Value(1, "all processors of one machine; on a cluster more, at any time"),
                "template": Value(_template("500m", trainer), "its process, two windows of samples, and vocabularies"),
            }
        ),
        "shards": Block(
            {
                "replicas": Value(_SHARDS, "each holds half of the rows, so a lost one costs half as much"),
                "template": Value(_template("250m", shard), "rows, their optimizer state, and saves under way"),
            }
        ),
    }


def _template(cpu: str, memory_bytes: int) -> dict[str, Any]:
    memory = write_bytes(memory_bytes)
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": write_bytes(2 * memory_bytes)}}
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


def _snapshots() -> Block:
    store = {"endpoint": "http://cprjob-store:9000", "bucket": "cprjob", "credentialsSecret": "cprjob-store"}
    return Block(
        {
            "store": Value(store, "that of examples/store.yaml; cprjob run saves into a folder"),
            "interval": Value({"mode": "Auto"}, "as often as failures and the cost of saves make worthwhile"),
        }
    )
