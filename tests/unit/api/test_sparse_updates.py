"""The mode in which shards update rows: by the spec at a job's start, and as it started afterwards."""

from __future__ import annotations

import pytest

from cpr_contract.choices import SparseUpdates
from cpr_contract.codec import pack, to_json
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import sparse_updates
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Runtime, SparseUpdatesMode
from cpr_operator.api.validate import parse_spec
from support.documents import DYNAMIC, Edits, edited

SHADOW: Edits = {"spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}}
DEGRADE: Edits = {"spec.recovery": {"onShardLoss": "Degrade"}}


def spec(edits: Edits) -> CPRJobSpec:
    return parse_spec(edited(edits)["spec"])


def runtime(job_spec: str, updates: SparseUpdatesMode | None) -> Runtime:
    return Runtime(image="i", contract_version=1, template_hash="h", job_spec=job_spec, sparse_updates=updates)


@pytest.mark.parametrize(
    ("edits", "mode", "reason"),
    [
        ({}, "PerStep", "all trainers take each step together"),
        ({"spec.trainers.replicas": 4}, "PerStep", "all trainers take each step together"),
        ({"spec.trainers.sparseUpdates": "PerStep"}, "PerStep", "all trainers take each step together"),
        ({"spec.trainers.sparseUpdates": "PerPush"}, "PerPush", "spec.trainers.sparseUpdates says so"),
        (SHADOW, "PerPush", "in a shadow mode trainers take no common steps"),
        (DEGRADE, "PerPush", "with onShardLoss Degrade each trainer continues by itself"),
        ({"spec.recovery": {"replay": {"mode": "Off"}}}, "PerStep", "all trainers take each step together"),
        ({"spec.snapshots.strategy": "MFU"}, "PerStep", "all trainers take each step together"),
        (DYNAMIC, "PerStep", "all trainers take each step together"),
    ],
)
def test_new_job_updates_rows_per_step_wherever_that_is_possible(edits: Edits, mode: str, reason: str) -> None:
    found = sparse_updates(spec(edits))
    assert found.mode == mode
    assert reason in found.reason
    assert to_job_spec(spec(edits), "uid", "name").sparse_updates == mode


@pytest.mark.parametrize("mode", ["PerStep", "PerPush"])
@pytest.mark.parametrize(
    "edits", [{}, {"spec.trainers.replicas": 3}, SHADOW, {"spec.trainers.sparseUpdates": "PerPush"}]
)
def test_started_job_keeps_its_mode_whatever_its_spec_says(edits: Edits, mode: SparseUpdates) -> None:
    chosen = SparseUpdatesMode(mode=mode, reason="chosen")
    assert sparse_updates(spec(edits), runtime("{}", chosen)) == chosen


@pytest.mark.parametrize("mode", ["PerStep", "PerPush"])
def test_status_without_the_mode_implies_that_of_the_pods(mode: SparseUpdates) -> None:
    """An operator of an earlier release, too, leaves the description of the pods of a job of this release unchanged."""
    described = to_json(to_job_spec(spec({}), "uid", "name", updates=mode))
    found = sparse_updates(spec({}), runtime(pack(described), None))
    assert found == SparseUpdatesMode(mode=mode, reason="an earlier release started the job so")


def test_job_of_a_release_without_the_mode_updates_rows_per_push() -> None:
    described = to_json(to_job_spec(spec({}), "uid", "name")).replace('"sparse_updates":"PerStep"', '"other":0')
    assert '"other"' in described
    assert sparse_updates(spec({}), runtime(described, None)).mode == "PerPush"
