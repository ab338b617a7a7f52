"""Files of `torch.save`: their tensors without a conversion and without a class, and the layers of other systems."""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_contract.model import CrossSpec, ModelSpec, TableSpec
from cpr_contract.requests import ImportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.checkpoint.restore.dense_loader import load_dense
from cpr_trainer.checkpoint.restore.lineage import dense_start
from cpr_trainer.importing.main import import_model
from cpr_trainer.importing.sources import opened
from cpr_trainer.importing.tensors import SourceError
from cpr_trainer.importing.torch_index import read_views
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.store import Uris
from support.memory_store import MemoryStore
from support.shard_job import small_job
from support.torch_dlrm import TorchRecDlrm

pytestmark = pytest.mark.usefixtures("one_reader")
URIS = Uris(StoreSpec("file:///", None, "", ""))
TABLE = torch.arange(40.0).view(10, 4)


def contents(source: Path) -> dict[str, Tensor]:
    """All that is in a file, read in two pieces where that can be."""
    with opened([str(source)], URIS) as found:
        return {
            name: torch.cat((each.read(0, 1), each.read(1, each.shape[0]))) if each.shape else each.whole()
            for name, each in found.items()
        }


def flat(value: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors in nested dictionaries and lists, by their names."""
    if isinstance(value, Tensor):
        return {name: value.detach()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {k: v for key, each in items for k, v in flat(each, f"{name}.{key}" if name else str(key)).items()}


def test_tensors_are_those_of_torch_load(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    adam = torch.optim.Adam(network.parameters())
    network(torch.randn(5, 4)).sum().backward()
    adam.step()
    whole = torch.randn(6, 8)
    saved = {
        "state_dict": network.state_dict(),
        "optimizer": adam.state_dict(),
        "epoch": 3,
        "parameter": nn.Parameter(TABLE),
        "turned": whole.T,
        "part": whole[2:5, ::2],
        "shared": [whole, whole[1]],
        "types": {str(each): TABLE.to(each) for each in (torch.float16, torch.bfloat16, torch.int32, torch.float64)},
        "keys": torch.arange(10).to(torch.uint64),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
    }
    for name in ("model.pt", "model.pth", "model.bin", "model.ckpt"):
        torch.save(saved, tmp_path / name)
        found, expected = contents(tmp_path / name), flat(torch.load(tmp_path / name, weights_only=True))
        assert [*found] == [*expected]
        for key, value in expected.items():
            assert (found[key].dtype, torch.equal(found[key], value)) == (value.dtype, True), key
    with opened([str(tmp_path / "model.pt")], URIS) as tensors:
        assert tensors["turned"].read(2, 5).equal(whole.T[2:5])


def test_objects_in_a_file_are_never_called(tmp_path: Path) -> None:
    torch.save({"user": TABLE, "hooks": {"a": Called("x")}}, tmp_path / "model.pt")
    assert torch.equal(contents(tmp_path / "model.pt")["user"], TABLE)
    assert Called.made == ["x"], "when it was saved, and not again"


class Called:
    """A pickle of it calls its class."""

    made: list[str] = []  # noqa: RUF012 -- shared on purpose

    def __init__(self, text: str) -> None:
        self.made.append(text)

    def __reduce__(self) -> tuple[type[Called], tuple[str]]:
        return Called, ("again",)


def rewritten(path: Path, entry: str, content: bytes | None, compression: int = zipfile.ZIP_STORED) -> None:
    """Write the archive again, with other bytes of an entry, or without it."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, old in entries.items():
            new = content if name.endswith(f"/{entry}") else old
            if new is not None:
                archive.writestr(name, new)


@pytest.mark.parametrize(
    ("entry", "content", "compression", "why"),
    [
        ("data/0", None, zipfile.ZIP_STORED, "user has no storage"),
        ("data/0", bytes(100), zipfile.ZIP_STORED, r"user \[10, 4\] is not in its storage of 25"),
        ("byteorder", b"big", zipfile.ZIP_STORED, "its numbers are big endian"),
        ("version", b"3", zipfile.ZIP_DEFLATED, "the storage of user is compressed"),
        ("data.pkl", None, zipfile.ZIP_STORED, "it has no index"),
        ("data.pkl", pickle.dumps({"epoch": 3}, 2), zipfile.ZIP_STORED, "it has no tensor in a dictionary"),
        ("data.pkl", b"\x80\x02}", zipfile.ZIP_STORED, "it is not a whole pickle"),
    ],
    ids=["gone", "short", "order", "packed", "index", "nothing", "damaged"],
)
def test_damaged_file_is_refused_by_name(
    tmp_path: Path, entry: str, content: bytes | None, compression: int, why: str
) -> None:
    path = tmp_path / "model.pt"
    torch.save({"user": TABLE}, path)
    rewritten(path, entry, content, compression)
    with pytest.raises(SourceError, match=f"model.pt cannot be read: {why}"):
        contents(path)


def test_file_of_another_form_is_refused_with_a_remedy(tmp_path: Path) -> None:
    torch.save({"user": TABLE}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("old.pt", "cut.pt"):
        if name == "cut.pt":
            torch.save({"user": TABLE}, tmp_path / name)
            (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30])
        with pytest.raises(SourceError, match=f"{name} cannot be read: File is not a zip file") as caught:
            contents(tmp_path / name)
        assert "torch.save(model.state_dict(), FILE) of PyTorch 1.6" in caught.value.remedy


@pytest.mark.parametrize(
    ("pickled", "why"),
    [
        (
            b"\x80\x02}X\x04\x00\x00\x00userctorch.distributed.tensor\nDTensor\n)Rs.",
            "user is a part of a tensor .torch.distributed.tensor.DTensor.* use torch.distributed.checkpoint",
        ),
        (b"\x80\x02}X\x04\x00\x00\x00userctorch._utils\n_rebuild_tensor_v2\n)Rs.", "user has no storage"),
        (b"\x80\x02" + 40 * b"]" + 39 * b"a" + b".", "nested too deeply"),
        (b"\x80\x02]q\x00h\x00a.", "nested too deeply, or too many"),
    ],
    ids=["part", "bare", "deep", "itself"],
)
def test_index_of_another_form_is_refused(pickled: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_views(pickled)


MODEL = replace(
    small_job(Path("unused")).model,
    bottom_mlp=(6, 4),
    top_mlp=(7, 5, 1),
    numeric=3,
    tables=tuple(TableSpec(name, rows, ids="RowNumber") for name, rows in (("user", 30), ("item", 20), ("shop", 10))),
)


@pytest.mark.parametrize("cross", [None, CrossSpec(2, 3)], ids=["dots", "cross"])
def test_model_of_torchrec_computes_the_same_once_imported(tmp_path: Path, cross: CrossSpec | None) -> None:
    """Saved whole by `torch.save`, behind the wrappers of a training."""
    model: ModelSpec = replace(MODEL, cross=cross)
    layers, rank = (0, 0) if cross is None else (cross.layers, cross.rank)
    theirs = TorchRecDlrm(3, 3, model.bottom_mlp, model.top_mlp, layers, rank)
    rows = {table.name: torch.randn(table.rows, 4) for table in model.tables}
    bags = "sparse_arch.embedding_bag_collection.embedding_bags"
    state = theirs.state_dict() | {f"{bags}.{name}.weight": value for name, value in rows.items()}
    wrapped = {f"_dmp_wrapped_module.module.model.{name}": value for name, value in state.items()}
    torch.save({"model_state_dict": wrapped, "epoch": 1}, tmp_path / "dlrm.pt")
    job = replace(small_job(Path("unused"), shards=2), model=model)
    store = MemoryStore()
    with opened([str(tmp_path / "dlrm.pt")], URIS) as found:
        imported = import_model(store, job, ImportRequest((), "dlrm"), found)
    assert (imported.unused, imported.missing_layers, imported.missing_tables) == ((), (), ())
    job = replace(job, snapshots=replace(job.snapshots, restore_from=imported.key))
    replica = DenseReplica(model, job.data.seed + 1)
    replica.load(load_dense(store, dense_start(store, job, None)).tensors)
    dense, vectors = torch.randn(16, 3), torch.randn(16, 3, 4)
    torch.testing.assert_close(replica.model(dense, vectors), theirs(dense, vectors))
