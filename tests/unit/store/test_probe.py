"""The probe of a store: each missing ability is found and named, and nothing is left behind."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import urllib3

from cpr_trainer.store import (
    ChangedError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreError,
    StoreUnreachableError,
    StoreUnsuitableError,
    checksum,
    interface,
)
from cpr_trainer.store import probe as probe_module
from cpr_trainer.store.connection import CHECKSUM, Upload, checksum_header
from cpr_trainer.store.folder import FolderStore
from cpr_trainer.store.probe import probe
from support.scripted_http import answer


class Server:
    """A fake connection to a server in memory without the abilities `missing`; a PUT raises `failing`."""

    endpoint = "http://store:9000"
    field = "snapshots.store"

    def __init__(self, *missing: str, failing: StoreError | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent = 0
        self._missing = frozenset(missing)
        self._failing = failing
        self._lock = threading.Lock()
        self._together = threading.Barrier(probe_module._WRITERS)

    def send(  # noqa: PLR0913 -- as the connection's
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | Upload = b"",
    ) -> urllib3.HTTPResponse:
        assert bucket == "bucket"
        self.sent += 1
        conditions = headers or {}
        if isinstance(body, Upload):
            self._put(key, b"".join(body), conditions)
            return answer(200)
        if method == "POST":
            return self._delete(ET.fromstring(body))  # noqa: S314 -- our own
        return self._get(key, conditions) if key else self._list(query or {})

    def _put(self, key: str, data: bytes, conditions: Mapping[str, str]) -> None:
        if self._failing and "race" in key:
            raise self._failing
        if CHECKSUM in conditions:
            if "checksums" in self._missing:
                raise StoreUnsuitableError("The store at http://store:9000 does not implement PUT.", "")
            if (
                "compared checksums" not in self._missing
                and conditions[CHECKSUM] != checksum_header(checksum(data))[CHECKSUM]
            ):
                raise StoreUnreachableError("The store fails (BadDigest).", "")
        elif "uploads without checksums" in self._missing:  # as of a bucket with Object Lock
            raise StoreUnreachableError("The store fails (InvalidRequest).", "")
        if "If-None-Match" in conditions and "conditions" not in self._missing:
            if "atomic conditions" in self._missing and "race" in key:
                found = key in self.objects
                self._together.wait()
                if found:
                    raise ExistsError(key)
            else:
                with self._lock:
                    if key in self.objects:
                        raise ExistsError(key)
                    self.objects[key] = data
        self.objects[key] = data

    def _get(self, key: str, conditions: Mapping[str, str]) -> urllib3.HTTPResponse:
        if key not in self.objects:
            raise MissingError(key)
        tag = "" if "tags" in self._missing else "the tag"
        if "if-match" not in self._missing and conditions.get("If-Match", '"the tag"') != '"the tag"':
            raise ChangedError(key)
        first = 0 if "ranges" in self._missing else int(conditions.get("Range", "bytes=0-")[len("bytes=") : -1])
        data = self.objects[key]
        stated = {"ETag": tag}
        if first:
            stated["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        return answer(206 if first else 200, data[first:], stated)

    def _list(self, query: Mapping[str, str]) -> urllib3.HTTPResponse:
        if "listings" in self._missing:
            raise StoreUnreachableError("The store fails (InternalError).", "")
        after = query.get("continuation-token", "")
        if after and "pages" in self._missing:
            after = max(self.objects)
        keys = sorted(key for key in self.objects if key.startswith(query["prefix"]) and key > after)
        most = int(query["max-keys"])
        page = ET.Element("ListBucketResult")
        if len(keys) > most:
            ET.SubElement(page, "IsTruncated").text = "true"
            ET.SubElement(page, "NextContinuationToken").text = keys[most - 1]
        for key in keys[:most]:
            entry = ET.SubElement(page, "Contents")
            stated = {"Key": key, "Size": "10", "LastModified": "2026-01-01T00:00:00Z", "ETag": "the tag"}
            for name, value in stated.items():
                ET.SubElement(entry, name).text = value
        return answer(200, ET.tostring(page))

    def _delete(self, doomed: ET.Element) -> urllib3.HTTPResponse:
        if "rights" in self._missing:
            raise CredentialsRefusedError("The store refuses access.", "Check the Secret.")
        if "deletions" not in self._missing:
            for key in doomed.iterfind("{*}Object/{*}Key"):
                self.objects.pop(str(key.text), None)
        return answer(200, b"<DeleteResult/>")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_FIRST_PAUSE_S", 0.001)


def test_server_with_all_abilities_passes(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.objects["job/probe/other/object"] = b"of another probe"
    probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    assert list(server.objects) == ["job/probe/other/object"]
    assert not caplog.records


def test_bucket_that_demands_checksums_passes() -> None:
    server = Server("uploads without checksums")
    probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    assert not server.objects


@pytest.mark.parametrize("lack", ["if-match", "tags"])
def test_condition_or_tag_distinguishes_versions(lack: str) -> None:
    server = Server(lack)
    probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    assert not server.objects


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["checksums"], ["X-Amz-Checksum-Crc32c): the server does not implement PUT"]),
        (["conditions"], ["If-None-Match): the server overwrote", "several writers at once: the server let 4 of 4"]),
        (["atomic conditions"], ["several writers at once: the server let 4 of 4 writers win"]),
        (["if-match", "tags"], ["one version (header If-Match, or an ETag in the answer): the server answered"]),
        (["ranges"], ["from a position (header Range)"]),
        (["pages"], ["listings in pages (ListObjectsV2): the server listed 1 of 3 objects"]),
        (["deletions"], ["deletions of several objects (DeleteObjects): the server still lists"]),
        (["checksums", "ranges"], ["X-Amz-Checksum-Crc32c", "header Range"]),
    ],
    ids=" ".join,
)
def test_missing_ability_is_named(missing: list[str], named: list[str]) -> None:
    server = Server(*missing)
    with pytest.raises(StoreUnsuitableError) as raised:
        probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    assert "http://store:9000 lacks what saves need" in raised.value.message
    for name in named:
        assert name in raised.value.message
    assert raised.value.message.count("; ") == len(named) - 1
    assert "docs/store.md" in raised.value.remedy
    assert ("s3proxy.ignore-unknown-headers=true" in raised.value.remedy) == ("checksums" in missing)
    assert not server.objects or "deletions" in missing


@pytest.mark.parametrize("missing", [[], ["conditions"]])
def test_failing_request_hides_no_ability_that_was_found_missing(missing: list[str]) -> None:
    with pytest.raises(StoreUnsuitableError if missing else StoreUnreachableError):
        probe(Server("listings", *missing), "bucket", "job/probe/")  # type: ignore[arg-type]


def test_checksums_that_are_not_compared_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        probe(Server("compared checksums"), "bucket", "job/probe/")  # type: ignore[arg-type]
    assert "does not compare them" in caplog.text


def test_credentials_that_may_not_delete_block_no_job(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        probe(Server("rights"), "bucket", "job/probe/")  # type: ignore[arg-type]
    assert "stay in the store. The store refuses access" in caplog.text


@pytest.mark.parametrize(
    "error",
    [StoreUnreachableError("The store fails.", ""), CredentialsRefusedError("The store refuses access.", "")],
)
def test_store_that_fails_is_not_called_unsuitable(error: StoreError) -> None:
    server = Server(failing=error)
    if isinstance(error, StoreUnreachableError):  # which may also be how a conflict of two writers is answered
        probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    else:
        with pytest.raises(type(error)):
            probe(server, "bucket", "job/probe/")  # type: ignore[arg-type]
    assert not server.objects


def test_folder_passes_and_stays_empty(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.probe("job/probe/")
    assert store.list("") == ()


def test_folder_without_hard_links_is_unsuitable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreUnsuitableError, match="without hard links"):
        FolderStore(tmp_path).probe("job/probe/")
    assert FolderStore(tmp_path).list("") == ()


def no_links(_source: Path, _target: Path) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")
