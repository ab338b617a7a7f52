"""Training data in a bucket: found, streamed and read by blocks. Folders of tests bind the cases to their servers."""

from __future__ import annotations

import gzip
import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris, open_store
from support.s3_servers import S3Server
from support.table_data import FORMATS, TABLES, assert_same, clicks, everything, model_of, read, write


def put(spec: StoreSpec, server: S3Server, key: str, data: bytes) -> None:
    open_store(spec, server.credentials_dir, None).put(key, data)


class DataSuite:
    """The folder's fixture `spec` is a new bucket of its fixture `server`."""

    @pytest.fixture
    def uris(self, spec: StoreSpec, server: S3Server) -> Uris:
        return Uris(spec, server.credentials_dir, None)

    @pytest.fixture
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cpr_trainer.data.text.BLOCK_BYTES", 2000)

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("ending", FORMATS)
    def test_objects_are_the_same_samples_as_local_files(
        self, spec: StoreSpec, server: S3Server, uris: Uris, tmp_path: Path, ending: str
    ) -> None:
        data = write(clicks(400), tmp_path, ending, files=3)
        for path in tmp_path.iterdir():
            put(spec, server, f"clicks/day 0/{path.name}", path.read_bytes())
        put(spec, server, "clicks/day 0/_SUCCESS", b"")
        put(spec, server, "clicks/other", b"no data")
        local = read(data)
        for pattern in ("day%200/", f"day*/*.{ending}", f"day 0/part-00?.{ending}"):
            remote = open_dataset(replace(data, uri=f"s3://{spec.bucket}/clicks/{pattern}"), model_of(TABLES), uris)
            assert remote.layout.blocks == local.layout.blocks > 3
            some = np.random.default_rng(1).permutation(400)[:300]
            assert_same(remote.take(some), local.take(some))
            assert_same(everything(remote), everything(local))

    def test_stream_reads_from_any_position(self, spec: StoreSpec, server: S3Server, uris: Uris) -> None:
        data = os.urandom(3 << 20)
        put(spec, server, "clicks", data)
        uri = f"s3://{spec.bucket}/clicks"
        with uris.open(uri, uris.version(uri)) as stream:
            for start, size in [(2 << 20, 1000), (0, 5), (5, 1 << 20), (7, 3), (len(data) - 2, 9)]:
                assert stream.seek(start) == start
                assert stream.read(size) == data[start : start + size]
            assert stream.seek(-10, os.SEEK_END) == len(data) - 10
            assert stream.read() == data[-10:]
            assert stream.read(1) == b""

    def test_stream_ignores_the_content_encoding(self, spec: StoreSpec, server: S3Server, uris: Uris) -> None:
        data = gzip.compress(os.urandom(2 << 20))
        server.client().put_object(
            spec.bucket, "clicks.gz", io.BytesIO(data), len(data), metadata={"Content-Encoding": "gzip"}
        )
        uri = f"s3://{spec.bucket}/clicks.gz"
        with uris.open(uri, uris.version(uri)) as stream:
            assert stream.read() == data

    def test_broken_stream_resumes_where_it_stopped(self, spec: StoreSpec, server: S3Server, uris: Uris) -> None:
        data = os.urandom(4 << 20)
        put(spec, server, "clicks", data)
        uri = f"s3://{spec.bucket}/clicks"
        with uris.open(uri, uris.version(uri)) as stream:
            start = stream.read(1000)
            stream.raw._response.close()  # type: ignore[attr-defined]  # as if the connection broke
            assert start + stream.read() == data

    def test_stream_never_joins_two_versions(self, spec: StoreSpec, server: S3Server, uris: Uris) -> None:
        put(spec, server, "clicks", bytes(4 << 20))
        uri = f"s3://{spec.bucket}/clicks"
        with uris.open(uri, uris.version(uri)) as stream:
            stream.read(1000)
            put(spec, server, "clicks", b"\x01" * (4 << 20))
            stream.raw._response.close()  # type: ignore[attr-defined]
            with pytest.raises(DataError, match=f"{uri} has changed"):
                stream.read()

    def test_object_that_changed_or_vanished_is_named(
        self, spec: StoreSpec, server: S3Server, uris: Uris, tmp_path: Path
    ) -> None:
        data = write(clicks(30), tmp_path, "csv", files=2)
        for path in tmp_path.iterdir():
            put(spec, server, f"day/{path.name}", path.read_bytes())
        found = open_dataset(replace(data, uri=f"s3://{spec.bucket}/day/"), model_of(TABLES), uris)
        put(spec, server, "day/part-001.csv", (tmp_path / "part-000.csv").read_bytes())
        with pytest.raises(DataError, match=r"part-001\.csv has changed"):
            everything(found)
        open_store(spec, server.credentials_dir, None).delete(["day/part-001.csv"])
        with pytest.raises(DataError, match=r"part-001\.csv is not there any more"):
            everything(found)

    @pytest.mark.parametrize("bucket", ["{bucket}", "no-such-bucket"])
    def test_missing_objects_are_data_errors(self, spec: StoreSpec, uris: Uris, bucket: str) -> None:
        place = f"s3://{bucket.format(bucket=spec.bucket)}"
        for uri, look_up in (
            (f"{place}/nothing", uris.version),
            (f"{place}/nothing/", uris.find),
            (f"{place}/*", uris.find),
        ):
            with pytest.raises(DataError) as caught:
                look_up(uri)
            assert uri in caught.value.message
