"""Opens the data that a job names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cpr_contract.model import ModelSpec
from cpr_contract.reports import IDS_SPELLED_TWICE, Problem
from cpr_contract.spec import DataSpec
from cpr_trainer.data.advice import SPELLINGS_REMEDY, spells_ids, warn_of_spellings
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.blocks import CORRECT_COLUMNS, Files, Format, Index, reading
from cpr_trainer.data.categories import cells_of
from cpr_trainer.data.columns import Columns, check_bags, check_fixed_layout, columns_of, dialect_of
from cpr_trainer.data.counting import build_vocabularies, count_values
from cpr_trainer.data.features import check_tables
from cpr_trainer.data.own import OwnFormat
from cpr_trainer.data.parquet import ParquetFormat
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.data.tables import TableDataset, index_files
from cpr_trainer.data.text import TextFormat
from cpr_trainer.data.vocabularies import Vocabularies, check_rows, read_vocabularies
from cpr_trainer.data.whole_numbers import Spellings
from cpr_trainer.errors import DataError
from cprjob_serving.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)
_LOOKED_AT = 8
_SHOWN = 3

#: Finds and indexes the files of a job's data. Raises DataError, and what `Files` raises.
Find = Callable[[], Sequence[Index]]
#: Finds the vocabularies of a job's tables, and calls what it is given between blocks of data. Raises as `Find`.
FindVocabularies = Callable[[Callable[[], None]], Vocabularies]


def log_problem(problem: Problem) -> None:
    """Log what keeps nothing from training."""
    _LOG.warning("%s %s", problem.message, problem.remedy)


def open_dataset(  # noqa: PLR0913, PLR0917 -- what is read, and what is known of it already
    data: DataSpec,
    model: ModelSpec,
    files: Files,
    pinned: Callable[[Find], Sequence[Index]] | None = None,
    group: str | None = None,
    vocabularies: Callable[[FindVocabularies], Vocabularies] | None = None,
    warn: Callable[[Problem], None] = log_problem,
) -> Dataset:
    """Return the samples that `data` names, with ids for each feature of `model`, and with their values of `group`.

    `pinned` and `vocabularies` say what was found once, and may ask to find it now. `warn` gets what is odd about data
    that is found now. Raises DataError for data that cannot be used, and whatever `files`, `pinned` and `vocabularies`
    raise.
    """
    check_bags(data, model)
    if data.format == "Synthetic":
        if data.samples is None:
            raise DataError("Synthetic data has no length of its own.", "State data.samples.")
        check_fixed_layout(data, model)
        return SyntheticDataset(data.samples, data.seed, model.tables)
    columns = replace(columns_of(data, model), group=group)
    check_tables(model.tables, len(model.tables) if model.features else len(columns.inputs))
    form = format_of(data, columns, files)

    def find() -> Sequence[Index]:
        found = index_data(data, form, files)
        # Files that another format opened are closed with it, and the dataset opens them when it reads.
        other = form if data.entrypoint is not None else format_of(data, columns, files)
        if warnings := look_for_spellings(columns, other, found):
            more = f" {len(warnings) - _SHOWN} more columns do so." if len(warnings) > _SHOWN else ""
            warn(Problem(IDS_SPELLED_TWICE, " ".join(warnings[:_SHOWN]) + more, SPELLINGS_REMEDY))
        return found

    indices = find() if pinned is None else pinned(find)
    if any(table.ids == "Vocabulary" for table in model.tables):

        def look(poll_interrupts: Callable[[], None]) -> Vocabularies:
            return find_vocabularies(data, model, columns, files, form, indices, poll_interrupts)

        columns = with_vocabularies(columns, look(lambda: None) if vocabularies is None else vocabularies(look))
    return TableDataset(data, columns, model, form, indices)


def look_for_spellings(columns: Columns, form: Format, indices: Sequence[Index]) -> list[str]:
    """Return warnings about columns that write ids in two ways, by the first blocks of up to 8 files.

    Raises DataError, and what `form` raises.
    """
    inputs = [each for each in columns.inputs if spells_ids(each)]
    found = {each.column: Spellings() for each in inputs}
    with_rows = [index for index in indices if index.blocks] if inputs else []
    for index in with_rows[:: -(-len(with_rows) // _LOOKED_AT) or 1]:
        block = index.blocks[0]
        table = form.parse(block, form.fetch(block)).table
        with reading(block.uri, CORRECT_COLUMNS):
            for each in inputs:
                found[each.column].add(count_values(cells_of(table, each, columns.separator))["value"].combine_chunks())
    warnings = (warn_of_spellings(name, spellings) for name, spellings in found.items())
    return [each for each in warnings if each is not None]


def find_vocabularies(  # noqa: PLR0913, PLR0917 -- what is read, and how
    data: DataSpec,
    model: ModelSpec,
    columns: Columns,
    files: Files,
    form: Format,
    indices: Sequence[Index],
    poll_interrupts: Callable[[], None],
) -> Vocabularies:
    """Read the vocabularies that have files, and build the others, by the name of their table.

    `poll_interrupts` is called between blocks of data. Raises DataError, and what `files` and `poll_interrupts` raise.
    """
    found = read_vocabularies(model, files)
    found |= build_vocabularies(data, model, columns, form, indices, poll_interrupts)
    check_rows(model, found)
    return found


def with_vocabularies(columns: Columns, vocabularies: Mapping[str, Vocabulary]) -> Columns:
    """Return columns with the vocabularies of their tables, by the name of these."""
    inputs = tuple(replace(each, vocabulary=vocabularies.get(each.table.name)) for each in columns.inputs)
    return replace(columns, inputs=inputs)


def index_data(data: DataSpec, form: Format, files: Files) -> Sequence[Index]:
    """Find the blocks of what `data` names. Raises DataError, and what `files` raise."""
    if data.entrypoint is not None:
        return index_files((data.entrypoint,), form)
    if data.uri is None:
        raise DataError(f"{data.format} data needs a place to be read from.", "State data.uri.")
    return index_files(files.find(data.uri), form)


def format_of(data: DataSpec, columns: Columns | None, files: Files) -> Format:
    """Return what reads some columns of what `data` names, or all (None). Raises DataError and OSError of own data."""
    if data.entrypoint is not None:
        return OwnFormat(data.entrypoint, data.uri, columns)
    if data.format == "Parquet":
        return ParquetFormat(files, columns)
    return TextFormat(files, dialect_of(data), columns)
