"""Rows of a dynamic table with those of a delta: by any size of the parts that are merged at once, the rows by key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cprjob_serving import keyed_rows
from cprjob_serving.hashes import U64
from cprjob_serving.keyed_rows import KeyedRows, head_of, write_changed

DIM = 3


def drawn(generator: np.random.Generator, most: int) -> KeyedRows:
    keys = np.sort(generator.choice(100, generator.integers(most), replace=False)).astype(np.uint64)
    return KeyedRows(keys, generator.random((len(keys), DIM), np.float32))


def by_key(rows: KeyedRows, without: U64) -> dict[int, list[float]]:
    stays = ~np.isin(rows.keys, without)
    return dict(zip(rows.keys[stays].tolist(), rows.weight[stays].tolist(), strict=True))


@pytest.mark.parametrize("size", [8, 24, 64, 1 << 20])
def test_merged_rows_are_those_of_the_base_and_of_the_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(keyed_rows, "_BYTES_AT_ONCE", size)
    generator, path = np.random.default_rng(1), tmp_path / "rows.safetensors"
    for _ in range(50):
        base, changed = drawn(generator, 40), drawn(generator, 20)
        removed = np.setdiff1d(drawn(generator, 20).keys, changed.keys)
        write_changed(base, changed, removed, path)
        found = KeyedRows.open(path)
        expected = by_key(base, removed) | by_key(changed, removed)
        assert found.keys.tolist() == sorted(expected)
        assert by_key(found, np.empty(0, np.uint64)) == expected
        assert path.stat().st_size == len(head_of(len(found), DIM)) + len(found) * (8 + 4 * DIM)
