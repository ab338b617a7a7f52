"""Paths become URIs and URIs paths by one rule, with any characters in the names of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_contract.file_uris import path_of
from cpr_contract.spec import StoreSpec
from cpr_operator.cli.document import read_job
from cpr_trainer.export.main import open_uri
from cpr_trainer.store import Uris, open_store

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
NAMES = ["plain", "run#1", "run?1", "50%", "a%41", "two words", "ü"]


@pytest.mark.parametrize("name", NAMES)
def test_local_saves_are_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    endpoint = read_job(QUICKSTART, (), folder)["spec"]["snapshots"]["store"]["endpoint"]
    assert path_of(endpoint) == folder
    spec = StoreSpec(endpoint, None, "saves", "")
    open_store(spec, None, None).put("key", b"saved")
    assert (folder / "saves" / "key").read_bytes() == b"saved"
    open_uri(folder.as_uri(), spec, None, None).put("export", b"exported")
    assert (folder / "export").read_bytes() == b"exported"
    files = Uris(spec)
    (uri,) = files.find((folder / "export").as_uri())
    with files.open(uri, files.version(uri)) as file:
        assert file.read() == b"exported"


@pytest.mark.parametrize("uri", ["file:///runs/run#1", "file:///runs/run%231", "file://localhost/runs/run#1"])
def test_hash_in_a_uri_is_part_of_the_path(uri: str) -> None:
    assert path_of(uri) == Path("/runs/run#1")
