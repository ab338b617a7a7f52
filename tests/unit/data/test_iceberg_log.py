"""The snapshots of an Iceberg table after another one, read one by one and without a catalog."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestContent, ManifestFile

from cpr_contract.pinned_data import TableColumn, TableVersion
from cpr_trainer.data.iceberg_log import IcebergLog, settled_metadata
from cpr_trainer.data.table_log import Appended, check_columns_continue
from cpr_trainer.errors import DataError
from support.followed_tables import IcebergLake
from support.lake_tables import clicks_of, iceberg_catalog
from support.table_data import FILES


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergLake]:
    with iceberg_catalog(tmp_path) as catalog:
        yield IcebergLake(catalog.create_table("lake.clicks", clicks_of(0).schema))


@pytest.mark.parametrize(
    ("found", "seen", "expected"),
    [
        ({1: ["00001-a"], 2: ["00002-b"]}, ["00001-a", "00002-b"], ("00002-b", [])),
        ({1: ["00001-a"], 2: ["00002-b"]}, ["00001-a"], ("00001-a", ["00002-b"])),
        ({1: ["00001-a"], 2: ["00002-b", "00002-c"]}, ["00001-a", "00002-b"], ("00001-a", ["00002-b", "00002-c"])),
        ({2: ["00002-b", "00002-c"], 3: ["00003-d"]}, ["00003-d"], ("00003-d", [])),
        ({1: ["00001-a"]}, [], (None, ["00001-a"])),
        ({1: ["v1"], 2: ["v2"]}, [], ("v2", [])),
    ],
    ids=["seen", "new", "two commits", "decided", "first look", "renamed whole"],
)
def test_metadata_file_counts_once_it_is_that_of_the_table(
    found: dict[int, list[str]], seen: list[str], expected: tuple[str | None, list[str]]
) -> None:
    place, newer = settled_metadata(
        {number: [f"{name}.metadata.json" for name in names] for number, names in found.items()},
        [f"{name}.metadata.json" for name in seen],
    )
    names = None if place is None else place.removesuffix(".metadata.json")
    assert (names, [each.removesuffix(".metadata.json") for each in newer]) == expected


def log_of(lake: IcebergLake) -> IcebergLog:
    return IcebergLog(f"{lake.folder}/", None, FILES)


def read(log: IcebergLog, pinned: TableVersion | None = None, times: int = 2) -> Appended:
    found = [log.read(pinned) for _ in range(times)][-1]
    assert found is not None
    return found


def test_loser_of_two_commits_is_never_read_and_no_leader_fails(lake: IcebergLake) -> None:
    lake.append(0)
    log = log_of(lake)
    begin = read(log).snapshot.version
    newest = max((lake.folder / "metadata").glob("*.metadata.json"))
    number = newest.name[:5]
    shutil.copy(newest, newest.with_name(f"{number}-late.metadata.json"))
    for each in (log, log_of(lake)):
        found = read(each, begin)
        assert (found.snapshot.files, found.more) == ({}, True), "the pinned snapshot is newer than what is decided"
    lake.append(4)
    assert len(read(log, begin).snapshot.files) == 1


def test_metadata_file_is_read_once_it_is_written(lake: IcebergLake) -> None:
    lake.append(0)
    log = log_of(lake)
    begin = read(log).snapshot.version
    lake.append(4)
    newest = max((lake.folder / "metadata").glob("*.metadata.json"))
    text = newest.read_text("utf-8")
    newest.write_text("", "utf-8")
    assert [log.read(begin) for _ in range(3)][1:] == [None, None]
    newest.write_text(text, "utf-8")
    assert len(read(log, begin).snapshot.files) == 1


def test_snapshot_that_was_read_and_rolled_back_before_it_was_pinned_is_left_out(lake: IcebergLake) -> None:
    lake.append(0)
    log = log_of(lake)
    begin = read(log).snapshot.version
    lake.append(4)
    assert read(log, begin).snapshot.version.version == lake.version()
    lake.go_back(1)
    lake.append(8, 1)
    found = read(log, begin).snapshot
    assert (found.version.version, len(found.files)) == (lake.version(), 1)


def test_overwrite_that_removes_nothing_adds_rows(lake: IcebergLake) -> None:
    lake.append(0)
    begin = read(log_of(lake)).snapshot.version
    with lake.table.transaction() as change, change.update_snapshot().overwrite() as update:
        for file in _dataframe_to_data_files(lake.table.metadata, clicks_of(4), lake.table.io):
            update.append_data_file(file)
    found = read(log_of(lake), begin)
    assert (len(found.snapshot.files), found.refused) == (1, None)


def test_merged_manifests_have_the_files_of_earlier_snapshots_and_add_them_once(lake: IcebergLake) -> None:
    with lake.table.transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    lake.append(0)
    log = log_of(lake)
    begin = read(log).snapshot.version
    for first in (4, 8, 12):
        lake.append(first)
    assert len(read(log, begin).snapshot.files) == 3
    assert len(lake.table.current_snapshot().manifests(lake.table.io)) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (TableColumn("user", 1, ("visitor", "user")), None),
        (
            TableColumn("user", 2, ()),
            "Column user of t was dropped and added again after version 3, in a version up to 5",
        ),
        (TableColumn("visitor", 1, ()), "Column user of t was dropped or renamed"),
    ],
    ids=["other names in files", "added again", "renamed"],
)
def test_column_in_use_stays_the_same(later: TableColumn, message: str | None) -> None:
    before, after = TableVersion(3, (TableColumn("user", 1, ()),)), TableVersion(5, (later,))
    check_columns_continue("t", before, after, ("click",))
    if message is None:
        check_columns_continue("t", before, after, ("click", "user"))
        return
    with pytest.raises(DataError, match=message):
        check_columns_continue("t", before, after, ("click", "user"))


def test_delete_files_change_rows(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.append(0)
    log = log_of(lake)
    begin = read(log).snapshot.version
    lake.append(4)
    monkeypatch.setattr(ManifestFile, "content", ManifestContent.DELETES)
    found = read(log, begin)
    assert found.snapshot.files == {}
    assert "deletes or updates rows" in str(found.refused)
