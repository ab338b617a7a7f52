"""The contract's documents, byte for byte, as an operator and an image of other releases exchange them.

A failure here means: either take the change back, or raise CONTRACT_VERSION, keep reading the version before, and add a
folder of golden files. `python tests/contract/test_golden.py` adds new fields to the files of the present version, with
their defaults: replace these there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract import (
    CONTRACT_VERSION,
    env,
    history,
    manifests,
    model,
    pinned_data,
    published,
    records,
    reports,
    roster,
    spec,
)
from cpr_contract.choices import DenseSync, SparseUpdates
from cpr_contract.codec import from_dict, to_dict, to_json
from cpr_contract.model import CrossSpec, DynamicSpec, OptimizerSpec, SparseOptimizerSpec
from cpr_contract.reports import PERMANENT, ExitCode, ShardState, TrainerState
from cpr_contract.spec import samples_at, steps_in

UID = "0d9f64a2-6b6c-4a54-9a3b-0f1d2c3b4a5e"
#: The documents with all their fields, by the names of their golden files.
DOCUMENTS: dict[str, Any] = {
    "anchor_ref": roster.AnchorRef,
    "data_manifest": pinned_data.DataManifest,
    "data_pin": pinned_data.DataPin,
    "deleted": reports.Deleted,
    "dense_manifest": manifests.DenseManifest,
    "job_record": records.JobRecord,
    "job_spec": spec.JobSpec,
    "origin": manifests.RestoreRecord,
    "problem": reports.Problem,
    "publisher_report": published.PublisherReport,
    "recorded": reports.Recorded,
    "result": reports.Result,
    "roster_note": reports.RosterNote,
    "save_ref": reports.SaveRef,
    "shard_manifest": manifests.ShardManifest,
    "shard_report": reports.ShardReport,
    "shard_roster": roster.ShardRoster,
    "trainer_report": reports.TrainerReport,
    "trainer_roster": roster.TrainerRoster,
    "vocabulary_manifest": pinned_data.VocabularyManifest,
    "workers_manifest": manifests.WorkersManifest,
}
GOLDEN = Path(__file__).parent / "golden"


def names() -> dict[str, Any]:
    """The agreed names and numbers outside documents."""
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
            manifests.RESTORE_RECORD,
            pinned_data.data_key(UID),
            pinned_data.data_key(UID, evaluates=True),
            pinned_data.data_pin_key(UID, 12),
            manifests.workers_key(UID),
            pinned_data.vocabulary_key(UID),
            pinned_data.vocabulary_key(UID, "5e" * 32),
            history.output_key(history.ProcessId(UID, "shard", 3, 5, 2)),
            records.record_key(records.JobRecord(UID, 1764440000.0, "{}", ())),
        ],
    }


def text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def read(name: str, version: int = CONTRACT_VERSION) -> Any:
    """Read the golden document of a name by its type."""
    return from_dict(DOCUMENTS[name], json.loads((GOLDEN / f"v{version}" / f"{name}.json").read_text()))


def golden_files() -> dict[str, str]:
    """Return the present version's files by name."""
    return {name: text(to_dict(read(name))) for name in DOCUMENTS} | {"names": text(names())}


@pytest.mark.parametrize("name", sorted(golden_files()))
def test_documents_are_written_as_agreed(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / f"v{CONTRACT_VERSION}" / f"{name}.json").read_text()


def test_every_golden_file_is_tested() -> None:
    assert {path.stem for path in (GOLDEN / f"v{CONTRACT_VERSION}").iterdir()} == set(golden_files())


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (version, name)
        for version in (CONTRACT_VERSION - 1, CONTRACT_VERSION)
        for name in DOCUMENTS
        if (GOLDEN / f"v{version}" / f"{name}.json").exists()
    ],
)
def test_contract_reads_this_version_and_the_one_before(version: int, name: str) -> None:
    """JSON has lists and strings; documents have tuples and states, so that they can be compared and hashed."""
    document = read(name, version)
    assert isinstance(hash(document), int)
    assert json.loads(to_json(document)) == json.loads((GOLDEN / f"v{version}" / f"{name}.json").read_text())


def earlier(name: str, *without: str, **changed: Any) -> Any:
    """Read an example without fields that earlier releases did not write: FIELD, PART.FIELD, or of each table."""
    document = json.loads((GOLDEN / "v1" / f"{name}.json").read_text())
    for path in without:
        part, _, field = path.rpartition(".")
        for each in document["model"]["tables"] if part == "tables" else [document[part] if part else document]:
            del each[field]
    document.get("model", {}).update(changed)
    return from_dict(DOCUMENTS[name], document)


def test_job_without_optimizers_of_tables_is_read() -> None:
    job = earlier("job_spec", "tables.optimizer", sparse_optimizer={"kind": "RowWiseAdagrad", "learning_rate": 0.05})
    assert job.model.table_optimizers == 5 * (SparseOptimizerSpec("RowWiseAdagrad", 0.05, 1e-8, 0.9, 0.999),)


def test_job_without_features_is_read() -> None:
    model = earlier("job_spec", "model.features", "model.numeric").model
    assert (model.features, model.feature_tables, model.dense_width) == ((), (0, 1, 2, 3, 4), 13)


