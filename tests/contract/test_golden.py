"""The contract's documents, byte for byte, as an operator and an image of other releases know them.

A failure here means: either take the change back, or raise CONTRACT_VERSION, keep reading the version before, and add a
folder of golden files. `python tests/contract/test_golden.py` writes the files of the present version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import cpr_contract
from contract.examples import EXAMPLES, UID
from cpr_contract import CONTRACT_VERSION, env, manifests, model, reports, roster, spec
from cpr_contract.codec import from_dict, to_dict, to_json
from cpr_contract.manifests import (
    DenseManifest,
    ShardManifest,
)
from cpr_contract.model import OptimizerSpec, SparseOptimizerSpec
from cpr_contract.reports import PERMANENT, ExitCode, ShardState, TrainerState
from cpr_contract.spec import JobSpec, samples_at, steps_in

GOLDEN = Path(__file__).parent / "golden"


def names() -> dict[str, Any]:
    """All that is agreed on and is no document."""
    return {
        "environment": {name: value for name, value in vars(env).items() if name.isupper()},
        "exit_codes": {code.name: code.value for code in ExitCode},
        "permanent": sorted(code.name for code in PERMANENT),
        "shard_states": [state.value for state in ShardState],
        "trainer_states": [state.value for state in TrainerState],
        "folders": [
            manifests.incarnation_prefix(UID, 2, 3, 5),
            manifests.dense_prefix(UID, 2),
            *(manifests.step_folder(12000, kind) for kind in ("Anchor", "Flush", "Priority", "Dense")),
            manifests.MANIFEST,
            manifests.ORIGIN,
            manifests.data_key(UID),
            manifests.data_key(UID, evaluates=True),
            manifests.workers_key(UID),
            manifests.vocabulary_key(UID),
            manifests.vocabulary_key(UID, "5e" * 32),
        ],
    }


def text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def golden_files() -> dict[str, str]:
    """The present version's files by name."""
    return {name: text(to_dict(example)) for name, example in EXAMPLES.items()} | {"names": text(names())}


@pytest.mark.parametrize("name", sorted(golden_files()))
def test_what_is_written_is_what_was_agreed(name: str) -> None:
    agreed = (GOLDEN / f"v{CONTRACT_VERSION}" / f"{name}.json").read_text()
    assert golden_files()[name] == agreed


def test_every_agreed_file_is_tested() -> None:
    assert {path.stem for path in (GOLDEN / f"v{CONTRACT_VERSION}").iterdir()} == set(golden_files())


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (version, name)
        for version in (CONTRACT_VERSION - 1, CONTRACT_VERSION)
        for name in EXAMPLES
        if (GOLDEN / f"v{version}" / f"{name}.json").exists()
    ],
)
def test_this_version_and_the_one_before_are_read(version: int, name: str) -> None:
    document = json.loads((GOLDEN / f"v{version}" / f"{name}.json").read_text())
    read = from_dict(type(EXAMPLES[name]), document)
    if version == CONTRACT_VERSION:
        assert read == EXAMPLES[name]
    assert json.loads(to_json(read)) == document


def test_a_job_from_before_tables_had_optimizers_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    for table in document["model"]["tables"]:
        del table["optimizer"]
    document["model"]["sparse_optimizer"] = {"kind": "RowWiseAdagrad", "learning_rate": 0.05}
    read = from_dict(JobSpec, document)
    assert read.model.table_optimizers == 4 * (SparseOptimizerSpec("RowWiseAdagrad", 0.05, 1e-8, 0.9, 0.999),)


def test_a_job_from_before_models_had_features_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    del document["model"]["features"], document["model"]["numeric"]
    model = from_dict(JobSpec, document).model
    assert (model.features, model.feature_tables, model.dense_width) == ((), (0, 1, 2, 3), 13)


def test_a_job_from_before_optimizers_had_schedules_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    document["model"]["dense_optimizer"] = {"kind": "Adagrad", "learning_rate": 0.01}
    del document["model"]["sparse_optimizer"]["schedule"]
    model = from_dict(JobSpec, document).model
    assert model.dense_optimizer == OptimizerSpec("Adagrad", 0.01, epsilon=1e-10, weight_decay=0.0, clip_norm=None)
    assert model.dense_optimizer.schedule == model.sparse_optimizer.schedule == ()


def test_what_is_from_before_tables_had_dims_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    for table in document["model"]["tables"]:
        del table["dim"]
    assert from_dict(JobSpec, document).model.table_dims == (16, 16, 16, 16)
    document = json.loads((GOLDEN / "v1" / "shard_manifest.json").read_text())
    del document["further"]
    assert from_dict(ShardManifest, document).spans == ((78750, 105000),)


def test_what_is_from_before_tables_had_ids_is_hashed_by_cpr64() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    for table in document["model"]["tables"]:
        for name in ("ids", "out_of_range", "hash_seed", "vocabulary", "min_count"):
            del table[name]
    model = from_dict(JobSpec, document).model
    assert [table.ids for table in model.tables] == 4 * ["CPR64"]
    manifest = json.loads((GOLDEN / "v1" / "dense_manifest.json").read_text())
    del manifest["ids"]
    assert from_dict(DenseManifest, manifest).ids == model.table_ids == ()


def test_what_is_from_before_jobs_started_by_name_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    del document["snapshots"]["by_name"]
    assert from_dict(JobSpec, document).snapshots.by_name is None
    manifest = json.loads((GOLDEN / "v1" / "dense_manifest.json").read_text())
    del manifest["model"]
    assert from_dict(DenseManifest, manifest).model is None


def test_every_document_has_an_example_with_all_that_may_be_in_it() -> None:
    kinds = {
        kind
        for module in (manifests, model, reports, roster, spec)
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    }
    assert kinds == {kind for example in EXAMPLES.values() for kind in kinds_in(example)}


def kinds_in(value: Any) -> Iterator[type]:
    """The dataclasses that a document consists of."""
    if isinstance(value, tuple):
        for each in value:
            yield from kinds_in(each)
    elif is_dataclass(value):
        yield type(value)
        for field in fields(value):
            yield from kinds_in(getattr(value, field.name))


@pytest.mark.parametrize(("step", "samples"), [(0, 0), (1, 512), (3, 1536), (4, 2000), (5, 2000)])
def test_steps_and_samples(step: int, samples: int) -> None:
    assert samples_at(step, batch_size=512, total_samples=2000) == samples
    assert steps_in(2000, 512) == 4


def test_the_contract_stands_on_the_standard_library() -> None:
    folder = Path(cpr_contract.__file__).parent
    foreign = ("torch", "numpy", "pydantic", "kopf", "kubernetes", "cpr_trainer", "cpr_operator")
    for path in folder.glob("*.py"):
        assert not any(f"import {name}" in path.read_text() or f"from {name}" in path.read_text() for name in foreign)


if __name__ == "__main__":
    (GOLDEN / f"v{CONTRACT_VERSION}").mkdir(parents=True, exist_ok=True)
    for stem, content in golden_files().items():
        (GOLDEN / f"v{CONTRACT_VERSION}" / f"{stem}.json").write_text(content)
