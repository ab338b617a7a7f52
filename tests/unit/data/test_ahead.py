"""Blocks are read ahead, in order, and never more of them than memory is meant for."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_trainer.data.decode import Rows
from cpr_trainer.data.files import Block, SourceFile
from cpr_trainer.data.reader import BlockPrefetcher
from cpr_trainer.store import Version
from support.plain_batches import single_ids
from support.table_data import clicks, read_through, write

FILE = SourceFile("f", Version(0, ""))
BLOCKS = tuple(Block(FILE, 10 * number, 10, number, 1) for number in range(12))


class Numbered:
    """Reads blocks that hold their number; notes what is fetched, and waits where told to."""

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

    def decode(self, number: int, fetched: int) -> Rows:
        n = BLOCKS[number].rows
        return Rows(np.zeros((n, 13), np.float32), np.full((n, 1), fetched, np.int32), np.zeros(n, np.uint8), {})


def prefetcher_of(form: Numbered, max_rows: int = 120) -> BlockPrefetcher:
    return BlockPrefetcher(BLOCKS, form.fetch, form.decode, max_rows)


def numbers(got: list[Rows]) -> list[int]:
    return [int(single_ids(rows)[0, 0]) for rows in got]


def test_blocks_are_read_in_the_order_they_are_expected_in() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    prefetcher.prefetch([5, 3, 9])
    assert numbers(prefetcher.get([3, 9, 5, 3])) == [3, 9, 5, 3]
    assert form.fetched == [5, 3, 9]


def test_a_block_is_read_once_while_it_is_kept_and_again_after_that() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form, max_rows=30)
    for number in (0, 1, 2, 0, 1, 2):
        prefetcher.get([number])
    assert form.fetched == [0, 1, 2]
    prefetcher.get([3])
    prefetcher.get([2])
    prefetcher.get([0])
    assert form.fetched == [0, 1, 2, 3, 0], "the one not used for longest had to go"


def test_what_is_no_longer_expected_is_not_read() -> None:
    form = Numbered()
    prefetcher = prefetcher_of(form)
    form.go.clear()
    prefetcher.prefetch([0, 1, 2, 3])
    prefetcher.prefetch([7])
    form.go.set()
    assert numbers(prefetcher.get([7])) == [7]
    assert set(form.fetched) <= {0, 7}, "one may have been begun"


def test_a_block_that_is_waited_for_comes_though_others_are_expected() -> None:
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


def test_failed_block_raises_where_it_is_wanted_and_is_read_again() -> None:
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


@pytest.mark.parametrize("ending", ["csv", "tsv.zst", "parquet"])
def test_memory_is_two_windows_however_long_the_data(tmp_path: Path, ending: str) -> None:
    data = replace(write(clicks(2000) * 20, tmp_path, ending, files=40), shuffle_rows=4000, batch_size=100)
    seen, most = read_through(data, 2**14)
    assert seen == 40_000
    assert 4000 < most <= 2 * 4000 + 8 * 700, "two windows, the blocks at their ends, and those on their way"