def test_job_without_interaction_has_dot_products() -> None:
    assert read("job_spec").model.cross == CrossSpec(3, 512)
    assert earlier("job_spec", "model.cross").model.cross is None


def test_job_without_weights_of_samples_has_none() -> None:
    assert (read("job_spec").data.columns.weight, read("job_spec").model.has_weights) == ("worth", True)
    model = earlier("job_spec", "model.has_weights").model
    assert not model.has_weights


def test_early_stop_without_target_is_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    del document["evaluation"]["early_stop"]["target"]
    job: Any = from_dict(spec.JobSpec, document)
    assert job.evaluation.early_stop == spec.EarlyStopSpec("AUC", 3, 0.0001)


def test_columns_without_values_of_labels_are_read() -> None:
    document = json.loads((GOLDEN / "v1" / "job_spec.json").read_text())
    del document["data"]["columns"]["label_values"]
    job: Any = from_dict(spec.JobSpec, document)
    assert job.data.columns.label_values == ()


def test_job_without_schedules_is_read() -> None:
    old = {"kind": "RowWiseAdagrad", "learning_rate": 0.02}
    model = earlier("job_spec", dense_optimizer={"kind": "Adagrad", "learning_rate": 0.01}, sparse_optimizer=old).model
    assert model.dense_optimizer == OptimizerSpec("Adagrad", 0.01, epsilon=1e-10, weight_decay=0.0, clip_norm=None)
    assert model.dense_optimizer.schedule == model.sparse_optimizer.schedule == ()


def test_documents_without_dims_are_read() -> None:
    assert earlier("job_spec", "tables.dim").model.table_dims == (16, 16, 16, 16, 16)
    assert earlier("shard_manifest", "further").spans == ((78750, 105000),)


def test_job_without_precisions_of_tables_has_float32() -> None:
    assert read("job_spec").model.table_precisions == ("fp32", "fp32", "fp32", "bf16", "fp32")
    assert earlier("job_spec", "tables.precision").model.table_precisions == 5 * ("fp32",)


def test_job_without_rules_of_dynamic_tables_has_none() -> None:
    assert read("job_spec").model.tables[-1].dynamic == DynamicSpec(2, "Pushes", 1000, 20000, "Zero")
    assert not earlier("job_spec", "tables.dynamic").model.has_dynamic_tables


def test_documents_without_ids_mean_cpr64() -> None:
    fields_of_ids = ("ids", "out_of_range", "hash_seed", "vocabulary", "min_count", "dynamic")
    model = earlier("job_spec", *(f"tables.{field}" for field in fields_of_ids)).model
    assert [table.ids for table in model.tables] == 5 * ["CPR64"]
    assert earlier("dense_manifest", "ids").ids == model.table_ids == ()


def test_documents_without_names_of_models_are_read() -> None:
    assert earlier("job_spec", "snapshots.by_name").snapshots.by_name is None
    assert earlier("dense_manifest", "model").model is None


def test_data_without_a_syntax_of_text_has_that_of_its_format() -> None:
    assert earlier("job_spec", "data.csv").data.csv is None


def test_data_without_a_topic_has_none() -> None:
    assert read("job_spec").data.kafka == spec.KafkaSpec("Arrow", "SASL_SSL", "SCRAM-SHA-512")
    assert earlier("job_spec", "data.kafka").data.kafka is None


def test_reports_without_scores_of_a_segment_have_none() -> None:
    assert read("result").segment == read("trainer_report").segment is not None
    assert earlier("result", "segment").segment is earlier("trainer_report", "segment").segment is None


def test_job_without_sparse_updates_has_them_per_push() -> None:
    assert read("job_spec").sparse_updates == "PerStep"
    job = replace(earlier("job_spec", "sparse_updates"), dense_sync="AllReduce")
    assert (job.sparse_updates, job.trainers, job.per_step) == ("PerPush", 2, False)


@pytest.mark.parametrize("sparse_updates", ["PerStep", "PerPush"])
@pytest.mark.parametrize("dense_sync", ["AllReduce", "ShadowEASGD", "ShadowMA", "ShadowBMUF"])
@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_shards_merge_pushes_of_several_trainers_in_lockstep(
    sparse_updates: SparseUpdates, dense_sync: DenseSync, trainers: int
) -> None:
    job = replace(read("job_spec"), sparse_updates=sparse_updates, dense_sync=dense_sync, trainers=trainers)
    merges = sparse_updates == "PerStep" and dense_sync == "AllReduce"
    assert job.per_step is merges, "of a single trainer, too: lookups of dynamic tables wait for their step"
    static = replace(job, model=replace(job.model, tables=job.model.tables[:-1]))
    assert static.per_step is (merges and trainers > 1)


def test_documents_have_an_example_with_every_field() -> None:
    kinds = {
        kind
        for module in (manifests, model, pinned_data, published, records, reports, roster, spec)
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    }
    assert kinds == {kind for name in DOCUMENTS for kind in kinds_in(read(name))}


def kinds_in(value: Any) -> Iterator[type]:
    """Yield the dataclasses of a document."""
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


if __name__ == "__main__":
    (GOLDEN / f"v{CONTRACT_VERSION}").mkdir(parents=True, exist_ok=True)
    for stem, content in golden_files().items():
        (GOLDEN / f"v{CONTRACT_VERSION}" / f"{stem}.json").write_text(content)
