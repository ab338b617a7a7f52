"""Makes a job over a file of samples, with a table for each categorical column.

Besides the Criteo layout, a tab-separated table with a header is accepted: first a column `label`
of 0 and 1, then categorical columns. It is rewritten in the Criteo layout, without numbers.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cpr_contract.spec import CATEGORICAL_FEATURES, DENSE_FEATURES
from cpr_operator.cli.console import OptionError
from cprjob_bench.commands.job import bench_job

_LABEL = "label"
_CRITEO_COLUMNS = 1 + DENSE_FEATURES + CATEGORICAL_FEATURES
#: Rows of a table for each different value of its column, so that values rarely share a row.
_ROWS_PER_VALUE = 2


@dataclass(frozen=True, slots=True)
class Samples:
    """A file in the Criteo layout: the names of its first columns, and how many different values each has."""

    path: Path
    columns: tuple[str, ...]
    distinct: tuple[int, ...]


@contextmanager
def open_samples(path: Path) -> Iterator[TextIO]:
    """The text of a plain or gzip file. Raises OptionError if it cannot be read as either."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as text:
            yield text
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise OptionError(f"--data {path}: {error}") from error


def prepare(path: Path, folder: Path) -> Samples:
    """Read a file's columns; rewrite it into `folder` if it is not in the Criteo layout.

    Raises OptionError.
    """
    with open_samples(path) as lines:
        first = lines.readline().rstrip("\n").split("\t")
        if first[0] == _LABEL and 1 < len(first) <= 1 + CATEGORICAL_FEATURES:
            return _rewrite(path, lines, tuple(first[1:]), folder / "samples.tsv")
        if first[0] not in {"0", "1"} or len(first) != _CRITEO_COLUMNS:
            raise OptionError(
                f"--data {path}: the first line is neither a Criteo row of {_CRITEO_COLUMNS} columns nor a header "
                f"of {_LABEL!r} and up to {CATEGORICAL_FEATURES} categorical columns, tab-separated"
            )
    with open_samples(path) as lines:
        values: list[set[str]] = [set() for _ in range(CATEGORICAL_FEATURES)]
        for line in lines:
            for seen, value in zip(values, line.rstrip("\n").split("\t")[1 + DENSE_FEATURES :], strict=False):
                seen.add(value)
    names = tuple(f"c{number}" for number in range(1, CATEGORICAL_FEATURES + 1))
    return Samples(path, names, tuple(map(len, values)))


def _rewrite(path: Path, lines: TextIO, columns: tuple[str, ...], target: Path) -> Samples:
    """Write the lines after the header in the Criteo layout."""
    values: list[set[str]] = [set() for _ in columns]
    numbers, rest = [""] * DENSE_FEATURES, [""] * (CATEGORICAL_FEATURES - len(columns))
    with target.open("w", encoding="utf-8") as out:
        for number, line in enumerate(lines, start=2):
            label, *cells = line.rstrip("\n").split("\t")
            if len(cells) != len(columns):
                raise OptionError(f"--data {path}: line {number} has {1 + len(cells)} columns, not {1 + len(columns)}")
            for seen, value in zip(values, cells, strict=True):
                seen.add(value)
            out.write("\t".join([label, *numbers, *cells, *rest]) + "\n")
    return Samples(target, columns, tuple(map(len, values)))


def job_over(samples: Samples) -> dict[str, Any]:
    """A CPRJob over some samples, small enough for a laptop: one epoch on 8 shards."""
    tables = [
        {"name": f"t{place}", "rows": max(_ROWS_PER_VALUE * distinct, 1)}
        for place, distinct in enumerate(samples.distinct, start=1)
    ]
    return bench_job(
        "bench",
        model={"embeddingDim": 16, "bottomMlp": [32, 16], "topMlp": [64, 1], "tables": tables},
        data={"format": "Criteo", "uri": str(samples.path.resolve()), "epochs": 1, "batchSize": 128, "seed": 1},
        shards={"replicas": 8},
        snapshots={"store": {"endpoint": "file:///unused", "bucket": "unused"}},
    )
