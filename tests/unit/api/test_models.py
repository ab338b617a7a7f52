from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import from_json, to_json
from cpr_contract.model import CrossSpec, DynamicSpec, OptimizerSpec, PhaseSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import MEASURED, NEW_FIELDS_VERSION, CsvSpec, EvaluationSpec, JobSpec
from cpr_operator.api.base import format_time, parse_time
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import FailureRecord, Shard, Status
from cpr_operator.api.validate import parse_spec, validate
from support.data_cases import TEXTS
from support.documents import BUILT, CRITEO, CROSSED, CSV, DELTA, DYNAMIC, Edits, edited

TARGET = {"metric": "AUC", "target": 0.80275}


def test_built_vocabulary_maps_other_ids_to_the_default_row() -> None:
    def table(**edits: Any) -> TableSpec:
        document = edited(CRITEO | BUILT | {f"spec.model.tables.0.{name}": value for name, value in edits.items()})
        return to_job_spec(parse_spec(document["spec"]), "uid", "name").model.tables[0]

    assert (table().out_of_range, table().min_count, table().vocabulary) == ("DefaultRow", 1, None)
    assert table(outOfRange="Fail").out_of_range == "Fail"
    stated = table(vocabulary={"uri": "s3://b/k"})
    assert (stated.out_of_range, stated.min_count, stated.vocabulary) == ("Fail", None, "s3://b/k")


def test_description_of_tables_in_bf16_has_a_version_that_earlier_images_refuse() -> None:
    plain, half = (
        to_job_spec(parse_spec(edited({"spec.model.tables.1.precision": each})["spec"]), "uid", "name")
        for each in ("fp32", "bf16")
    )
    assert (plain.contract, plain.model.table_precisions) == (CONTRACT_VERSION, ("fp32", "fp32"))
    assert (half.contract, half.model.table_precisions) == (NEW_FIELDS_VERSION, ("fp32", "bf16"))
    assert NEW_FIELDS_VERSION > CONTRACT_VERSION


def test_cross_network_raises_the_version_of_the_description() -> None:
    job = to_job_spec(parse_spec(edited(CROSSED)["spec"]), "uid", "name")
    assert (job.contract, job.model.cross) == (NEW_FIELDS_VERSION, CrossSpec(layers=3, rank=512))


@pytest.mark.parametrize(
    "edits",
    [
        {"spec.data.shuffleRows": 0},
        CSV | TEXTS,
        {"spec.data.holdOut": 0.1, "spec.evaluation.everySamples": 10, "spec.evaluation.earlyStop": TARGET},
    ],
    ids=["unshuffled", "texts", "target"],
)
def test_fields_that_earlier_images_would_ignore_raise_the_version_of_the_description(edits: Edits) -> None:
    job = to_job_spec(parse_spec(edited(edits)["spec"]), "uid", "name")
    assert job.contract == NEW_FIELDS_VERSION
    assert from_json(JobSpec, to_json(job)) == job


def test_weights_of_samples_raise_the_version_of_the_description() -> None:
    job = to_job_spec(parse_spec(edited(CSV | {"spec.data.columns.weight": "worth"})["spec"]), "uid", "name")
    assert job.data.columns is not None
    assert (job.contract, job.model.has_weights, job.data.columns.weight) == (NEW_FIELDS_VERSION, True, "worth")


@pytest.mark.parametrize(
    ("stated", "rules"),
    [
        ({}, DynamicSpec(1, "LastStep", 0, 0, "Random")),
        ({"admission": {}, "eviction": {}}, DynamicSpec()),
        (
            {
                "admission": {"minSteps": 3},
                "eviction": {"score": "Pushes", "halvingSteps": 10},
                "ttlSteps": 50,
                "default": "Zero",
                "hashSeed": 7,
            },
            DynamicSpec(3, "Pushes", 10, 50, "Zero"),
        ),
    ],
)
def test_dynamic_table_has_its_rules_and_a_version_that_earlier_images_refuse(
    stated: dict[str, Any], rules: DynamicSpec
) -> None:
    edits = DYNAMIC | {f"spec.model.tables.0.{name}": value for name, value in stated.items()}
    job = to_job_spec(parse_spec(edited(edits)["spec"]), "uid", "name")
    assert [table.dynamic for table in job.model.tables] == [rules, None]
    assert (job.contract, job.model.tables[0].hash_seed) == (NEW_FIELDS_VERSION, stated.get("hashSeed", 0))
    assert from_json(JobSpec, to_json(job)) == job


def test_syntax_of_text_has_a_version_that_earlier_images_refuse() -> None:
    job = to_job_spec(parse_spec(edited(CSV | {"spec.data.csv": {"escape": "\\"}})["spec"]), "uid", "name")
    assert (job.contract, job.data.csv) == (NEW_FIELDS_VERSION, CsvSpec(escape="\\"))
    assert from_json(JobSpec, to_json(job)) == job


def test_table_has_a_version_that_earlier_images_refuse() -> None:
    job = to_job_spec(parse_spec(edited(DELTA | {"spec.data.version": 3})["spec"]), "uid", "name")
    assert (job.contract, job.data.format, job.data.version) == (NEW_FIELDS_VERSION, "Delta", 3)


@pytest.mark.parametrize("seconds", [0.0, 1.5, 1_790_000_000.123])
def test_times_are_rfc3339_and_round_trip(seconds: float) -> None:
    text = format_time(seconds)
    assert text.endswith("Z")
    parsed = parse_time(text)
    assert isinstance(parsed, float)
    assert math.isclose(parsed, seconds, abs_tol=0.0005)


