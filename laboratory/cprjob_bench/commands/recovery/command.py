"""The command: trains a job for each tier and size, kills its members in turn, and times each pause in a trace."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cpr_contract import env
from cpr_contract.env import STEP_TRACE
from cpr_operator.cli.run import open_cluster, operating
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.recovery.design import TIERS, document, members
from cprjob_bench.commands.recovery.killing import TRACE, KilledJob
from cprjob_bench.commands.recovery.show import result
from cprjob_bench.options import RecoveryTier


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """What the command line asks for. sizes: MiB of each shard. runs: kills per tier and size."""

    tiers: tuple[RecoveryTier, ...]
    sizes: tuple[int, ...]
    runs: int
    json: bool


def bench_recovery(options: RecoveryOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Time every recovery and print percentiles; progress goes to `err`. Raises TrialError."""
    found: dict[str, dict[int, list[float]]] = {}
    for name in options.tiers:
        tier = TIERS[name]
        # A trainer holds no rows, so it does not matter how large the shards are.
        for size in options.sizes if tier.role == env.ROLE_SHARD else options.sizes[:1]:
            runs = asyncio.run(_measure(name, size, options.runs, err, environment))
            found.setdefault(name, {})[size] = runs
    result(found).show(out, as_json=options.json)


async def _measure(
    name: RecoveryTier, size_mib: int, runs: int, err: Console, environment: Mapping[str, str]
) -> list[float]:
    """Train one job, and kill its members `runs` times; seconds of each pause."""
    tier, found = TIERS[name], []
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        trace = {"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{TRACE}"}
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(document(size_mib, tier.spares, place / "store", trace))
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                run = KilledJob(cluster, job, place)
                await run.warm_up(run.has_anchor)
                for number in range(runs):
                    pause = await run.time_one(tier, number % members(tier))
                    found.append(pause.seconds)
                    how = f"{pause.record.kind}, {pause.record.tier}"
                    words = f"{name}, {size_mib} MiB, run {number + 1}: {pause.seconds:.2f} s ({how})"
                    err.print(words, highlight=False)
                    if number + 1 < runs:
                        await asyncio.sleep(tier.own_pace_s / members(tier))
    return found
