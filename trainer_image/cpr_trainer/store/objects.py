"""Requests of S3 about objects: upload, download, listing in pages, deletion.

All of them raise StoreError, and urllib3's errors for a response that breaks off.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

import urllib3

from cpr_trainer.store.connection import Connection, Upload
from cpr_trainer.store.interface import Entry, Received, StoreUnreachableError, StoreUnsuitableError
from cpr_trainer.store.responses import SUITABLE, Request, document, error_response, length_of, released, store_error
from cpr_trainer.store.transfers import SLICE_BYTES, extended, size_of, slices

#: Maximum of objects that S3 lists or deletes in one request.
_PAGE_KEYS = 1000
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
#: Codes by which some servers report an object that was absent before.
_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})


def upload(connection: Connection, bucket: str, name: str, body: Upload, headers: Mapping[str, str]) -> None:
    """Put an object, with additional `headers`."""
    with released(connection.send("PUT", bucket, name, headers=headers, body=body)) as response:
        response.read()


def download(connection: Connection, bucket: str, name: str) -> bytes:
    """Return an object's bytes."""
    with released(connection.send("GET", bucket, name)) as response:
        data, length = bytes(response.read(decode_content=False)), length_of(response)
    if length is None:
        _demand_whole(connection, bucket, name, len(data))
    elif len(data) < length:
        raise _ended(len(data), length)
    return data


def download_into(connection: Connection, bucket: str, name: str, views: Sequence[memoryview]) -> Received:
    """Fill `views` with an object's bytes, up to the end of either."""
    capacity = size_of(views)
    with released(connection.send("GET", bucket, name)) as response:
        length = length_of(response)
        if length is not None:
            filled, crc = _fill(views, response, min(capacity, length))
            if filled < min(capacity, length):
                raise _ended(filled, length)
            return Received(length, crc)
        filled, crc = _fill(views, response, capacity)
        received = filled
        while data := response.read(SLICE_BYTES, decode_content=False):
            received += len(data)
    if received != capacity:  # an object that fills the views has the expected size
        _demand_whole(connection, bucket, name, received)
    return Received(received, crc)


def list_objects(
    connection: Connection, bucket: str, prefix: str, *, after: str = "", page_keys: int = _PAGE_KEYS
) -> Iterator[Entry]:
    """Yield the objects with keys that begin with `prefix` and sort after `after`, in the store's order.

    A page continues the last one by the store's token, or after its last key if the store sends none; never by both,
    which some servers refuse.
    """
    request = Request(connection.endpoint, connection.field, "GET", bucket)
    # Policies of buckets match empty values, and not absent ones.
    common = {"list-type": "2", "delimiter": "", "encoding-type": "url", "prefix": prefix, "max-keys": str(page_keys)}
    place = {"start-after": after} if after else {}
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
    """Delete objects, a thousand in a request, in their order; absence is success."""
    request = Request(connection.endpoint, connection.field, "POST", bucket)
    for first in range(0, len(keys), _PAGE_KEYS):
        deletion = ET.Element("Delete", xmlns=_NAMESPACE)
        ET.SubElement(deletion, "Quiet").text = "true"
        for key in keys[first : first + _PAGE_KEYS]:
            ET.SubElement(ET.SubElement(deletion, "Object"), "Key").text = key
        body = bytes(ET.tostring(deletion, encoding="utf-8"))
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        response = connection.send("POST", bucket, query={"delete": ""}, headers={"Content-MD5": digest}, body=body)
        for error in document(request, response, "DeleteResult").iterfind("{*}Error"):
            if error.findtext("{*}Code") not in _ABSENT:
                raise store_error(request, error_response(error, HTTPStatus.OK, {}))


def _entries(page: ET.Element) -> list[Entry]:
    """Return the objects of a page. Raises ValueError for one without a key, a time or a size."""
    quoted = page.findtext("{*}EncodingType") == "url"
    found = []
    for entry in page.iterfind("{*}Contents"):
        key, modified, size, tag = (entry.findtext(f"{{*}}{name}") for name in ("Key", "LastModified", "Size", "ETag"))
        if key is None or modified is None or size is None:
            raise ValueError("an entry without Key, LastModified or Size")
        key = unquote_plus(key) if quoted else key
        found.append(Entry(key, int(size), datetime.fromisoformat(modified).timestamp(), (tag or "").replace('"', "")))
    return found


def _demand_whole(connection: Connection, bucket: str, name: str, size_bytes: int) -> None:
    """Raise ProtocolError unless an object has this size in the listing: a response without length may be cut short."""
    listed = next((each.size_bytes for each in list_objects(connection, bucket, name) if each.key == name), None)
    if listed != size_bytes:
        raise _ended(size_bytes, listed)


def _ended(received: int, expected: int | None) -> urllib3.exceptions.ProtocolError:
    return urllib3.exceptions.ProtocolError(f"the response ended after {received} of {expected} bytes")


def _fill(views: Sequence[memoryview], response: urllib3.BaseHTTPResponse, size_bytes: int) -> tuple[int, int]:
    """Read up to `size_bytes` bytes into the views; return the number of bytes read and their CRC-32C.

    The bytes pass through a slice that stays in the cache, because urllib3 cannot receive in place. They are not
    decoded, which would copy them twice more.
    """
    left, crc = size_bytes, 0
    for piece in slices(views):
        view = piece[:left]
        while view:
            data = response.read(len(view), decode_content=False)
            if not data:
                return size_bytes - left, crc
            view[: len(data)] = data
            crc = extended(crc, memoryview(data))
            view, left = view[len(data) :], left - len(data)
    return size_bytes, crc
