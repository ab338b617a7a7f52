"""The probe of an S3 server: shows with a few small objects whether it can do what saves need.

A server that ignores a condition answers as if it had honoured it, and a job would lose saves without an error. So the
probe runs once, before a job begins, and names each ability that is missing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from functools import partial

from cpr_trainer.errors import DataError
from cpr_trainer.store.answers import SUITABLE, UNKNOWN_HEADERS, returned, translated
from cpr_trainer.store.connection import CHECKSUM, IF_ABSENT, Connection, Upload, checksum_header
from cpr_trainer.store.listing import delete_objects, list_objects
from cpr_trainer.store.object_stream import Version, open_object
from cpr_trainer.store.persistence import persistent
from cpr_trainer.store.protocol import (
    CredentialsRefusedError,
    ExistsError,
    StoreError,
    StoreUnreachableError,
    StoreUnsuitableError,
)
from cpr_trainer.store.transfers import checksum, flat, in_parallel

_LOG = logging.getLogger(__name__)

_DATA, _OTHER = b"0123456789", b"abcdefghij"
_ANOTHER_TAG = "0" * 32
#: A server that looks for a key and writes it in two steps lets both of two writers win in more than half of all
#: rounds while it has little else to do, and less often while it is busy. More writers meet more often.
_RACES, _WRITERS = 8, 4


@persistent
def probe(connection: Connection, bucket: str, folder: str) -> None:
    """Raise StoreUnsuitableError if the server lacks abilities that saves need; its message names each.

    Writes objects in a folder of its own below `folder`, and deletes them. Raises StoreError if the store fails.
    """
    server = _Server(connection, bucket, f"{folder}{uuid.uuid4().hex}/")
    shown = {
        f"uploads with a checksum (header {CHECKSUM})": server.takes_checksums,
        "conditional uploads (header If-None-Match)": server.keeps_what_is_there,
        "conditional uploads of several writers at once": server.lets_one_writer_win,
        "reads of one version (header If-Match, or an ETag in the answer)": server.tells_versions_apart,
        "reads from a position (header Range)": server.reads_from_a_position,
        "listings in pages (ListObjectsV2)": server.lists_in_pages,
        "deletions of several objects (DeleteObjects)": server.deletes,
    }
    missing: dict[str, str] = {}
    try:
        with translated(connection.field):
            for ability, show in shown.items():
                with _noted(missing, ability, connection.endpoint):
                    show()
    except StoreError:
        with contextlib.suppress(StoreError, _LackingError), translated(connection.field):
            server.deletes()
        if not missing:
            raise
    if missing:
        raise StoreUnsuitableError(
            f"The store at {connection.endpoint} lacks what saves need: "
            + "; ".join(f"{ability}: {why}" for ability, why in missing.items())
            + ".",
            f"{SUITABLE} {UNKNOWN_HEADERS}" if CHECKSUM in " ".join(missing) else SUITABLE,
        )
    if not server.compares_checksums:
        _LOG.warning(
            "The store at %s takes checksums of uploads and does not compare them: bytes that are damaged on their way "
            "are found when they are read.",
            connection.endpoint,
        )


class _LackingError(Exception):
    """The server did something else than it should."""


@contextlib.contextmanager
def _noted(missing: dict[str, str], ability: str, endpoint: str) -> Iterator[None]:
    """Note what an ability lacks, in `missing`."""
    try:
        yield
    except _LackingError as lack:
        missing[ability] = str(lack)
    except StoreUnsuitableError as error:
        missing[ability] = error.message.rstrip(".").replace(f"The store at {endpoint}", "the server")


class _Server:
    """A server and a folder of its own there. Each method shows one ability, and raises _LackingError without it."""

    def __init__(self, connection: Connection, bucket: str, folder: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._folder = folder
        self._states_checksums = True
        self.compares_checksums = False

    def put(self, name: str, data: bytes = _DATA, headers: Mapping[str, str] | None = None) -> None:
        """Write an object of the folder as saves are written: a bucket may refuse uploads without a checksum."""
        stated = (checksum_header(checksum(data)) if self._states_checksums else {}) | dict(headers or {})
        body = Upload(flat(data))
        with returned(
            self._connection.send("PUT", self._bucket, self._folder + name, headers=stated, body=body)
        ) as answer:
            answer.read()

    def takes_checksums(self) -> None:
        """Show that a part of a save can be written; find out whether its checksum is compared.

        What else is missing is looked for without checksums if the server takes none.
        """
        try:
            self.put("object")
        except StoreUnsuitableError:
            self._states_checksums = False
            self.put("object")
            raise
        try:
            self.put("damaged", headers=checksum_header(checksum(_OTHER)))
        except StoreUnreachableError:  # what it calls such a refusal differs
            self.compares_checksums = True

    def keeps_what_is_there(self) -> None:
        """Show that a manifest is written once."""
        self.put("manifest", headers=IF_ABSENT)
        if self._put_if_absent("manifest", _OTHER) or self._get("manifest") != _DATA:
            raise _LackingError("the server overwrote an object")

    def lets_one_writer_win(self) -> None:
        """Show that of writers who write a manifest at the same time all but one are refused."""
        together = threading.Barrier(_WRITERS)

        def attempt(name: str, number: int) -> bool:
            together.wait()
            try:
                return self._put_if_absent(name, _DATA + bytes([number]))
            except StoreUnreachableError:  # S3 answers a conflict of writers so
                return False

        for race in range(_RACES):
            won = sum(in_parallel(partial(attempt, f"race-{race}"), range(_WRITERS), threads=_WRITERS))
            if won > 1:
                raise _LackingError(f"the server let {won} of {_WRITERS} writers win")

    def tells_versions_apart(self) -> None:
        """Show that data which was replaced is not read as if it were the same."""
        try:
            self._read_from(0, _ANOTHER_TAG)
        except DataError:
            return
        raise _LackingError("the server answered with another version")

    def reads_from_a_position(self) -> None:
        """Show that a stream of data goes on where it broke off."""
        (found,) = list_objects(self._connection, self._bucket, f"{self._folder}object")
        if self._read_from(4, found.tag) != _DATA[4:]:
            raise _LackingError("the server answered with other bytes")

    def lists_in_pages(self) -> None:
        """Show that a listing of many objects is whole."""
        names = [f"{self._folder}page/{name}" for name in "abc"]
        for name in names:
            self.put(name.removeprefix(self._folder))
        found = list_objects(self._connection, self._bucket, f"{self._folder}page/", page_keys=1)
        if (keys := sorted(each.key for each in found)) != names:
            raise _LackingError(f"the server listed {len(set(keys))} of {len(names)} objects")

    def deletes(self) -> None:
        """Show that what was written can be deleted, and delete all of it.

        Credentials that may not delete are not the server's lack: old saves stay, which a sweep reports.
        """
        keys = [each.key for each in list_objects(self._connection, self._bucket, self._folder)]
        try:
            delete_objects(self._connection, self._bucket, [*keys, f"{self._folder}absent"])
        except CredentialsRefusedError as error:
            _LOG.warning("The probe's objects stay in the store. %s", error)
            return
        if any(list_objects(self._connection, self._bucket, self._folder)):
            raise _LackingError("the server still lists deleted objects")

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        """Return whether the server took an object under a condition."""
        try:
            self.put(name, data, IF_ABSENT)
        except ExistsError:
            return False
        return True

    def _get(self, name: str) -> bytes:
        with returned(self._connection.send("GET", self._bucket, self._folder + name)) as response:
            return bytes(response.read())

    def _read_from(self, position: int, tag: str) -> bytes:
        version = Version(len(_DATA), tag)
        with open_object(self._connection, self._bucket, f"{self._folder}object", version) as stream:
            stream.seek(position)
            return stream.read()
