"""Objects in memory behind minio's client, and `Uris` that read them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from minio.error import S3Error

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Uris, uris

BUCKET = "clicks"


class FakeS3:
    """`down`: connections are refused. `refuses`: the credentials are not known. Counts requests and listings."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.down = False
        self.refuses = False
        self.cut_after: int | None = (
            None  # the connection breaks after so many bytes of an answer, and does not come back
        )
        self.refused = 0
        self.opened: list[str] = []
        self.listed = 0

    def uris(self, patch: pytest.MonkeyPatch) -> Uris:
        patch.setattr(uris, "connect", lambda *_: SimpleNamespace(client=self, field="snapshots.store"))
        return Uris(StoreSpec("http://store:9000", None, BUCKET, ""))

    def stat_object(self, _: str, key: str) -> Any:
        self._check(key)
        return SimpleNamespace(size=len(self.objects[key]), etag=self._etag(key))

    def get_object(
        self, _: str, key: str, offset: int = 0, length: int = 0, request_headers: dict[str, str] | None = None
    ) -> Any:
        del length
        self._check(key)
        self.opened.append(key)
        if request_headers and request_headers.get("If-Match") != f'"{self._etag(key)}"':
            raise s3_error(412, "PreconditionFailed")
        return _Answer(self, self.objects[key][offset:])

    def list_objects(self, _: str, prefix: str, *, recursive: bool) -> Iterator[Any]:
        assert recursive
        self._check(None)
        self.listed += 1
        return (SimpleNamespace(object_name=key) for key in sorted(self.objects) if key.startswith(prefix))

    def _etag(self, key: str) -> str:
        return hashlib.sha256(self.objects[key]).hexdigest()

    def _check(self, key: str | None) -> None:
        if self.down:
            self.refused += 1
            raise urllib3.exceptions.NewConnectionError(None, "Connection refused")  # type: ignore[arg-type]
        if self.refuses:
            self.refused += 1
            raise s3_error(403, "InvalidAccessKeyId")
        if key is not None and key not in self.objects:
            raise s3_error(404, "NoSuchKey")


def s3_error(status: int, code: str) -> S3Error:
    response: Any = SimpleNamespace(status=status, headers={}, data=b"")
    return S3Error(response, code, code, None, None, None)


class _Answer(io.BytesIO):
    """The rest of an object; see `FakeS3.cut_after`."""

    def __init__(self, client: FakeS3, data: bytes) -> None:
        super().__init__(data)
        self._client = client

    def read(self, size: int | None = -1, *, decode_content: bool = True) -> bytes:
        cut = self._client.cut_after
        if cut is not None and self.tell() >= cut:
            self._client.down = True
            raise urllib3.exceptions.ProtocolError("Connection broken")
        return super().read(size if cut is None or size is None or size < 0 else min(size, cut - self.tell()))

    def release_conn(self) -> None:
        pass
