"""`python -m cpr_trainer inspect`: statistics of files, and the samples that a job would make of them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.codec import to_json
from cpr_contract.model import PAGE_SLOTS
from cpr_contract.requests import ColumnStats, DataStats, Inspection, InspectionRequest, Reading
from cpr_contract.spec import DataFormat, DataSpec, JobSpec, StoreSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.csv_signs import CsvSigns
from cpr_trainer.data.decode import decode, split_bags
from cpr_trainer.data.dialect import Dialect, dialect_of
from cpr_trainer.data.files import CORRECT_COLUMNS, Format, Index, content_errors
from cpr_trainer.data.json_lines import JsonLinesFormat
from cpr_trainer.data.open import evaluation_data, files_of, format_of, index_data, with_vocabularies
from cpr_trainer.data.order import BatchOrder, held_out
from cpr_trainer.data.reader import index_files, layout_of
from cpr_trainer.data.schema import CRITEO_NAMES, Columns, columns_of, is_list, is_number, is_text
from cpr_trainer.data.tables import table_format
from cpr_trainer.data.text import REMEDY, Text, first_line
from cpr_trainer.data.vocabularies import find_vocabularies
from cpr_trainer.data.whole_numbers import SPELLINGS_REMEDY, Spellings, as_canonical, spelling_matters
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import data_access, read_job, read_request, store_access
from cpr_trainer.store import Uris
from cprjob_serving.hashes import U64, Cells

#: The kinds of text, from the narrowest to the widest: a column has the kind of its widest cell.
_KINDS = ("empty", "integer", "number", "text")
_NUMERIC_TEXTS = (("integer", pa.int64()), ("number", pa.float64()))
#: A column's kind in text, and in Parquet; of a bag, that of its ids.
_INTEGERS = re.compile("(list of )?(integer|u?int[0-9]+)( or (integer|u?int[0-9]+))*")
#: Formats by their first bytes.
_BINARY: dict[bytes, DataFormat] = {b"PAR1": "Parquet", b"ARRO": "Arrow", b"ORC": "ORC"}
#: The data of files that no job names.
_UNSTATED = DataSpec("Parquet", None, 1, None, 1, 0, 0, header=False)
_SKETCH = 4096
#: In a fuller dynamic table more new ids find their place full (ADR 46).
_OCCUPANCY = 0.9
_MAX_ERRORS_SHOWN = 10


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `InspectionRequest` from `source` and write the `Inspection` to `sink`. Raises TrainerError."""
    request = read_request(InspectionRequest, source, "data inspect")
    if request.uri is not None:
        found = Inspection(inspect_files(request.uri, Uris(StoreSpec("file:///", None, "", ""))))
    else:
        job = read_job(environ)
        found = inspect_job(job, files_of(job, store_access(environ), data_access(environ)))
    print(to_json(found), file=sink, flush=True)


def inspect_files(uri: str, files: Uris) -> DataStats:
    """Return the statistics of all columns of the files that `uri` names. Raises DataError."""
    if (table := table_format(uri, files)) is not None:
        data = replace(_UNSTATED, format=table, uri=uri)
        form = format_of(data, None, files)
        return _summarize(data, form, index_data(data, form, files), None)[0]
    found = files.find(uri)
    data = _detect(found[0], files)
    form = format_of(data, None, files)
    return _summarize(data, form, index_files(found, form), None)[0]


def _detect(uri: str, files: Uris) -> DataSpec:
    """Return the format of a file, by its first bytes. Raises DataError."""
    with files.open(uri, files.version(uri)) as stream:
        head = stream.read(4)
        for magic, binary in _BINARY.items():
            if head.startswith(magic):
                return replace(_UNSTATED, format=binary, uri=uri)
        stream.seek(0)
        line = first_line(Text(stream, uri, JsonLinesFormat.own).read(0, 1 << 16), uri)
    if line.lstrip().startswith("{"):
        return replace(_UNSTATED, format="JSONLines", uri=uri)
    tabs = "\t" in line
    with content_errors(uri, REMEDY):
        cells = line.split("\t") if tabs else next(csv.reader([line]), [])
    names = not any(_can_be(float, cell) for cell in cells)
    form: DataFormat = "TSV" if tabs else "CSV"
    if tabs and not names and len(cells) == len(CRITEO_NAMES):
        form = "Criteo"
    return replace(_UNSTATED, format=form, uri=uri, header=names)


def _can_be(convert: Callable[..., object], *values: object) -> bool:
    try:
        convert(*values)
    except ValueError:  # ArrowInvalid is one.
        return False
    return True


