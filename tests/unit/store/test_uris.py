"""The files that `data.uri` names."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError, TrainerError
from cpr_trainer.store import StoreUnreachableError, Uris
from cpr_trainer.store.arrow_data import ArrowData
from support.fake_s3 import BUCKET, FakeS3

LOCAL = Uris(StoreSpec("file:///nowhere", None, "bucket", ""))
NAMES = ("b.csv", "a.csv", "c.parquet", "day=1/a.csv", "day=1/_SUCCESS", "day=2/x/a.csv", ".old/a.csv", "_tmp/a.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["a.csv", "b.csv", "c.parquet", "day=1/a.csv", "day=2/x/a.csv"]),
        ("*.csv", ["a.csv", "b.csv", "day=1/a.csv", "day=2/x/a.csv"]),
        ("day=*/", ["day=1/a.csv", "day=2/x/a.csv"]),
        ("day=[13]/*", ["day=1/a.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        (".old/", [".old/a.csv"]),
    ],
)
def test_folders_and_globs_name_files_in_order(folder: Path, scheme: str, pattern: str, names: list[str]) -> None:
    assert LOCAL.find(f"{scheme}{folder}/{pattern}") == tuple(f"{folder}/{name}" for name in names)


def test_single_name_is_returned_unchecked(folder: Path) -> None:
    (folder / "what[1]?.csv").touch()
    for uri in (f"{folder}/a.csv", f"{folder}/absent.csv", f"{folder}/what[1]?.csv"):
        assert LOCAL.find(uri) == (uri,)


@pytest.mark.parametrize("pattern", ["*.tsv", "empty/", "day=3/*"])
def test_pattern_without_a_file_is_an_error(folder: Path, pattern: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="names no file"):
        LOCAL.find(f"{folder}/{pattern}")


def test_local_files_open_by_path_and_by_uri(tmp_path: Path) -> None:
    path = tmp_path / "a file%41.tsv"
    path.write_bytes(b"x")
    for uri in (str(path), path.as_uri()):
        with LOCAL.open(uri, LOCAL.version(uri)) as stream:
            assert stream.read() == b"x"


@pytest.mark.parametrize("uri", ["/no/such/file", "file:///no/such/file", "/", "file://host/x", "ftp://host/x"])
def test_unreadable_local_file_is_named(uri: str) -> None:
    with pytest.raises(DataError) as caught:
        LOCAL.version(uri)
    assert caught.value.message.startswith(f"{uri} cannot be opened")
    assert "data.uri" in caught.value.remedy


@pytest.mark.parametrize("uri", ["s3://bucket/key", "s3://bucket/*.csv"])
def test_data_in_s3_needs_an_endpoint(uri: str) -> None:
    with pytest.raises(DataError, match="needs an S3 endpoint"):
        LOCAL.version(LOCAL.find(uri)[0])


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/", "s3:///key"])
def test_bucket_without_a_key_is_refused(uri: str) -> None:
    with pytest.raises(DataError, match="names no object"):
        LOCAL.find(uri)


LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00003-5e2a.metadata.json",
    "Iceberg of Hadoop": "metadata/v12.metadata.json",
}


def found_in(where: str, keys: list[str], folder: Path, pattern: str, patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Find the files of a URI among these keys on a disk, in S3 or in a file system of pyarrow."""
    if where == "s3":
        return FakeS3(dict.fromkeys(keys, b"")).uris(patch).find(f"s3://{BUCKET}/{pattern}")
    for key in keys:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).touch()
    if where == "disk":
        return LOCAL.find(f"{folder}/{pattern}")
    uris = Uris(StoreSpec("file:///nowhere", None, "bucket", ""))
    uris._arrow = ArrowData(lambda _: (fs.LocalFileSystem(), str(folder)))
    return uris.find(f"gs://lake/{pattern}")


@pytest.mark.parametrize("where", ["disk", "s3", "gs"])
@pytest.mark.parametrize(
    "pattern", ["lake/t/", "lake/", "lake/t/data/day=1/", "lake/t/**/*.parquet", "*/data/*.parquet"]
)
@pytest.mark.parametrize("kind", LOGS)
def test_files_of_a_table_with_a_log_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, pattern: str, kind: str
) -> None:
    keys = [f"lake/t/{LOGS[kind]}", "lake/t/metadata/snap-1.avro", "lake/t/data/day=1/part-0.parquet"]
    with pytest.raises(
        DataError, match=f"names files of the {kind.split(maxsplit=1)[0]} table in .*lake/t/. "
    ) as caught:
        found_in(where, keys, tmp_path, pattern, monkeypatch)
    remedy = "data.format: Custom" if kind == "Hudi" else f"data.format: {kind.split(maxsplit=1)[0]}"
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("where", ["disk", "s3", "gs"])
@pytest.mark.parametrize(
    ("pattern", "count"), [("lake/plain/", 2), ("lake/plain/a*", 1), ("lake/t/part-0.parquet", 1)], ids=str
)
def test_files_outside_a_table_and_a_single_file_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, pattern: str, count: int
) -> None:
    keys = ["lake/t/_delta_log/0.json", "lake/t/part-0.parquet", "lake/plain/a.csv", "lake/plain/metadata/values.json"]
    assert len(found_in(where, keys, tmp_path, pattern, monkeypatch)) == count


def test_s3_credentials_that_may_not_list_above_the_data_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = FakeS3({"lake/clicks/a.csv": b""})
    s3.may_list = "lake/clicks/"
    assert len(s3.uris(monkeypatch).find(f"s3://{BUCKET}/lake/clicks/")) == 1


def test_linked_folders_are_read_and_each_file_once(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for path in (data / "day=1" / "a.csv", data / "b.csv", other / "c.csv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (data / "latest").symlink_to("day=1")  # the same files again
    (data / "latest.csv").symlink_to("b.csv")
    (data / "more").symlink_to(other)
    (other / "back").symlink_to(data)  # a cycle
    (data / "self").symlink_to("self")
    (data / "_hidden").symlink_to(other)
    names = [Path(each).relative_to(data).as_posix() for each in LOCAL.find(f"{data}/")]
    assert names == ["b.csv", "day=1/a.csv", "more/c.csv", "self"]
    assert LOCAL.find(f"{data}/latest/*") == (f"{data}/latest/a.csv",), "what a pattern names stays"


@pytest.mark.parametrize(
    ("folder", "code", "raised"),
    [
        ("day=2", errno.EACCES, DataError),
        ("day=2", errno.ESTALE, StoreUnreachableError),
        ("lost+found", errno.EIO, StoreUnreachableError),
        ("lost+found", errno.EACCES, None),
        ("_old", errno.EACCES, None),
    ],
)
def test_unreadable_folder_is_named_and_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, code: int, raised: type[TrainerError] | None
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "a.csv").touch()
    scan = os.scandir

    def refuse(place: str) -> Iterator[Any]:
        if folder in place:
            raise OSError(code, os.strerror(code))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    if raised is None:
        assert LOCAL.find(f"{tmp_path}/") == (f"{tmp_path}/a.csv",)
    else:
        with pytest.raises(raised, match=rf"The folder {tmp_path}/{re.escape(folder)}/ cannot be listed: "):
            LOCAL.find(f"{tmp_path}/")
