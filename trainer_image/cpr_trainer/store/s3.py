"""An S3-compatible store: objects in a bucket, and their bytes between memory and the socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import urllib3

from cpr_trainer.store.answers import returned, translated
from cpr_trainer.store.connection import IF_ABSENT, Connection, Upload, checksum_header
from cpr_trainer.store.listing import delete_objects, list_objects
from cpr_trainer.store.persistence import persistent
from cpr_trainer.store.probe import probe
from cpr_trainer.store.protocol import Entry, ExistsError, MissingError, Received
from cpr_trainer.store.transfers import SLICE_BYTES, Buffer, Throttle, checksum, extended, flat, size_of, slices


class S3Store:
    """Objects in one bucket, below a prefix. An object is one request: parts of saves are sent several at once."""

    def __init__(self, connection: Connection, bucket: str, prefix: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._prefix = prefix

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        """Write an object; see `Store.put`."""
        views = flat(data)
        crc = checksum(views)
        # Some servers take an upload that breaks off for a shorter object unless they know what has to arrive.
        condition = IF_ABSENT if if_absent else {}
        self._put(key, Upload(views, throttle), {**checksum_header(crc), **condition})
        return crc

    @persistent
    def get(self, key: str) -> bytes:
        """Read an object; see `Store.get`."""
        with self._asking(key):
            return download(self._connection, self._bucket, self._prefix + key)

    @persistent
    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        """Read an object into memory; see `Store.get_into`."""
        with self._asking(key):
            return download_into(self._connection, self._bucket, self._prefix + key, flat(buffers))

    @persistent
    def list(self, prefix: str) -> tuple[Entry, ...]:
        """All objects whose keys begin with `prefix`; see `Store.list`."""
        with self._asking(prefix):
            found = list_objects(self._connection, self._bucket, self._prefix + prefix)
            entries = (Entry(each.key.removeprefix(self._prefix), each.size_bytes, each.modified_s) for each in found)
            return tuple(sorted(entries, key=attrgetter("key")))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request; absence is success."""
        self._delete([self._prefix + key for key in keys])

    def probe(self, folder: str) -> None:
        """Raise StoreUnsuitableError if the server lacks abilities; see `Store.probe`."""
        probe(self._connection, self._bucket, self._prefix + folder)

    @persistent
    def _put(self, key: str, body: Upload, headers: Mapping[str, str]) -> None:
        with self._asking(key):
            upload(self._connection, self._bucket, self._prefix + key, body, headers)

    @persistent
    def _delete(self, keys: Sequence[str]) -> None:
        with self._asking(""):
            delete_objects(self._connection, self._bucket, keys)

    @contextlib.contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        """Translate errors, and name objects by their keys in this store."""
        try:
            with translated(self._connection.field):
                yield
        except (MissingError, ExistsError) as error:
            raise type(error)(key) from error


# One object. All of these raise StoreError, and urllib3's errors for an answer that breaks off.


def upload(connection: Connection, bucket: str, name: str, body: Upload, headers: Mapping[str, str]) -> None:
    """Put an object, with `headers` beside those of any upload."""
    with returned(connection.send("PUT", bucket, name, headers=headers, body=body)) as answer:
        answer.read()


def download(connection: Connection, bucket: str, name: str) -> bytes:
    """Return an object's bytes."""
    with returned(connection.send("GET", bucket, name)) as response:
        data, length = bytes(response.read(decode_content=False)), length_of(response)
    if length is None:
        _demand_whole(connection, bucket, name, len(data))
    elif len(data) < length:
        raise _ended(len(data), length)
    return data


def download_into(connection: Connection, bucket: str, name: str, views: Sequence[memoryview]) -> Received:
    """Fill `views` with an object's bytes, as far as there are any."""
    room = size_of(views)
    with returned(connection.send("GET", bucket, name)) as response:
        length = length_of(response)
        if length is not None:
            filled, crc = _fill(views, response, min(room, length))
            if filled < min(room, length):
                raise _ended(filled, length)
            return Received(length, crc)
        filled, crc = _fill(views, response, room)
        received = filled
        while data := response.read(SLICE_BYTES, decode_content=False):
            received += len(data)
    if received != room:  # else it is as long as the caller expects
        _demand_whole(connection, bucket, name, received)
    return Received(received, crc)


def length_of(response: urllib3.BaseHTTPResponse) -> int | None:
    """Return how long an answer says that it is; None if it does not: proxies that send chunks leave that out."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _demand_whole(connection: Connection, bucket: str, name: str, size_bytes: int) -> None:
    """Raise ProtocolError unless the listing says that an object is so long: an answer without length just ends."""
    listed = next((each.size_bytes for each in list_objects(connection, bucket, name) if each.key == name), None)
    if listed != size_bytes:
        raise _ended(size_bytes, listed)


def _ended(received: int, expected: int | None) -> urllib3.exceptions.ProtocolError:
    return urllib3.exceptions.ProtocolError(f"the answer ended after {received} of {expected} bytes")


def _fill(views: Sequence[memoryview], response: urllib3.BaseHTTPResponse, size_bytes: int) -> tuple[int, int]:
    """Read so many bytes into the views if there are; return how many there were, and their CRC-32C.

    They come through a slice that stays in the cache: urllib3 does not offer to receive them in place. Left as they
    came: to decode them would copy them twice more.
    """
    left, crc = size_bytes, 0
    for piece in slices(views):
        room = piece[:left]
        while room:
            data = response.read(len(room), decode_content=False)
            if not data:
                return size_bytes - left, crc
            room[: len(data)] = data
            crc = extended(crc, memoryview(data))
            room, left = room[len(data) :], left - len(data)
    return size_bytes, crc