def inspect_job(job: JobSpec, files: Uris) -> Inspection:
    """Return the statistics of the columns that a job reads, and of its samples. Raises DataError."""
    if job.data.format == "Synthetic":
        raise DataError("Synthetic data is made while it is trained: there is nothing to inspect.", "Name a file.")
    columns = columns_of(job.data, job.model)
    form = format_of(job.data, columns, files)
    indices = index_data(job.data, form, files)
    vocabularies = find_vocabularies(job.data, job.model, columns, files, form, indices, lambda: None)
    columns = with_vocabularies(columns, vocabularies)
    stats, summaries = _summarize(job.data, form, indices, columns)
    layout = layout_of(indices)
    order = BatchOrder.of(job.data, layout)
    windows = int(order.shuffled)
    if order.shuffled and order.windows is not None:
        windows = order.windows.per_epoch
    reading = Reading(order.rows, len(held_out(job.data, layout.rows)), order.total_samples, order.steps, windows)
    advice = (*stats.advice, *_advice(columns, stats.columns), *_capacities(columns, summaries))
    stats = replace(stats, reading=reading, advice=advice)
    if (scored := evaluation_data(job)) is None:
        return Inspection(stats, None)
    columns = replace(columns, group=None if job.evaluation is None else job.evaluation.group_by)
    form = format_of(scored, columns, files)
    return Inspection(stats, _summarize(scored, form, index_data(scored, form, files), columns)[0])


def _summarize(
    data: DataSpec, form: Format, indices: Sequence[Index], used: Columns | None
) -> tuple[DataStats, dict[str, ColumnSummary]]:
    """Read all blocks once. Returns the statistics, and the summary of each column by its name."""
    separators = {}
    if used is not None and used.separator is not None:
        separators = dict.fromkeys((*used.bags, *used.weights), used.separator)
    integers = {each.column for each in (used.inputs if used else ()) if each.integers and not each.has_bags}
    dialect = dialect_of(data) if data.format in {"CSV", "TSV"} else None
    summaries: dict[str, ColumnSummary] = {}
    bad, errors = 0, list[str]()
    for block in (block for index in indices for block in index.blocks):
        parsed = form.parse(block, form.fetch(block))
        with content_errors(block.uri, CORRECT_COLUMNS):
            for name in parsed.table.column_names:
                summary = summaries.setdefault(name, ColumnSummary(name, separators.get(name), dialect))
                column = parsed.table.column(name)
                summary.add(as_canonical(column) if name in integers else column)
            wrong = parsed.ragged if used is None else decode(parsed, used).errors
        bad += len(wrong)
        for row in sorted(wrong)[: _MAX_ERRORS_SHOWN - len(errors)]:
            errors.append(f"{form.location(block, row)}: {wrong[row]}")
    uses = {} if used is None else _uses(used)
    columns = tuple(summary.stats(", ".join(uses.get(name, ()))) for name, summary in summaries.items())
    stats = DataStats(
        format=data.format,
        header=data.header and data.format in {"CSV", "TSV"},
        files=len(indices),
        rows=layout_of(indices).rows,
        bad=bad,
        faults=tuple(errors),
        columns=columns,
        reading=None,
        advice=(*_spelling_advice(summaries, used), *_csv_advice(summaries, used)),
    )
    return stats, summaries


def _uses(columns: Columns) -> dict[str, list[str]]:
    """Return the uses of each column in the model, by its name."""
    found: dict[str, list[str]] = {}
    uses = [(name, "label") for name in columns.labels] + [(name, "target") for name in columns.targets]
    uses += [(name, "count") for name in columns.counts] + [(name, "number") for name in columns.numbers]
    for each in columns.inputs:
        pooling = {None: "", "None": ", a sequence"}.get(each.pooling, f", {str(each.pooling).lower()} of a bag")
        numbered = {"RowNumber": " by number", "Vocabulary": " by vocabulary", "Dynamic": " by key"}.get(
            each.table.ids, ""
        )
        uses.append((each.column, f"table {each.table.name}, {each.table.rows} rows{numbered}{pooling}"))
    uses += [(each.weights, f"weights of {each.column}") for each in columns.inputs if each.weights is not None]
    uses += [] if columns.group is None else [(columns.group, "group")]
    uses += [] if columns.sample_weight is None else [(columns.sample_weight, "weight of samples")]
    for name, use in uses:
        found.setdefault(name, []).append(use)
    return found


