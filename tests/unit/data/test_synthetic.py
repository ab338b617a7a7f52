from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.errors import DataError
from cprjob_bench.roles.samples import write_criteo_tsv
from support.oracle import exact_auc
from support.plain_batches import single_ids
from support.table_data import assert_same, read

TABLES = tuple(TableSpec(f"t{place}", rows) for place, rows in enumerate([1, 2, 3, 100, 1000, 50_000]))

KEYED = tuple(TableSpec(f"d{seed}", 300, ids="Dynamic", hash_seed=seed, dynamic=DynamicSpec()) for seed in (0, 7))


def synthetic(rows: int = 3000, seed: int = 5, tables: tuple[TableSpec, ...] = TABLES) -> SyntheticDataset:
    return SyntheticDataset(rows, seed, tables)


def test_synthetic_row_is_equal_in_every_request() -> None:
    at = np.array([2999, 7, 7, 0])
    whole = synthetic().take(np.arange(3000))
    assert_same(synthetic(10**15).take(at), Batch(whole.dense[at], single_ids(whole)[at], whole.labels[at]))


def test_seeds_differ() -> None:
    one, other = synthetic(seed=5).take(np.arange(300)), synthetic(seed=6).take(np.arange(300))
    assert (one.dense == other.dense).mean() < 0.1
    assert 0.3 < (one.labels == other.labels).mean() < 0.8


def test_synthetic_rows_are_the_same_in_every_release() -> None:
    # Benchmarks are compared over versions.
    batch = synthetic().take(np.arange(1000))
    assert single_ids(batch).sum(axis=0).tolist() == [0, 0, 0, 46211, 561662, 24779705]
    assert batch.labels.sum() == 551
    assert batch.dense.astype(np.float64).sum() == pytest.approx(42628.514)


def test_the_planted_model_scores_well_on_its_labels() -> None:
    dataset = synthetic(20_000, tables=tuple(TableSpec(f"t{k}", 1000) for k in range(8)))
    raw = dataset.raw(np.arange(20_000))
    assert 0.15 < raw.labels.mean() < 0.45
    assert exact_auc(dataset._logits(raw.counts, dataset._rows(raw.categories)), raw.labels) > 0.85


@pytest.mark.parametrize("name", ["clicks.tsv", "clicks.tsv.gz"])
@pytest.mark.parametrize(
    "tables",
    [TABLES, tuple(TableSpec(f"t{k}", 7 + k) for k in range(26)), (*TABLES[3:], *KEYED)],
    ids=["6", "26", "dynamic"],
)
def test_a_written_file_reads_as_the_same_samples(tmp_path: Path, name: str, tables: tuple[TableSpec, ...]) -> None:
    write_criteo_tsv(tmp_path / name, 3000, 5, tables)
    spec = DataSpec("Criteo", (tmp_path / name).as_uri(), 1, None, 32, 0, 0)
    dataset = read(spec, tables)
    assert dataset.layout.rows == 3000
    assert_same(dataset.take(np.arange(3000)), synthetic(tables=tables).take(np.arange(3000)))
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_synthetic_data_has_the_stated_length() -> None:
    assert read(DataSpec("Synthetic", None, None, 77, 32, 5, 0), TABLES).layout.rows == 77
    with pytest.raises(DataError, match="length"):
        read(DataSpec("Synthetic", None, 1, None, 32, 5, 0), TABLES)
    with pytest.raises(DataError, match="place"):
        read(DataSpec("Criteo", None, 1, None, 32, 5, 0), TABLES)
