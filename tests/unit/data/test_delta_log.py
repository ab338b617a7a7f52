"""The commits of a Delta Lake table after a version, read one by one."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cpr_contract.spec import StoreSpec
from cpr_trainer.data.delta import delta_snapshot
from cpr_trainer.data.delta_log import Commit, DeltaLog
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris
from support.followed_tables import DeltaLake
from support.lake_tables import clicks_of
from support.table_data import FILES

ADD = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, "stats": "{}"}


@pytest.mark.parametrize(
    ("actions", "added", "removes"),
    [
        (({"add": ADD}, {"commitInfo": {"operation": "WRITE"}}), ["a"], False),
        (({"add": ADD | {"dataChange": False}}, {"remove": {"path": "b", "dataChange": False}}), [], False),
        (({"add": ADD}, {"remove": {"path": "b", "dataChange": True}}), ["a"], True),
        (({"remove": {"path": "b"}},), [], True),
        (({"metaData": {"id": "x"}}, {"txn": {"appId": "b"}}), [], False),
    ],
    ids=["append", "compaction", "update", "no flag", "metadata"],
)
def test_commit_is_read_by_its_effect(actions: tuple[dict[str, Any], ...], added: list[str], removes: bool) -> None:  # noqa: FBT001
    commit = Commit.parse("\n".join(map(json.dumps, actions)), "tag")
    assert ([each["path"] for each in commit.added], commit.removes) == (added, removes)


def log_of(folder: Path, version: int | None = None, files: Uris = FILES) -> DeltaLog:
    return DeltaLog(f"{folder}/", version, files)


def test_files_of_commits_have_the_values_of_a_whole_table(tmp_path: Path) -> None:
    days = [dt.date(2026, 1, 2), None, dt.date(2026, 1, 3)]
    for number in range(4):
        rows = (
            clicks_of(3 * number)
            .append_column("day", pa.array(days))
            .append_column("site", pa.array(["a/%", None, ""]))
        )
        write_deltalake(tmp_path, rows, partition_by=["day", "site"], mode="append")
    DeltaTable(tmp_path).create_checkpoint()
    whole, first = (delta_snapshot(f"{tmp_path}/", version, FILES) for version in (None, 1))
    found = log_of(tmp_path).read(first.version).snapshot
    assert found.files == {uri: values for uri, values in whole.files.items() if uri not in first.files}
    assert found.version.columns == whole.version.columns
    assert len(found.files) == 6


def test_order_is_that_of_commits_and_not_of_clocks(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path / "clicks")
    begin = log_of(lake.folder).read(None).snapshot.version
    for first in (0, 4, 8):
        lake.append(first)
    expected = list(log_of(lake.folder).read(begin).snapshot.files)
    for version, time in ((1, 9), (2, 5), (3, 7)):
        commit = lake.folder / "_delta_log" / f"{version:020}.json"
        text = re.sub('"modificationTime":[0-9]+', f'"modificationTime":{time}', commit.read_text("utf-8"))
        commit.write_text(text, "utf-8")
    assert list(log_of(lake.folder).read(begin).snapshot.files) == expected


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_log_that_was_written_again_is_refused(tmp_path: Path, versions: int) -> None:
    """The new one has fewer versions than are pinned, as many, or more."""
    lake = DeltaLake(tmp_path / "clicks")
    lake.append(0)
    begin = log_of(lake.folder).read(None).snapshot.version
    shutil.rmtree(lake.folder)
    again = DeltaLake(lake.folder)
    for number in range(versions - 1):
        again.append(4 * number)
    with pytest.raises(DataError, match="does not continue version 1") as caught:
        log_of(lake.folder).read(begin)
    assert "restored, rolled back or created again" in str(caught.value)


class Listings(Uris):
    """The first listing lacks a commit, which came while it was made."""

    def __init__(self, lacks: str) -> None:
        super().__init__(StoreSpec("file:///nowhere", None, "bucket", ""))
        self._lacks = lacks

    def below(self, folder: str, after: str = "") -> tuple[str, ...]:
        found = super().below(folder, after)
        lacks, self._lacks = self._lacks, "none"
        return tuple(uri for uri in found if lacks not in uri)


def test_listing_that_lacks_a_commit_is_made_again(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path / "clicks")
    begin = log_of(lake.folder).read(None).snapshot.version
    for first in (0, 4):
        lake.append(first)
    found = log_of(lake.folder, files=Listings("001.json")).read(begin)
    assert (found.snapshot.version.version, len(found.snapshot.files)) == (2, 2)
    assert found.refused is None


def test_leader_that_starts_takes_the_metadata_from_the_checkpoint(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path / "clicks")
    lake.append_with_column(0)
    lake.expire()
    begin = log_of(lake.folder).read(None).snapshot.version
    lake.append(4)
    found = log_of(lake.folder).read(begin).snapshot
    assert [each.name for each in found.version.columns] == ["key", "click", "user", "tags", "new"]
    assert len(found.files) == 1
