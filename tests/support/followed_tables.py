"""Tables of Delta Lake and Iceberg that grow, a followed job's looks at them, and a trainer that reads the pins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType

from cpr_contract.model import TableSpec
from cpr_contract.pinned_data import DataPin
from cpr_contract.spec import ColumnsSpec, DataFormat, DataSpec, FollowSpec
from cpr_trainer.data.open import arrivals_of, format_of
from cpr_trainer.data.schema import columns_of
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData
from support.lake_tables import clicks_of, iceberg_catalog, of_table
from support.local_job import small_job
from support.memory_store import MemoryStore
from support.table_data import FILES

BATCH = 4
COLUMNS = ColumnsSpec(("click",), (), (), ("user",))


class Lake(Protocol):
    """A table in a folder that one of the libraries writes.

    `delete` and `overwrite` return the version that removes rows.
    """

    data: DataSpec
    folder: Path

    def append(self, first: int, count: int = BATCH) -> None: ...
    def append_with_column(self, first: int) -> None: ...
    def append_without(self, column: str, first: int) -> None: ...
    def compact(self) -> None: ...
    def delete(self, key: int) -> int: ...
    def overwrite(self, first: int) -> int: ...
    def set_property(self) -> None: ...
    def drop_column(self, name: str) -> None: ...
    def go_back(self, versions: int) -> None: ...
    def expire(self) -> None: ...
    def version(self) -> int: ...


class DeltaLake:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = following("Delta", folder)
        write_deltalake(folder, clicks_of(0, 0))

    def append(self, first: int, count: int = BATCH) -> None:
        write_deltalake(self.folder, clicks_of(first, count), mode="append", schema_mode="merge")

    def append_with_column(self, first: int) -> None:
        rows = clicks_of(first, BATCH).append_column("new", pa.array(range(BATCH)))
        write_deltalake(self.folder, rows, mode="append", schema_mode="merge")

    def append_without(self, column: str, first: int) -> None:
        write_deltalake(self.folder, clicks_of(first, BATCH).drop_columns([column]), mode="append")

    def compact(self) -> None:
        DeltaTable(self.folder).optimize.compact()

    def delete(self, key: int) -> int:
        DeltaTable(self.folder).delete(f"key = {key}")
        return self.version()

    def overwrite(self, first: int) -> int:
        write_deltalake(self.folder, clicks_of(first, BATCH), mode="overwrite")
        return self.version()

    def set_property(self) -> None:
        DeltaTable(self.folder).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})

    def drop_column(self, name: str) -> None:
        """Commit as Spark does, for which delta-rs has no operation."""
        last = DeltaTable(self.folder).metadata()
        schema = json.loads(DeltaTable(self.folder).schema().to_json())
        schema["fields"] = [field for field in schema["fields"] if field["name"] != name]
        about = {
            "id": str(last.id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 1,
        }
        self.commit({"metaData": about})

    def commit(self, *actions: dict[str, Any]) -> None:
        log = self.folder / "_delta_log" / f"{self.version() + 1:020}.json"
        log.write_text("\n".join(map(json.dumps, actions)), "utf-8")

    def go_back(self, versions: int) -> None:
        DeltaTable(self.folder).restore(self.version() - versions)

    def expire(self) -> None:
        """Delete all of the log before its newest version."""
        self.set_property()
        table = DeltaTable(self.folder)
        table.create_checkpoint()
        for file in (self.folder / "_delta_log").glob("*.json"):
            if file.name < f"{table.version():020}":
                file.unlink()

    def version(self) -> int:
        return DeltaTable(self.folder).version()


class IcebergLake:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.folder = Path(table.location().removeprefix("file://"))
        self.data = following("Iceberg", self.folder)

    def append(self, first: int, count: int = BATCH) -> None:
        self.table.append(clicks_of(first, count))

    def append_with_column(self, first: int) -> None:
        with self.table.update_schema() as update:
            update.add_column("new", LongType())
        self.table.append(clicks_of(first, BATCH).append_column("new", pa.array(range(BATCH))))

    def append_without(self, column: str, first: int) -> None:
        self.table.append(clicks_of(first, BATCH).drop_columns([column]))

    def compact(self) -> None:
        """Rewrite all files as Spark does, for which pyiceberg has no operation."""
        scan = self.table.scan()
        with self.table.transaction() as change, change.update_snapshot().overwrite() as update:
            for task in scan.plan_files():
                update.delete_data_file(task.file)
            for file in _dataframe_to_data_files(self.table.metadata, scan.to_arrow(), self.table.io):
                update.append_data_file(file)
            summary = update._summary
            update._summary = lambda *given: Summary(Operation.REPLACE, **summary(*given).additional_properties)

    def delete(self, key: int) -> int:
        self.table.delete(f"key = {key}")
        return self.version()

    def overwrite(self, first: int) -> int:
        self.table.overwrite(clicks_of(first, BATCH), "key >= 0")
        return self.table.snapshots()[-2].snapshot_id  # the last one appends

    def set_property(self) -> None:
        with self.table.transaction() as change:
            change.set_properties({"note": "x"})

    def drop_column(self, name: str) -> None:
        with self.table.update_schema() as update:
            update.delete_column(name)

    def go_back(self, versions: int) -> None:
        snapshot = self.table.history()[-1 - versions].snapshot_id
        self.table.manage_snapshots().rollback_to_snapshot(snapshot).commit()

    def expire(self) -> None:
        """Let all snapshots before the current one expire."""
        ids = [each.snapshot_id for each in self.table.snapshots()[:-1]]
        self.table.maintenance.expire_snapshots().by_ids(ids).commit()

    def version(self) -> int:
        found = self.table.current_snapshot()
        assert found is not None
        return found.snapshot_id


@contextmanager
def lake_of(form: DataFormat, folder: Path) -> Iterator[Lake]:
    """Yield a table without rows."""
    if form == "Delta":
        yield DeltaLake(folder / "clicks")
        return
    with iceberg_catalog(folder) as catalog:
        yield IcebergLake(catalog.create_table("lake.clicks", clicks_of(0).schema))


def following(form: DataFormat, folder: Path) -> DataSpec:
    """Return the data of a job that follows a table; its rows are trained in their order."""
    return replace(of_table(form, folder), columns=COLUMNS, batch_size=BATCH, shuffle_rows=0, follow=FollowSpec(1.0))


def looks_of(store: MemoryStore, data: DataSpec) -> DataLooks:
    """Return the looks of a leader that starts."""
    model = replace(small_job(Path("unused"), samples=0).model, tables=(TableSpec("user", 100),))
    return DataLooks(data, "uid", store, arrivals_of(data, columns_of(data, model), FILES))


def look(looks: DataLooks, times: int = 2, *, waits: bool = True) -> list[DataPin]:
    """Look, and return the pins. A metadata file of Iceberg is the table's at the second look."""
    found = (looks.look(waits=waits, now_s=0.0) for _ in range(times))
    return [pin for pin in found if pin is not None]


class Reader:
    """A trainer: the rows of the pins that it has read, by their key, and those of a step."""

    def __init__(self, store: MemoryStore, data: DataSpec) -> None:
        self.followed = FollowedData(data, "uid", store)
        self._form = format_of(data, None, FILES)
        self.rows: list[dict[str, Any]] = []

    def read(self) -> list[int]:
        """Read the new pins; return the keys of all rows."""
        for index in self.followed.read():
            for block in index.blocks:
                self.rows += self._form.parse(block, self._form.fetch(block)).table.to_pylist()
        return [row["key"] for row in self.rows]

    def trained(self) -> Sequence[int]:
        """Return the keys of the rows of all steps, in their order."""
        order = self.followed.order
        steps = range(1, order.steps + 1)
        return [self.rows[row]["key"] for step in steps for row in order.indices_of(order.slice_of(step)).tolist()]
