"""A model that is exported to a real object store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpr_contract.requests import ExportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.export.main import open_uri, publish
from cpr_trainer.store import open_store
from support.s3_servers import S3Server

pytestmark = pytest.mark.store


def test_a_model_lies_in_the_bucket_that_its_uri_names(spec: StoreSpec, server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a%2Fb.safetensors").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "model.json").write_text(json.dumps({"job": "job", "step": 7, "samples": 70}), "utf-8")
    other = server.new_bucket()
    target = open_uri(f"s3://{other.bucket}/served/models/", spec, server.credentials_dir, None)
    publish(target, tmp_path, ExportRequest("anchor"))
    found = open_store(other, server.credentials_dir, None)
    about = json.loads(found.get("served/models/current.json"))
    assert (about["anchor"], about["step"]) == ("anchor", 7)
    folder = f"served/models/{about['model']}"
    for name in ("tables/a%2Fb.safetensors", "model.json"):
        assert found.get(f"{folder}/{name}") == (tmp_path / name).read_bytes()
    assert len(found.list("")) == 3
