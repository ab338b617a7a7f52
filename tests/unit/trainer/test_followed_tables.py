"""Versions of a table that arrives are pinned once, by any leader, and each appended row is trained once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.spec import DataFormat, FollowSpec
from cpr_trainer.checkpoint.format import data_pins
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris
from cpr_trainer.trainer.followed_data import DataLooks
from support.followed_tables import BATCH, Lake, Reader, lake_of, look, looks_of
from support.memory_store import MemoryStore

FORMATS: tuple[DataFormat, ...] = ("Delta", "Iceberg")


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_of(request.param, tmp_path) as lake:
        yield lake


class Job:
    """The pins of a job in its store, and a leader that was just started."""

    def __init__(self, lake: Lake, **follow: Any) -> None:
        self.data = replace(lake.data, follow=FollowSpec(1.0, **follow))
        self.store = MemoryStore()
        self.reader = Reader(self.store, self.data)
        self.lead()

    def lead(self) -> DataLooks:
        """Let another leader start, which has read nothing."""
        self.looks = looks_of(self.store, self.data)
        return self.looks

    def look(self, **how: Any) -> list[int]:
        """Look twice, and return the keys of all pinned rows."""
        look(self.looks, **how)
        return self.reader.read()


class Growth:
    """Commits that come; two leaders, which die and take each other's place."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.rng, self.lake, self.job = random.Random(seed), lake, Job(lake)
        self.leaders = [self.job.lead() for _ in range(2)]
        self.readers = [self.job.reader]
        self.rows = 0

    def look(self) -> None:
        place, store = self.rng.randrange(2), self.job.store
        if self.rng.random() < 0.2:
            self.leaders[place] = self.job.lead()
        store.before_put = self._fail if self.rng.random() < 0.2 else lambda _: None
        try:
            self.leaders[place].look(waits=self.rng.random() < 0.5, now_s=0.0)
        except InterruptedError:
            self.leaders[place] = self.job.lead()
        store.before_put = lambda _: None

    def commit(self) -> None:
        """Commit, mostly new rows, and look in between; at times a trainer starts."""
        kind = self.rng.random()
        if kind < 0.7 or not self.rows:
            count = self.rng.randint(1, 2 * BATCH)
            self.lake.append(self.rows, count)
            self.rows += count
        elif kind < 0.9:
            self.lake.compact()
        else:
            self.lake.set_property()
        for _ in range(self.rng.randint(0, 3)):
            self.look()
        for reader in self.readers:
            if self.rng.random() < 0.5:
                reader.read()
        if self.rng.random() < 0.2:
            self.readers.append(Reader(self.job.store, self.job.data))

    @staticmethod
    def _fail(_key: str) -> None:
        raise InterruptedError


@pytest.mark.parametrize("seed", range(2))
def test_each_row_is_trained_once_in_the_order_of_commits_for_any_leader(
    lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_pins, "RESTATE_EVERY", 3)
    growth = Growth(lake, seed)
    for _ in range(10):
        growth.commit()
    last = looks_of(growth.job.store, replace(lake.data, follow=FollowSpec(1.0, idle="Finish")))
    look(last, times=6)
    for reader in (*growth.readers, Reader(growth.job.store, lake.data)):
        # A compaction before the first pin makes other files of the same rows.
        assert sorted(reader.read()) == list(range(growth.rows))
        assert reader.trained() == reader.read()
        assert reader.followed.order.has_ended
        assert not reader.followed.names, "a version takes the place of its files"
        assert reader.read() == growth.readers[0].read()


