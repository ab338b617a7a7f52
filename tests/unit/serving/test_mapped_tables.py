"""Files of tables that are mapped into memory: rows are replaced part by part, and pages are dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cprjob_serving import exported, tensor_files
from cprjob_serving.tensor_files import head, release_pages, tensors

ROWS, DIM = 1000, 16


def resident_bytes(path: Path) -> int:
    """The bytes of a mapped file that are in the memory of this process."""
    lines = Path("/proc/self/smaps").read_text("ascii").splitlines()
    first = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
    rss = next(line for line in lines[first:] if line.startswith("Rss:"))
    return int(rss.split()[1]) << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.safetensors"
    path.write_bytes(head((("weight", "F32", (ROWS, DIM)),)) + np.arange(ROWS * DIM, dtype=np.float32).tobytes())
    return path


@pytest.mark.parametrize("part", [1 << 12, 1 << 14, 1 << 20])
def test_released_pages_are_mapped_again_by_a_read(path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(tensor_files, "_RELEASED_AT_ONCE", part)
    weight = tensors(path)["weight"]
    sum_before = weight.sum(dtype=np.float64)
    assert resident_bytes(path) >= weight.nbytes
    release_pages(weight[3:])
    assert resident_bytes(path) == 0
    assert weight.sum(dtype=np.float64) == sum_before


@pytest.mark.parametrize("part", [1, 7, 100, 256])
def test_rows_are_replaced_by_parts_of_any_size(path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(exported, "_ROWS_AT_ONCE", part)
    expected = tensors(path)["weight"].copy()
    rows = np.random.default_rng(1).choice(ROWS, 100, replace=False)
    expected[rows] = -1 - rows[:, np.newaxis].astype(np.float32)
    exported._replace_rows(path, rows, expected[rows])
    assert np.array_equal(tensors(path)["weight"], expected)
