"""A scheduler for xdist: a file goes to any free worker, and all tests of the cluster go to one worker.

The cluster's tests wait most of the time, so that worker starts with them while the others compute.
"""

from __future__ import annotations

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

CLUSTER = "tests/cluster/"
#: Folders in the order in which they start: long ones go first, so that no worker is left with them at the end.
FIRST = (
    CLUSTER,
    "tests/processes/",
    "tests/crashes/",
    "tests/local_runs/",
    "tests/walkthroughs/",
    "tests/simulation/",
    "tests/stores/",
    "tests/guard/",
)


class SideBySide(LoadFileScheduling):
    """Scopes are files, and the folder of the cluster's tests."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER if nodeid.startswith(CLUSTER) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=_place), last=False)
        super()._assign_work_unit(node)


def _place(scope: str) -> int:
    return next((place for place, folder in enumerate(FIRST) if scope.startswith(folder)), len(FIRST))
