"""The costs of many members without processes: bytes of rosters and of the status, and the time of a pass."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median

from cpr_operator.cli.command_errors import OptionError
from cpr_operator.desired.rosters import Rosters
from cpr_operator.reconcile import reconcile
from cprjob_bench.commands.growth import Curve, Point
from cprjob_bench.commands.large_job import a_shard_is_lost, all_report

_REPEATS = 7


def document_curves(sizes: Sequence[str]) -> dict[str, Curve]:
    """Return the bytes of the largest roster, of the rosters of all members, and of the status.

    sizes: SHARDSxTRAINERS. All documents are those of a pass over a running job. Raises OptionError.
    """
    found: dict[str, list[Point]] = {"roster": [], "rosters": [], "status": []}
    for size in sizes:
        shards, trainers = members_of(size)
        status = reconcile(all_report(shards, trainers)).status
        rosters = Rosters(status)
        lengths = [len(rosters.document(member, member.incarnation).text.encode()) for member in status.members]
        text = json.dumps(status.to_dict(), separators=(",", ":"))
        costs = {"roster": max(lengths), "rosters": sum(lengths), "status": len(text.encode())}
        for name, cost in costs.items():
            found[name].append(Point(size, shards + trainers, cost))
    units = {"roster": "bytes of a roster", "rosters": "bytes of all rosters", "status": "bytes of the status"}
    return {name: Curve("members", unit, tuple(found[name])) for name, unit in units.items()}


def pass_curve(sizes: Sequence[str]) -> dict[str, Curve]:
    """Return the processor time of the decision of one pass over a job that has lost a shard while all others report.

    The time has neither the API server nor the polls. sizes: SHARDSxTRAINERS. Raises OptionError.
    """
    found = []
    for size in sizes:
        shards, trainers = members_of(size)
        observed, taken_ms = a_shard_is_lost(shards, trainers), []
        for _ in range(_REPEATS + 1):
            began_s = time.process_time()
            reconcile(observed)
            taken_ms.append(1e3 * (time.process_time() - began_s))
        found.append(Point(size, shards + trainers, median(taken_ms[1:])))  # the first is a warm-up
    return {"pass": Curve("members", "processor ms of a pass", tuple(found))}


def members_of(size: str) -> tuple[int, int]:
    """Return the shards and trainers of a size SHARDSxTRAINERS. Raises OptionError."""
    shards, _, trainers = size.partition("x")
    if not (shards.isdecimal() and trainers.isdecimal() and int(shards) and int(trainers)):
        raise OptionError(f"{size}: must be SHARDSxTRAINERS, as in 64x16")
    return int(shards), int(trainers)
