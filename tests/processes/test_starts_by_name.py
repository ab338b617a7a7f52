"""A job starts by name from dynamic tables, one of them with another capacity: kills leave the bytes of a calm run.

The shards are killed before their first save, so they take the rows, entries and state of the other job's anchor again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.spec import ByNameSpec, JobSpec
from processes.faults import REPLAY, Row, killed_shards, run_without_loss
from processes.jobs import SAMPLES, dynamic
from support.model import SavedModel, saved_model

pytestmark = pytest.mark.dist


def model_of(row: Row, job: JobSpec, folder: Path) -> SavedModel:
    """Run the job of a row to its end; return its model."""
    folder.mkdir()
    result = run_without_loss(row, job, folder)
    assert result.anchor.samples == SAMPLES
    return saved_model(job, result.anchor, folder / "model")


def test_job_that_starts_by_name_from_dynamic_tables_is_repeated_after_a_kill(tmp_path: Path) -> None:
    job = replace(dynamic(tmp_path), replay_bytes=REPLAY["replay_bytes"])
    first = tmp_path / "first"
    first.mkdir()
    source = run_without_loss(Row("the source", "dynamic", ()), job, first).anchor
    users, *others = job.model.tables
    snapshots = replace(job.snapshots, restore_from=source.key, by_name=ByNameSpec(resized="Rehash"))
    tables = (replace(users, rows=2 * users.rows), *others)
    next_job = replace(job, model=replace(job.model, tables=tables), snapshots=snapshots)
    calm = model_of(Row("calm", "dynamic", ()), replace(next_job, job_uid="calm"), tmp_path / "calm")
    killed = Row("killed", "dynamic", ((60, killed_shards(0, 1)), (140, killed_shards(1))))
    found = model_of(killed, replace(next_job, job_uid="killed"), tmp_path / "killed")
    for expected, keys in zip(calm.keys, found.keys, strict=True):
        assert expected is not None
        assert keys is not None
        assert len(expected) > 0
        assert torch.equal(keys, expected)
    assert all(map(torch.equal, found.tables, calm.tables))
    assert torch.equal(found.dense, calm.dense)
    assert (found.auc, found.log_loss, found.scored) == (calm.auc, calm.log_loss, calm.scored)
    known = saved_model(job, source, tmp_path / "known")
    assert (calm.auc or 0) > (known.auc or 1), "the second job begins with what the first one has learnt"
