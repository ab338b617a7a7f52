"""Opens the data that a job names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpr_contract.spec import ColumnsSpec, DataSpec, TableSpec
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.blocks import Files, Format, Index
from cpr_trainer.data.columns import check_bags, columns_of, dialect_of
from cpr_trainer.data.features import check_tables
from cpr_trainer.data.parquet import ParquetFormat
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.data.tables import TableDataset, index_files
from cpr_trainer.data.text import TextFormat
from cpr_trainer.errors import DataError

#: Finds and indexes the files of a job's data. Raises DataError, and what `Files` raises.
Find = Callable[[], Sequence[Index]]


def open_dataset(
    data: DataSpec, tables: Sequence[TableSpec], files: Files, pinned: Callable[[Find], Sequence[Index]] | None = None
) -> Dataset:
    """Return the samples that `data` names, with one id for each of `tables`.

    `pinned` says what was found once, and may ask to find it now. Raises DataError for data that cannot be used, and
    whatever `files` and `pinned` raise.
    """
    check_bags(data, tables)
    if data.format == "Synthetic":
        if data.samples is None:
            raise DataError("Synthetic data has no length of its own.", "State data.samples.")
        return SyntheticDataset(data.samples, data.seed, tables)
    if data.uri is None:
        raise DataError(f"{data.format} data needs a place to be read from.", "State data.uri.")
    uri, columns = data.uri, columns_of(data, len(tables))
    check_tables(tables, len(columns.categories))
    form = format_of(data, columns, tables, files)

    def find() -> Sequence[Index]:
        return index_files(files.find(uri), form)

    return TableDataset(data, tables, form, find() if pinned is None else pinned(find))


def format_of(data: DataSpec, columns: ColumnsSpec | None, tables: Sequence[TableSpec], files: Files) -> Format:
    """Return what reads some columns of the files that `data` names, those that feed `tables`, or all (None)."""
    if data.format == "Parquet":
        return ParquetFormat(files, columns, [table.pooling is not None for table in tables])
    return TextFormat(files, dialect_of(data), columns)
