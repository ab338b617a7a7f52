"""`python -m cpr_trainer inspect`: figures of files, and of what a job would make of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from cpr_contract.codec import to_json
from cpr_contract.requests import ColumnFigures, DataFigures, Inspection, InspectionRequest, Reading
from cpr_contract.spec import DataFormat, DataSpec, JobSpec, StoreSpec
from cpr_trainer.data.advice import SPELLINGS_REMEDY, advise, spells_ids, warn_of_spellings
from cpr_trainer.data.blocks import CORRECT_COLUMNS, Files, Format, Index, reading
from cpr_trainer.data.columns import CRITEO_NAMES, Columns, Input, columns_of
from cpr_trainer.data.evaluated import data_of_its_own
from cpr_trainer.data.figures import ColumnSummary
from cpr_trainer.data.files import files_of
from cpr_trainer.data.layout import Layout
from cpr_trainer.data.order import BatchOrder, held_out
from cpr_trainer.data.rows import decode
from cpr_trainer.data.source import find_vocabularies, format_of, index_data, with_vocabularies
from cpr_trainer.data.tables import index_files, layout_of
from cpr_trainer.data.unpacking import REMEDY, Text, first_line
from cpr_trainer.data.whole_numbers import as_canonical
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import data_access, read_job, read_request, store_access
from cpr_trainer.store import Uris

_FAULTS_SHOWN = 10


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `InspectionRequest` from `source` and write the `Inspection` to `sink`. Raises TrainerError."""
    request = read_request(InspectionRequest, source, "data inspect")
    if request.uri is not None:
        found = Inspection(inspect_files(request.uri, Uris(StoreSpec("file:///", None, "", ""))))
    else:
        job = read_job(environ)
        found = inspect_job(job, files_of(job, store_access(environ), data_access(environ)))
    print(to_json(found), file=sink, flush=True)


def inspect_files(uri: str, files: Files) -> DataFigures:
    """Return the figures of all columns of the files that `uri` names. Raises DataError."""
    found = files.find(uri)
    data = guess(found[0], files)
    form = format_of(data, None, files)
    return _gather(data, form, index_files(found, form), None)


def inspect_job(job: JobSpec, files: Files) -> Inspection:
    """Return the figures of the columns that a job reads, and what it makes of them. Raises DataError."""
    if job.data.format == "Synthetic":
        raise DataError("Synthetic data is made while it is trained: there is nothing to inspect.", "Name a file.")
    columns = columns_of(job.data, job.model)
    form = format_of(job.data, columns, files)
    indices = index_data(job.data, form, files)
    known = find_vocabularies(job.data, job.model, columns, files, form, indices, lambda: None)
    columns = with_vocabularies(columns, known)
    figures = _gather(job.data, form, indices, columns)
    reading, advice = _reading(job.data, layout_of(indices)), _advice(columns, figures.columns)
    figures = replace(figures, reading=reading, advice=(*figures.advice, *advice))
    own = data_of_its_own(job)
    return Inspection(figures, None if own is None else _scored(job, own, columns, files))


def _scored(job: JobSpec, data: DataSpec, columns: Columns, files: Files) -> DataFigures:
    """Return the figures of the data of its own that a job is scored on."""
    columns = replace(columns, group=None if job.evaluation is None else job.evaluation.group_by)
    form = format_of(data, columns, files)
    return _gather(data, form, index_data(data, form, files), columns)


def guess(uri: str, files: Files) -> DataSpec:
    """Return how a file is written, by its first bytes. Raises DataError."""
    with files.open(uri, files.version(uri)) as stream:
        if stream.read(4) == b"PAR1":
            return _spec("Parquet", uri)
        stream.seek(0)
        line = first_line(Text(stream, uri).read(0, 1 << 16), uri)
    tabs = "\t" in line
    with reading(uri, REMEDY):
        cells = line.split("\t") if tabs else next(csv.reader([line]), [])
    names = not any(_is_number(cell) for cell in cells)
    if tabs and not names and len(cells) == len(CRITEO_NAMES):
        return _spec("Criteo", uri)
    return _spec("TSV" if tabs else "CSV", uri, header=names)


