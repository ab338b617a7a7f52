"""A container's CPU limit counts as much as the processors of its node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpr_trainer.runtime import processors


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on eight."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def counted(folder: Path, own: str, **quotas: str) -> int:
    """Return the number of there are for a process in the control group `own`, with the quotas of groups, by path."""
    own_group, groups = folder / "cgroup", folder / "groups"
    own_group.write_text(own)
    for path, quota in quotas.items():
        group = groups.joinpath(*path.split("_")) if path else groups
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.max").write_text(quota + "\n")
    return processors(own_group, groups)


@pytest.mark.parametrize(
    ("quota", "count"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("max 100000", 8)],
)
def test_a_quota_is_rounded_up_and_no_more_than_there_are(tmp_path: Path, quota: str, count: int) -> None:
    assert counted(tmp_path, "0::/\n", **{"": quota}) == count


def test_the_lowest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    quotas = {"pods": "300000 100000", "pods_one": "max 100000", "pods_two": "100000 100000"}
    assert counted(tmp_path, "0::/pods/one\n", **quotas) == 3


@pytest.mark.parametrize("own", ["", "3:cpu:/pods\n", "0::/elsewhere\n"])
def test_without_a_group_that_has_a_quota_the_processors_count(tmp_path: Path, own: str) -> None:
    assert counted(tmp_path, own, pods="100000 100000") == 8


def test_a_system_without_control_groups_has_its_processors(tmp_path: Path) -> None:
    assert processors(tmp_path / "none", tmp_path) == 8