def test_new_status_is_pending_and_round_trips_as_json() -> None:
    status = Status(start_time=5.0, shards=(Shard(index=0),), restart_times=(1.0, 2.5))
    assert Status().phase == "Pending"
    assert Status.model_validate(status.to_dict()) == status
    assert status.to_dict()["startTime"] == "1970-01-01T00:00:05.000Z"


def test_failure_record_omits_absent_fields_and_cuts_long_messages() -> None:
    failed = FailureRecord(
        time=0.0, role="shard", index=0, incarnation=1, kind="K", reason=100 * "r", message=2000 * "m"
    )
    assert "lostSamples" not in failed.to_dict()
    assert failed.to_dict()["counted"] is False
    assert (len(failed.reason), len(failed.message)) == (64, 1024)


def test_status_of_a_newer_operator_is_readable() -> None:
    assert Status.model_validate({"phase": "Running", "inventedLater": {"a": 1}}).phase == "Running"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, OptimizerSpec("SGD", 0.1)),
        ({"kind": "Adagrad"}, OptimizerSpec("Adagrad", 0.1, epsilon=1e-10)),
        ({"kind": "Adam"}, OptimizerSpec("Adam", 0.1, epsilon=1e-8)),
        ({"kind": "AdamW"}, OptimizerSpec("AdamW", 0.1, epsilon=1e-8, weight_decay=0.01)),
        ({"kind": "AdamW", "weightDecay": 0}, OptimizerSpec("AdamW", 0.1, epsilon=1e-8, weight_decay=0.0)),
        (
            {"learningRate": 2, "momentum": 0.9, "nesterov": True, "weightDecay": 0.1, "clipNorm": 5},
            OptimizerSpec("SGD", 2.0, momentum=0.9, nesterov=True, weight_decay=0.1, clip_norm=5.0),
        ),
        (
            {"kind": "Adam", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.25},
            OptimizerSpec("Adam", 0.1, epsilon=0.25, beta1=0.5, beta2=0.75),
        ),
    ],
)
def test_dense_optimizer_defaults_are_those_of_torch(stated: dict[str, Any], expected: OptimizerSpec) -> None:
    document = edited({"spec.model.denseOptimizer": stated})
    assert to_job_spec(parse_spec(document["spec"]), "u", "n").model.dense_optimizer == expected


@pytest.mark.parametrize("value", ["auto", 0, 65, 1.5, True, [1]])
def test_invalid_workers_are_refused_by_name(value: Any) -> None:
    (invalid,) = validate(edited({"spec.trainers.workers": value}))
    assert invalid.field == "spec.trainers.workers"
    assert invalid.message == f"{value!r} is neither Auto nor a number from 1 to 64"
    assert "the default is Auto" in invalid.remedy


WARMUP = [{"kind": "Warmup", "steps": 8, "start": 0.5}, {"kind": "Step", "steps": 9, "every": 2, "factor": 0.5}]
DECAY = [{"kind": "Cosine", "steps": 5, "end": 0.1}, {"kind": "Polynomial", "steps": 6, "power": 2}]
SETTINGS: list[tuple[Edits, str, Any]] = [
    ({"spec.snapshots.store.region": "r"}, "snapshots.store.region", "r"),
    ({"spec.snapshots.denseIntervalSeconds": 7}, "snapshots.dense_interval_s", 7.0),
    ({"spec.snapshots.restoreFrom": "other/anchor"}, "snapshots.restore_from", "other/anchor"),
    ({"spec.failurePolicy.silenceSeconds": 4}, "silence_s", 4.0),
    ({}, "evaluation", None),
    (
        {"spec.evaluation": {"everySamples": 500, "samples": 50}, "spec.data.holdOut": 0.1},
        "evaluation",
        EvaluationSpec(500, 50),
    ),
    ({"spec.trainers.precision": "bf16"}, "precision", "bf16"),
    ({"spec.trainers.prefetch": 3}, "prefetch", 3),
    ({"spec.trainers.device": "cuda"}, "device", "cuda"),
    ({}, "workers", MEASURED),
    ({"spec.trainers.workers": "Auto"}, "workers", MEASURED),
    ({"spec.trainers.workers": "Auto", "spec.trainers.device": "cuda"}, "workers", 1),
    ({"spec.trainers.workers": 3}, "workers", 3),
    (
        {
            "spec.model.sparseOptimizer": {"kind": "SGD", "learningRate": 0.5},
            "spec.model.tables.1.optimizer": {"kind": "Adam", "learningRate": 0.2, "beta1": 0.8, "epsilon": 1e-6},
        },
        "model.table_optimizers",
        (SparseOptimizerSpec("SGD", 0.5), SparseOptimizerSpec("Adam", 0.2, epsilon=1e-6, beta1=0.8, beta2=0.999)),
    ),
    (
        {"spec.model.denseOptimizer.schedule": WARMUP},
        "model.dense_optimizer.schedule",
        (PhaseSpec("Warmup", 8, start=0.5), PhaseSpec("Step", 9, every=2, factor=0.5)),
    ),
    (
        {"spec.model.sparseOptimizer.schedule": DECAY},
        "model.sparse_optimizer.schedule",
        (PhaseSpec("Cosine", 5, end=0.1), PhaseSpec("Polynomial", 6, power=2.0)),
    ),
]


@pytest.mark.parametrize(("edits", "field", "value"), SETTINGS)
def test_job_spec_of_pods_has_all_settings(edits: Edits, field: str, value: Any) -> None:
    job = to_job_spec(parse_spec(edited(edits)["spec"]), "u", "n")
    assert attrgetter(field)(job) == value
    assert from_json(JobSpec, to_json(job)) == job