def test_versions_of_one_look_are_one_pin_in_the_order_of_their_commits(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    assert job.look() == [0, 1, 2, 3]
    for first in (4, 8, 12):
        lake.append(first)
    assert job.look() == list(range(16))
    assert job.reader.followed.number == 2
    assert job.reader.followed.table is not None
    assert job.reader.followed.table.version == lake.version()


def test_fewer_rows_than_a_batch_wait_for_others_while_there_is_something_to_train(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    job.look()
    lake.append(4, 1)
    lake.compact()
    assert job.look(waits=False) == [0, 1, 2, 3]
    lake.append(5, 3)
    assert job.look(waits=False) == list(range(8))
    lake.append(8, 1)
    assert job.look() == list(range(9))


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_version_that_changes_rows_fails_by_name_once_those_before_are_pinned(lake: Lake, change: str) -> None:
    job = Job(lake)
    lake.append(0)
    assert job.look() == [0, 1, 2, 3]
    lake.append(4, 2)
    refused = lake.delete(1) if change == "delete" else lake.overwrite(20)
    lake.append(30)
    assert job.look(times=2, waits=False) == [0, 1, 2, 3], "two rows wait for others"
    look(job.lead(), times=1)
    with pytest.raises(DataError, match=rf"{refused} .*deletes or updates rows") as caught:
        look(job.looks, times=3)
    assert "Only append to the table" in caught.value.remedy
    assert job.reader.read() == [0, 1, 2, 3, 4, 5]


def test_compaction_adds_no_row_and_pinned_files_are_read_until_they_are_deleted(lake: Lake) -> None:
    job = Job(lake)
    for first in (0, 4):
        lake.append(first)
    job.look()
    pinned = [index.file.uri for index in Reader(job.store, job.data).followed.read()]
    lake.compact()
    assert job.look() == list(range(8))
    Path(pinned[0]).unlink()  # as VACUUM and expire_snapshots do
    with pytest.raises(DataError, match="is not there any more, and version") as caught:
        Reader(job.store, job.data).read()
    assert "are deleted by" in caught.value.remedy


def test_file_that_was_compacted_and_deleted_before_a_look_is_named(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    job.look()
    before = set(lake.folder.rglob("*.parquet"))
    lake.append(4)
    (new,) = set(lake.folder.rglob("*.parquet")) - before
    lake.compact()
    new.unlink()
    with pytest.raises(DataError, match=rf"{new.name} is not there any more"):
        job.look()


def test_added_column_is_null_in_older_rows_and_an_unused_one_may_be_dropped(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    job.look()
    lake.append_with_column(4)
    lake.append(8)
    job.look()
    lake.drop_column("tags")
    job.look()
    assert [row.get("new") for row in job.reader.rows] == [None] * 4 + [0, 1, 2, 3] + [None] * 4
    assert job.reader.trained() == list(range(12))


def test_dropped_column_in_use_fails_by_name(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    job.look()
    lake.drop_column("user")
    lake.append_without("user", 4)
    with pytest.raises(DataError, match=r"Column user of .* was dropped"):
        job.look()


def test_table_that_goes_back_before_the_pinned_version_is_refused(lake: Lake) -> None:
    job = Job(lake)
    for first in (0, 4):
        lake.append(first)
    assert job.look() == list(range(8))
    lake.go_back(1)
    message = "deletes or updates rows" if lake.data.format == "Delta" else "is not in the history of"
    with pytest.raises(DataError, match=message):
        job.look()


def test_versions_that_were_deleted_before_a_look_are_named(lake: Lake) -> None:
    job = Job(lake)
    lake.append(0)
    job.look()
    pinned = lake.version()
    for first in (4, 8):
        lake.append(first)
    lake.expire()
    is_delta = lake.data.format == "Delta"
    lost = rf"Versions {pinned + 1} to \d+ of" if is_delta else f"Snapshots between {pinned}"
    for looks in (job.looks, job.lead()):
        with pytest.raises(DataError, match=lost) as caught:
            look(looks)
        assert "above the time for which a job may be suspended" in caught.value.remedy


def test_versions_without_rows_are_pinned_so_that_another_leader_does_not_need_them(lake: Lake) -> None:
    job = Job(lake)
    for first in (0, 4):
        lake.append(first)
    job.look()
    for _ in range(2):
        lake.compact() if job.reader.followed.number == 1 else lake.set_property()
        lake.compact()
        job.look()
    lake.expire()
    job.lead()
    assert job.look() == list(range(8))
    lake.append(8)
    assert job.look() == list(range(12))
    assert job.reader.trained() == list(range(12))


def test_stated_version_is_trained_first_and_then_those_after_it(lake: Lake) -> None:
    lake.append(0)
    lake.append(4, 2)
    job = Job(lake)
    job.data = replace(job.data, version=lake.version())
    lake.append(6, 6)
    lake.compact()
    job.lead()
    assert job.look() == list(range(12))
    assert job.reader.trained() == list(range(12))


def test_empty_table_is_waited_for(lake: Lake) -> None:
    job = Job(lake)
    assert job.look() == []
    lake.append(0, 1)
    assert job.look() == [0]
    assert job.reader.followed.order.known_samples == BATCH


def test_idle_job_that_is_to_finish_ends_once_all_versions_are_trained(lake: Lake) -> None:
    job = Job(lake, idle="Finish")
    lake.append(0)
    look(job.looks, times=3)
    assert job.reader.read() == [0, 1, 2, 3]
    assert job.reader.followed.order.has_ended


def test_file_of_a_version_is_indexed_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(lake)
    for first in range(0, 40, 4):
        lake.append(first)
        job.look()
    opened: list[str] = []
    monkeypatch.setattr(Uris, "open", _noted(Uris.open, opened))
    job.look()
    assert not opened, "nothing came"
    for first in (40, 41):
        lake.append(first, 1)
        look(job.looks, times=3, waits=False)
    of_commit = {"Delta": ["log", "file"], "Iceberg": ["metadata", "manifests", "manifest", "file"]}[lake.data.format]
    assert len(opened) == 2 * len(of_commit), opened


def _noted(open_file: Any, opened: list[str]) -> Any:
    def noted(self: Any, uri: str, version: Any) -> Any:
        opened.append(uri)
        return open_file(self, uri, version)

    return noted