def _gather(data: DataSpec, form: Format, indices: Sequence[Index], used: Columns | None) -> DataFigures:
    """Go through all blocks once."""
    separators = {} if used is None else _separators(used)
    integers = {each.column for each in (used.inputs if used else ()) if each.integers and not each.has_bags}
    summaries: dict[str, ColumnSummary] = {}
    bad, faults = 0, list[str]()
    for block in (block for index in indices for block in index.blocks):
        parsed = form.parse(block, form.fetch(block))
        with reading(block.uri, CORRECT_COLUMNS):
            for name in parsed.table.column_names:
                summary = summaries.setdefault(name, ColumnSummary(name, separators.get(name)))
                column = parsed.table.column(name)
                summary.add(as_canonical(column) if name in integers else column)
            wrong = parsed.ragged if used is None else decode(parsed, used).faults
        bad += len(wrong)
        for row in sorted(wrong)[: _FAULTS_SHOWN - len(faults)]:
            faults.append(f"{form.place(block, row)}: {wrong[row]}")
    feeds = {} if used is None else _feeds(used)
    columns = tuple(summary.figures(", ".join(feeds.get(name, ()))) for name, summary in summaries.items())
    return DataFigures(
        format=data.format,
        header=data.header and data.format in {"CSV", "TSV"},
        files=len(indices),
        rows=layout_of(indices).rows,
        bad=bad,
        faults=tuple(faults),
        columns=columns,
        reading=None,
        advice=_warnings(summaries, used),
    )


def _warnings(summaries: Mapping[str, ColumnSummary], used: Columns | None) -> tuple[str, ...]:
    """Return what is wrong with columns of ids; without a job any column of whole numbers may be one."""
    if used is None:
        names = [name for name, summary in summaries.items() if summary.spellings.only_whole]
    else:
        names = [each.column for each in used.inputs if spells_ids(each) and each.column in summaries]
    found = (warn_of_spellings(name, summaries[name].spellings) for name in dict.fromkeys(names))
    return tuple(f"{each} {SPELLINGS_REMEDY}" for each in found if each is not None)


def _separators(columns: Columns) -> dict[str, str]:
    """Return what separates ids, or weights, in columns of text, by the names of those that hold bags."""
    bags = (*columns.bags, *columns.weights)
    return {} if columns.separator is None else dict.fromkeys(bags, columns.separator)


def _feeds(columns: Columns) -> dict[str, list[str]]:
    """Say what each column becomes, by its name."""
    feeds: dict[str, list[str]] = {}
    uses = [(name, "label") for name in columns.labels] + [(name, "target") for name in columns.targets]
    uses += [(name, "count") for name in columns.counts] + [(name, "number") for name in columns.numbers]
    uses += [(each.column, _use_of(each)) for each in columns.inputs]
    uses += [(each.weights, f"weights of {each.column}") for each in columns.inputs if each.weights is not None]
    uses += [] if columns.group is None else [(columns.group, "group")]
    for name, use in uses:
        feeds.setdefault(name, []).append(use)
    return feeds


def _use_of(used: Input) -> str:
    pooling = {None: "", "None": ", a sequence"}.get(used.pooling, f", {str(used.pooling).lower()} of a bag")
    table = used.table
    numbered = {"RowNumber": " by number", "Vocabulary": " by vocabulary"}.get(table.ids, "")
    return f"table {table.name}, {table.rows} rows{numbered}{pooling}"


def _advice(used: Columns, columns: Sequence[ColumnFigures]) -> tuple[str, ...]:
    """Return what to change in the job's tables, in the order of what they are used for."""
    figures = {each.name: each for each in columns}
    found = (advise(figures[each.column], each.table) for each in used.inputs if each.column in figures)
    return tuple(dict.fromkeys(advice for advice in found if advice is not None))


def _reading(data: DataSpec, layout: Layout) -> Reading:
    order = BatchOrder.of(data, layout)
    windows = 1 if order.windows is None else order.windows.per_epoch
    out = held_out(data, layout.rows)
    return Reading(order.rows, len(out), order.total_samples, order.steps, windows)


def _spec(form: DataFormat, uri: str, *, header: bool = False) -> DataSpec:
    return DataSpec(form, uri, 1, None, 1, 0, 0, header=header)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
