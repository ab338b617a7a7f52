"""Reads samples in files: block by block, ahead of their use, and with a bound on memory."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np

from cpr_contract.model import ModelSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.cells import RowErrors
from cpr_trainer.data.dataset import Batch, Layout, window_rows
from cpr_trainer.data.decode import Rows, decode
from cpr_trainer.data.files import CORRECT_COLUMNS, Block, Format, Index, content_errors
from cpr_trainer.data.json_lines import JsonLinesFormat
from cpr_trainer.data.schema import Columns, is_category
from cpr_trainer.embedding.bags import Bags, FeatureLayout
from cpr_trainer.errors import DataError

#: Decodes a block by its number, itself, and its fetched content. Raises DataError.
Decode = Callable[[int, Block, Any], Rows]

_INDEX_THREADS = 8
_CORRECT = "Correct evaluation.groupBy: it names a column that has one text or integer a sample."


def index_each(uris: Sequence[str], form: Format) -> list[Index]:
    """Index files, several at once. Raises DataError."""
    with ThreadPoolExecutor(max_workers=_INDEX_THREADS, thread_name_prefix="data-index") as pool:
        return list(pool.map(form.index, uris))


def index_files(uris: Sequence[str], form: Format) -> list[Index]:
    """Index files, several at once. Raises DataError, also if there is no row in them."""
    indices = index_each(uris, form)
    if not any(index.blocks for index in indices):
        raise DataError(f"{', '.join(uris[:2])} has no row: it is empty.", "Check data.uri and the files there.")
    if isinstance(form, JsonLinesFormat):
        form.check(indices)
    return indices


def layout_of(indices: Sequence[Index]) -> Layout:
    """Return the layout of the rows of these files: a sequential file is one unit, otherwise each block is."""
    sizes = [block.rows for index in indices for block in index.blocks]
    units: list[int] = []
    for index in indices:
        first = units[-1] + 1 if units else 0
        units += [first + (0 if index.sequential else place) for place in range(len(index.blocks))]
    return Layout.of(sizes, units)


class TableDataset:
    """The samples of one or many files, in the order of their names.

    The first files can be dropped, and others come after the last ones: rows and blocks keep their numbers.
    Memory is bounded: two windows of `window_rows` rows, and the blocks at their ends, at 4 N + L + 4 F bytes a row
    for N numeric features and F others, or 4 N + 4 L + 4 F with targets; 4 more for the weight of a sample, for each id
    of a row with bags, and for its weight. With dynamic tables an id takes 8 bytes.
    """

    def __init__(
        self, data: DataSpec, columns: Columns, model: ModelSpec, form: Format, indices: Sequence[Index]
    ) -> None:
        self._columns = columns
        self._features = FeatureLayout.of(model) if model.features else None
        predicted = len(columns.predicted)
        self._predicted = () if predicted == 1 else (predicted,)
        self._form = form
        self._bad = BadRows(data.max_bad_lines)
        self._window_rows = window_rows(data)
        self._prefetcher = BlockPrefetcher((), form.fetch, self._decode, 0)
        self._indices: tuple[Index, ...] = ()
        self._first_row = self._first_block = 0
        self.replace_files(0, indices)

    @property
    def layout(self) -> Layout:
        return self._layout

    def take(self, indices: Ints) -> Batch:
        indices = indices - self._first_row
        numbers = self._layout.blocks_of(indices)
        order = np.argsort(numbers, kind="stable")
        needed, starts = np.unique(numbers[order], return_index=True)
        dense = np.empty((len(indices), self._columns.width), np.float32)
        ids = np.empty((len(indices), len(self._columns.inputs)), np.int64)
        labels = np.empty((len(indices), *self._predicted), np.float32)
        good = np.ones(len(indices), np.bool_)
        groups = None if self._columns.group is None else np.full(len(indices), "", np.object_)
        weights = None if self._columns.sample_weight is None else np.zeros(len(indices), np.float32)
        bags: list[Bags] = []
        parts = np.split(order, starts[1:])
        blocks = self._prefetcher.get((needed + self._first_block).tolist())
        for number, places, rows in zip(needed.tolist(), parts, blocks, strict=False):
            within = indices[places] - self._layout.starts[number]
            dense[places], labels[places] = rows.dense[within], rows.labels[within]
            if isinstance(rows.ids, Bags):
                bags.append(rows.ids.take(within))
            else:
                ids[places] = rows.ids[within]
            if groups is not None and rows.groups is not None:
                groups[places] = rows.groups[within]
            if weights is not None and rows.sample_weights is not None:
                weights[places] = rows.sample_weights[within]
            if rows.errors:
                good[places] = ~np.isin(within, list(rows.errors))
        of_bags = Bags.join(bags).take(np.argsort(order)[good]) if bags else None
        if good.all():
            return Batch(dense, ids if of_bags is None else of_bags, labels, groups, weights)
        groups = None if groups is None else groups[good]
        weights = None if weights is None else weights[good]
        return Batch(dense[good], ids[good] if of_bags is None else of_bags, labels[good], groups, weights)

    def prefetch(self, blocks: Ints) -> None:
        self._prefetcher.prefetch(blocks.tolist())

    def replace_files(self, first_block: int, indices: Sequence[Index]) -> None:
        """Drop the files before this block, and add others after the last one. No other call may run meanwhile."""
        left = deque((*self._indices, *indices))
        while left and self._first_block + len(left[0].blocks) <= first_block:
            dropped = left.popleft().blocks
            self._first_block += len(dropped)
            self._first_row += sum(block.rows for block in dropped)
        assert self._first_block == first_block, "a file is dropped in part"
        self._indices = tuple(left)
        self._layout = layout_of(self._indices)
        blocks = tuple(block for index in self._indices for block in index.blocks)
        max_rows = 2 * self._window_rows + 4 * max((block.rows for block in blocks), default=0)
        self._prefetcher.replace_blocks(first_block, blocks, max_rows)

    def _decode(self, number: int, block: Block, fetched: Any) -> Rows:
        parsed = self._form.parse(block, fetched)
        if (group := self._columns.group) is not None:  # An index that was frozen earlier has no check of it.
            if (count := parsed.table.column_names.count(group)) != 1:
                raise DataError(f"{block.uri} has {count or 'no'} columns {group!r}.", _CORRECT)
            if not is_category(kind := parsed.table.schema.field(group).type):
                raise DataError(f"{block.uri}: column {group} is {kind}, not text or an integer.", _CORRECT)
        with content_errors(block.uri, CORRECT_COLUMNS):
            rows = decode(parsed, self._columns, self._features)
        assert len(rows) == block.rows, f"{len(rows)} rows of {block.uri} where its index has {block.rows}"
        self._bad.add(number, rows.errors, lambda row: self._form.location(block, row))
        return rows


class BlockPrefetcher:
    """Reads blocks ahead of their use: one thread fetches, and as many as there are processors decode.

    A cache has the rows of the blocks used last, up to `max_rows` rows. Safe to use from several threads.
    """

    def __init__(self, blocks: Sequence[Block], fetch: Callable[[Block], Any], decode: Decode, max_rows: int) -> None:
        self._first = 0
        self._blocks = blocks
        self._fetch = fetch
        self._make_rows = decode
        self._max_rows = max_rows
        self._lock = Lock()
        self._cache: OrderedDict[int, Future[Rows]] = OrderedDict()
        self._cached_rows = 0
        decoders = len(os.sched_getaffinity(0))
        self._fetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data-read")
        self._decoders = ThreadPoolExecutor(max_workers=decoders, thread_name_prefix="data-decode")
        self._fetched = BoundedSemaphore(decoders + 1)  # Bytes that wait for a decoder take memory, too.

    def replace_blocks(self, first: int, blocks: Sequence[Block], max_rows: int) -> None:
        """Read these blocks from now on, numbered from `first`: the present ones without some of the first, and more.

        The rows of earlier ones are dropped.
        """
        with self._lock:
            for number in [number for number in self._cache if number < first]:
                self._cache[number].cancel()
                self._drop(number)
            self._first, self._blocks, self._max_rows = first, blocks, max_rows

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Read these blocks, in this order; cancel earlier requests that have not begun."""
        with self._lock:
            for number in self._cache.keys() - set(numbers):
                if self._cache[number].cancel():
                    self._drop(number)
            for number in numbers:
                self._request(number)

    def get(self, numbers: Iterable[int]) -> list[Rows]:
        """Return the rows of blocks, once they are there. Raises what `fetch` and `decode` raise."""
        numbers = list(numbers)
        with self._lock:
            futures = [self._request(number) for number in numbers]
        return [self._await(number, future) for number, future in zip(numbers, futures, strict=True)]

    def _await(self, number: int, future: Future[Rows]) -> Rows:
        while True:
            try:
                return future.result()
            except CancelledError:  # Another call of `prefetch` canceled it.
                with self._lock:
                    future = self._request(number)

    def _request(self, number: int) -> Future[Rows]:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        assert number >= self._first, f"block {number} was dropped"
        future: Future[Rows] = Future()
        self._cache[number] = future
        block = self._blocks[number - self._first]
        self._cached_rows += block.rows
        while self._cached_rows > self._max_rows and len(self._cache) > 1:
            self._drop(next(iter(self._cache)))
        self._fetcher.submit(self._read, number, block, future)
        return future

    def _drop(self, number: int) -> None:
        del self._cache[number]
        self._cached_rows -= self._blocks[number - self._first].rows
        assert self._cached_rows >= 0, "more rows were dropped than cached"

    def _read(self, number: int, block: Block, future: Future[Rows]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._fetched.acquire()
        try:
            fetched = self._fetch(block)
        except BaseException as error:  # noqa: BLE001 -- raised again by `get`
            self._fetched.release()
            self._fail(number, future, error)
            return
        self._decoders.submit(self._decode, number, block, fetched, future)

    def _decode(self, number: int, block: Block, fetched: Any, future: Future[Rows]) -> None:
        try:
            future.set_result(self._make_rows(number, block, fetched))
        except BaseException as error:  # noqa: BLE001 -- raised again by `get`
            self._fail(number, future, error)
        finally:
            self._fetched.release()

    def _fail(self, number: int, future: Future[Rows], error: BaseException) -> None:
        """Raise in those that wait. A later request reads the block again: the store may be back by then."""
        with self._lock:
            if self._cache.get(number) is future:
                self._drop(number)
        future.set_exception(error)


class BadRows:
    """Counts bad rows; at most `limit` may be left out. Safe to use from several threads.

    It records their number and the text of the last one, for each block.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._found: dict[int, tuple[int, str]] = {}
        self._total = 0

    def add(self, block: int, errors: RowErrors, location: Callable[[int], str]) -> None:
        """Count the bad rows of a block; `location` describes a row. Raises DataError if there are too many by now.

        The error names a row that has at least `limit` bad ones before it, in the order of the data: the first of them
        if it is in this block.
        """
        if not errors:
            return
        last = max(errors)
        with self._lock:
            self._total += len(errors) - self._found.get(block, (0, ""))[0]
            self._found[block] = len(errors), f"{location(last)}: {errors[last]}"
            if self._total <= self._limit:
                return
            number, first = self._first_too_many()
            text, total = self._found[number][1], self._total
        if number == block:
            row = sorted(errors)[first]
            text = f"{location(row)}: {errors[row]}"
        raise DataError(
            f"{text} (bad rows so far: {total}, allowed: {self._limit}).",
            "Correct the row, or allow more bad ones (maxBadLines); those are skipped.",
        )

    def _first_too_many(self) -> tuple[int, int]:
        """Return the block of the first bad row beyond the limit, in the order of the data, and its place there."""
        left = self._limit
        for number in sorted(self._found):
            if left < self._found[number][0]:
                return number, left
            left -= self._found[number][0]
        raise AssertionError("the limit is not exceeded")
