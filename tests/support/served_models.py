"""The models that a follower serves: their numbers, and copies of some of them, to compare with exports."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from cpr_contract.requests import ExportRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.export.model_folder import export_model
from cpr_trainer.store import Store
from cprjob_serving import Follower
from support.published_job import files_of


@dataclass
class ServedModels:
    """The place of each model in its chain, in the order of looks; copies are in `folder`."""

    follower: Follower
    folder: Path
    sequences: list[int] = field(default_factory=list)
    copies: dict[Path, str] = field(default_factory=dict)
    checked: int = 0

    def copy(self, sequence: int, anchors: Collection[str]) -> bool:
        """Copy the present model, if it is at least the one of that number, and is of one of these anchors."""
        self.sequences.append(self.follower.sequence)
        if self.sequences[-1] < sequence:
            return False
        model = self.follower.model
        if model.about["anchor"] not in anchors:
            return False
        copy = self.folder / str(len(self.copies))
        shutil.copytree(model.folder, copy)  # the follower deletes it once there are two newer ones
        self.copies[copy] = model.about["anchor"]
        return True

    def check(self, job: JobSpec, store: Store) -> None:
        """Check that the chain never went back, and that each further copy is the export of its anchor, byte for byte.

        The store still has the anchor: it has `snapshots.keep` of them.
        """
        assert self.sequences == sorted(self.sequences)
        for copy, anchor in list(self.copies.items())[self.checked :]:
            exported = copy.with_name(f"{copy.name}-exported")
            exported.mkdir()
            export_model(store, job, ExportRequest(anchor), exported)
            assert files_of(copy) == files_of(exported), anchor
            self.checked += 1
