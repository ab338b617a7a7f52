"""A store that fails while data is read: nothing of it is kept, and what no wait can mend is told by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.open import open_dataset
from cpr_trainer.errors import DataError
from cpr_trainer.store import CredentialsRefusedError, StoreError, StoreUnreachableError, persistence
from support.fake_s3 import BUCKET, FakeS3
from support.table_data import FORMATS, TABLES, assert_same, clicks, everything, model_of, read, write

ROWS = 400


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)
    monkeypatch.setattr(persistence, "_FIRST_S", 0.001)


def remote(ending: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[FakeS3, DataSpec, Dataset]:
    data = write(clicks(ROWS), folder, ending, files=2)
    client = FakeS3({f"day/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())})
    return client, data, open_dataset(replace(data, uri=f"s3://{BUCKET}/day/"), model_of(TABLES), client.uris(patch))


@pytest.mark.parametrize("refusal", ["down", "refuses"])
def test_rows_whose_reading_ahead_failed_are_read_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    client, data, dataset = remote("csv", tmp_path, monkeypatch)
    setattr(client, refusal, True)
    dataset.prefetch(np.arange(dataset.layout.blocks))
    with pytest.raises(CredentialsRefusedError if refusal == "refuses" else StoreUnreachableError):
        everything(dataset)
    assert client.refused
    setattr(client, refusal, False)
    while True:
        try:
            got = everything(dataset)
            break
        except StoreError:  # asked for before, and on its way since
            continue
    assert_same(got, everything(read(data)))


@pytest.mark.parametrize("ending", FORMATS)
def test_a_block_that_broke_off_is_read_from_its_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    client, data, dataset = remote(ending, tmp_path, monkeypatch)
    first = dataset.take(np.arange(1))
    client.cut_after = 700
    with pytest.raises(StoreUnreachableError):
        everything(dataset)
    client.cut_after, client.down = None, False
    while True:
        try:
            got = everything(dataset)
            break
        except StoreError:
            continue
    assert_same(got, everything(read(data)))
    assert_same(first, read(data).take(np.arange(1)))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(("change", "said"), [("gone", "is not there any more"), ("changed", "has changed")])
def test_a_file_that_is_gone_or_has_changed_is_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, change: str, said: str
) -> None:
    client, _, dataset = remote(ending, tmp_path, monkeypatch)
    key = f"day/part-001.{ending}"
    if change == "gone":
        del client.objects[key]
    else:
        client.objects[key] = client.objects[key].replace(b"u", b"v")
    with pytest.raises(DataError, match=rf"s3://{BUCKET}/{key} {said}"):
        everything(dataset)
