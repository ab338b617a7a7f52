"""Listings of a bucket, page by page, and deletions of many objects at once, as S3 has them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from cpr_trainer.store.answers import SUITABLE, Request, answer_in, document, meaning
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.protocol import StoreUnreachableError, StoreUnsuitableError

#: The most that S3 lists or deletes in one request.
_PAGE_KEYS = 1000
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
#: Codes by which some servers report an object that was absent before.
_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a listing. `tag` is its ETag without quotes; `modified_s` is in seconds since the epoch."""

    key: str
    size_bytes: int
    modified_s: float
    tag: str


def list_objects(connection: Connection, bucket: str, prefix: str, *, page_keys: int = _PAGE_KEYS) -> Iterator[Listed]:
    """Yield the objects whose keys begin with `prefix`, in the store's order.

    A page continues the last one by the store's token, or after its last key if the store gives none; never by both,
    which some servers refuse. Raises StoreError, and urllib3's errors for an answer that breaks off.
    """
    request = Request(connection.endpoint, connection.field, "GET", bucket)
    # Policies of buckets see empty values, and not absent ones.
    common = {"list-type": "2", "delimiter": "", "encoding-type": "url", "prefix": prefix, "max-keys": str(page_keys)}
    place: dict[str, str] = {}
    while True:
        page = document(request, connection.send("GET", bucket, query=common | place), "ListBucketResult")
        try:
            found = _entries(page)
        except ValueError as error:
            raise StoreUnreachableError(
                f"{connection.endpoint} lists objects otherwise than S3: {error}.",
                f"Check {connection.field}.endpoint.",
            ) from error
        yield from found
        if (page.findtext("{*}IsTruncated") or "").lower() != "true":
            return
        token = page.findtext("{*}NextContinuationToken")
        following = {"continuation-token": token} if token else {"start-after": found[-1].key if found else ""}
        if following == place or not all(following.values()):
            raise StoreUnsuitableError(f"The store at {connection.endpoint} lists the same page again.", SUITABLE)
        place = following


def delete_objects(connection: Connection, bucket: str, keys: Sequence[str]) -> None:
    """Delete objects, a thousand in a request, in their order; absence is success.

    Raises StoreError, and urllib3's errors for an answer that breaks off.
    """
    request = Request(connection.endpoint, connection.field, "POST", bucket)
    for first in range(0, len(keys), _PAGE_KEYS):
        body = _deletion(keys[first : first + _PAGE_KEYS])
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        answer = connection.send("POST", bucket, query={"delete": ""}, headers={"Content-MD5": digest}, body=body)
        for error in document(request, answer, "DeleteResult").iterfind("{*}Error"):
            if error.findtext("{*}Code") not in _ABSENT:
                raise meaning(request, answer_in(error, HTTPStatus.OK, {}))


def _entries(page: ET.Element) -> list[Listed]:
    """Return the objects of a page. Raises ValueError for one without a key, a time or a size."""
    quoted = page.findtext("{*}EncodingType") == "url"
    found = []
    for entry in page.iterfind("{*}Contents"):
        key, modified, size, tag = (entry.findtext(f"{{*}}{name}") for name in ("Key", "LastModified", "Size", "ETag"))
        if key is None or modified is None or size is None:
            raise ValueError("an entry without Key, LastModified or Size")
        key = unquote_plus(key) if quoted else key
        found.append(Listed(key, int(size), datetime.fromisoformat(modified).timestamp(), (tag or "").replace('"', "")))
    return found


def _deletion(keys: Sequence[str]) -> bytes:
    root = ET.Element("Delete", xmlns=_NAMESPACE)
    ET.SubElement(root, "Quiet").text = "true"
    for key in keys:
        ET.SubElement(ET.SubElement(root, "Object"), "Key").text = key
    return bytes(ET.tostring(root, encoding="utf-8"))
