from pathlib import Path

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import ExitCode, Problem
from cpr_trainer.process import main, threads


@pytest.mark.parametrize(("stated", "expected"), [("3", 3), ("0", None), ("", None), ("many", None)])
def test_threads_come_from_the_environment_or_the_processors(stated: str, expected: int | None) -> None:
    assert threads({"OMP_NUM_THREADS": stated}) == expected or (expected is None and threads({}) >= 1)


@pytest.mark.parametrize("role", ["trainer", "shard"])
def test_missing_environment_variable_is_named(role: str, tmp_path: Path) -> None:
    termination = tmp_path / "termination"

    assert main([role], {env.TERMINATION_FILE: str(termination), "OMP_NUM_THREADS": "1"}) == ExitCode.BAD_SPEC
    problem = from_json(Problem, termination.read_text())
    assert problem.reason == "BadSpec"
    assert env.SPEC in problem.message
