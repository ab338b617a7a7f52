"""Dynamic tables in exports: live keys alone, deltas that name the keys that left, and lookups by key."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cpr_contract.choices import Precision
from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.bfloat16 import narrow, widen
from cpr_trainer.embedding.segments import Seeding
from cprjob_serving import Model, apply_delta
from cprjob_serving.hashes import U64
from cprjob_serving.keyed_rows import Default
from support.dynamic_model import ITEM, PAGE, TABLES, USER, TrainedModel, dynamic_job, keys_of, vectors, with_ttl
from support.dynamic_steps import draw_steps

COLUMNS: dict[str, list[Any]] = {"views": [1, None, 3], "price": [0.5, 2, None], "site": ["a", "b", None]}


@pytest.fixture
def trained(tmp_path: Path) -> TrainedModel:
    return TrainedModel(dynamic_job(tmp_path))


def push(trained: TrainedModel, seed: int, steps: range) -> None:
    """Take steps on the users. Their keys meet in few buckets: some are evicted, and some expire."""
    for step, (keys,) in zip(steps, draw_steps(seed, len(steps), 1), strict=True):
        trained.tables[USER].push(step, keys[:200])


def expected(live: dict[int, int], dim: int) -> dict[int, bytes]:
    """Return the bits of the vectors of keys by the steps of their last pushes."""
    return {key: vectors(np.array([key], np.uint64), step, dim).tobytes() for key, step in live.items()}


def by_key(tensors: dict[str, Any]) -> dict[int, bytes]:
    pairs = zip(tensors["keys"].tolist(), tensors["weight"], strict=True)
    return {key: vector.tobytes() for key, vector in pairs}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- whole exports


@pytest.mark.parametrize("shards", [1, 3])
def test_export_has_the_live_keys_of_all_shards_in_ascending_order(
    trained: TrainedModel, tmp_path: Path, shards: int
) -> None:
    push(trained, 1, range(1, 13))
    users, pages = trained.tables[USER], trained.tables[PAGE]
    pages.push(12, keys_of(["p1", "p2", "p3"], TABLES[PAGE]))
    folder = trained.export(tmp_path / "out", trained.save(12, shards=shards))
    found = load_file(folder / "tables" / "user.safetensors")
    assert found["keys"].dtype == np.uint64
    assert (np.diff(found["keys"].astype(object)) > 0).all()
    live = users.live(12)
    assert by_key(found) == expected(live, 3)
    assert 0 < len(live) < np.count_nonzero(users.table.entries.counts), "some have expired and have their slot"
    assert users.evicted
    halves = load_file(folder / "tables" / "page.safetensors")
    assert halves["weight"].tobytes() == widen(narrow(vectors(halves["keys"], 12, 5))).tobytes()
    assert load_file(folder / "tables" / "site.safetensors")["weight"].tobytes() == trained.site.tobytes()


def test_transform_states_keys_and_first_values(trained: TrainedModel, tmp_path: Path) -> None:
    document = json.loads((trained.export(tmp_path / "out", trained.save(1)) / "transform.json").read_text("utf-8"))
    assert document["version"] == 3
    site, user, item, page = document["tables"]
    assert (site["ids"], site["default"]) == ("CPR64", None)
    assert (user["ids"], user["seed"], user["rows"], user["dim"]) == ("Dynamic", 9, 16384, 3)
    assert user["default"] == {"kind": "Random", "seed": 7, "table": 1, "precision": "fp32"}
    assert item["default"]["kind"] == "Zero"
    assert page["default"] == {"kind": "Random", "seed": 7, "table": 3, "precision": "bf16"}


# --- deltas


def test_base_and_its_deltas_are_the_whole_export(trained: TrainedModel, tmp_path: Path) -> None:
    users = trained.tables[USER]
    push(trained, 1, range(1, 8))
    before, base = users.live(7), trained.save(7, shards=2)
    push(trained, 2, range(8, 11))
    evicted = before.keys() - users.pushed.keys()
    after, middle = users.live(10), trained.save(10, shards=3)
    last = trained.save(13)  # Without a push no slot changes, and some keys expire.
    final = users.live(13)

    trained.export(tmp_path / "base", base)
    one = load_file(trained.export(tmp_path / "one", middle, since=base) / "tables" / "user.safetensors")
    two = load_file(trained.export(tmp_path / "two", last, since=middle) / "tables" / "user.safetensors")
    old, new = expected(before, 3), expected(after, 3)
    assert by_key(one) == {key: vector for key, vector in new.items() if old.get(key) != vector}
    assert one["removed"].tolist() == sorted(before.keys() - after.keys())
    assert evicted - after.keys()
    assert two["removed"].tolist() == sorted(after.keys() - final.keys())
    assert (len(two["keys"]), bool(len(two["removed"]))) == (0, True)
    counts = json.loads((tmp_path / "one" / "delta.json").read_text("utf-8"))
    assert counts["rows"] == {"site": 0, "user": len(one["keys"]), "item": 0, "page": 0}
    assert counts["removed"] == {"user": len(one["removed"]), "item": 0, "page": 0}

    apply_delta(tmp_path / "base", tmp_path / "one", tmp_path / "applied-1")
    apply_delta(tmp_path / "applied-1", tmp_path / "two", tmp_path / "applied-2")
    assert files(tmp_path / "applied-1") == files(trained.export(tmp_path / "whole-1", middle))
    assert files(tmp_path / "applied-2") == files(trained.export(tmp_path / "whole-2", last))


@pytest.mark.parametrize("ttl_steps", [2, 4, 6])
def test_delta_from_another_job_holds_whatever_its_rules_were(
    trained: TrainedModel, tmp_path: Path, ttl_steps: int
) -> None:
    for step in range(1, 8):
        trained.tables[USER].push(step, keys_of([f"{step}-{each}" for each in range(20)], TABLES[USER]))
    earlier = trained.save(7, uid="yesterday")
    job, trained.job = trained.job, with_ttl(trained.job, ttl_steps)
    trained.export(tmp_path / "base", earlier)
    trained.job = job
    later = trained.save(8)
    trained.export(tmp_path / "delta", later, since=earlier)
    apply_delta(*(str(tmp_path / name) for name in ("base", "delta", "applied")))
    assert files(tmp_path / "applied") == files(trained.export(tmp_path / "whole", later))


# --- lookups


def test_ids_in_any_form_find_their_vectors_and_others_get_the_default(trained: TrainedModel, tmp_path: Path) -> None:
    users, items = trained.tables[USER], trained.tables[ITEM]
    users.push(1, keys_of(["7", "expired"], TABLES[USER]))
    users.push(9, keys_of(["42", "-1", ""], TABLES[USER]))
    items.push(9, keys_of(["42"], TABLES[ITEM]))
    model = Model.open(str(trained.export(tmp_path / "out", trained.save(9))))
    given = COLUMNS | {"user": ["42", -1, None], "item": [42, "x", 7], "page": ["a", "b", "c"]}
    found = model.inputs(given)
    assert found["user"].tobytes() == vectors(keys_of(["42", "-1", ""], TABLES[USER]), 9, 3).tobytes()
    assert (
        found["item"].tobytes()
        == np.vstack([vectors(keys_of(["42"], TABLES[ITEM]), 9, 4), np.zeros((2, 4))]).astype(np.float32).tobytes()
    )
    unknown = model.inputs(given | {"user": [42, 7, "expired"]})["user"]
    first = first_values(trained, USER, keys_of(["7", "expired"], TABLES[USER]))
    assert unknown.tobytes() == np.vstack([found["user"][:1], first]).tobytes()
    assert found["page"].tobytes() == first_values(trained, PAGE, keys_of(["a", "b", "c"], TABLES[PAGE])).tobytes()


def first_values(trained: TrainedModel, table: int, keys: U64) -> Floats:
    """The vectors that a job gives to keys without a push."""
    seeding = Seeding.of(trained.job.model, trained.job.data.seed)
    return seeding.values(np.full(len(keys), table), keys.view(np.int64))


def test_bags_add_up_vectors_of_known_and_unknown_keys(tmp_path: Path) -> None:
    tables = (*TABLES[:ITEM], replace(TABLES[ITEM], pooling="Sum"), TABLES[PAGE])
    trained = TrainedModel(dynamic_job(tmp_path, tables))
    trained.tables[ITEM].push(1, keys_of(["a", "b"], TABLES[ITEM]))
    model = Model.open(trained.export(tmp_path / "out", trained.save(1)))
    bags = [["a", "b", "unknown"], ["unknown"], []]
    found = model.inputs(COLUMNS | {"user": [1, 2, 3], "item": bags, "page": [1, 2, 3]})["item"]
    a, b = vectors(keys_of(["a", "b"], TABLES[ITEM]), 1, 4)
    assert found.tolist() == [(a + b).tolist(), [0.0] * 4, [0.0] * 4]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("seed", "rows", "dims"), [(7, (100, 4), (3, 3)), (0, (16384,), (8,)), (2**31 - 1, (1, 7), (1, 5))]
)
def test_default_vectors_are_the_first_values_of_training(
    seed: int, rows: tuple[int, ...], dims: tuple[int, ...], precision: Precision
) -> None:
    random = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
    keys = np.concatenate((random, np.array([0, 2**64 - 1], np.uint64)))
    seeding = Seeding(rows, dims, seed, [precision] * len(rows))
    for table, (count, dim) in enumerate(zip(rows, dims, strict=True)):
        trained = seeding.values(np.full(len(keys), table), keys.view(np.int64))
        served = Default("Random", seed, table, precision).vectors(keys, count, dim)
        assert served.tobytes() == trained.tobytes()


# --- the page


def test_page_has_the_first_values_that_are_computed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hashing.md").read_text("utf-8")
    lines = re.findall(r"^\| `([0-9a-f]{16})` \| (\w+) \| ((?:`[0-9a-f]{8}` ?){3}) \|$", page, re.MULTILINE)
    assert len(lines) == 10
    for key, precision, stated in lines:
        default = Default("Random", 7, 1, precision)
        found = default.vectors(np.array([int(key, 16)], np.uint64), 200_000, 3)
        assert [f"{bits:08x}" for bits in found.view(np.uint32)[0]] == re.findall(r"[0-9a-f]{8}", stated)