def _spelling_advice(summaries: Mapping[str, ColumnSummary], used: Columns | None) -> tuple[str, ...]:
    """Return warnings about columns of ids; without a job any column of whole numbers may be one."""
    if used is None:
        names = [name for name, summary in summaries.items() if summary.spellings.only_whole]
    else:
        names = [each.column for each in used.inputs if spelling_matters(each) and each.column in summaries]
    found = (summaries[name].spellings.warning(name) for name in dict.fromkeys(names))
    return tuple(f"{each} {SPELLINGS_REMEDY}" for each in found if each is not None)


def _csv_advice(summaries: Mapping[str, ColumnSummary], used: Columns | None) -> list[str]:
    """Return warnings about columns of text that another program seems to have written in another syntax."""
    found: list[str] = []
    spelled = {each.column for each in (used.inputs if used else ()) if spelling_matters(each)}
    for name, summary in summaries.items():
        if summary.csv_signs is not None:
            numeric = used is not None and name in used.numeric
            found += summary.csv_signs.warnings(name, ids=used is None or name in spelled, numeric=numeric)
    return found


def _advice(used: Columns, columns: Sequence[ColumnStats]) -> tuple[str, ...]:
    """Return possible improvements of the job's tables, in the order of their columns' uses."""
    stats = {each.name: each for each in columns}
    found: list[str] = []
    for each in used.inputs:
        column, table = stats.get(each.column), each.table
        # Hashed ids that may be the numbers of rows.
        if (
            column is None
            or table.ids in {"RowNumber", "Vocabulary", "Dynamic"}
            or not _INTEGERS.fullmatch(column.kind)
        ):
            continue
        low, high = column.lowest, column.highest
        if low is None or high is None or low < 0 or high >= table.rows:
            continue
        ids = column.distinct or 0
        # The expected number of rows that these ids have, each at random.
        hit = round(table.rows * -math.expm1(-ids / table.rows))
        missing = column.missing and column.bag_mean is None
        absent = " and outOfRange: DefaultRow, because some are missing" if missing else ""
        found.append(
            f"Column {column.name} has integers from {low:.0f} to {high:.0f}, which are rows of table {table.name}. "
            f"Hashed, its {ids:,} different ids share about {hit:,} rows. "
            f"State ids: RowNumber in spec.model.tables{absent}."
        )
    return tuple(dict.fromkeys(found))


def _capacities(used: Columns, summaries: Mapping[str, ColumnSummary]) -> list[str]:
    """Return for each dynamic table the rows that the ids in its columns need."""
    found: list[str] = []
    for table in dict.fromkeys(each.table for each in used.inputs if each.table.ids == "Dynamic"):
        ids = Distinct()
        for name in dict.fromkeys(each.column for each in used.inputs if each.table == table):
            if name in summaries and (distinct := summaries[name].distinct) is not None:
                ids.merge(distinct)
        all_ids, repeated = ids.counts()
        found.append(
            f"Table {table.name} with ids: Dynamic has {table.rows:,} rows, and its data {all_ids:,} different ids, "
            f"{repeated:,} of them more than once. At {_OCCUPANCY:.0%} occupancy all ids take {_capacity(all_ids):,} "
            f"rows, and those that occur more than once {_capacity(repeated):,}, with admission: {{minSteps: 2}}."
        )
    return found


def _capacity(ids: int) -> int:
    """Return the least capacity of a dynamic table with this number of ids, at the occupancy `_OCCUPANCY`."""
    return PAGE_SLOTS * max(1, math.ceil(ids / (_OCCUPANCY * PAGE_SLOTS)))


