"""The report of a trainer before its first roster: an emulated precision, and the updates that its image has."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cpr_contract import env, processor
from cpr_contract.choices import Device, Precision, SparseUpdates
from cpr_contract.codec import from_json
from cpr_contract.reports import TrainerReport
from cpr_contract.roster import TrainerRoster
from cpr_trainer.runtime import Access, Environment
from cpr_trainer.runtime.roster_file import RosterFile
from cpr_trainer.trainer.control import Terminated
from cpr_trainer.trainer.main import _train
from support.shard_job import HOST, KEY, small_job

OLD, NEW = "flags : fpu avx512f\n", "flags : fpu avx512f avx512_bf16\n"


class _ReadsReport:
    """Reads the report in place of a wait for the first roster, and ends the process."""

    current = None

    def __init__(self, url: str) -> None:
        self._url = url
        self.report = b""

    def healthy(self) -> bool:
        return True

    def wait_for_roster(self) -> None:
        with urlopen(self._url) as page:  # noqa: S310 -- our own
            self.report = page.read()
        raise Terminated


def first_report(folder: Path, **changes: Any) -> TrainerReport:
    """Return the first report of a trainer of a job with these fields."""
    job = replace(small_job(folder), **changes)
    with socket.socket() as one:
        one.bind((HOST, 0))
        port = one.getsockname()[1]
    base = port - env.HTTP_PORT
    environment = Environment(
        job, folder / "roster", KEY, HOST, base, Access(), Access(), folder, folder / "word", None
    )
    control = _ReadsReport(f"http://{HOST}:{port}/status")
    with pytest.raises(Terminated):
        _train(environment, control, None, RosterFile(environment.roster_file, TrainerRoster))  # type: ignore[arg-type]
    return from_json(TrainerReport, control.report.decode())


@pytest.mark.parametrize("updates", ["PerStep", "PerPush"])
def test_first_report_has_the_updates_of_the_spec(tmp_path: Path, updates: SparseUpdates) -> None:
    assert first_report(tmp_path, sparse_updates=updates).sparse_updates == updates


@pytest.mark.parametrize(
    ("precision", "device", "cpuinfo", "reported"),
    [
        ("bf16", "cpu", OLD, True),
        ("bf16", "cpu", NEW, False),
        ("fp32", "cpu", OLD, False),
        ("bf16", "cuda", OLD, False),
    ],
)
def test_emulated_precision_is_in_the_first_report_and_in_the_log(  # noqa: PLR0913, PLR0917 -- a row of the table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    precision: Precision,
    device: Device,
    cpuinfo: str,
    reported: bool,  # noqa: FBT001 -- the same
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    caplog.set_level(logging.WARNING)

    problem = first_report(tmp_path, precision=precision, device=device).problem

    assert (problem is not None) == reported
    assert bool(caplog.messages) == reported
    if problem is not None:
        assert problem.reason == "PrecisionEmulated"
        for text in (f"{problem.message} {problem.remedy}", *caplog.messages):
            assert "spec.trainers.precision" in text
            assert "fp32" in text
            assert "AVX512-BF16" in text
