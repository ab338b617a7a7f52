"""Vocabularies that are built of the data: one pass over the rows that are trained counts the values of each table."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.model import ModelSpec, TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.arrow_types import as_texts
from cpr_trainer.data.blocks import CORRECT_COLUMNS, Block, Format, Index, reading
from cpr_trainer.data.categories import cells_of
from cpr_trainer.data.columns import Columns
from cpr_trainer.data.order import held_out
from cpr_trainer.data.tables import layout_of
from cpr_trainer.errors import DataError
from cprjob_serving.vocabulary import Vocabulary

#: So many different values a row of the table are counted at most: it bounds the memory.
MOST_VALUES_PER_ROW = 16
_MERGED_AT_ONCE = 2**16
_NONE: Any = pa.table({"value": pa.array([], pa.large_binary()), "count": pa.array([], pa.int64())})


def build_vocabularies(  # noqa: PLR0913, PLR0917 -- what is read, and how
    data: DataSpec,
    model: ModelSpec,
    columns: Columns,
    form: Format,
    indices: Sequence[Index],
    poll_interrupts: Callable[[], None],
) -> dict[str, Vocabulary]:
    """Return the vocabularies of tables that have a `min_count`, by their name: values of rows that are not held out.

    The most frequent value is the first; of those that are as frequent it is the first by its bytes. So every pass over
    the same data finds the same. `poll_interrupts` is called before each block. Raises DataError, and what `form` and
    `poll_interrupts` raise.
    """
    counts = {table.name: ValueCounts(table, place) for place, table in enumerate(model.tables) if table.min_count}
    used = [each for each in columns.inputs if each.table.name in counts]
    if not counts:
        return {}
    layout = layout_of(indices)
    trained = np.diff(layout.first(held_out(data, layout.rows).start).starts).tolist()
    blocks = [block for index in indices for block in index.blocks]

    def count(block: Block, rows: int, fetched: Any) -> list[Any]:
        parsed = form.parse(block, fetched)
        # Ragged rows are not in the table.
        table = parsed.table.slice(0, rows - sum(row < rows for row in parsed.ragged))
        with reading(block.uri, CORRECT_COLUMNS):
            return [count_values(cells_of(table, each, columns.separator)) for each in used]

    for found in _of_blocks(form, blocks[: len(trained)], trained, count, poll_interrupts):
        for each, values in zip(used, found, strict=True):
            counts[each.table.name].add(values)
    return {name: each.vocabulary() for name, each in counts.items()}


class ValueCounts:
    """How often each value of a table stands in the data; `place` is that of the table in the model.

    Memory: for each different value its own bytes and about 300 more, while they are merged.
    """

    def __init__(self, table: TableSpec, place: int) -> None:
        self._table = table
        self._field = f"spec.model.tables[{place}]"
        self._known = _NONE
        self._late: list[Any] = []
        self._late_values = 0

    def add(self, found: Any) -> None:
        """Add what `count_values` returned. Raises DataError if there are more different values than may be counted."""
        self._late.append(found)
        self._late_values += found.num_rows
        if self._late_values > max(self._known.num_rows, _MERGED_AT_ONCE):
            self._merge()

    def vocabulary(self) -> Vocabulary:
        """Return the values that are frequent enough. Raises DataError if none is, or one cannot be kept as a line."""
        self._merge()
        frequent = self._known.filter(pc.field("count") >= self._table.min_count)
        values = frequent.sort_by([("count", "descending"), ("value", "ascending")]).column("value")
        if not len(values):
            raise DataError(
                f"No value of table {self._table.name} stands {self._table.min_count} times in the data.",
                f"Lower {self._field}.vocabulary.build.minCount.",
            )
        if pc.any(pc.match_substring(values, "\n")).as_py():
            raise DataError(
                f"A value of table {self._table.name} has a line feed.", "Remove it from the data, or hash its ids."
            )
        lines = BytesIO()
        lines.writelines(each.as_py() + b"\n" for each in values)
        return Vocabulary.of(lines.getvalue())

    def _merge(self) -> None:
        # Threads would each have a table of all values.
        whole = (
            pa.concat_tables([self._known, *self._late])
            .group_by("value", use_threads=False)
            .aggregate([("count", "sum")])
        )
        self._known = whole.rename_columns(["value", "count"])
        self._late, self._late_values = [], 0
        most = MOST_VALUES_PER_ROW * self._table.rows
        if self._known.num_rows > most:
            raise DataError(
                f"Table {self._table.name} has {self._table.rows} rows, and the data more than {most} different "
                "values for it, which are too many to count.",
                f"Give {self._field} more rows, or a file of values (vocabulary.uri).",
            )


def count_values(cells: Any) -> Any:
    """Return how often each value stands in a pyarrow chunked array, as a table of `value` and `count`.

    A null and an empty text are no values. A value may be there more than once.
    """
    parts = [_NONE]
    for chunk in cells.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        values = as_texts(coded.dictionary).cast(pa.large_binary())
        counts = np.bincount(coded.indices.drop_null().to_numpy(), minlength=len(values))
        part = pa.table({"value": values, "count": pa.array(counts, pa.int64())})
        parts.append(part.filter((pc.field("count") > 0) & (pc.binary_length(pc.field("value")) > 0)))
    return pa.concat_tables(parts)


def _of_blocks(
    form: Format,
    blocks: Sequence[Block],
    rows: Sequence[int],
    count: Callable[[Block, int, Any], list[Any]],
    poll_interrupts: Callable[[], None],
) -> Iterator[list[Any]]:
    """Read blocks one after the other, and yield what `count` makes of each and of its first rows, in their order.

    As many are counted side by side as there are processors, and as many wait.
    """
    processors = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max_workers=processors, thread_name_prefix="data-count") as pool:
        begun: deque[Future[list[Any]]] = deque()
        for block, first in zip(blocks, rows, strict=True):
            poll_interrupts()
            begun.append(pool.submit(count, block, first, form.fetch(block)))
            if len(begun) > processors:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
