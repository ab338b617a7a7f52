"""Blocks are prefetched in order and within a bound on memory, and read again after an outage of the store."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.decode import Rows
from cpr_trainer.data.files import Block, SourceFile
from cpr_trainer.data.open import format_of, index_data, open_dataset
from cpr_trainer.data.reader import BlockPrefetcher, TableDataset
from cpr_trainer.data.schema import columns_of
from cpr_trainer.errors import DataError
from cpr_trainer.store import CredentialsRefusedError, StoreError, StoreUnreachableError, Version, interface
from support.fake_s3 import BUCKET, FakeS3
from support.plain_batches import single_ids
from support.table_data import (
    FILES,
    FORMATS,
    TABLES,
    assert_same,
    clicks,
    everything,
    model_of,
    read,
    read_through,
    write,
)

# --- Prefetch


FILE = SourceFile("f", Version(0, ""))
BLOCKS = tuple(Block(FILE, 10 * number, 10, number, 1) for number in range(12))


class Numbered:
    """Reads blocks with their number as content; notes fetched blocks, and waits for `go`."""

    def __init__(self) -> None:
        self.fetched: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.fail_at: int | None = None

    def fetch(self, block: Block) -> int:
        self.go.wait()
        self.fetched.append(block.start)
        if block.start == self.fail_at:
            raise OSError("disk gone")
        return block.start

    def decode(self, _number: int, block: Block, fetched: int) -> Rows:
        n = block.rows
        return Rows(np.zeros((n, 13), np.float32), np.full((n, 1), fetched, np.int32), np.zeros(n, np.uint8), {})


def prefetcher_of(form: Numbered, max_rows: int = 120) -> BlockPrefetcher:
    return BlockPrefetcher(BLOCKS, form.fetch, form.decode, max_rows)


def numbers(got: list[Rows]) -> list[int]:
    return [int(single_ids(rows)[0, 0]) for rows in got]


def test_prefetched_blocks_are_read_in_the_order_of_the_request() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    prefetcher.prefetch([5, 3, 9])
    assert numbers(prefetcher.get([3, 9, 5, 3])) == [3, 9, 5, 3]
    assert form.fetched == [5, 3, 9]


def test_block_is_read_once_while_it_is_cached_and_again_after_that() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form, max_rows=30)
    for number in (0, 1, 2, 0, 1, 2):
        prefetcher.get([number])
    assert form.fetched == [0, 1, 2]
    prefetcher.get([3])
    prefetcher.get([2])
    prefetcher.get([0])
    assert form.fetched == [0, 1, 2, 3, 0], "the least recently used block is dropped"


def test_canceled_blocks_are_not_read() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    form.go.clear()
    prefetcher.prefetch([0, 1, 2, 3])
    prefetcher.prefetch([7])
    form.go.set()
    assert numbers(prefetcher.get([7])) == [7]
    assert set(form.fetched) <= {0, 7}, "one may have been begun"


def test_awaited_block_arrives_after_another_prefetch() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    form.go.clear()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.extend(numbers(prefetcher.get([4, 5, 6]))))
    waiting.start()
    while len(prefetcher._cache) < 3:
        pass
    prefetcher.prefetch([1])
    form.go.set()
    waiting.join()
    assert got == [4, 5, 6]


def test_blocks_keep_their_numbers_while_earlier_ones_are_dropped() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    form.go.clear()
    prefetcher.prefetch([1, 3, 5])
    prefetcher.replace_blocks(4, (*BLOCKS[4:], Block(FILE, 0, 7, 12, 1)), 120)
    form.go.set()
    assert numbers(prefetcher.get([5, 4, 12])) == [5, 4, 12]
    assert set(form.fetched) <= {1, 4, 5, 12}, "one may have been begun"
    with pytest.raises(AssertionError, match="block 3 was dropped"):
        prefetcher.get([3])


def test_failed_block_raises_in_get_and_is_read_again() -> None:
    form = Numbered()
    form.fail_at = 2
    prefetcher = prefetcher_of(form)
    prefetcher.prefetch([1, 2, 3])
    assert numbers(prefetcher.get([1, 3])) == [1, 3], "2 has been tried before 3"
    with pytest.raises(OSError, match="disk gone"):
        prefetcher.get([2])
    form.fail_at = None
    assert numbers(prefetcher.get([1, 2, 3])) == [1, 2, 3]
    assert form.fetched == [1, 2, 3, 2, 2]


def test_rows_keep_their_numbers_while_files_are_dropped_and_added(tmp_path: Path) -> None:
    data = write(clicks(90), tmp_path, "parquet", files=3)
    model = model_of(TABLES)
    whole, indices = read(data), index_data(data, format_of(data, columns_of(data, model), FILES), FILES)
    dataset = open_dataset(data, model, FILES, lambda _: indices[:1])
    assert isinstance(dataset, TableDataset)
    assert len(dataset.take(np.arange(30))) == 30
    dataset.replace_files(0, indices[1:2])
    dataset.replace_files(len(indices[0].blocks), indices[2:])
    rows = np.array([89, 30, 59, 60, 31])
    assert_same(dataset.take(rows), whole.take(rows))
    with pytest.raises(AssertionError, match="was dropped"):
        dataset.take(np.array([29]))


@pytest.mark.parametrize("ending", ["csv", "tsv.zst", "parquet"])
def test_memory_is_two_windows_for_data_of_any_length(tmp_path: Path, ending: str) -> None:
    data = replace(write(clicks(2000) * 20, tmp_path, ending, files=40), shuffle_rows=4000, batch_size=100)
    seen, most = read_through(data, 2**14)
    assert seen == 40_000
    assert 4000 < most <= 2 * 4000 + 8 * 700, "two windows, the blocks at their ends, and those on their way"


def test_memory_is_two_windows_for_rows_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.dataset._PREFETCH_ROWS", 4000)
    data = replace(write(clicks(2000) * 20, tmp_path, "parquet", files=40), shuffle_rows=0, batch_size=100)
    seen, most = read_through(data, 2**14)
    assert seen == 40_000
    assert 4000 < most <= 2 * 4000 + 8 * 700


# --- Outages of the store


ROWS = 400


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)
    monkeypatch.setattr(interface, "_FIRST_PAUSE_S", 0.001)


def remote(ending: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[FakeS3, DataSpec, Dataset]:
    data = write(clicks(ROWS), folder, ending, files=2)
    client = FakeS3({f"day/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())})
    return client, data, open_dataset(replace(data, uri=f"s3://{BUCKET}/day/"), model_of(TABLES), client.uris(patch))


@pytest.mark.parametrize("refusal", ["down", "refuses"])
def test_blocks_of_a_failed_prefetch_are_read_again_when_needed(
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
        except StoreError:  # a request of before, still in flight
            continue
    assert_same(got, everything(read(data)))


@pytest.mark.parametrize("ending", FORMATS)
def test_interrupted_block_is_read_again_from_its_start(
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
@pytest.mark.parametrize(("change", "message"), [("gone", "is not there any more"), ("changed", "has changed")])
def test_deleted_or_changed_file_is_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, change: str, message: str
) -> None:
    client, _, dataset = remote(ending, tmp_path, monkeypatch)
    key = f"day/part-001.{ending}"
    if change == "gone":
        del client.objects[key]
    else:
        client.objects[key] = client.objects[key].replace(b"u", b"v")
    with pytest.raises(DataError, match=rf"s3://{BUCKET}/{key} {message}"):
        everything(dataset)
