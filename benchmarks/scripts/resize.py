"""The pause of training while a job changes its number of members.

    .venv/bin/python benchmarks/scripts/resize.py [--mib N] [--repeats N] [--json]

A job of this machine goes from one trainer to two and back, and from two shards to three and back. A pause lasts from
the end of one step to that of the next, by the trace of the first trainer. Its parts are those of `status.goodput`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_operator.api.status import Status
from cpr_operator.cli.run import open_cluster, operating
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.job_members import LocalMembers
from cprjob_bench.commands.killed_job import KilledJob, time_limit
from cprjob_bench.commands.recovery_bench import Base, document

_POLL_S = 0.05
#: Steps after a resize that show that training continues.
_STEPS = 30
#: The parts of a pause, as `status.goodput.lost` has them.
_PARTS = ("suspended", "starting", "saving", "finishing")
_RESIZES: Mapping[str, tuple[str, int]] = {
    "1 to 2 trainers": ("trainers", 2),
    "2 to 1 trainers": ("trainers", 1),
    "2 to 3 shards": ("shards", 3),
    "3 to 2 shards": ("shards", 2),
}


class ResizedJob:
    """A job that changes its numbers of members on this machine."""

    def __init__(self, cluster: LocalCluster, job: JobView, members: LocalMembers) -> None:
        self._cluster, self._job, self._members = cluster, job, members

    async def resize(self, role: str, replicas: int) -> dict[str, float]:
        """Return the seconds of the pause of training, and of its parts."""
        before, known = await self._members.status(), len(await self._members.ends_s())
        if role == "shards":  # their number changes while the job is suspended
            await self._change(suspend=True)
            await self._until(lambda status: status.phase == "Suspended")
        spec = (await self._cluster.get_job(self._job.namespace, self._job.name)).spec
        await self._change(**{role: {**spec[role], "replicas": replicas}}, suspend=False)
        await self._until(lambda status: status.counters.group > before.counters.group and status.phase == "Running")
        ends_s = await self._ends_after(known)
        after = await self._members.status()
        pause_s = max(later - earlier for earlier, later in pairwise(sorted(ends_s)[max(known - 1, 0) :]))
        return {"pause": pause_s} | {part: lost(after, part) - lost(before, part) for part in _PARTS}

    async def _change(self, **fields: Any) -> None:
        self._cluster.change_spec(self._job.namespace, self._job.name, fields)

    async def _until(self, reached: Callable[[Status], bool]) -> None:
        async with time_limit("the job was not resized"):
            while True:
                if reached(await self._members.status()):
                    return
                await asyncio.sleep(_POLL_S)

    async def _ends_after(self, known: int) -> Sequence[float]:
        """Return the ends of all steps, once there are more than the known ones."""
        async with time_limit("training did not continue"):
            while True:
                if len(ends_s := await self._members.ends_s()) >= known + _STEPS:
                    return ends_s
                await asyncio.sleep(_POLL_S)


def lost(status: Status, part: str) -> float:
    """Return the seconds of a part of the lost time."""
    return 0.0 if status.goodput is None else float(getattr(status.goodput.lost, part))


async def measure(size_mib: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the medians of all resizes, in seconds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in _RESIZES}
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        async with open_cluster(place, os.environ) as cluster:
            job = cluster.create_job(document("resized", size_mib, 0, Base.here(place / "store")))
            members = LocalMembers(cluster, job, place)
            async with operating(cluster, job, Timing()):
                killed = KilledJob(members)
                await killed.warm_up(killed.has_anchor)
                resized = ResizedJob(cluster, job, members)
                for _ in range(repeats):
                    for name, change in _RESIZES.items():
                        found[name].append(await resized.resize(*change))
    return {name: {part: median(run[part] for run in runs) for part in runs[0]} for name, runs in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64, help="MiB of each of two shards")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.mib, options.repeats))
    if options.json:
        print(json.dumps(found))  # noqa: T201 -- the output of this script
        return
    shown = Table("resize", "pause, s", *(f"{part}, s" for part in _PARTS))
    for name, parts in found.items():
        shown.add_row(name, *(f"{seconds:.2f}" for seconds in parts.values()))
    Console().print(shown)


if __name__ == "__main__":
    main()
