"""Files in the form of dynamicemb's `DynamicEmbDump`. It needs a GPU, so the files are written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.spec import StoreSpec
from cpr_trainer.importing.sources import opened
from cpr_trainer.importing.tensors import SourceError
from cpr_trainer.store import Uris

URIS = Uris(StoreSpec("file:///", None, "", ""))
IDS = [[5, -3, 10**12], [], [8, 2]]


def dump(folder: Path, name: str = "user") -> Path:
    """Write a table of three ranks: with row i the ids have the vectors [i, i + 0.5]."""
    folder.mkdir(parents=True)
    first = 0
    for rank, ids in enumerate(IDS):
        rows = np.arange(first, first + len(ids), dtype="<f4")
        first += len(ids)
        numbers = {
            "keys": np.array(ids, "<i8"),
            "values": np.stack((rows, rows + 0.5), axis=1).astype("<f4"),
            "scores": (rows + 1).astype("<i8"),
            "opt_values": rows * 2,
        }
        for kind, values in numbers.items():
            values.tofile(folder / f"{name}_emb_{kind}.rank_{rank}.world_size_{len(IDS)}")
    (folder / f"{name}_opt_args.json").write_text("{}", "utf-8")
    return folder


def test_ranks_are_one_tensor_of_each_kind(tmp_path: Path) -> None:
    dump(tmp_path / "dump" / "model.ebc")
    dump(tmp_path / "dump" / "model.other", "an_emb_keys")
    with opened([str(tmp_path / "dump")], URIS) as found:
        kinds = ("keys", "values", "scores", "opt_values")
        assert {*found} == {f"{name}_emb_{kind}" for name in ("user", "an_emb_keys") for kind in kinds}
        keys, values, scores, sums = (found[f"user_emb_{kind}"] for kind in kinds)
        assert [each.shape for each in (keys, values, scores, sums)] == [(5,), (5, 2), (5, 1), (5, 1)]
        assert keys.whole().tolist() == [5, -3, 10**12, 8, 2]
        assert values.read(2, 4).tolist() == [[2, 2.5], [3, 3.5]]
        assert scores.whole().tolist() == [[1], [2], [3], [4], [5]]
        assert sums.read(4, 5).tolist() == [[8]]
        assert [each.whole().dtype for each in (keys, values, scores)] == [torch.int64, torch.float32, torch.int64]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("keys.rank_1.world_size_3", "user_emb_keys.rank_1.world_size_3 is not there"),
        ("values.rank_2.world_size_3", "user_emb_values.rank_2.world_size_3 is not there"),
    ],
)
def test_rank_without_a_file_is_refused_by_name(tmp_path: Path, damage: str, why: str) -> None:
    folder = dump(tmp_path / "dump")
    (folder / f"user_emb_{damage}").unlink()
    with pytest.raises(SourceError, match=why), opened([str(folder)], URIS):
        pass


@pytest.mark.parametrize("kind", ["keys", "values", "scores"])
def test_file_without_all_rows_of_its_rank_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    folder = dump(tmp_path / "dump")
    path = folder / f"user_emb_{kind}.rank_2.world_size_3"
    path.write_bytes(path.read_bytes()[:-8])
    why = r"rank_[0-9].world_size_3 has [0-9]+ bytes, which are not [0-9] rows"
    with pytest.raises(SourceError, match=why), opened([str(folder)], URIS):
        pass


def test_two_dumps_of_a_table_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = dump(tmp_path / "dump")
    np.array([4]).tofile(folder / "user_emb_keys.rank_0.world_size_1")
    with pytest.raises(SourceError, match="has two dumps of the table user"), opened([str(folder)], URIS):
        pass
