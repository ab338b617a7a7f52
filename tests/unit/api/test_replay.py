"""Where replay works, why it does not elsewhere, and how much memory it takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from cpr_contract.choices import ReplayPolicy
from cpr_operator.api.frozen_settings import replay_in_force, replay_policy
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.quantities import read_bytes, with_more, write_bytes
from cpr_operator.api.spec import CPRJobSpec
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
    """A job that says nothing of replay, whose trainers have these resources."""
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
def test_trainers_keep_and_spill_as_much_as_the_spec_says(
    replay: dict[str, Any], memory: int, spill: int, reason: str
) -> None:
    asked = parse_spec(minimal()["spec"] | {"recovery": {"replay": replay}})
    job = to_job_spec(asked, "uid", "name")
    assert (job.replay_bytes, job.spill_bytes) == (memory, spill)
    assert reason in replay_policy(asked).reason


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
def test_by_default_trainers_keep_an_eighth_of_their_containers_memory(resources: object, size: int) -> None:
    assert replay_policy(sized(resources)).memory_bytes == size


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recovery__onShardLoss": "Degrade"}, "Degrade"),
        ({"trainers__denseSync": "ShadowMA", "trainers__replicas": 2}, "shadow mode"),
        ({"snapshots__strategy": "MFU"}, "MFU"),
    ],
)
def test_where_it_does_not_work_it_is_off_and_says_why(changes: dict[str, Any], reason: str) -> None:
    choice = replay_policy(spec({"mode": "Auto"}, **changes))
    assert choice.memory_bytes == 0
    assert reason in choice.reason


@pytest.mark.parametrize("field", ["spill", "memory"])
@pytest.mark.parametrize("amount", ["0Gi", "1", "1G", "1.5Gi", "-1Gi", "1Ti", ""])
def test_memory_and_spill_are_whole_numbers_of_kibi_mebi_or_gibibytes(field: str, amount: str) -> None:
    assert validate(small_job(recovery={"replay": {"mode": "Auto", field: amount}}))
    assert not validate(small_job(recovery={"replay": {"mode": "Auto", field: "64Mi"}}))


def test_a_job_that_started_does_what_was_chosen_then() -> None:
    asked = spec({"mode": "Auto"})
    assert replay_in_force(asked, Status()).memory_bytes == 256 * MIB
    assert replay_in_force(asked, started(None)).memory_bytes == 0, "the release that started it knew no replay"
    assert "started by a release" in replay_in_force(asked, started(None)).reason
    chosen = ReplayPolicy(memory_bytes=64 * MIB, spill_bytes=GIB, reason="chosen")
    found = replay_in_force(spec({"mode": "Off"}), started(chosen))
    assert (found.memory_bytes, found.spill_bytes) == (64 * MIB, GIB)


def test_a_job_that_resumes_replays_if_it_did_before() -> None:
    asked = spec({"mode": "Auto", "memory": "128Mi"})
    assert replay_policy(asked, ReplayPolicy(memory_bytes=1)).memory_bytes == 128 * MIB
    assert replay_policy(asked, ReplayPolicy(reason="as before")).reason == "as before"
    assert to_job_spec(asked, "uid", "name", replay=replay_policy(asked, ReplayPolicy())).replay_bytes == 0


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
def test_amounts_are_read_as_kubernetes_does(quantity: object, size: int | None) -> None:
    assert read_bytes(quantity) == (size if size is None or size <= 2**53 else None)
    assert size is None or math.ceil(parse_quantity(quantity)) == size


def test_more_memory_is_more_of_what_is_stated() -> None:
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
