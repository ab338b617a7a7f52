"""What the rows of a flush stand for: what a shard needs beside them to go on from there."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.manifests import Ranges, RowUpdates
from cpr_contract.reports import SaveRef
from cpr_trainer.parity.flush import Point


@dataclass(frozen=True, slots=True)
class FlushAccount:
    """The mark of a flush, as JSON.

    applied[r]: the last step of rank r in the rows. step, samples, lost, row_updates: as a save of the rows would say;
    `whole_samples` are those of the steps that the rows have of every rank.
    order: the place of the last push among those of all ranks. save, saved_steps: the newest save of the shard that was
    committed by then, and the last step of each rank in it.
    """

    generation: int
    step: int
    samples: int
    whole_samples: int
    applied: tuple[int, ...]
    lost: Ranges
    row_updates: RowUpdates
    order: int = 0
    save: SaveRef | None = None
    saved_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a shard that was computed from parity knows beside its rows: where all of its parts stand, and their mark.

    order, saved_steps: see `FlushAccount`.
    """

    points: tuple[Point, ...]
    mark: str
    order: int
    saved_steps: tuple[int, ...]
