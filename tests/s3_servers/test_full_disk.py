"""A full disk, under a folder and under real servers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, StoreFullError, StoreUnreachableError, open_store
from support.s3_servers import SERVERS

DATA = os.urandom(4 << 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", disk], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(store: Store) -> None:
    """Write until the store is full, trying again as a job does: MinIO blames the first request that meets it."""
    number = 0
    while True:
        try:
            store.put(f"job/{number}", DATA)
            number += 1
        except StoreUnreachableError:
            time.sleep(0.2)


def test_full_folder_is_named(small_disk: Path) -> None:
    store = open_store(StoreSpec(small_disk.as_uri(), None, "bucket", ""), None, None)
    with pytest.raises(StoreFullError, match=r"snapshots\.keep"):
        fill(store)
    whole = store.list("")
    assert {entry.size_bytes for entry in whole} == {len(DATA)}
    store.delete([whole[0].key])
    store.put("job/again", DATA)


@pytest.mark.store
@pytest.mark.parametrize("kind", SERVERS)
def test_full_server_is_named(small_disk: Path, kind: str) -> None:
    with SERVERS[kind](small_disk) as server:
        store = open_store(server.new_bucket(), server.credentials_dir, None)
        with pytest.raises(StoreFullError, match=r"snapshots\.keep"):
            fill(store)
        assert {entry.size_bytes for entry in store.list("")} == {len(DATA)}
