"""The operator's arithmetic of memory is what shards really allocate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpr_contract.choices import ReplayPolicy, SparseUpdates
from cpr_operator.api.frozen_settings import replay_policy
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.sizes import held_bytes, redundancy_bytes, rows_bytes, shard_memory, step_traffic
from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan, pod_manifest
from cpr_operator.desired.rosters import Document
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.dynamic.pages import Pages
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.outbox import Outbox, Push
from cpr_trainer.parity.coding import Parts
from cpr_trainer.parity.parity_server import ParityStore
from support.documents import FEATURES, Edits, edited
from support.shard_job import shard_roster

MIB = 1 << 20
LARGE_BATCH = {"format": "Synthetic", "samples": 10**7, "batchSize": 10**6}
TABLES: Edits = {
    "spec.model.tables": [
        {"name": "a", "rows": 1003},
        {"name": "b", "rows": 501, "dim": 7, "optimizer": {"kind": "Adam", "learningRate": 0.1}},
        {"name": "c", "rows": 250, "dim": 7},
    ],
    "spec.model.entrypoint": "my.package:Network",
}
BAGS: Edits = FEATURES | {
    "spec.data.batchSize": 1000,
    "spec.model.entrypoint": "my.package:Network",
    "spec.model.features": [
        {"name": "one", "column": "one", "table": "a"},
        {"name": "list", "column": "list", "table": "b", "pooling": "Sum", "maxLength": 28},
        {"name": "free", "column": "free", "table": "b", "pooling": "Mean"},
    ],
}
#: Two dynamic tables: a step may have more ids than rows.
KEYS: Edits = {"spec.data.batchSize": 1000} | {
    f"spec.model.tables.{place}.{name}": value
    for place in (0, 1)
    for name, value in {"ids": "Dynamic", "rows": 2 * 4096}.items()
}


def job(shards: int, k: int, edits: Edits) -> Any:
    redundant: Edits = {
        "spec.shards": {"replicas": shards},
        "spec.trainers": {"replicas": 1},
        "spec.recovery": {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": k}},
    }
    return edited(edits | redundant)["spec"]


@pytest.mark.parametrize("edits", [{}, TABLES, TABLES | {"spec.model.tables.0.precision": "bf16"}])
@pytest.mark.parametrize(("shards", "k"), [(2, 1), (3, 2), (7, 4)])
def test_sizes_are_those_of_the_arrays(shards: int, k: int, edits: Edits) -> None:
    spec = parse_spec(job(shards, k, edits))
    contract = to_job_spec(spec, "uid", "name")
    placement = Placement.of(contract.model, shards)
    arenas = [Arena.empty(contract, *placement.sizes(index)) for index in range(shards)]
    parity = ParityStore.size_bytes(Parts.of(placement, k).shapes(arenas[0]))
    largest = [max(each) for each in zip(*(placement.sizes(index) for index in range(shards)), strict=True)]
    row_bytes = [segment.row_bytes for segment in arenas[0].segments]
    assert rows_bytes(spec) == sum(rows * size for rows, size in zip(largest, row_bytes, strict=True))
    assert redundancy_bytes(spec, replay_policy(spec)) == parity + sum(largest) + (72 << 20)


@pytest.mark.parametrize(
    ("edits", "rows", "row_bytes", "bags"),
    [
        ({"spec.data.batchSize": 1000}, 2 * 1000, 4 + 4 * 4, ()),
        ({"spec.data.batchSize": 1000, "spec.trainers.replicas": 4}, 2 * 250, 4 + 4 * 4, ()),
        ({"spec.data.batchSize": 1000, "spec.trainers.precision": "bf16"}, 2 * 1000, 4 + 4 * 2, ()),
        ({"spec.data.batchSize": 1000, "spec.model.tables.0.rows": 1}, 1 + 1000, 4 + 4 * 4, ()),
        (KEYS, 2 * 1000, 8 + 4 * 4, ()),
        (BAGS, 30 * 1000, 4 + 4 * 4, ("free",)),
    ],
)
def test_step_size_counts_each_row_of_the_batch_once(
    edits: Edits, rows: int, row_bytes: int, bags: tuple[str, ...]
) -> None:
    large: Edits = {"spec.model.tables.0.rows": 2**31, "spec.model.tables.1.rows": 2**31}
    step = step_traffic(parse_spec(edited(large | edits)["spec"]))
    assert step.rows == pytest.approx(rows, rel=1e-3)
    assert step.pushed_bytes == pytest.approx(rows * row_bytes, rel=1e-3)
    assert step.vectors_bytes == pytest.approx(rows * 16, rel=1e-3)
    assert step.bags == bags


@pytest.mark.parametrize(("shards", "rows"), [(1, 10**6), (3, 5 * 4096), (7, 9 * 4096 + 1)])
@pytest.mark.parametrize(("min_steps", "cells_bytes"), [(1, 0), (2, 8)])
def test_dynamic_table_has_entries_and_cells_in_whole_pages(
    shards: int, rows: int, min_steps: int, cells_bytes: int
) -> None:
    table = {"name": "a", "rows": rows, "ids": "Dynamic", "admission": {"minSteps": min_steps}}
    edits = {"spec.model.tables": [table, {"name": "b", "rows": 700}], "spec.shards.replicas": shards}
    spec = parse_spec(edited(edits)["spec"])
    slots = max(Pages.of(rows, shards=shards, shard=shard).slots for shard in range(shards))
    rows_of_b = -(-700 // shards)
    row_bytes = 4 * 4 + 4
    assert rows_bytes(spec) == slots * (row_bytes + 16 + cells_bytes) + rows_of_b * row_bytes
    needed = shard_memory(spec, OFF, "PerPush").needed_bytes
    assert needed == math.ceil(5 * rows_bytes(spec) / 4) + math.ceil(3.4 * slots) + 300 * MIB


def test_rows_of_two_bytes_take_little_more_than_half_of_the_memory() -> None:
    wide: Edits = {"spec.model.embeddingDim": 64, "spec.model.bottomMlp": [64]}
    full, half = (
        rows_bytes(parse_spec(edited(wide | {f"spec.model.tables.{i}.precision": each for i in (0, 1)})["spec"]))
        for each in ("fp32", "bf16")
    )
    assert 0.5 < half / full < 0.52, "the sum of row-wise Adagrad stays float32"


REPLAY, OFF = ReplayPolicy(memory_bytes=1 << 30), ReplayPolicy()


@pytest.mark.parametrize(
    ("edits", "updates", "replay", "held"),
    [
        pytest.param({}, "PerStep", OFF, 2 * 1000 * (8 + 4 * 4) // 2, id="each row once for each trainer"),
        pytest.param({"spec.trainers.replicas": 4}, "PerStep", OFF, 2 * 1000 * 24 // 2, id="smaller slices"),
        pytest.param({"spec.shards.replicas": 8}, "PerStep", OFF, 2 * 1000 * 24 // 8, id="more shards"),
        pytest.param({"spec.trainers.precision": "bf16"}, "PerStep", OFF, 2 * 1000 * 24 // 2, id="sums are float32"),
        pytest.param({"spec.model.tables.0.rows": 1}, "PerStep", OFF, (2 * 20 + 1000 * 24) // 2, id="few rows"),
        pytest.param({}, "PerStep", REPLAY, 8 * 2 * 1000 * 24 // 2, id="eight steps of a replay"),
        pytest.param({"spec.data.batchSize": 10**6}, "PerStep", REPLAY, 2 * 2 * 10**6 * 24 // 2, id="two large ones"),
        pytest.param({"spec.data.batchSize": 10**5}, "PerStep", REPLAY, 2 << 22, id="as many as fit"),
        pytest.param({}, "PerPush", REPLAY, 0, id="applied one by one"),
        pytest.param({"spec.trainers.replicas": 1}, "PerStep", REPLAY, 0, id="a push is a step"),
        pytest.param(
            KEYS | {"spec.trainers.replicas": 1}, "PerStep", OFF, 2 * 1000 * 24 // 2, id="keys of one trainer"
        ),
    ],
)
def test_shard_holds_pushes_of_steps_that_it_cannot_apply_yet(
    edits: Edits, updates: SparseUpdates, replay: ReplayPolicy, held: int
) -> None:
    many = {f"spec.model.tables.{table}.rows": 2**33 for table in (0, 1)}
    two: Edits = {"spec.data.batchSize": 1000, "spec.trainers.replicas": 2, "spec.shards.replicas": 2}
    spec = parse_spec(edited({**many, **two, **edits})["spec"])
    memory = shard_memory(spec, replay, updates)
    assert memory.held_bytes == pytest.approx(held, rel=1e-3)
    without = shard_memory(spec, replay, "PerPush")
    assert memory.needed_bytes - memory.held_bytes == without.needed_bytes
    assert without.held_bytes == 0


@pytest.mark.parametrize("batch", [64, 2_000, 40_000, 80_000, 1_000_000])
def test_pushes_in_flight_to_a_shard_are_within_those_that_it_holds(batch: int) -> None:
    """Two trainers have pushes of this size, which no shard can apply."""
    many = {f"spec.model.tables.{table}.rows": 2**33 for table in (0, 1)}
    spec = parse_spec(edited({**many, "spec.data.batchSize": batch, "spec.trainers.replicas": 2})["spec"])
    held, size_bytes = held_bytes(spec, REPLAY, "PerStep"), held_bytes(spec, OFF, "PerStep") // 2
    outbox = Outbox()
    for step in range(1, 21):
        outbox.add(Push(step, np.zeros(0, np.int64), (np.zeros(size_bytes // 4, np.float32),), 0))
    in_flight = sum(push.nbytes for push in outbox.next_to_send())
    assert held / 2 - size_bytes <= 2 * in_flight <= held


def test_shard_without_a_memory_request_gets_the_memory_it_needs() -> None:
    roster = Document.of(shard_roster(index=1))

    def plan(spec: Any) -> PodPlan:
        parsed = parse_spec(spec)
        return PodPlan(JobId("here", "job", "uid"), parsed, "image", "{}", 30, replay=replay_policy(parsed))

    def memory(spec: Any) -> str:
        (main,) = pod_manifest(plan(spec), roster)["spec"]["containers"]
        assert main["resources"]["requests"] == main["resources"]["limits"]
        found: str = main["resources"]["requests"]["memory"]
        return found

    assert memory(edited({})["spec"]) == "2Gi"
    large = edited({"spec.model.tables": [{"name": "a", "rows": 256 << 20}], "spec.shards": {"replicas": 2}})["spec"]
    rows_mib = rows_bytes(parse_spec(large)) >> 20
    assert rows_mib > 2048
    assert memory(large) == f"{5 * rows_mib // 4 + 300}Mi", "a quarter more for saves, and the process"
    held = replace(plan(large | {"trainers": {"replicas": 2}, "data": LARGE_BATCH}), updates="PerStep")
    (main,) = pod_manifest(held, roster)["spec"]["containers"]
    more_mib = held_bytes(held.spec, held.replay, "PerStep") / MIB
    assert more_mib > 10
    assert main["resources"]["limits"]["memory"] == f"{math.ceil(5 * rows_mib / 4 + 300 + more_mib)}Mi"
    assert memory(job(3, 2, {})) == f"{2048 + 72 + 1}Mi", "parity of few rows, logs and flushes"
    own = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "64Mi"}}}]}}
    named = job(3, 2, {})
    named["shards"]["template"] = own
    (main,) = pod_manifest(plan(named), roster)["spec"]["containers"]
    assert main["resources"] == {"requests": {"memory": "64Mi"}}
