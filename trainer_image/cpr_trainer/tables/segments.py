"""The rows of one band in an arena: consecutive slots, all rows of one width."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_trainer.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Slots from `first` on. rows: float32 [n, D]. state: float32 [n, W], what their optimizers keep; W may be 0."""

    first: int
    rows: Floats
    state: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """The slot after the last."""
        return self.first + len(self.rows)

    @property
    def dim(self) -> int:
        """Values of a row."""
        return int(self.rows.shape[1])

    @property
    def row_values(self) -> int:
        """Values of a row with its state."""
        return int(self.rows.shape[1] + self.state.shape[1])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        return self.row_values * self.rows.itemsize

    def within(self, slots: Ints) -> Ints:
        """Return where in `rows` the rows in these slots of the arena lie."""
        return slots - self.first if self.first else slots
