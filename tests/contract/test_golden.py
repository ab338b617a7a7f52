"""The contract's documents, byte for byte, as an operator and an image of other releases know them.

A failure here means: either take the change back, or raise CONTRACT_VERSION, keep reading the version before, and add a
folder of golden files. `python tests/contract/test_golden.py` writes the files of the present version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cpr_contract
from cpr_contract import CONTRACT_VERSION, env, exits, manifests, reports, roster, spec
from cpr_contract.codec import from_dict, to_dict, to_json
from cpr_contract.exits import PERMANENT, Deleted, ExitCode, Problem
from cpr_contract.manifests import DataManifest, DenseManifest, ManifestRef, Origin, Part, RowUpdates, ShardManifest
from cpr_contract.reports import HeldOutScores, Result, SaveRef, ShardReport, ShardState, TrainerReport, TrainerState
from cpr_contract.roster import Allowance, AnchorRef, Counters, Peer, ShardRoster, TrainerRoster
from cpr_contract.spec import (
    ColumnsSpec,
    DataSpec,
    EvaluationSpec,
    FeatureSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PhaseSpec,
    SnapshotSpec,
    SparseOptimizerSpec,
    StoreSpec,
    TableSpec,
    samples_at,
    steps_in,
)

GOLDEN = Path(__file__).parent / "golden"

UID = "0d9f64a2-6b6c-4a54-9a3b-0f1d2c3b4a5e"
COUNTERS = Counters(roster=9, group=4, generation=2)
CUT = f"{UID}/gen-0002/dense/group-0004/step-000012000"
SHARD = f"{UID}/gen-0002/shard-0003/inc-0005/step-000012000"
FULL = f"{UID}/gen-0001/shard-0003/inc-0002/step-000009000"
PRIORITY = f"{UID}/gen-0002/shard-0003/inc-0005/step-000012006-priority"
ANCHOR = AnchorRef(key=f"{CUT}/manifest.json", digest="9f" * 32, generation=2, step=12000, samples=6144000)
HELD_OUT = HeldOutScores(11719, 6000128, 100000, 0.78, 0.47, 0.9, None)
PROBLEM = Problem(reason="StoreUnreachable", message="The store does not answer.", remedy="Check the endpoint.")

EXAMPLES: dict[str, Any] = {
    "job_spec": JobSpec(
        contract=1,
        job_uid=UID,
        job_name="criteo",
        model=ModelSpec(
            embedding_dim=16,
            bottom_mlp=(64, 16),
            top_mlp=(64, 1),
            tables=(
                TableSpec("user", 100000, ids="XXH64", hash_seed=7),
                TableSpec(
                    "page",
                    5000,
                    "Mean",
                    SparseOptimizerSpec("Adam", 0.01, 1e-6, 0.8, 0.99),
                    8,
                    "RowNumber",
                    "DefaultRow",
                ),
            ),
            dense_optimizer=OptimizerSpec(
                "SGD",
                0.01,
                momentum=0.9,
                nesterov=True,
                weight_decay=0.001,
                clip_norm=10.0,
                schedule=(PhaseSpec("Warmup", 100), PhaseSpec("Polynomial", 900, power=2.0)),
            ),
            sparse_optimizer=SparseOptimizerSpec("RowWiseAdagrad", 0.05),
            entrypoint="ranking.models:build",
            labels=("click", "buy"),
            targets=("dwell",),
            features=(
                FeatureSpec("visitor", "user", "user"),
                FeatureSpec("seen", "pages", "page", "None", max_length=50, weights="seconds"),
            ),
            numeric=2,
        ),
        data=DataSpec(
            "Parquet",
            "s3://data/day=*/",
            1,
            None,
            512,
            7,
            10,
            columns=ColumnsSpec(("click", "buy"), ("age",), ("price",), ("user", "page"), targets=("dwell",)),
            hold_out=0.1,
        ),
        trainers=2,
        shards=4,
        snapshots=SnapshotSpec(StoreSpec("https://s3.example.org", "eu-1", "models", "team"), 2, 30.0, None),
        silence_s=10.0,
        precision="bf16",
        dense_sync="ShadowMA",
        prefetch=4,
        workers=2,
        device="cuda",
        replay_bytes=2**30,
        evaluation=EvaluationSpec(1000000, 100000),
        parity_shards=4,
    ),
    "shard_roster": ShardRoster(
        contract=1,
        counters=COUNTERS,
        index=3,
        incarnation=5,
        newest_incarnation=5,
        may_restore=True,
        floor_samples=6144000,
        anchor=ANCHOR,
        trainers=2,
        shards=(Peer(0, 1, "10.0.0.2", 7070), Peer(1, 1, "fd00::3", 7070)),
    ),
    "trainer_roster": TrainerRoster(
        contract=1,
        counters=COUNTERS,
        index=0,
        incarnation=1,
        newest_incarnation=1,
        leader=0,
        trainers=(Peer(0, 1, "10.0.0.1", 7070), Peer(1, 2, "", 7070)),
        shards=(Peer(0, 1, "10.0.0.2", 7070), Peer(1, 1, "fd00::3", 7070)),
        anchor=None,
        dense_floor_samples=6000000,
        interval_s=120.5,
        meet=True,
        allowances=(Allowance(1, 1200),),
    ),
    "shard_report": ShardReport(
        contract=1,
        job_uid=UID,
        index=3,
        incarnation=5,
        counters=COUNTERS,
        state=ShardState.BELOW_FLOOR,
        applied=(12001, 12001),
        newest_save=SaveRef(f"{SHARD}/manifest.json", 12000, 6144000),
        restored_samples=6144000,
        resumed_samples=6150144,
        lost=((6144000, 6150144),),
        load_s=1.25,
        silent=("trainer/1",),
        problem=PROBLEM,
        row_updates=RowUpdates((700, 800), 96, exact=False),
        replayed_samples=2048,
        replayed_in_order=False,
        replay_s=0.25,
        protected_samples=6150000,
        rebuilt=True,
        overdue=("trainer/0", "trainer/1"),
        lives=2,
    ),
    "trainer_report": TrainerReport(
        contract=1,
        job_uid=UID,
        index=0,
        incarnation=1,
        counters=COUNTERS,
        state=TrainerState.PAUSED,
        step=12012,
        samples=6150144,
        samples_started=6151168,
        total_samples=40000000,
        waiting_for=("shard/3",),
        silent=(),
        lost=(),
        problem=None,
        samples_per_s=51234.5,
        loss=0.45,
        auc=0.79,
        logloss=0.46,
        metrics=(("click.auc", 0.79), ("buy.auc", 0.81)),
        shard_saves=(6144000, 6144000, 6144000, -1),
        dense_save=SaveRef(f"{CUT}-dense/manifest.json", 12000, 6144000),
        anchors=(ANCHOR,),
        result=None,
        met=ANCHOR,
        saves=3,
        save_stall_s=0.2,
        commit_s=1.5,
        paused_s=2.5,
        sync_gap=4.5,
        degraded_samples=300,
        new_files=2,
        forgotten=(6144000, 6144000, 6144000, -1),
        overdue=("shard/3",),
        shard_incarnations=(1, 1, 2, 5),
        shard_lives=(1, 1, 2, 1),
        shard_protected=(6150000, 6150000, -1, 6150000),
        evaluation=HELD_OUT,
        lives=2,
    ),
    "shard_manifest": ShardManifest(
        contract=1,
        job_uid=UID,
        generation=2,
        index=3,
        incarnation=5,
        kind="Anchor",
        step=12000,
        samples=6144000,
        layout="ab" * 32,
        first_place=78750,
        places=26250,
        applied=(12000, 12000),
        lost=((1024, 2048),),
        chain=(ManifestRef(f"{FULL}/manifest.json", "ef" * 32),),
        rows=15420,
        parts=(Part(f"{SHARD}/part-00000", 1051448, 3808858755, 15420, 78760, 22000),),
        row_updates=RowUpdates((700, 800), 96),
        after=f"{PRIORITY}/manifest.json",
        added_updates=50,
        further=((106250, 107500),),
    ),
    "dense_manifest": DenseManifest(
        contract=1,
        job_uid=UID,
        generation=2,
        group=4,
        step=12000,
        samples=6144000,
        total_samples=40000000,
        layout="ab" * 32,
        parts=(Part(f"{CUT}/part-00000", 4096, 1),),
        shards=(ManifestRef(f"{SHARD}/manifest.json", "cd" * 32),),
        lost=(((1024, 2048),),),
        dense_lost=((0, 512),),
        ids=(("user", "XXH64 with seed 7"), ("page", "RowNumber")),
    ),
    "origin": Origin(
        contract=1,
        job_uid=UID,
        generation=2,
        index=3,
        incarnation=6,
        parent_incarnation=5,
        parent=ManifestRef(f"{SHARD}/manifest.json", "cd" * 32),
        step=12000,
        samples=6144000,
        replayed=(ManifestRef(f"{PRIORITY}/manifest.json", "ab" * 32),),
    ),
    "data_manifest": DataManifest(
        contract=1,
        job_uid=UID,
        uri="s3://clicks/day=*/",
        uris=("s3://clicks/day=1/a.csv", "s3://clicks/day=2/a.csv.gz"),
        sizes=(16777220, 4096),
        tags=("9bb58f26192e4ba00f01e2e7b136bbd8", "9bb58f26192e4ba00f01e2e7b136bbd8-2"),
        in_turn=(False, True),
        columns_of=(0, 0),
        blocks=(2, 1),
        columns=(("click", "price", "user"),),
        block_rows=(35000, 35001, 120),
        block_starts=(17, 8388600, 17),
        block_sizes=(8388583, 8388620, 8100),
    ),
    "problem": PROBLEM,
    "deleted": Deleted(objects=312, size_bytes=536870912),
    "save_ref": SaveRef(f"{SHARD}-flush/manifest.json", 12000, 6144000),
    "anchor_ref": ANCHOR,
    "result": Result(ANCHOR, lost=((6140000, 6144000),), loss=0.45, auc=0.79, logloss=None, metrics=(("error", 0.5),)),
}


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
    assert read.model.table_optimizers == 2 * (SparseOptimizerSpec("RowWiseAdagrad", 0.05, 1e-8, 0.9, 0.999),)


def test_a_job_from_before_models_had_features_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    del document["model"]["features"], document["model"]["numeric"]
    model = from_dict(JobSpec, document).model
    assert (model.features, model.feature_tables, model.dense_width) == ((), (0, 1), 13)


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
    assert from_dict(JobSpec, document).model.table_dims == (16, 16)
    document = json.loads((GOLDEN / "v1" / "shard_manifest.json").read_text())
    del document["further"]
    assert from_dict(ShardManifest, document).spans == ((78750, 105000),)


def test_what_is_from_before_tables_had_ids_is_hashed_by_cpr64() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    for table in document["model"]["tables"]:
        for name in ("ids", "out_of_range", "hash_seed"):
            del table[name]
    model = from_dict(JobSpec, document).model
    assert [table.ids for table in model.tables] == ["CPR64", "CPR64"]
    manifest = json.loads((GOLDEN / "v1" / "dense_manifest.json").read_text())
    del manifest["ids"]
    assert from_dict(DenseManifest, manifest).ids == model.table_ids == ()


def test_every_document_has_an_example() -> None:
    kinds = {
        kind
        for module in (exits, manifests, reports, roster, spec)
        for kind in vars(module).values()
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and kind.__module__ == module.__name__
    }
    inner = {Counters, Peer, Allowance, Part, ManifestRef, RowUpdates}
    inner |= {TableSpec, FeatureSpec, OptimizerSpec, SparseOptimizerSpec, PhaseSpec, ModelSpec}
    inner |= {DataSpec, ColumnsSpec, EvaluationSpec, StoreSpec, SnapshotSpec, HeldOutScores}
    assert kinds - inner == {type(example) for example in EXAMPLES.values()}


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