class ColumnSummary:
    """The statistics of one column, block by block; of the ids in it, if it has lists, or texts with a `separator`."""

    def __init__(self, name: str, separator: str | None = None, dialect: Dialect | None = None) -> None:
        self._name = name
        self._separator = separator
        self._bags, self._ids_in_bags, self._longest_bag = 0, 0, 0
        self._text_kind = _KINDS[0]
        self._types = dict[str, None]()  # those of cells other than texts, in the order of their first
        self._missing = 0
        self._range: tuple[float, float] | None = None
        self.distinct: Distinct | None = Distinct()
        self.spellings = Spellings()
        self.csv_signs = None if dialect is None else CsvSigns(dialect)

    def add(self, column: Any) -> None:
        """Add the cells of one more block, a pyarrow chunked array."""
        of_lists = is_list(column.type) and not pa.types.is_nested(column.type.value_type)
        if len(column) and (self._separator is not None or of_lists):
            column, lengths, _ = split_bags(column, self._separator)
            self._bags += len(lengths)
            self._ids_in_bags += int(lengths.sum())
            self._longest_bag = max(self._longest_bag, int(lengths.max()))
            self._missing += int((lengths == 0).sum())
        for chunk in column.chunks:
            if pa.types.is_nested(chunk.type):
                self._types[str(chunk.type)], self.distinct = None, None
                self._missing += chunk.null_count
            else:
                self._add_values(chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode())

    def stats(self, feeds: str) -> ColumnStats:
        """Return the statistics of all cells."""
        lowest, highest = self._range or (None, None)
        distinct, repeated = (None, None) if self.distinct is None else self.distinct.counts()
        stats = ColumnStats(
            self._name, self._kind(), self._missing, lowest, highest, distinct, feeds, repeated=repeated
        )
        if not self._bags:
            return stats
        mean = self._ids_in_bags / self._bags
        return replace(stats, kind=f"list of {stats.kind}", bag_mean=mean, bag_most=self._longest_bag)

    def _kind(self) -> str:
        """Return the types of all cells: files may differ."""
        texts = [] if self._types and self._text_kind == _KINDS[0] else [self._text_kind]
        return " or ".join([*self._types, *texts])

    def _add_values(self, coded: Any) -> None:
        """Add a dictionary array: each different value is read once."""
        values, of_texts = coded.dictionary, is_text(coded.dictionary.type)
        texts = values.cast(pa.binary() if of_texts else pa.string()).cast(pa.binary())
        present = pc.greater(pc.binary_length(texts), 0)
        places = coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        occurrences = np.bincount(places, minlength=len(values) + 1)[:-1]
        # A dictionary may have values that no cell has.
        filled = present.to_numpy(zero_copy_only=False) & (occurrences > 0)
        self._missing += len(places) - int(occurrences[filled].sum())
        texts = texts.filter(pa.array(filled))
        if self.distinct is not None:
            self.distinct.add(Cells.of_arrow(texts).hashes(), occurrences[filled])
        if of_texts or pa.types.is_integer(values.type):
            self.spellings.add(texts)
        if self.csv_signs is not None:
            self.csv_signs.add(texts)
        if not of_texts:
            if not pa.types.is_null(values.type):
                self._types[str(values.type)] = None
            if is_number(values.type):
                self._widen(values)
        elif self._text_kind != "text" and len(texts):
            kind = next((kind for kind, to in _NUMERIC_TEXTS if _can_be(texts.cast, to)), "text")
            self._text_kind = max(self._text_kind, kind, key=_KINDS.index)
            if self._text_kind == "text":
                self._range = None
            else:
                self._widen(texts)

    def _widen(self, values: Any) -> None:
        bounds = pc.min_max(values.cast(pa.float64(), safe=False))
        if (low := bounds["min"].as_py()) is not None:
            known = self._range or (low, low)
            self._range = (min(known[0], low), max(known[1], bounds["max"].as_py()))


class Distinct:
    """The number of different values, from the smallest of their hashes (Bar-Yossef et al., 2002).

    Exact while there are fewer than 4096; above that it follows from the density of the k smallest hashes, with a
    standard error of 1 / sqrt(k). The occurrences of these values are counted: a hash that is among the smallest at the
    end was so from its first occurrence on.
    """

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)
        self._occurrences = np.empty(0, np.int64)

    def add(self, hashes: U64, occurrences: Ints) -> None:
        """Count values by their hashes, uint64 [n], which may repeat. occurrences: int64 [n], of each."""
        if len(self._smallest) == _SKETCH:
            near = hashes <= self._smallest[-1]
            hashes, occurrences = hashes[near], occurrences[near]
        merged, places = np.unique(np.concatenate((self._smallest, hashes)), return_inverse=True)
        sums = np.zeros(len(merged), np.int64)
        np.add.at(sums, places, np.concatenate((self._occurrences, occurrences)))
        self._smallest, self._occurrences = merged[:_SKETCH], sums[:_SKETCH]

    def counts(self) -> tuple[int, int]:
        """Return the number of different values, and of those that occur at least twice."""
        repeated = int(np.count_nonzero(self._occurrences > 1))
        if len(self._smallest) < _SKETCH:
            return len(self._smallest), repeated
        distinct = (_SKETCH - 1) * 2.0**64 / float(self._smallest[-1])
        return round(distinct), round(distinct * repeated / _SKETCH)

    def merge(self, other: Distinct) -> None:
        """Add all values of another column."""
        self.add(other._smallest, other._occurrences)
