"""A job on a store that lacks an ability is refused by name before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_contract.reports import ExitCode
from support.local_job import LocalJob, small_job
from support.warm_start import run_without_links

pytestmark = pytest.mark.dist


def test_job_on_an_unsuitable_store_fails_at_its_start(tmp_path: Path) -> None:
    with LocalJob(small_job(tmp_path, samples=100_000), tmp_path) as running:
        running.start(run_without_links)
        (trainer,) = running.trainers
        assert running.wait_exit(trainer) == ExitCode.BAD_SPEC
        assert trainer.problem.reason == "StoreUnsuitable"
        assert "without hard links" in trainer.problem.message
        assert "snapshots.store" in trainer.problem.remedy
