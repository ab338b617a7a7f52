"""What can be wrong with a save, as one tree.

TrainerError
└── SnapshotError
    ├── DamagedError  a save does not verify, or is not there (any more): take the next candidate
    └── LayoutError   another job's anchor is of another shape: it cannot be restored into this job
"""

from __future__ import annotations

from cpr_trainer.errors import TrainerError


class SnapshotError(TrainerError):
    """A save cannot be used."""

    reason = "UnusableSave"


class DamagedError(SnapshotError):
    """A save does not verify; `key` names the object at fault, `what` says what is wrong with it."""

    reason = "DamagedSave"

    def __init__(self, key: str, what: str) -> None:
        super().__init__(
            f"{key} {what}.", "An older save is used where the budget allows it; check the store for lost objects."
        )
        self.key = key
        self.what = what


class LayoutError(SnapshotError):
    """An anchor to restore from has other tables, another dimension or optimizers of other kinds."""

    reason = "LayoutMismatch"
