"""An export to a URI can die before any of its writes: `current.json` names a whole model, or there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.requests import ExportRequest
from cpr_trainer.export.main import open_uri, publish
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store
from cpr_trainer.store.folder import FolderStore
from cpr_trainer.store.s3 import S3Store
from cprjob_serving import NoModelError, current
from support.memory_store import MemoryStore
from support.serving import STORE

FILES = ("dense.safetensors", "tables/a.safetensors", "tables/b.safetensors", "transform.json", "model.json")


class Death(BaseException):
    """The end of the process."""


def model(folder: Path, step: int) -> Path:
    """Files as an export leaves them."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of step {step}", "utf-8")
    (folder / "model.json").write_text(json.dumps({"job": "job", "step": step, "samples": 10 * step}), "utf-8")
    return folder


def named(store: Any) -> dict[str, bytes]:
    """The files of the model that current.json names."""
    folder = json.loads(store.objects["current.json"])["model"]
    return {key.removeprefix(f"{folder}/"): data for key, data in store.objects.items() if key.startswith(f"{folder}/")}


@pytest.mark.parametrize("writes", range(len(FILES) + 2))
def test_current_model_is_whole_after_a_crash_at_any_write(tmp_path: Path, writes: int) -> None:
    store = MemoryStore()
    publish(store, model(tmp_path / "1", 1), ExportRequest("anchor/1"))
    first, left = named(store), [writes]

    def die(_key: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Death

    store.before_put = die
    second = model(tmp_path / "2", 2)
    if writes <= len(FILES):
        with pytest.raises(Death):
            publish(store, second, ExportRequest("anchor/2"))
        assert named(store) == first
    else:
        publish(store, second, ExportRequest("anchor/2"))
        assert named(store) == {name: (second / name).read_bytes() for name in FILES}


def test_each_kind_of_export_has_its_own_folder(tmp_path: Path) -> None:
    store, folder = MemoryStore(), model(tmp_path / "1", 1)
    requests = (
        ExportRequest("anchor/1"),
        ExportRequest("anchor/1", "onnx"),
        ExportRequest("anchor/1", since="anchor/0"),
        ExportRequest("anchor/2"),
    )
    names = []
    for request in (*requests, *requests):
        publish(store, folder, request)
        about = json.loads(store.objects["current.json"])
        names.append(about.pop("model"))
        assert about == {
            "format": request.format,
            "anchor": request.anchor,
            "since": request.since,
            "step": 1,
            "samples": 10,
        }
    assert len(set(names)) == len(requests)
    assert names[:4] == names[4:]


def test_a_folder_without_an_export_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(NoModelError, match=r"has no current.json"):
        current(tmp_path)


def test_uri_of_an_export_is_resolved(tmp_path: Path) -> None:
    folder: Store = open_uri((tmp_path / "a b").as_uri(), STORE, None, None)
    assert isinstance(folder, FolderStore)
    folder.put("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    with pytest.raises(BadSpecError, match=r"s3://bucket/x needs the endpoint of an S3 store"):
        open_uri("s3://bucket/x", STORE, None, None)
    for wrong in ("gs://bucket/x", "file://", "s3:///x"):
        with pytest.raises(BadSpecError, match="Nothing can be exported to"):
            open_uri(wrong, STORE, None, None)
    remote = replace(STORE, endpoint="http://127.0.0.1:1")
    assert isinstance(open_uri("s3://bucket/models/", remote, None, None), S3Store)
