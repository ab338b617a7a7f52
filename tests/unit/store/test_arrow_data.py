"""Data that pyarrow.fs reads, in folders of this machine in place of buckets."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from cpr_contract.spec import StoreSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.errors import DataError
from cpr_trainer.store import CredentialsRefusedError, StoreUnreachableError, Uris, interface
from cpr_trainer.store.arrow_data import ArrowData, connect
from cpr_trainer.store.interface import MissingError
from support.table_data import FORMATS, TABLES, assert_same, clicks, everything, model_of, read, write

LAKE = "gs://lake"


class Disk:
    """A file system of folders. `raises` is what its next calls fail with, `made` how often it was made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made = 0
        self.raises: list[Exception] = []
        self._system = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self.get_file_info = self._system.get_file_info

    def __call__(self, place: str) -> tuple[Any, str]:
        self.made += 1
        return self, place.removeprefix("gs://")

    def open_input_file(self, path: str) -> object:
        if self.raises:
            raise self.raises.pop(0)
        return self._system.open_input_file(path)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "lake").mkdir()
    return Disk(tmp_path)


@pytest.fixture
def lake(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Uris:
    monkeypatch.setattr(interface, "_FIRST_PAUSE_S", 0.001)
    uris = Uris(StoreSpec("file:///nowhere", None, "bucket", ""))
    uris._arrow = ArrowData(disk)  # a cached property
    return uris


@pytest.mark.parametrize("ending", FORMATS)
def test_files_have_the_same_samples_in_every_store(disk: Disk, lake: Uris, ending: str) -> None:

    data = write(clicks(200), disk.root / "lake" / "day 0", ending, files=3)
    (disk.root / "lake" / "day 0" / "_SUCCESS").touch()
    (disk.root / "lake" / "other").touch()
    for pattern in ("day%200/", f"day*/*.{ending}", f"day 0/part-00?.{ending}"):
        remote = open_dataset(replace(data, uri=f"{LAKE}/{pattern}"), model_of(TABLES), lake)
        assert_same(everything(remote), everything(read(data)))


def test_stream_is_read_from_any_position(disk: Disk, lake: Uris) -> None:
    data = os.urandom(3 << 20)
    (disk.root / "lake" / "clicks").write_bytes(data)
    with lake.open(f"{LAKE}/clicks", lake.version(f"{LAKE}/clicks")) as stream:
        for start, size in [(2 << 20, 1000), (0, 5), (5, 1 << 20), (7, 3), (len(data) - 2, 9)]:
            assert stream.seek(start) == start
            assert stream.read(size) == data[start : start + size]
        assert stream.seek(-10, os.SEEK_END) == len(data) - 10
        assert stream.read() == data[-10:]
        assert stream.read(1) == b""


def test_stream_never_joins_two_versions(disk: Disk, lake: Uris) -> None:
    path, uri = disk.root / "lake" / "clicks", f"{LAKE}/clicks"
    path.write_bytes(bytes(4 << 20))
    with lake.open(uri, lake.version(uri)) as stream:
        stream.read(1000)
        path.write_bytes(b"\x01" * (4 << 20))
        with pytest.raises(DataError, match=f"{uri} has changed"):
            stream.read()
    old = lake.version(uri)
    path.write_bytes(b"\x02" * (4 << 20))
    with lake.open(uri, old) as stream, pytest.raises(DataError, match=f"{uri} has changed"):
        stream.read(10)
    with lake.open(uri, lake.version(uri)) as stream:
        path.unlink()
        with pytest.raises(DataError, match=f"{uri} is not there any more"):
            stream.read(10)


@pytest.mark.parametrize("uri", [f"{LAKE}/nothing", f"{LAKE}/nothing/", f"{LAKE}/*.csv", "gs://nowhere/*.csv"])
def test_missing_file_is_a_data_error(lake: Uris, uri: str) -> None:
    with pytest.raises(DataError) as caught:
        lake.version(lake.find(uri)[0])
    assert caught.value.message.startswith(uri)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("gone"), MissingError),
        (OSError("ReadAt failed to read the required byte range. Azure Error: [BlobNotFound] 404"), MissingError),
        (PermissionError("not you"), CredentialsRefusedError),
        (
            OSError("GetProperties failed. Azure Error: [AuthorizationFailure] 403 Server failed"),
            CredentialsRefusedError,
        ),
        (OSError("google::cloud::Status(UNAUTHENTICATED: no token)"), CredentialsRefusedError),
        (OSError("part-404.csv: Azure Error: [] Could not connect to server"), StoreUnreachableError),
        (OSError(errno.EIO, "Input/output error"), StoreUnreachableError),
    ],
)
def test_errors_of_pyarrow_become_store_errors(disk: Disk, lake: Uris, error: OSError, kind: type[Exception]) -> None:
    (disk.root / "lake" / "clicks").touch()
    disk.raises = [error for _ in range(9)]
    with pytest.raises(kind, match=f"{LAKE}/clicks"):
        lake._arrow.version(LAKE, "clicks")


def test_outage_is_retried_and_refusal_reconnects_with_new_credentials(disk: Disk, lake: Uris) -> None:
    (disk.root / "lake" / "clicks").write_bytes(b"a")
    disk.raises = [OSError("Could not connect to server")]
    assert lake.version(f"{LAKE}/clicks").size_bytes == 1
    assert disk.made == 1
    disk.raises = [PermissionError("expired")]
    with pytest.raises(CredentialsRefusedError):
        lake.version(f"{LAKE}/clicks")
    assert lake.version(f"{LAKE}/clicks").size_bytes == 1
    assert disk.made == 2


def test_place_has_its_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    system, base = connect("abfss://day@clicks.dfs.core.windows.net")
    assert isinstance(system, fs.AzureFileSystem)
    assert base == "day"
    system, base = connect("gs://clicks")
    assert isinstance(system, fs.GcsFileSystem)
    assert base == "clicks"
    for place in ("abfss://clicks", "abfss://day@clicks.blob.core.windows.net", "ftp://clicks"):
        with pytest.raises(DataError, match=f"{place} names no place of data"):
            connect(place)

    def hadoop(host: str, port: int) -> None:
        raise OSError(f"Failed to connect to {host}:{port}")

    monkeypatch.setattr(fs, "HadoopFileSystem", hadoop)
    with pytest.raises(StoreUnreachableError, match="Failed to connect to names:8020"):
        connect("hdfs://names:8020")


def test_missing_hadoop_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def hadoop(_host: str, _port: int) -> None:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm/default-java/libjvm.so) failed")

    monkeypatch.setattr(fs, "HadoopFileSystem", hadoop)
    with pytest.raises(DataError, match="needs Hadoop's client, and this image has no libhdfs or no Java") as caught:
        Uris(StoreSpec("file:///nowhere", None, "bucket", "")).version("hdfs://names:8020/clicks/day")
    assert "Add both to the image" in caught.value.remedy
