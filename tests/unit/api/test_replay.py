"""The conditions under which replay is on, the reasons why it is off, and the memory that it takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from cpr_contract.choices import ReplayPolicy
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import replay_in_force, replay_policy
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.quantities import read_bytes, with_more, write_bytes
from cpr_operator.api.status import Runtime, Status
from cpr_operator.api.validate import parse_spec, validate
from support.documents import minimal
from support.runs import small_job

MIB, GIB = 2**20, 2**30


def spec(replay: dict[str, Any], **changes: Any) -> CPRJobSpec:
    """A small job; changes as recovery__onShardLoss."""
    document = small_job(recovery={"replay": replay})
    for path, value in changes.items():
        part, _, field = path.partition("__")
        document["spec"].setdefault(part, {})[field] = value
    return parse_spec(document["spec"])


def sized(resources: object) -> CPRJobSpec:
    """Return a job without settings of replay. Its trainers have these resources."""
    containers = [{"name": "log"}, {"name": "main", "resources": resources}]
    return parse_spec({**minimal()["spec"], "trainers": {"template": {"spec": {"containers": containers}}}})


def started(replay: ReplayPolicy | None) -> Status:
    """The status of a job that was started by a release that keeps this, or None of it."""
    frozen = Runtime(image="trainer:1", contract_version=1, template_hash="", job_spec="{}")
    return Status(runtime=frozen if replay is None else frozen.evolve(replay=replay))


KEEP = "trainers keep up to 256Mi of pushes"


@pytest.mark.parametrize(
    ("replay", "memory", "spill", "reason"),
    [
        ({}, 256 * MIB, 0, f"{KEEP} for shards that are replaced"),
        ({"mode": "Required", "memory": "256Mi"}, 256 * MIB, 0, f"{KEEP} for shards that are replaced"),
        ({"memory": "256Mi", "spill": "20Gi"}, 256 * MIB, 20 * GIB, f"{KEEP}, and 20Gi more on disk, for shards"),
        ({"mode": "Off", "memory": "256Mi", "spill": "20Gi"}, 0, 0, ""),
    ],
)
def test_replay_limits_are_those_of_the_spec(replay: dict[str, Any], memory: int, spill: int, reason: str) -> None:
    parsed = parse_spec(minimal()["spec"] | {"recovery": {"replay": replay}})
    job = to_job_spec(parsed, "uid", "name")
    assert (job.replay_bytes, job.spill_bytes) == (memory, spill)
    assert reason in replay_policy(parsed).reason


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ({"limits": {"memory": "4Gi"}, "requests": {"memory": "1Gi"}}, 512 * MIB),
        ({"requests": {"memory": "1Gi"}}, 128 * MIB),
        ({"limits": {"memory": "64Gi"}}, GIB),
        ({"limits": {"memory": "20Mi"}}, 16 * MIB),
        ({"limits": {"memory": 1_000_000_000}}, 119 * MIB),
        ({"requests": {"cpu": "4"}}, 256 * MIB),
        ({"limits": {"memory": "much"}}, 256 * MIB),
        ({"limits": ["memory"]}, 256 * MIB),
        ("large", 256 * MIB),
    ],
)
def test_replay_memory_is_an_eighth_of_the_containers_by_default(resources: object, size: int) -> None:
    assert replay_policy(sized(resources)).memory_bytes == size


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recovery__onShardLoss": "Degrade"}, "Degrade"),
        ({"trainers__denseSync": "ShadowMA", "trainers__replicas": 2}, "shadow mode"),
        ({"snapshots__strategy": "MFU"}, "MFU"),
    ],
)
def test_replay_is_off_with_a_reason_where_it_is_impossible(changes: dict[str, Any], reason: str) -> None:
    choice = replay_policy(spec({"mode": "Auto"}, **changes))
    assert choice.memory_bytes == 0
    assert reason in choice.reason


@pytest.mark.parametrize("field", ["spill", "memory"])
@pytest.mark.parametrize("amount", ["0Gi", "1", "1G", "1.5Gi", "-1Gi", "1Ti", ""])
def test_replay_memory_and_spill_are_whole_kib_mib_or_gib(field: str, amount: str) -> None:
    assert validate(small_job(recovery={"replay": {"mode": "Auto", field: amount}}))
    assert not validate(small_job(recovery={"replay": {"mode": "Auto", field: "64Mi"}}))


def test_replay_policy_of_a_started_job_is_frozen() -> None:
    parsed = spec({"mode": "Auto"})
    assert replay_in_force(parsed, Status()).memory_bytes == 256 * MIB
    assert replay_in_force(parsed, started(None)).memory_bytes == 0, "the release that started it had no replay"
    assert "started by a release" in replay_in_force(parsed, started(None)).reason
    chosen = ReplayPolicy(memory_bytes=64 * MIB, spill_bytes=GIB, reason="chosen")
    found = replay_in_force(spec({"mode": "Off"}), started(chosen))
    assert (found.memory_bytes, found.spill_bytes) == (64 * MIB, GIB)


def test_replay_policy_outlives_a_suspension() -> None:
    parsed = spec({"mode": "Auto", "memory": "128Mi"})
    assert replay_policy(parsed, ReplayPolicy(memory_bytes=1)).memory_bytes == 128 * MIB
    assert replay_policy(parsed, ReplayPolicy(reason="as before")).reason == "as before"
    assert to_job_spec(parsed, "uid", "name", replay=replay_policy(parsed, ReplayPolicy())).replay_bytes == 0


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1Gi", GIB),
        ("1.5Gi", 3 * GIB // 2),
        ("1G", 10**9),
        ("128974848", 128974848),
        (128974848, 128974848),
        ("129e6", 129 * 10**6),
        ("1E", 10**18),
        ("123456789m", 123457),
        (".5Ki", 512),
        *((bad, None) for bad in ("", "Gi", "1 Gi", "-1Gi", "1gi", True, None, "1e99", "9" * 99, "8Ei", "1e9999999")),
    ],
)
def test_quantities_are_parsed_as_by_kubernetes(quantity: object, size: int | None) -> None:
    assert read_bytes(quantity) == (size if size is None or size <= 2**53 else None)
    assert size is None or math.ceil(parse_quantity(quantity)) == size


def test_memory_is_added_to_stated_quantities_only() -> None:
    stated = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1000000Ki"}, "claims": [{"name": "gpu"}]}
    assert with_more(stated, "memory", 256 * MIB) == {
        "requests": {"cpu": "1", "memory": "1280Mi"},
        "limits": {"memory": "1262144Ki"},
        "claims": [{"name": "gpu"}],
    }
    assert stated["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert with_more({"requests": {"cpu": "1"}}, "memory", GIB) == {"requests": {"cpu": "1"}}
    assert with_more({"limits": {"memory": "much"}}, "memory", GIB) == {"limits": {"memory": "much"}}
    assert [write_bytes(size) for size in (3 * GIB, 5 * MIB, 1 << 10, 1000)] == ["3Gi", "5Mi", "1Ki", "1000"]
