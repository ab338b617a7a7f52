"""The probe of an S3 server: tests with a few small objects the abilities that saves need.

A server that ignores a condition reports success, and a job would lose saves without an error. Therefore the probe runs
once, before a job begins, and names each missing ability.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Mapping
from functools import partial

from cpr_trainer.errors import DataError
from cpr_trainer.store.connection import CHECKSUM, IF_ABSENT, Connection, Upload, checksum_header
from cpr_trainer.store.data_files import Version
from cpr_trainer.store.interface import (
    CredentialsRefusedError,
    ExistsError,
    StoreError,
    StoreUnreachableError,
    StoreUnsuitableError,
    retried,
)
from cpr_trainer.store.objects import delete_objects, download, list_objects, upload
from cpr_trainer.store.responses import SUITABLE, UNKNOWN_HEADERS, translated
from cpr_trainer.store.s3_data import open_object
from cpr_trainer.store.transfers import checksum, flat, in_parallel

_LOG = logging.getLogger(__name__)

_DATA, _OTHER = b"0123456789", b"abcdefghij"
_ANOTHER_TAG = "0" * 32
#: A server that checks a key and writes it in two steps lets both of two writers succeed in more than half of all
#: rounds while it is idle, and less often while it is busy. More writers collide more often.
_RACES, _WRITERS = 8, 4


@retried
def probe(connection: Connection, bucket: str, folder: str) -> None:
    """Raise StoreUnsuitableError if the server lacks abilities that saves need; its message names each.

    Writes objects in a new folder below `folder`, and deletes them. Raises StoreError if the store fails.
    """
    server = _Server(connection, bucket, f"{folder}{uuid.uuid4().hex}/")
    tests = {
        f"uploads with a checksum (header {CHECKSUM})": server.takes_checksums,
        "conditional uploads (header If-None-Match)": server.writes_only_if_absent,
        "conditional uploads of several writers at once": server.lets_one_writer_succeed,
        "reads of one version (header If-Match, or an ETag in the answer)": server.reads_one_version,
        "reads from a position (header Range)": server.reads_from_a_position,
        "listings in pages (ListObjectsV2)": server.lists_in_pages,
        "deletions of several objects (DeleteObjects)": server.deletes,
    }
    missing: dict[str, str] = {}
    try:
        with translated(connection.field):
            for ability, test in tests.items():
                try:
                    test()
                except _AbilityMissingError as error:
                    missing[ability] = str(error)
                except StoreUnsuitableError as error:
                    reason = error.message.rstrip(".").replace(f"The store at {connection.endpoint}", "the server")
                    missing[ability] = reason
    except StoreError:
        with contextlib.suppress(StoreError, _AbilityMissingError), translated(connection.field):
            server.deletes()
        if not missing:
            raise
    if missing:
        raise StoreUnsuitableError(
            f"The store at {connection.endpoint} lacks what saves need: "
            + "; ".join(f"{ability}: {reason}" for ability, reason in missing.items())
            + ".",
            f"{SUITABLE} {UNKNOWN_HEADERS}" if CHECKSUM in " ".join(missing) else SUITABLE,
        )
    if not server.compares_checksums:
        _LOG.warning(
            "The store at %s takes checksums of uploads and does not compare them: bytes that are damaged on their way "
            "are found when they are read.",
            connection.endpoint,
        )


class _AbilityMissingError(Exception):
    """The server lacks an ability; the text describes its behaviour."""


class _Server:
    """A server and a new folder there. Each method tests one ability, and raises _AbilityMissingError without it."""

    def __init__(self, connection: Connection, bucket: str, folder: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._folder = folder
        self._sends_checksums = True
        self.compares_checksums = False

    def put(self, name: str, data: bytes = _DATA, headers: Mapping[str, str] | None = None) -> None:
        """Write an object of the folder like a part of a save: a bucket may refuse uploads without a checksum."""
        all_headers = (checksum_header(checksum(data)) if self._sends_checksums else {}) | dict(headers or {})
        upload(self._connection, self._bucket, self._folder + name, Upload(flat(data)), all_headers)

    def takes_checksums(self) -> None:
        """Test that a part of a save can be written, and whether the server compares its checksum.

        Later tests omit checksums if the server takes none.
        """
        try:
            self.put("object")
        except StoreUnsuitableError:
            self._sends_checksums = False
            self.put("object")
            raise
        try:
            self.put("damaged", headers=checksum_header(checksum(_OTHER)))
        except StoreUnreachableError:  # servers refuse it by different codes
            self.compares_checksums = True

    def writes_only_if_absent(self) -> None:
        """Test that a manifest is written only once."""
        self.put("manifest", headers=IF_ABSENT)
        overwritten = self._put_if_absent("manifest", _OTHER)
        if overwritten or download(self._connection, self._bucket, f"{self._folder}manifest") != _DATA:
            raise _AbilityMissingError("the server overwrote an object")

    def lets_one_writer_succeed(self) -> None:
        """Test that of several simultaneous writers of a manifest one succeeds."""
        barrier = threading.Barrier(_WRITERS)

        def attempt(name: str, number: int) -> bool:
            barrier.wait()
            try:
                return self._put_if_absent(name, _DATA + bytes([number]))
            except StoreUnreachableError:  # S3 reports a conflict of writers so
                return False

        for race in range(_RACES):
            won = sum(in_parallel(partial(attempt, f"race-{race}"), range(_WRITERS), threads=_WRITERS))
            if won > 1:
                raise _AbilityMissingError(f"the server let {won} of {_WRITERS} writers win")

    def reads_one_version(self) -> None:
        """Test that a read of a replaced version fails."""
        try:
            self._read_from(0, _ANOTHER_TAG)
        except DataError:
            return
        raise _AbilityMissingError("the server answered with another version")

    def reads_from_a_position(self) -> None:
        """Test that a broken stream of data can be resumed."""
        (found,) = list_objects(self._connection, self._bucket, f"{self._folder}object")
        if self._read_from(4, found.tag) != _DATA[4:]:
            raise _AbilityMissingError("the server answered with other bytes")

    def lists_in_pages(self) -> None:
        """Test that a listing of several pages is complete."""
        names = [f"{self._folder}page/{name}" for name in "abc"]
        for name in names:
            self.put(name.removeprefix(self._folder))
        found = list_objects(self._connection, self._bucket, f"{self._folder}page/", page_keys=1)
        if (keys := sorted(each.key for each in found)) != names:
            raise _AbilityMissingError(f"the server listed {len(set(keys))} of {len(names)} objects")

    def deletes(self) -> None:
        """Test that objects can be deleted, and delete all objects of the probe.

        Credentials without this permission are no missing ability: old saves stay, and a sweep reports that.
        """
        keys = [each.key for each in list_objects(self._connection, self._bucket, self._folder)]
        try:
            delete_objects(self._connection, self._bucket, [*keys, f"{self._folder}absent"])
        except CredentialsRefusedError as error:
            _LOG.warning("The probe's objects stay in the store. %s", error)
            return
        if any(list_objects(self._connection, self._bucket, self._folder)):
            raise _AbilityMissingError("the server still lists deleted objects")

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        """Return whether the server took an object under a condition."""
        try:
            self.put(name, data, IF_ABSENT)
        except ExistsError:
            return False
        return True

    def _read_from(self, position: int, tag: str) -> bytes:
        version = Version(len(_DATA), tag)
        with open_object(self._connection, self._bucket, f"{self._folder}object", version) as stream:
            stream.seek(position)
            return stream.read()
