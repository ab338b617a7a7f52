"""Compares two clients that read data from S3: .venv/bin/python benchmarks/scripts/s3_reading.py.

The trainer's client (one request a stretch, pinned by If-Match) and pyarrow.fs read the same objects of a
bucket: a text from end to end in blocks of 8 MiB, and a Parquet file by row groups. Only ratios mean something.
Credentials are those of CPR_CREDENTIALS_DIR.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from cpr_contract import env
from cpr_contract.spec import StoreSpec
from cpr_trainer.data.text import BLOCK_BYTES
from cpr_trainer.store import Uris, open_store

PREFIX, TEXT, TABLE = "cprjob-s3-reading", "text", "table.parquet"
GROUPS, GROUP_ROWS = 8, 65_536
Open = Callable[[str], Any]


def make_table() -> bytes:
    """A table of numbers as clicks have them: 40 columns, in row groups."""
    random = np.random.default_rng(0)
    rows = GROUPS * GROUP_ROWS
    columns = {f"c{number}": random.integers(0, 2**20, rows, np.int32) for number in range(40)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=GROUP_ROWS, compression="none", use_dictionary=False)
    return bytes(sink.getvalue())


def read_text(stream: Any) -> None:
    """Read a stream as trainers read plain text."""
    with stream:
        while stream.read(BLOCK_BYTES):
            pass


def read_table(stream: Any) -> None:
    """Read a stream as trainers read Parquet."""
    with stream:
        table = pq.ParquetFile(stream, pre_buffer=True)
        for group in range(table.num_row_groups):
            table.read_row_group(group)


def opener_of_ours(spec: StoreSpec, credentials: Path) -> Open:
    """Opens an object as trainers do."""
    uris = Uris(spec, credentials)
    place = f"s3://{spec.bucket}/{PREFIX}"
    versions = {name: uris.version(f"{place}/{name}") for name in (TEXT, TABLE)}
    return lambda name: uris.open(f"{place}/{name}", versions[name])


def opener_of_pyarrow(spec: StoreSpec, credentials: Path) -> Open:
    """Opens an object by pyarrow.fs."""
    endpoint = urlsplit(spec.endpoint)
    access, secret = ((credentials / name).read_text().strip() for name in ("accessKey", "secretKey"))
    files = fs.S3FileSystem(
        access_key=access,
        secret_key=secret,
        region=spec.region or "us-east-1",
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc,
    )
    return lambda name: files.open_input_file(f"{spec.bucket}/{PREFIX}/{name}")


def measure(openers: Mapping[str, Open], name: str, read: Callable[[Any], None], repeats: int) -> None:
    """Print the median seconds of each client, and how many times as long pyarrow.fs takes."""
    wall: dict[str, list[float]] = {client: [] for client in openers}
    processor: dict[str, list[float]] = {client: [] for client in openers}
    for repeat in range(repeats + 1):
        for client, opened in openers.items():
            began, used = time.perf_counter(), time.process_time()
            read(opened(name))
            if repeat:  # the first one connects, and fills the server's cache
                wall[client].append(time.perf_counter() - began)
                processor[client].append(time.process_time() - used)
    ratios = [theirs / ours for ours, theirs in zip(*wall.values(), strict=True)]
    seconds = ", ".join(
        f"{client} {statistics.median(wall[client]):.3f} s ({statistics.median(processor[client]):.3f} s of processor)"
        for client in openers
    )
    line = f"{name}: {seconds}; pyarrow.fs takes {statistics.median(ratios):.2f} times as long"
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Write two objects, read them, and delete them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--mib", type=int, default=128, help="size of the text")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    credentials = Path(os.environ[env.CREDENTIALS_DIR])
    spec = StoreSpec(options.endpoint, None, options.bucket, PREFIX)
    store = open_store(spec, credentials, None)
    store.put(TEXT, os.urandom(options.mib << 20))
    store.put(TABLE, make_table())
    try:
        openers = {"ours": opener_of_ours(spec, credentials), "pyarrow.fs": opener_of_pyarrow(spec, credentials)}
        measure(openers, TEXT, read_text, options.repeats)
        measure(openers, TABLE, read_table, options.repeats)
    finally:
        store.delete([TEXT, TABLE])


if __name__ == "__main__":
    main()
