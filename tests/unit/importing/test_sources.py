"""Files that other systems wrote, opened as tensors by name; and those that are damaged."""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
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

import cpr_trainer
from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.importing.checkpoint_index import IndexedTensor, Part
from cpr_trainer.importing.isolated import IsolatedReader
from cpr_trainer.importing.pickles import Global, PickleError, Record, decode
from cpr_trainer.importing.sources import open_checkpoint, opened
from cpr_trainer.importing.tensors import SourceError
from cpr_trainer.store import Uris, Version

pytestmark = pytest.mark.usefixtures("one_reader")
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
    keys = torch.arange(10).to(torch.uint64)
    for name in ("page", "shop"):  # dynamic tables of `cprjob export`
        save_file({"weight": TABLE, "keys": keys}, tmp_path / "tables" / f"{name}.safetensors")
    save_file({"top.weight": TABLE}, tmp_path / "dense.safetensors")
    (tmp_path / "model.json").write_text("{}", "utf-8")
    found = contents(f"file://{tmp_path}")
    of_pages = {f"{name}.{kind}" for name in ("page", "shop") for kind in ("weight", "keys")}
    assert {*found} == {"user.weight", "item.weight", "top.weight", *of_pages}
    assert torch.equal(found["page.keys"], keys)


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


class OfOnes:
    """Stands for the process that reads: an index of one tensor [4, 2] with these boxes, and parts of ones."""

    def __init__(self, *boxes: tuple[tuple[int, int], tuple[int, int]]) -> None:
        parts = tuple(Part(offsets, sizes, "part", 0, 1) for offsets, sizes in boxes)
        self._index = (IndexedTensor("user", "float32", (4, 2), parts),)

    def index(self, _metadata: bytes) -> tuple[IndexedTensor, ...]:
        return self._index

    def tensor(self, _part: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("boxes", "whole"),
    [
        ([((2, 0), (2, 2)), ((0, 0), (2, 2))], True),
        ([((0, 0), (3, 1)), ((3, 0), (1, 1)), ((0, 1), (1, 1)), ((1, 1), (3, 1))], True),
        ([((0, 0), (2, 2)), ((0, 0), (2, 2))], False),
        ([((0, 0), (3, 2)), ((1, 0), (1, 2))], False),
        ([((0, 0), (2, 2))], False),
    ],
    ids=["rows", "both ways", "twice the same", "one in the other", "a half"],
)
def test_parts_of_a_tensor_cover_each_of_its_values_once(
    tmp_path: Path, boxes: list[tuple[tuple[int, int], tuple[int, int]]], *, whole: bool
) -> None:
    for name in (".metadata", "part"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "scratch").mkdir()
    (found,) = open_checkpoint(tmp_path / ".metadata", tmp_path / "scratch", OfOnes(*boxes))  # type: ignore[arg-type]
    if whole:
        assert found.whole().tolist() == [[1.0, 1.0]] * 4
    else:
        with pytest.raises(SourceError, match=r"its parts are not \[4, 2\] together"):
            found.whole()


class Called:
    """A pickle of it calls `note`, and then sets an attribute of its own class."""

    calls: list[str] = []  # noqa: RUF012 -- shared on purpose

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return note, ("called",)


def note(text: str) -> None:
    Called.calls.append(text)


def test_pickle_becomes_records_and_calls_nothing() -> None:
    found = decode(pickle.dumps({"a": Called(), "b": (Called, [1, -2.5, True, None, b"x"])}))
    (a, (b, values)) = found.values()
    assert isinstance(a, Record)
    assert (a.name, a.arguments) == (f"{__name__}.note", ("called",))
    assert b == Global(f"{__name__}.Called")
    assert values == [1, -2.5, True, None, b"x"]
    assert Called.calls == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x02c" + __name__.encode() + b"\nCalled\n}X\x05\x00\x00\x00calls]sb.", "a Global where a Record"),
        (b"\x80\x02]}b.", "a list where a Record"),
        (b"\x80\x02}]Ns.", "a key that is a list"),
        (b"\x80\x02(]o.", "the instruction OBJ"),
        (b"\x80\x02]", "not a whole pickle"),
        (b"\x80\x02.", "not a whole pickle"),
        (b"text", "not a whole pickle"),
    ],
)
def test_pickle_beyond_plain_data_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(PickleError, match=why):
        decode(data)
    assert Called.calls == []


def test_metadata_of_another_class_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Called()))
    with pytest.raises(SourceError, match=rf"metadata cannot be read: it is a {__name__}.note, not a torch"):
        contents(tmp_path)


def test_foreign_files_are_read_by_a_process_without_rights(reader: IsolatedReader) -> None:
    process = Path(f"/proc/{reader._process.pid}")
    (variable,) = (process / "environ").read_text("utf-8").rstrip("\0").split("\0")
    name, _, folders = variable.partition("=")
    assert name == "PYTHONPATH"
    assert str(Path(cpr_trainer.__file__).parents[1]) in folders.split(":"), "as images have it"
    assert {path.name for path in (process / "fd").iterdir()} == {"0", "1", "2"}
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()}
    assert limits["Max open files"] == limits["Max file size"] == limits["Max processes"] == ["0", "0"]


