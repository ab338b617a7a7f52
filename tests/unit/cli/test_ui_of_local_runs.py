"""The jobs of local runs that `cprjob ui` lists."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cpr_operator.cli.command_errors import DocumentError
from cpr_operator.cli.ui import LocalJobs
from cpr_operator.cluster.local.object_files import write_json
from support.documents import edited


def job_file(folder: Path, run: str) -> Path:
    return folder / run / "jobs" / "default" / "clicks.json"


@pytest.mark.parametrize("content", [b"", b'{"metadata": '])
def test_damaged_file_of_one_run_hides_no_other(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    job = edited({"metadata.uid": "uid"})
    write_json(job_file(tmp_path, "whole"), job)
    job_file(tmp_path, "damaged").parent.mkdir(parents=True)
    job_file(tmp_path, "damaged").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        jobs = LocalJobs(tmp_path)
        assert jobs.list() == {("whole", "clicks"): job}
    assert caplog.text.count("damaged/jobs/default/clicks.json contains no job") == 1
    with pytest.raises(DocumentError, match="no job damaged/clicks"):
        jobs.report("damaged", "clicks")
