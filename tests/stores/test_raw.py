"""The raw client moves the same bytes as the store: otherwise it would be no measure for it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import in_parallel, open_store
from cprjob_bench.roles.snapshot.transfers import RawClient, raw_client
from support.s3_servers import SERVERS, ServerOf

DATA = os.urandom(3 << 20)


@pytest.mark.parametrize(
    "kind",
    ["folder", *(pytest.param(f"{name}{tls}", marks=pytest.mark.store) for name in SERVERS for tls in ("", "+tls"))],
)
def test_it_writes_what_the_store_reads_and_reads_what_the_store_wrote(
    kind: str, tmp_path: Path, server_of: ServerOf
) -> None:
    server = None if kind == "folder" else server_of(kind)
    spec = server.new_bucket() if server else StoreSpec(tmp_path.as_uri(), None, "bucket", "")
    access = (server.credentials_dir, server.ca_file) if server else (None, None)
    store = open_store(spec, *access)

    def there_and_back(raw: RawClient, number: int) -> None:
        raw.put(f"raw-{number}", memoryview(DATA))
        assert store.get(f"raw-{number}") == DATA
        store.put(f"store-{number}", DATA)
        found = bytearray(len(DATA))
        raw.get_into(f"store-{number}", memoryview(found))
        assert found == DATA

    with raw_client(spec, *access) as raw:
        in_parallel(partial(there_and_back, raw), range(6), threads=2)


@pytest.mark.store
def test_a_refusal_is_no_measurement(server_of: ServerOf) -> None:
    server = server_of("minio")
    with (
        raw_client(server.new_bucket(), server.credentials_dir, None) as raw,
        pytest.raises(OSError, match="404"),
    ):
        raw.get_into("nothing", memoryview(bytearray(1)))
