"""Where replay works, and why it does not elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.sizes import replay_of
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.validate import parse_spec, validate
from support.runs import small_job


def spec(replay: dict[str, Any], **changes: Any) -> CPRJobSpec:
    """A small job; changes as recovery__onShardLoss."""
    document = small_job(recovery={"replay": replay})
    for path, value in changes.items():
        part, _, field = path.partition("__")
        document["spec"].setdefault(part, {})[field] = value
    return parse_spec(document["spec"])


def test_trainers_keep_as_much_as_the_spec_says() -> None:
    job = to_job_spec(spec({"mode": "Auto", "memory": "256Mi"}), "uid", "name")
    assert job.replay_bytes == 256 * 2**20
    assert to_job_spec(spec({"mode": "Off", "memory": "256Mi"}), "uid", "name").replay_bytes == 0
    assert replay_of(spec({"mode": "Auto"})).memory_bytes == 2**30
    assert replay_of(spec({"mode": "Auto"}, trainers__replicas=3)).memory_bytes == 2**30


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recovery__onShardLoss": "Degrade"}, "Degrade"),
        ({"trainers__denseSync": "ShadowMA", "trainers__replicas": 2}, "shadow mode"),
        ({"snapshots__strategy": "MFU"}, "MFU"),
    ],
)
def test_where_it_does_not_work_it_is_off_and_says_why(changes: dict[str, Any], reason: str) -> None:
    choice = replay_of(spec({"mode": "Auto"}, **changes))
    assert choice.memory_bytes == 0
    assert reason in choice.reason


@pytest.mark.parametrize("memory", ["0Gi", "1", "1G", "1.5Gi", "-1Gi", "1Ti", ""])
def test_memory_is_a_whole_number_of_kibi_mebi_or_gibibytes(memory: str) -> None:
    assert validate(small_job(recovery={"replay": {"mode": "Auto", "memory": memory}}))
    assert not validate(small_job(recovery={"replay": {"mode": "Auto", "memory": "64Mi"}}))
