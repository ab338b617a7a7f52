"""The space for pushes on a trainer's disk, and the problem if there is none."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cpr_trainer.runtime import Environment
from cpr_trainer.trainer.main import _open_spill
from support.shard_job import small_job


class Pod:
    """The part of an environment that is used here."""

    def __init__(self, folder: Path, memory_bytes: int, spill_bytes: int) -> None:
        self.job = replace(small_job(folder), replay_bytes=memory_bytes, spill_bytes=spill_bytes)
        self.scratch_dir = folder


def spill_of(folder: Path, memory_bytes: int, spill_bytes: int) -> tuple[bool, str]:
    """Return whether there is space on the disk, and the reason of the problem."""
    spill, problem = _open_spill(cast(Environment, Pod(folder, memory_bytes, spill_bytes)), None)
    if spill is not None:
        spill.close()
    return spill is not None, "" if problem is None else problem.reason


def test_spill_is_opened_if_the_job_has_spill_and_replay(tmp_path: Path) -> None:
    assert spill_of(tmp_path, 1 << 20, 1 << 20) == (True, "")
    assert (tmp_path / "pushes").stat().st_size == 1 << 20
    assert spill_of(tmp_path / "none", 1 << 20, 0) == (False, "")
    assert spill_of(tmp_path / "none", 0, 1 << 20) == (False, "")


def test_full_disk_is_a_lasting_problem_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert spill_of(tmp_path, 1 << 20, 1 << 20) == (False, "SpillUnavailable")
    (message,) = caplog.messages
    assert "spec.recovery.replay.spill" in message
    assert "No space left on device" in message
