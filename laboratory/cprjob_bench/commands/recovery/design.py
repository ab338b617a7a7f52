"""The tiers of recovery: what is killed in each, and the job that is trained meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_operator.cli.kills import Role
from cprjob_bench.commands.job import bench_job
from cprjob_bench.options import RecoveryTier

SHARDS, TRAINERS = 2, 1
_DIM, _BATCH = 64, 512
#: Bytes of a row with the state of its row-wise optimizer.
_ROW_BYTES = 4 * (_DIM + 1)
_MIB = 2**20
#: More samples than any run trains.
_ENDLESS = 2**40
#: The interval between saves, at least, and MiB of a shard that one second of it is enough for.
_SAVE_S, _SAVED_MIB_PER_S = 4, 64


@dataclass(frozen=True, slots=True)
class Tier:
    """Of this role a member is killed: the process, or all of its pod.

    own_pace_s: seconds between two kills of one member. A keeper gives its pod up after three crashes in a minute.
    spares: that the job keeps; each kill waits until they are warm.
    """

    role: Role
    pod: bool
    own_pace_s: float
    spares: int = 0


TIERS: Mapping[RecoveryTier, Tier] = {
    RecoveryTier.IN_PLACE: Tier("shard", pod=False, own_pace_s=35.0),
    RecoveryTier.SPARE: Tier("shard", pod=True, own_pace_s=6.0, spares=1),
    RecoveryTier.NEW_POD: Tier("shard", pod=True, own_pace_s=6.0),
    RecoveryTier.TRAINER: Tier("trainer", pod=False, own_pace_s=35.0),
}


def members(tier: Tier) -> int:
    """How many members take turns in being killed."""
    return SHARDS if tier.role == "shard" else TRAINERS


def document(size_mib: int, spares: int, folder: Path, trace: Mapping[str, Any]) -> dict[str, Any]:
    """A CPRJob with a budget of 0 and replay, whose shards hold `size_mib` MiB of rows and optimizer state each.

    trace: the variable of the containers that names the trace of steps.
    """
    template = {"spec": {"containers": [{"name": "main", "env": [dict(trace)]}]}}
    job = bench_job(
        "bench-recovery",
        model={
            "embeddingDim": _DIM,
            "bottomMlp": [64, _DIM],
            "topMlp": [64, 1],
            "tables": [{"name": "rows", "rows": size_mib * _MIB * SHARDS // _ROW_BYTES}],
        },
        data={"format": "Synthetic", "samples": _ENDLESS, "batchSize": _BATCH},
        trainers={"replicas": TRAINERS, "template": template},
        shards={"replicas": SHARDS, "spares": spares, "template": template},
        recovery={"replay": {"mode": "Auto"}},
        failurePolicy={"restartLimit": {"count": 1000}},
        snapshots={
            "store": {"endpoint": f"file://{folder}", "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": max(_SAVE_S, size_mib // _SAVED_MIB_PER_S)},
        },
    )
    job["spec"]["accuracyBudget"] = {"portionOfLostSamples": 0}
    return job
