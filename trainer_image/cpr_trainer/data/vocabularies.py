"""Vocabularies give each value a row of its table: read from files, or built in one pass over the trained rows.

A file is text with a value a line, or Parquet with one column.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cpr_contract.model import ModelSpec, TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data import text
from cpr_trainer.data.decode import cells_of
from cpr_trainer.data.files import CORRECT_COLUMNS, Block, Format, Index, content_errors, is_outage
from cpr_trainer.data.order import held_out
from cpr_trainer.data.reader import layout_of
from cpr_trainer.data.schema import Columns, as_texts, is_category
from cpr_trainer.errors import DataError, TrainerError
from cpr_trainer.store import Uris
from cprjob_serving.vocabulary import Vocabulary

#: By the name of their table.
Vocabularies = dict[str, Vocabulary]

#: The maximum of different values that are counted for each row of a table: it bounds the memory.
MAX_VALUES_PER_ROW = 16
_MERGED_AT_ONCE = 2**16
_BOM = b"\xef\xbb\xbf"
_NONE: Any = pa.table({"value": pa.array([], pa.large_binary()), "count": pa.array([], pa.int64())})


def find_vocabularies(  # noqa: PLR0913, PLR0917 -- the data, its columns and its blocks
    data: DataSpec,
    model: ModelSpec,
    columns: Columns,
    files: Uris,
    form: Format,
    indices: Sequence[Index],
    poll_interrupts: Callable[[], None],
) -> Vocabularies:
    """Read the vocabularies that have files, and build those of tables that have a `min_count`.

    `poll_interrupts` is called before each block of data. Raises DataError, also if a table has fewer rows than values
    and the default row, and what `files`, `form` and `poll_interrupts` raise.
    """
    found = {
        table.name: read_vocabulary(table.vocabulary, files, f"spec.model.tables[{place}].vocabulary.uri")
        for place, table in enumerate(model.tables)
        if table.vocabulary is not None
    }
    counts = {table.name: ValueCounts(table, place) for place, table in enumerate(model.tables) if table.min_count}
    if counts:
        _count(counts, data, columns, form, indices, poll_interrupts)
        found |= {name: each.vocabulary() for name, each in counts.items()}
    for place, table in enumerate(model.tables):
        if table.name in found and table.rows <= (values := len(found[table.name])):
            fewer = "" if table.min_count is None else ", or raise vocabulary.build.minCount there"
            raise DataError(
                f"Table {table.name} has {table.rows} rows, and its vocabulary {values} values and the default row.",
                f"Set spec.model.tables[{place}].rows to {values + 1}{fewer}.",
            )
    return found


def read_vocabulary(uri: str, files: Uris, field: str) -> Vocabulary:
    """Read a file of values. Raises DataError, which names `field`, and what `files` raise."""
    try:
        with files.open(uri, files.version(uri)) as stream:
            magic = stream.read(4)
            stream.seek(0)
            text = _of_parquet(stream) if magic == b"PAR1" else _of_text(stream, uri)
            found = Vocabulary.of(text)
    except DataError as error:
        raise DataError(error.message, f"Check {field}: a text file with a value a line, or Parquet.") from error
    except (TrainerError, MemoryError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        raise DataError(
            f"{uri} is not a vocabulary: {error}.",
            f"Check {field}: a text file with a value a line, or Parquet with one column, each value once.",
        ) from error
    if not len(found):
        raise DataError(
            f"{uri} is not a vocabulary: it has no value, so that all ids would share the default row.",
            f"Check {field}, and whether the file was written to its end.",
        )
    return found


def _of_text(stream: BinaryIO, uri: str) -> bytes:
    """Return the lines of a text, which may be packed. Each ends in a line feed alone."""
    pieces: list[bytes] = []
    size = 0
    with closing(text.Text(stream, uri)) as source:
        while piece := source.read(size, text.BLOCK_BYTES):
            pieces.append(piece)
            size += len(piece)
    lines = b"".join(pieces).removeprefix(_BOM).replace(b"\r\n", b"\n")
    return lines if lines.endswith(b"\n") or not lines else lines + b"\n"


def _of_parquet(stream: BinaryIO) -> bytes:
    """Return the values of the only column as lines. Raises ValueError, ArrowInvalid."""
    table = pq.read_table(stream)
    if table.num_columns != 1:
        raise ValueError(f"it has {table.num_columns} columns instead of one")
    column: Any = table.column(0)
    if not is_category(column.type):
        raise ValueError(f"its column is {column.type}, not text or integers")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    texts = as_texts(column.combine_chunks())
    if column.null_count or pc.any(pc.match_substring(texts, "\n")).as_py():
        raise ValueError("a value is null, or has a line feed")
    return b"".join(each + b"\n" for each in texts.to_pylist())


def _count(  # noqa: PLR0913, PLR0917 -- the data, its columns and its blocks
    counts: Mapping[str, ValueCounts],
    data: DataSpec,
    columns: Columns,
    form: Format,
    indices: Sequence[Index],
    poll_interrupts: Callable[[], None],
) -> None:
    """Count the values of the tables in `counts` over the rows that are not held out, on all processors."""
    used = [each for each in columns.inputs if each.table.name in counts]
    layout = layout_of(indices)
    trained = np.diff(layout.first(held_out(data, layout.rows).start).starts).tolist()
    blocks = [block for index in indices for block in index.blocks]

    def count(block: Block, rows: int, fetched: Any) -> list[Any]:
        parsed = form.parse(block, fetched)
        # Ragged rows are not in the table.
        table = parsed.table.slice(0, rows - sum(row < rows for row in parsed.ragged))
        with content_errors(block.uri, CORRECT_COLUMNS):
            return [count_values(cells_of(table, each, columns.separator)) for each in used]

    def add_first() -> None:
        for each, values in zip(used, begun.popleft().result(), strict=True):
            counts[each.table.name].add(values)

    processors = len(os.sched_getaffinity(0))
    begun: deque[Future[list[Any]]] = deque()
    with ThreadPoolExecutor(max_workers=processors, thread_name_prefix="data-count") as pool:
        for block, rows in zip(blocks, trained, strict=False):  # The last blocks may be held out.
            poll_interrupts()
            begun.append(pool.submit(count, block, rows, form.fetch(block)))
            if len(begun) > processors:
                add_first()
        while begun:
            add_first()


def count_values(cells: Any) -> Any:
    """Return the frequency of each value in a pyarrow chunked array, as a table of `value` and `count`.

    A null and an empty text are no values. A value may have several entries.
    """
    parts = [_NONE]
    for chunk in cells.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        values = as_texts(coded.dictionary).cast(pa.large_binary())
        counts = np.bincount(coded.indices.drop_null().to_numpy(), minlength=len(values))
        part = pa.table({"value": values, "count": pa.array(counts, pa.int64())})
        parts.append(part.filter((pc.field("count") > 0) & (pc.binary_length(pc.field("value")) > 0)))
    return pa.concat_tables(parts)


class ValueCounts:
    """The frequency of each value of a table in the data; `place` is that of the table in the model.

    Memory: for each different value its own bytes and about 300 more, while they are merged.
    """

    def __init__(self, table: TableSpec, place: int) -> None:
        self._table = table
        self._field = f"spec.model.tables[{place}]"
        self._merged = _NONE
        self._unmerged: list[Any] = []
        self._unmerged_values = 0

    def add(self, found: Any) -> None:
        """Add a result of `count_values`. Raises DataError if there are more different values than may be counted."""
        self._unmerged.append(found)
        self._unmerged_values += found.num_rows
        if self._unmerged_values > max(self._merged.num_rows, _MERGED_AT_ONCE):
            self._merge()

    def vocabulary(self) -> Vocabulary:
        """Return the values that are frequent enough, the most frequent first, then by their bytes.

        Every pass over the same data finds the same order. Raises DataError if there is none, or one has a line feed.
        """
        self._merge()
        frequent = self._merged.filter(pc.field("count") >= self._table.min_count)
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
            pa.concat_tables([self._merged, *self._unmerged])
            .group_by("value", use_threads=False)
            .aggregate([("count", "sum")])
        )
        self._merged = whole.rename_columns(["value", "count"])
        self._unmerged, self._unmerged_values = [], 0
        most = MAX_VALUES_PER_ROW * self._table.rows
        if self._merged.num_rows > most:
            raise DataError(
                f"Table {self._table.name} has {self._table.rows} rows, and the data more than {most} different "
                "values for it, which are too many to count.",
                f"Give {self._field} more rows, or a file of values (vocabulary.uri).",
            )
