"""`python -m cpr_trainer inspect`: statistics of files, and the samples that a job would make of them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from cpr_contract.codec import to_json
from cpr_contract.model import PAGE_SLOTS
from cpr_contract.requests import ColumnStats, DataStats, Inspection, InspectionRequest, Reading
from cpr_contract.spec import DataFormat, DataSpec, JobSpec, StoreSpec
from cpr_trainer.data.column_summary import ColumnSummary, Distinct, can_be
from cpr_trainer.data.decode import decode
from cpr_trainer.data.dialect import dialect_of
from cpr_trainer.data.files import CORRECT_COLUMNS, Block, Format, Index, content_errors
from cpr_trainer.data.json_lines import JsonLinesFormat
from cpr_trainer.data.open import evaluation_data, files_of, format_of, index_data, with_vocabularies
from cpr_trainer.data.order import BatchOrder, held_out
from cpr_trainer.data.reader import index_files, layout_of
from cpr_trainer.data.schema import CRITEO_NAMES, Columns, columns_of
from cpr_trainer.data.tables import table_format
from cpr_trainer.data.text import REMEDY, Text, first_line
from cpr_trainer.data.vocabularies import find_vocabularies
from cpr_trainer.data.whole_numbers import SPELLINGS_REMEDY, as_canonical, spelling_matters
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import data_access, read_job, read_request, store_access
from cpr_trainer.store import Uris

#: A column's kind in text, and in Parquet; of a bag, that of its ids.
_INTEGERS = re.compile("(list of )?(integer|u?int[0-9]+)( or (integer|u?int[0-9]+))*")
#: Formats by their first bytes.
_BINARY: dict[bytes, DataFormat] = {b"PAR1": "Parquet", b"ARRO": "Arrow", b"ORC": "ORC"}
#: The data of files that no job names.
_UNSTATED = DataSpec("Parquet", None, 1, None, 1, 0, 0, header=False)
#: In a fuller dynamic table more new ids find their place full (ADR 46).
_OCCUPANCY = 0.9
_MAX_ERRORS_SHOWN = 10


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `InspectionRequest` from `source` and write the `Inspection` to `sink`. Raises TrainerError."""
    request = read_request(InspectionRequest, source, "data inspect")
    if request.uri is not None:
        found = Inspection(inspect_files(request, Uris(StoreSpec("file:///", None, "", ""))))
    else:
        job = read_job(environ)
        found = inspect_job(job, files_of(job, store_access(environ), data_access(environ)))
    print(to_json(found), file=sink, flush=True)


def inspect_files(request: InspectionRequest, files: Uris) -> DataStats:
    """Return the statistics of all columns of the files that `request.uri` names. Raises DataError."""
    uri = str(request.uri)
    table = table_format(uri, files)
    if table is None:
        found = files.find(uri)
        data = _detect(found[0], files)
        form = format_of(data, None, files)
        indices = index_files(found, form)
    else:
        data = replace(_UNSTATED, format=table, uri=uri)
        form = format_of(data, None, files)
        indices = list(index_data(data, form, files))
    separators = {} if request.separator is None else dict.fromkeys(request.bags, request.separator)
    return _summarize(data, form, indices, None, _sample(indices, request.rows), separators)[0]


def _sample(indices: Sequence[Index], rows: int | None) -> list[Block]:
    """Return blocks with about `rows` rows, at even distances over all files; None: all blocks."""
    blocks = [block for index in indices for block in index.blocks]
    total = layout_of(indices).rows
    if rows is None or rows >= total:
        return blocks
    count = max(1, round(len(blocks) * rows / total))
    return [blocks[place * len(blocks) // count] for place in range(count)]


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
    names = not any(can_be(float, cell) for cell in cells)
    form: DataFormat = "TSV" if tabs else "CSV"
    if tabs and not names and len(cells) == len(CRITEO_NAMES):
        form = "Criteo"
    return replace(_UNSTATED, format=form, uri=uri, header=names)


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


def _summarize(  # noqa: PLR0913, PLR0917 -- the data, and the part of it that is read
    data: DataSpec,
    form: Format,
    indices: Sequence[Index],
    used: Columns | None,
    sample: Sequence[Block] | None = None,
    separators: Mapping[str, str] | None = None,
) -> tuple[DataStats, dict[str, ColumnSummary]]:
    """Read the blocks of `sample`, or all. Returns the statistics, and the summary of each column by its name."""
    separators = separators or {}
    blocks = _sample(indices, None) if sample is None else sample
    if used is not None and used.separator is not None:
        separators = dict.fromkeys((*used.bags, *used.weights), used.separator)
    integers = {each.column for each in (used.inputs if used else ()) if each.integers and not each.has_bags}
    dialect = dialect_of(data) if data.format in {"CSV", "TSV"} else None
    summaries: dict[str, ColumnSummary] = {}
    bad, errors = 0, list[str]()
    for block in blocks:
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
    rows, read = layout_of(indices).rows, sum(block.rows for block in blocks)
    stats = DataStats(
        format=data.format,
        header=data.header and data.format in {"CSV", "TSV"},
        files=len(indices),
        rows=rows,
        bad=bad,
        faults=tuple(errors),
        columns=columns,
        reading=None,
        advice=(*_spelling_advice(summaries, used), *_csv_advice(summaries, used)),
        read=None if read == rows else read,
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
