"""Objects in memory behind the product's connection to S3, and `Uris` that read them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import urllib3

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import ChangedError, CredentialsRefusedError, MissingError, Uris, uris

BUCKET = "clicks"


class FakeS3:
    """Replaces a `Connection`, to read from. `down`: connections are refused. `refuses`: so are the credentials.

    Counts requests and listings.
    """

    endpoint = "http://store:9000"
    field = "snapshots.store"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.down = False
        self.refuses = False
        self.may_list = ""  # the credentials list no prefix that does not begin so
        self.cut_after: int | None = None  # the connection breaks after this number of bytes of an answer, for good
        self.refused = 0
        self.opened: list[str] = []
        self.listed = 0

    def uris(self, patch: pytest.MonkeyPatch) -> Uris:
        patch.setattr(uris, "connect", lambda *_: self)
        return Uris(StoreSpec(self.endpoint, None, BUCKET, ""))

    def send(
        self,
        method: str,
        _: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.HTTPResponse:
        self._check(key)
        if query is not None:
            if not query["prefix"].startswith(self.may_list):
                raise CredentialsRefusedError("The store refuses access.", "Check the Secret.")
            self.listed += 1
            return _answer(io.BytesIO(self._page(query["prefix"])), {})
        data, tag = self.objects[key], f'"{self._etag(key)}"'
        if method == "HEAD":
            return _answer(io.BytesIO(), {"ETag": tag, "Content-Length": str(len(data))}, method)
        self.opened.append(key)
        given = headers or {}
        if given.get("If-Match", tag) != tag:
            raise ChangedError(key)
        first = int(given.get("Range", "bytes=0-")[len("bytes=") : -1])
        stated = {"ETag": tag, "Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        return _answer(_Body(self, data[first:]), stated)

    def _page(self, prefix: str) -> bytes:
        page = ET.Element("ListBucketResult")
        for key in sorted(each for each in self.objects if each.startswith(prefix)):
            entry = ET.SubElement(page, "Contents")
            stated = {"Key": key, "LastModified": "2026-01-01T00:00:00Z", "Size": str(len(self.objects[key]))}
            for name, value in stated.items():
                ET.SubElement(entry, name).text = value
        return ET.tostring(page)

    def _etag(self, key: str) -> str:
        return hashlib.sha256(self.objects[key]).hexdigest()

    def _check(self, key: str) -> None:
        if self.down:
            self.refused += 1
            raise urllib3.exceptions.NewConnectionError(None, "Connection refused")  # type: ignore[arg-type]
        if self.refuses:
            self.refused += 1
            raise CredentialsRefusedError("The store refuses access.", "Check the Secret.")
        if key and key not in self.objects:
            raise MissingError(key)


def _answer(body: Any, headers: Mapping[str, str], method: str = "GET") -> urllib3.HTTPResponse:
    return urllib3.HTTPResponse(
        body, status=HTTPStatus.OK, headers=headers, preload_content=False, request_method=method
    )


class _Body(io.BytesIO):
    """The rest of an object; see `FakeS3.cut_after`."""

    def __init__(self, client: FakeS3, data: bytes) -> None:
        super().__init__(data)
        self._client = client

    def read(self, size: int | None = -1) -> bytes:
        cut = self._client.cut_after
        if cut is not None and self.tell() >= cut:
            self._client.down = True
            raise urllib3.exceptions.ProtocolError("Connection broken")
        return super().read(size if cut is None or size is None or size < 0 else min(size, cut - self.tell()))
