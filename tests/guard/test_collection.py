"""No test is lost in silence: git keeps every folder of tests, and pytest walks into it."""

import contextlib
import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.options import Options

TESTS = Path(__file__).parents[1]


def test_pytest_walks_into_every_folder_of_tests(pytestconfig: pytest.Config) -> None:
    passed_over = pytestconfig.getini("norecursedirs")
    parts = {part for file in TESTS.rglob("test_*.py") for part in file.relative_to(TESTS).parent.parts}
    assert {"processes", "soak"} <= parts
    assert not {part for part in parts for pattern in passed_over if fnmatch.fnmatch(part, pattern)}


def test_git_ignores_no_test() -> None:
    files = [str(file) for file in TESTS.rglob("*.py")]
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=TESTS, capture_output=True, text=True, check=False)
    assert ignored.returncode in {1, 128}, ignored.stdout  # 128: no git here


def test_the_linter_passes_over_no_test() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", str(TESTS)]
    shown = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {str(file) for file in TESTS.rglob("*.py")} <= set(shown)


def test_the_type_checker_passes_over_no_test() -> None:
    options = Options()
    parse_config_file(options, lambda: None, str(TESTS.parent / "pyproject.toml"))
    with contextlib.chdir(TESTS.parent):
        checked = {Path(str(source.path)).resolve() for source in create_source_list(options.files or (), options)}
    assert set(TESTS.rglob("*.py")) <= checked
