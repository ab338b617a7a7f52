"""Data in Azure's storage, by a real Azurite, which `tests/cluster/binaries.sh azurite-blob` installs.

It has the blob endpoint alone, so folders are parts of names.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from cpr_contract.spec import StoreSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.errors import DataError
from cpr_trainer.store import CredentialsRefusedError, StoreUnreachableError, Uris
from cpr_trainer.store.arrow_data import ArrowData
from support.apiserver import binary
from support.s3_servers import free_port
from support.table_data import TABLES, assert_same, clicks, everything, model_of, read, write

pytestmark = pytest.mark.store

ACCOUNT = "devstoreaccount1"
#: The key of this account in every Azurite.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
LAKE = "abfss://lake@devstoreaccount1.dfs.core.windows.net"
#: Makes the account's file system, for a key.
Account = Callable[[str], fs.AzureFileSystem]


def account_at(port: int, key: str) -> fs.AzureFileSystem:
    place = f"127.0.0.1:{port}"
    return fs.AzureFileSystem(
        ACCOUNT,
        account_key=key,
        blob_storage_authority=place,
        dfs_storage_authority=place,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A running Azurite with an empty container."""
    command = binary("azurite-blob")
    folder = tmp_path_factory.mktemp("azurite")
    with free_port() as port:
        options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", str(folder))
        with subprocess.Popen((command, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port))) as process:
            try:
                _wait(account_at(port, KEY))
                yield lambda key: account_at(port, key)
            finally:
                process.kill()


def _wait(system: fs.AzureFileSystem) -> None:
    while True:
        try:
            system.create_dir("lake")
        except OSError:
            time.sleep(0.2)
        else:
            return


def put(account: Account, key: str, data: bytes) -> None:
    with account(KEY).open_output_stream(f"lake/{key}", compression=None) as stream:
        stream.write(data)


def uris_with(account: Account, key: str) -> Uris:
    uris = Uris(StoreSpec("file:///nowhere", None, "bucket", ""))
    uris._arrow = ArrowData(lambda place: (account(key), place.removeprefix("abfss://").partition("@")[0]))
    return uris


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_objects_are_the_same_samples_as_local_files(account: Account, tmp_path: Path, ending: str) -> None:
    data = write(clicks(200), tmp_path, ending, files=3)
    for path in tmp_path.iterdir():
        put(account, f"{ending}/day 0/{path.name}", path.read_bytes())
    put(account, f"{ending}/day 0/_SUCCESS", b"")
    put(account, f"{ending}/other", b"no data")
    for pattern in ("day%200/", f"day*/*.{ending}"):
        remote = open_dataset(
            replace(data, uri=f"{LAKE}/{ending}/{pattern}"), model_of(TABLES), uris_with(account, KEY)
        )
        assert_same(everything(remote), everything(read(data)))


def test_object_that_changes_while_read_is_named(account: Account) -> None:
    """Both have the same size, and maybe the same time, but different ETags."""
    put(account, "clicks", bytes(4 << 20))
    uris, uri = uris_with(account, KEY), f"{LAKE}/clicks"
    with uris.open(uri, uris.version(uri)) as stream:
        stream.read(1000)
        put(account, "clicks", b"\x01" * (4 << 20))
        with pytest.raises(DataError, match=f"{uri} has changed"):
            stream.read()
    with uris.open(uri, uris.version(uri)) as stream:
        account(KEY).delete_file("lake/clicks")
        with pytest.raises(DataError, match=f"{uri} is not there any more"):
            stream.read(10)
    with pytest.raises(DataError, match=f"{uri} is not there"):
        uris.version(uri)


def test_wrong_key_is_a_refusal_and_no_server_an_outage(account: Account) -> None:
    put(account, "here", b"a")
    with pytest.raises(CredentialsRefusedError, match="AuthorizationFailure"):
        uris_with(account, "AAAA").version(f"{LAKE}/here")
    with free_port() as nowhere, pytest.raises(StoreUnreachableError, match="Could not connect"):
        uris_with(lambda key: account_at(nowhere, key), KEY).version(f"{LAKE}/here")