#: Gives up all rights, and prints what is refused then.
WITHOUT_RIGHTS = """
import os, socket, sys
from cpr_trainer.importing.isolated import give_up_rights
give_up_rights()
for number, do in enumerate((lambda: open(sys.argv[1]), socket.socket, os.fork, lambda: os.unlink(sys.argv[1]))):
    try:
        if do() == 0:
            os._exit(0)
    except OSError:
        print(number)
"""


def test_process_without_rights_is_refused_files_and_connections(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    command = (sys.executable, "-c", WITHOUT_RIGHTS, str(file))
    refused = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"0", "1"} <= set(refused)
    has_landlock = ctypes.CDLL(None).syscall(444, None, 0, 1) > 0
    assert file.exists() == has_landlock
    assert ("2" in refused) == (os.geteuid() != 0), "the limit of processes does not apply to root"


@pytest.mark.parametrize("place", ["../other.distcp", "/other.distcp", "link.distcp"])
def test_checkpoint_that_names_a_file_outside_of_its_folder_is_refused(tmp_path: Path, place: str) -> None:
    folder = checkpoint(tmp_path / "dcp", {"user.weight": TABLE})
    (folder / "__0_0.distcp").rename(tmp_path / "other.distcp")
    (folder / "link.distcp").symlink_to(tmp_path / "other.distcp")
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 -- written above
    for info in metadata.storage_data.values():
        info.relative_path = place
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(SourceError, match=f"dcp names a file outside of itself: {place}"):
        contents(folder)


def test_metadata_of_python_before_3_11_4_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(member: Enum, _protocol: int) -> tuple[object, tuple[type[Enum], str]]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    folder = checkpoint(tmp_path, {"user.weight": TABLE})
    assert b"getattr" in (folder / ".metadata").read_bytes()
    assert torch.equal(contents(folder)["model.user.weight"], TABLE)


@pytest.mark.parametrize("name", ["", "nowhere", "notes.txt"])
def test_a_place_without_tensors_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("none here", "utf-8")
    with pytest.raises(SourceError, match="has no file that can be imported"):
        contents(tmp_path / name)


class Bucket(Uris):
    """A folder as `s3://bucket`; hidden files are not found, as in buckets."""

    def __init__(self, root: Path) -> None:
        super().__init__(StoreSpec("http://nowhere", None, "", ""))
        self._root = root

    def _path(self, uri: str) -> Path:
        return self._root / uri.removeprefix("s3://bucket/")

    def find(self, uri: str, *, may_be_empty: bool = False) -> tuple[str, ...]:
        return tuple(f"{uri}{path.relative_to(self._path(uri))}" for path in self._path(uri).rglob("[!._]*.*"))

    def version(self, uri: str) -> Version:
        if not self._path(uri).exists():
            raise DataError(f"{uri} is not there.", "Check data.uri.")
        return Version(self._path(uri).stat().st_size, "tag")

    def open(self, uri: str, version: Version) -> BinaryIO:
        assert version == self.version(uri)
        return self._path(uri).open("rb")


def test_files_of_a_bucket_are_copied_and_deleted_afterwards(tmp_path: Path) -> None:
    root, scratch = tmp_path / "bucket", tmp_path / "scratch"
    (root / "tables").mkdir(parents=True)
    scratch.mkdir()
    save_file({"weight": TABLE}, root / "tables" / "user.safetensors")
    (root / "tables" / "huge.txt").write_text("not imported", "utf-8")
    np.save(root / "item.npy", TABLE.numpy())
    TABLE.numpy().tofile(root / "tables" / "page_emb_values.rank_0.world_size_1")
    np.arange(10).tofile(root / "tables" / "page_emb_keys.rank_0.world_size_1")
    checkpoint(root / "dcp", {"shop.weight": TABLE})
    sources = ("s3://bucket/tables", "s3://bucket/item.npy", "s3://bucket/dcp/")
    with opened(sources, Bucket(root), scratch) as found:
        assert {*found} == {"user.weight", "item", "model.shop.weight", "page_emb_values", "page_emb_keys"}
        assert all(torch.equal(each.whole(), TABLE) for name, each in found.items() if name != "page_emb_keys")
        assert not [*scratch.rglob("*.txt")]
    assert [*scratch.iterdir()] == []


def test_object_of_a_bucket_is_not_copied_outside_of_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside.npy"
    monkeypatch.setattr(Bucket, "find", lambda _self, uri: (f"{uri}{outside}",))  # a key with two slashes in a row
    with (
        pytest.raises(SourceError, match=f"names a file outside of itself: {outside}"),
        opened(["s3://bucket/tables"], Bucket(tmp_path)),
    ):
        pass
    assert not outside.exists()


def test_missing_file_in_a_bucket_is_a_source_error(tmp_path: Path) -> None:
    with (
        pytest.raises(SourceError, match=r"s3://bucket/user.safetensors cannot be imported: .* is not there"),
        opened(["s3://bucket/user.safetensors"], Bucket(tmp_path)),
    ):
        pass
