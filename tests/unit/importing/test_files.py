"""Files that other systems wrote, opened as tensors by name; and those that are damaged."""

from __future__ import annotations

import pickle
import shutil
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.checkpoint.state_dict_saver import save

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.importing.files import opened
from cpr_trainer.importing.tensors import SourceError
from cpr_trainer.store import Uris, Version

URIS = Uris(StoreSpec("file:///", None, "", ""))
TABLE = torch.arange(40.0).view(10, 4)


def contents(*sources: object) -> dict[str, Tensor]:
    """All that is in some sources, read in two pieces where that can be."""
    with opened([str(source) for source in sources], URIS) as found:
        return {
            name: torch.cat((each.read(0, 1), each.read(1, each.shape[0]))).clone() if each.shape else each.whole()
            for name, each in found.items()
        }


def checkpoint(folder: Path, tensors: dict[str, Tensor]) -> Path:
    with pytest.warns(UserWarning, match="single process"):
        save({"model": tensors, "rate": 0.1}, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_all_forms_give_the_same_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    table = TABLE.to(dtype)
    save_file({"a.user.weight": table, "seen": torch.tensor(3)}, tmp_path / "m.safetensors")
    found = contents(tmp_path / "m.safetensors")
    assert torch.equal(found["a.user.weight"], table)
    assert found["seen"] == 3
    found = contents(checkpoint(tmp_path / "dcp", {"user.weight": table, "seen": torch.tensor(3)}))
    assert [*found] == ["model.user.weight", "model.seen"]
    assert torch.equal(found["model.user.weight"], table.float())
    assert found["model.seen"] == 3
    if dtype is not torch.bfloat16:
        np.save(tmp_path / "user.npy", table.numpy())
        assert torch.equal(contents(tmp_path / "user.npy")["user"], table)


def test_a_folder_has_a_file_for_each_table(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    save_file({"weight": TABLE}, tmp_path / "tables" / "user.safetensors")
    save_file({"weight": TABLE}, tmp_path / "tables" / "item.safetensors")
    save_file({"top.weight": TABLE}, tmp_path / "dense.safetensors")
    (tmp_path / "model.json").write_text("{}", "utf-8")
    assert {*contents(f"file://{tmp_path}")} == {"user.weight", "item.weight", "top.weight"}


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"user": TABLE}, tmp_path / f"{name}.safetensors")
    with pytest.raises(SourceError, match=r"user is in .*a.safetensors and in .*b.safetensors"):
        contents(tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "npy"])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"user.{suffix}"
    if suffix == "npy":
        np.save(path, TABLE.numpy())
    else:
        save_file({"user": TABLE}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SourceError, match=f"{path} cannot be read"):
        contents(path)


@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_checkpoint_without_a_part_is_refused_by_tensor(tmp_path: Path, damage: str) -> None:
    folder = checkpoint(tmp_path / "dcp", {"user.weight": TABLE})
    part = folder / "__0_0.distcp"
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(SourceError, match=r"the tensor model.user.weight cannot be read"):
        contents(folder)


def test_metadata_that_would_run_code_runs_none(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return shutil.rmtree, (str(tmp_path / "precious"),)

    (tmp_path / "precious").mkdir()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(SourceError, match=r"it would load shutil.rmtree"):
        contents(tmp_path)
    assert (tmp_path / "precious").exists()


def test_metadata_of_python_before_3_11_4_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(member: Enum, _protocol: int) -> tuple[object, tuple[type[Enum], str]]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    folder = checkpoint(tmp_path, {"user.weight": TABLE})
    assert b"getattr" in (folder / ".metadata").read_bytes()
    assert torch.equal(contents(folder)["model.user.weight"], TABLE)


def test_metadata_with_an_attribute_of_a_class_is_refused(tmp_path: Path) -> None:
    class Attribute:
        def __reduce__(self) -> tuple[object, tuple[type[Path], str]]:
            return getattr, (Path, "name")

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute()))
    with pytest.raises(SourceError, match=r"it would load .*Path.*name, which no metadata consists of"):
        contents(tmp_path)


@pytest.mark.parametrize("name", ["", "nowhere", "notes.txt"])
def test_a_place_without_tensors_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("none here", "utf-8")
    with pytest.raises(SourceError, match="holds nothing that can be imported"):
        contents(tmp_path / name)


class Bucket(Uris):
    """A folder as `s3://bucket`, as far as it is asked; hidden files are not found, as in buckets."""

    def __init__(self, root: Path) -> None:
        super().__init__(StoreSpec("http://nowhere", None, "", ""))
        self._root = root

    def _path(self, uri: str) -> Path:
        return self._root / uri.removeprefix("s3://bucket/")

    def find(self, uri: str) -> tuple[str, ...]:
        return tuple(f"{uri}{path.relative_to(self._path(uri))}" for path in self._path(uri).rglob("[!._]*.*"))

    def version(self, uri: str) -> Version:
        if not self._path(uri).exists():
            raise DataError(f"{uri} is not there.", "Check data.uri.")
        return Version(self._path(uri).stat().st_size, "tag")

    def open(self, uri: str, version: Version) -> BinaryIO:
        assert version == self.version(uri)
        return self._path(uri).open("rb")


def test_what_lies_in_a_bucket_is_brought_here_and_goes_again(tmp_path: Path) -> None:
    root, scratch = tmp_path / "bucket", tmp_path / "scratch"
    (root / "tables").mkdir(parents=True)
    scratch.mkdir()
    save_file({"weight": TABLE}, root / "tables" / "user.safetensors")
    (root / "tables" / "huge.txt").write_text("not wanted", "utf-8")
    np.save(root / "item.npy", TABLE.numpy())
    checkpoint(root / "dcp", {"shop.weight": TABLE})
    sources = ("s3://bucket/tables", "s3://bucket/item.npy", "s3://bucket/dcp/")
    with opened(sources, Bucket(root), scratch) as found:
        assert {*found} == {"user.weight", "item", "model.shop.weight"}
        assert all(torch.equal(each.whole(), TABLE) for each in found.values())
        assert not [*scratch.rglob("*.txt")]
    assert [*scratch.iterdir()] == []


def test_a_bucket_without_it_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match=r"s3://bucket/user.safetensors cannot be imported: .* is not there"),
        opened(["s3://bucket/user.safetensors"], Bucket(tmp_path)),
    ):
        pass
