"""Writes the same rows as other programs do: python data_writers.py WRITER ROWS.parquet FOLDER.

Runs in an environment that has these programs, and not the project. Each function leaves only data in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Writer = Callable[[Path, Path], object]


def _pandas(source: Path) -> Any:
    """Return a data frame. Integers with a missing one are floats in it."""
    return import_module("pyarrow.parquet").read_table(source).to_pandas()


def _polars(source: Path) -> Any:
    return import_module("polars").read_parquet(source)


def _duckdb(options: str, name: str) -> Writer:
    def write(source: Path, folder: Path) -> None:
        import_module("duckdb").sql(f"COPY (FROM '{source}') TO '{folder}/{name}' ({options})")

    return write


def _delta(source: Path, folder: Path) -> None:
    """Write a Delta table with folders of partitions, delete some rows, compact it, and add them again."""
    deltalake, rows = import_module("deltalake"), import_module("pyarrow.parquet").read_table(source)
    table = str(folder / "table")
    for part in (rows.slice(0, 5), rows.slice(5)):
        deltalake.write_deltalake(table, part, mode="append", partition_by=["site"])
    deltalake.DeltaTable(table).delete("price > 3")
    deltalake.DeltaTable(table).optimize.compact()
    deltalake.write_deltalake(table, rows.slice(3), mode="append", partition_by=["site"])


def _iceberg(source: Path, folder: Path) -> None:
    """Write an Iceberg table with a column that gets its name later, delete some rows, and add them again."""
    sql, rows = import_module("pyiceberg.catalog.sql"), import_module("pyarrow.parquet").read_table(source)
    catalog = sql.SqlCatalog("writer", uri="sqlite:///:memory:", warehouse=folder.as_uri())
    catalog.create_namespace("lake")
    old = rows.rename_columns(["was_" * (name == "user") + name for name in rows.column_names])
    table = catalog.create_table("lake.rows", old.schema, location=f"{folder.as_uri()}/table")
    for part in (old.slice(0, 5), old.slice(5)):
        table.append(part)
    with table.update_schema() as update:
        update.rename_column("was_user", "user")
    table.delete("price > 3")
    table.append(rows.slice(3))


def _spark(write: Callable[[Any, str], object]) -> Writer:
    def run(source: Path, folder: Path) -> None:
        builder = import_module("pyspark.sql").SparkSession.builder.master("local[1]")
        session = builder.config("spark.ui.enabled", "false").getOrCreate()
        write(session.read.parquet(str(source)).coalesce(1).write.mode("overwrite"), f"{folder}/")
        session.stop()

    return run


def _arrow(source: Path, folder: Path, **options: Any) -> None:
    parquet = import_module("pyarrow.parquet")
    parquet.write_table(parquet.read_table(source), folder / "a.parquet", **options)


def _hive(source: Path, folder: Path) -> None:
    parquet = import_module("pyarrow.parquet")
    parquet.write_to_dataset(parquet.read_table(source), folder, partition_cols=["site"])


def _fastparquet(source: Path, folder: Path, **options: Any) -> None:
    import_module("fastparquet").write(str(folder / "a.parquet"), _pandas(source), **options)


_V2 = {"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"}
WRITERS: dict[str, Writer] = {
    "pyarrow-delta-pages": lambda source, folder: _arrow(
        source, folder, use_dictionary=False, column_encoding={"user": "DELTA_BYTE_ARRAY"}, data_page_version="2.0"
    ),
    "pyarrow-hive": _hive,
    "polars-parquet": lambda source, folder: _polars(source).write_parquet(folder / "a.parquet"),
    "polars-csv": lambda source, folder: _polars(source).write_csv(folder / "a.csv"),
    "polars-ndjson": lambda source, folder: _polars(source).write_ndjson(folder / "a.jsonl"),
    "polars-ipc": lambda source, folder: _polars(source).write_ipc(folder / "a.arrow", compression="zstd"),
    "polars-ipc-categorical": lambda source, folder: (
        _polars(source).cast({"user": import_module("polars").Categorical}).write_ipc(folder / "a.arrow")
    ),
    "duckdb-parquet": _duckdb("FORMAT parquet, PARQUET_VERSION V1", "a.parquet"),
    "duckdb-parquet-v2": _duckdb("FORMAT parquet, PARQUET_VERSION V2", "a.parquet"),
    "duckdb-csv": _duckdb("FORMAT csv", "a.csv"),
    "duckdb-tsv": _duckdb(r"FORMAT csv, DELIMITER '\t'", "a.tsv"),
    "duckdb-json": _duckdb("FORMAT json", "a.jsonl"),
    "duckdb-hive": _duckdb("FORMAT parquet, PARTITION_BY (site)", "parts"),
    "pandas-parquet": lambda source, folder: _pandas(source).to_parquet(folder / "a.parquet"),
    "pandas-csv": lambda source, folder: _pandas(source).to_csv(folder / "a.csv", index=False),
    "pandas-csv-gzip": lambda source, folder: _pandas(source).to_csv(folder / "a.csv.gz", index=False),
    "pandas-csv-bz2": lambda source, folder: _pandas(source).to_csv(folder / "a.csv.bz2", index=False),
    "pandas-json": lambda source, folder: _pandas(source).to_json(folder / "a.jsonl", orient="records", lines=True),
    "pandas-feather": lambda source, folder: _pandas(source).to_feather(folder / "a.arrow"),
    "pandas-orc": lambda source, folder: _pandas(source).to_orc(folder / "a.orc"),
    "fastparquet": _fastparquet,
    "fastparquet-gzip": lambda source, folder: _fastparquet(source, folder, compression="GZIP", row_group_offsets=4),
    "deltalake": _delta,
    "pyiceberg": _iceberg,
    "spark-parquet": _spark(lambda frame, folder: frame.parquet(folder)),
    "spark-parquet-v2": _spark(lambda frame, folder: frame.options(**_V2).parquet(folder)),
    "spark-csv": _spark(lambda frame, folder: frame.option("header", value=True).csv(folder)),
    "spark-json": _spark(lambda frame, folder: frame.json(folder)),
    "spark-orc": _spark(lambda frame, folder: frame.orc(folder)),
    "spark-hive": _spark(lambda frame, folder: frame.partitionBy("site").parquet(folder)),
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
