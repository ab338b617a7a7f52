"""Tables of Delta Lake and Iceberg in S3, written by their libraries and read by the trainers' client."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from cpr_contract.pinned_data import DataManifest
from cpr_contract.spec import DataSpec, StoreSpec
from cpr_trainer.data.delta_log import DeltaLog
from cpr_trainer.data.iceberg_log import IcebergLog
from cpr_trainer.store import Uris
from support.lake_tables import by_key, clicks_of, of_table, pinned, rows_of
from support.s3_servers import REGION, S3Server

SITES = pa.array(["a b/%=", None, "c"])


def read(data: DataSpec, spec: StoreSpec, server: S3Server) -> tuple[list[dict[str, object]], DataManifest]:
    files = Uris(replace(spec, region=REGION), server.credentials_dir)
    pin = pinned(data, files)
    return by_key(rows_of(data, files, pin)), pin


def options_of(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }


def catalog_of(spec: StoreSpec, server: S3Server) -> SqlCatalog:
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
    return catalog


def test_delta_table_in_s3_has_the_rows_of_delta_rs(spec: StoreSpec, server: S3Server) -> None:
    options = options_of(server)
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


def test_delta_log_in_s3_is_listed_from_the_pinned_version_on(spec: StoreSpec, server: S3Server) -> None:
    place, options = f"s3://{spec.bucket}/lake/growing", options_of(server)
    for first in (0, 3, 6):
        write_deltalake(place, clicks_of(first), mode="append", storage_options=options)
    files = Uris(replace(spec, region=REGION), server.credentials_dir)
    listed = files.below(f"{place}/_delta_log/", after=f"{1:020}")
    assert [uri.rpartition("/")[2] for uri in listed] == [f"{version:020}.json" for version in (1, 2)]
    log = DeltaLog(f"{place}/", None, files)
    begin = log.read(None).snapshot.version
    write_deltalake(place, clicks_of(9), mode="append", storage_options=options)
    found = log.read(begin).snapshot
    assert (begin.version, found.version.version, len(found.files)) == (2, 3, 1)
    assert found.version.tag == files.version(f"{place}/_delta_log/{3:020}.json").tag


def test_iceberg_snapshots_in_s3_are_read_one_by_one(spec: StoreSpec, server: S3Server) -> None:
    catalog = catalog_of(spec, server)
    table = catalog.create_table("lake.growing", clicks_of(0).schema)
    table.append(clicks_of(0))
    log = IcebergLog(
        f"{table.location().replace('s3a://', 's3://')}/",
        None,
        Uris(replace(spec, region=REGION), server.credentials_dir),
    )
    begin = [log.read(None) for _ in range(2)][-1]
    assert begin is not None
    table.append(clicks_of(3))
    found = [log.read(begin.snapshot.version) for _ in range(2)][-1]
    assert found is not None
    assert (found.snapshot.version.version, len(found.snapshot.files)) == (table.metadata.current_snapshot_id, 1)
    catalog.close()


def test_iceberg_table_in_s3_has_the_rows_of_pyiceberg(spec: StoreSpec, server: S3Server) -> None:
    catalog = catalog_of(spec, server)
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
