"""Which files `data.uri` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

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


def test_a_single_name_is_itself_whatever_it_looks_like(folder: Path) -> None:
    (folder / "what[1]?.csv").touch()
    for uri in (f"{folder}/a.csv", f"{folder}/absent.csv", f"{folder}/what[1]?.csv"):
        assert LOCAL.find(uri) == (uri,)


@pytest.mark.parametrize("pattern", ["*.tsv", "empty/", "day=3/*"])
def test_a_pattern_without_a_file_is_an_error(folder: Path, pattern: str) -> None:
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
def test_what_is_no_readable_local_file_is_named(uri: str) -> None:
    with pytest.raises(DataError) as caught:
        LOCAL.version(uri)
    assert caught.value.message.startswith(f"{uri} cannot be opened")
    assert "data.uri" in caught.value.remedy


@pytest.mark.parametrize("uri", ["s3://bucket/key", "s3://bucket/*.csv"])
def test_data_in_s3_needs_an_endpoint(uri: str) -> None:
    with pytest.raises(DataError, match="needs an S3 endpoint"):
        LOCAL.version(LOCAL.find(uri)[0])


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/", "s3:///key"])
def test_a_bucket_alone_is_no_data(uri: str) -> None:
    with pytest.raises(DataError, match="names no object"):
        LOCAL.find(uri)
