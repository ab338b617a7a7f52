"""The workflows have the least rights, pinned actions, and the commands of the Makefile."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
#: The only rights to write, by what they are for: the site, what proves who signs, the release.
WRITES = {"pages", "id-token", "contents"}


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def test_workflows_are_tests_soak_site_and_release() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "nightly", "release", "tests"]


def test_nightly_runs_every_part_of_the_soak() -> None:
    parts = subprocess.run(
        ["make", "--silent", "--no-print-directory", "parts"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    matrix = jobs(ROOT / ".github" / "workflows" / "nightly.yaml")["soak"]["strategy"]["matrix"]
    assert matrix["part"] == parts.split()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_jobs_state_their_rights(path: Path) -> None:
    rights = yaml.safe_load(path.read_text("utf-8"))["permissions"]
    assert rights in ({}, {"contents": "read"})
    for job in jobs(path).values():
        assert job["timeout-minutes"] > 0
        assert rights or job["permissions"]
        assert {name for name, may in job.get("permissions", {}).items() if may != "read"} <= WRITES


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_have_versions_and_checkouts_leave_no_credentials(path: Path) -> None:
    used = [step for step in steps(path) if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"])
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_are_those_of_the_makefile_without_pasted_input(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    called = re.findall(r"\bmake ((?:--\w+ )*)([\w -]+)", "\n".join(commands))
    assert called
    assert {target for _, targets in called for target in targets.split()} <= TARGETS
    assert [command for command in commands if "${{" in command] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_no_host(path: Path) -> None:
    assert re.findall(r"\b[\w-]+\.(?:io|com|org|net|dev)\b", path.read_text("utf-8")) == []


def test_release_builds_every_image_of_the_dockerfile() -> None:
    stages = re.findall(r"^FROM run AS (\w+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    release = jobs(ROOT / ".github" / "workflows" / "release.yaml")
    assert sorted(release["images"]["strategy"]["matrix"]["target"]) == sorted(stages)
    assert (ROOT / ".ci" / "run").is_file()
    assert any(step.get("run") == ".ci/run" for step in steps(ROOT / ".github" / "workflows" / "tests.yaml"))
