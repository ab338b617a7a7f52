"""A machine without the real click logs says so where nobody can miss it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TEST = """
from support.realdata import click_log


def test_that_needs_a_log():
    assert click_log("clicks.parquet")
"""


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the test as a developer would who has no logs, in a terminal with colours."""
    file = folder / "test_needs_a_log.py"
    file.write_text(TEST)
    command = [sys.executable, "-m", "pytest", "--color=yes", "-p", "no:cacheprovider", "-p", "conftest"]
    command += ["-c", str(TESTS.parent / "pyproject.toml"), f"--rootdir={folder}", str(file)]
    without = {name: value for name, value in os.environ.items() if not name.startswith(("CPR_", "PYTEST_"))}
    return subprocess.run(
        command,
        cwd=folder,
        env={**without, "PYTHONPATH": str(TESTS), "CPR_REAL_DATA": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_skip_for_want_of_real_data_is_told_in_red(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout + ended.stderr
    line = "1 TESTS DID NOT RUN: no real click logs in /nonexistent (set CPR_REAL_DATA)"
    told = next(each for each in ended.stdout.splitlines() if line in each)
    assert "\x1b[31m" in told
    assert "1 skipped" in ended.stdout


def test_where_nothing_may_be_skipped_it_is_a_failure(tmp_path: Path) -> None:
    ended = run(tmp_path, CPR_CLUSTER_TESTS="required")
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    assert "no real click logs: clicks.parquet is not in /nonexistent" in ended.stdout
