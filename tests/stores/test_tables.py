"""Tables of Delta Lake and Iceberg in S3, written by their libraries and read by the trainers' client."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from cpr_contract.pinned_data import DataManifest
from cpr_contract.spec import DataSpec, StoreSpec
from cpr_trainer.store import Uris
from support.lake_tables import by_key, clicks_of, of_table, pinned, rows_of
from support.s3_servers import REGION, S3Server

SITES = pa.array(["a b/%=", None, "c"])


def read(data: DataSpec, spec: StoreSpec, server: S3Server) -> tuple[list[dict[str, object]], DataManifest]:
    files = Uris(replace(spec, region=REGION), server.credentials_dir)
    pin = pinned(data, files)
    return by_key(rows_of(data, files, pin)), pin


def test_delta_table_in_s3_has_the_rows_of_delta_rs(spec: StoreSpec, server: S3Server) -> None:
    options = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    place = f"s3://{spec.bucket}/lake/clicks"
    for first in (0, 3):
        rows = clicks_of(first).append_column("site", SITES)
        write_deltalake(place, rows, mode="append", partition_by=["site"], storage_options=options)
    table = DeltaTable(place, storage_options=options)
    table.create_checkpoint()
    table.delete("key = 4")
    rows, pin = read(of_table("Delta", place), spec, server)
    assert rows == by_key(pa.table(table.scan()).to_pylist())
    assert len(rows) == 5
    assert all(uri.startswith(f"{place}/") for uri in pin.uris)


def test_iceberg_table_in_s3_has_the_rows_of_pyiceberg(spec: StoreSpec, server: S3Server) -> None:
    catalog = SqlCatalog(
        "test",
        uri="sqlite:///:memory:",
        warehouse=f"s3a://{spec.bucket}/lake",
        **{
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": server.access_key,
            "s3.secret-access-key": server.secret_key,
            "s3.region": REGION,
        },
    )
    catalog.create_namespace("lake")
    rows = clicks_of(0).append_column("site", SITES)
    table = catalog.create_table("lake.clicks", rows.schema)
    with table.update_spec() as update:
        update.add_identity("site")
    for first in (0, 3):
        table.append(clicks_of(first).append_column("site", SITES))
    table.delete("key = 4")
    place = table.location().replace("s3a://", "s3://")
    found, pin = read(of_table("Iceberg", place), spec, server)
    assert found == by_key(table.scan().to_arrow().to_pylist())
    assert len(found) == 5
    assert all(uri.startswith(f"{place}/data/") for uri in pin.uris)
    catalog.close()
