"""The space for pushes on a trainer's disk, and the problem if there is none."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cpr_contract.reports import Problem
from cpr_trainer.runtime import Environment
from cpr_trainer.trainer.main import _open_spill
from support.shard_job import small_job


class Pod:
    """The part of an environment that is used here."""

    def __init__(self, folder: Path, memory_bytes: int, spill_bytes: int) -> None:
        self.job = replace(small_job(folder), replay_bytes=memory_bytes, spill_bytes=spill_bytes)
        self.scratch_dir = folder


def spill_of(folder: Path, memory_bytes: int, spill_bytes: int) -> tuple[bool, Problem | None]:
    """Return whether there is space on the disk, and the problem."""
    spill, problem = _open_spill(cast(Environment, Pod(folder, memory_bytes, spill_bytes)), None)
    if spill is not None:
        spill.close()
    return spill is not None, problem


def test_spill_is_opened_if_the_job_has_spill_and_replay(tmp_path: Path) -> None:
    assert spill_of(tmp_path, 1 << 20, 1 << 20) == (True, None)
    assert (tmp_path / "pushes").stat().st_size == 1 << 20
    assert spill_of(tmp_path / "none", 1 << 20, 0) == (False, None)
    assert spill_of(tmp_path / "none", 0, 1 << 20) == (False, None)


def test_full_disk_is_a_lasting_problem_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    is_open, problem = spill_of(tmp_path, 1 << 20, 1 << 20)
    assert not is_open
    assert problem is not None
    assert problem.reason == "SpillUnavailable"
    assert "spec.recovery.replay.spill" in problem.message
    assert "No space left on device" in problem.message
