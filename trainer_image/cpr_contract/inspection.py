"""What `cprjob data inspect` asks of the trainer image, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InspectionRequest:
    """`uri` names files on this machine, whose format is to be guessed; None: the data of the job."""

    uri: str | None


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """One column. `kind` is empty, integer, number or text, or Parquet's own word for other types.

    `missing` cells are empty or null. `lowest` and `highest` are those of numbers. `distinct` values are counted
    exactly up to 4096, beyond that estimated with a standard error of 1.6 %; None for what is neither a value nor a
    list of values. `feeds` says what the job makes of it; empty: nothing. In a column of bags, figures are those of
    their ids, `missing` are the empty ones, and a bag has `bag_mean` ids on average and `bag_most` at most.
    """

    name: str
    kind: str
    missing: int
    lowest: float | None
    highest: float | None
    distinct: int | None
    feeds: str
    bag_mean: float | None = None
    bag_most: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a job reads: `trained` rows, `held_out` rows, `samples` in so many `steps`, shuffled in `windows`."""

    trained: int
    held_out: int
    samples: int
    steps: int
    windows: int


@dataclass(frozen=True, slots=True)
class DataFigures:
    """All rows of some files. `faults` are the first of the `bad` rows, each with its place. `advice`: sentences."""

    format: str
    header: bool
    files: int
    rows: int
    bad: int
    faults: tuple[str, ...]
    columns: tuple[ColumnFigures, ...]
    reading: Reading | None
    advice: tuple[str, ...] = ()
