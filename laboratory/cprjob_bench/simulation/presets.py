"""The jobs of the CPR paper, and one that grows."""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.policy.inputs import Costs
from cprjob_bench.simulation.job import HOUR_S, MINUTE_S, Job


def _costs(save_min: float, recover_min: float) -> Costs:
    """Saves that training waits for. How a recovery divides into load and reschedule is not known: by halves."""
    half_s = recover_min * MINUTE_S / 2
    return Costs(save_stall_s=save_min * MINUTE_S, commit_s=0.0, load_s=half_s, reschedule_s=half_s)


#: Assumed. 640 000 samples/s at dim 64 on 18 shards, whose cores update 3.8 million rows/s each, give 0.084.
_REPLAY = 0.1
#: Measured by `cprjob bench redundancy` (docs/redundancy.md): processor time of a job whose members share two cores.
_PARITY_COST = 0.05

#: CPR's emulation of a production cluster; costs calibrated to the published 8.5 % and 0.68 %.
PAPER = Job(
    total_s=56 * HOUR_S,
    shards=8,
    lost=4,
    mtbf_s=28 * HOUR_S,
    limit=0.1,
    costs=_costs(save_min=5.4, recover_min=8.0),
    told_mtbf_s=28 * HOUR_S,
    told_lost=4.0,
    replay=_REPLAY,
    parity_cost=_PARITY_COST,
)
#: CPR's run on a production cluster: 5 failures in 50 h, each of 4 random shards; costs assumed.
PRODUCTION = Job(
    total_s=50 * HOUR_S,
    shards=18,
    lost=4,
    mtbf_s=10 * HOUR_S,
    limit=0.1,
    costs=_costs(save_min=4.3, recover_min=3.0),
    told_mtbf_s=10 * HOUR_S,
    told_lost=4.0,
    replay=_REPLAY,
    parity_cost=_PARITY_COST,
)
#: Of `scale` it is the job that grows.
PRESETS = {"paper": PAPER, "production": PRODUCTION, "scale": PAPER}
#: Shards of the jobs of the preset `scale`.
SCALES = tuple(2**power for power in range(3, 13))


def at_scale(job: Job, shards: int) -> Job:
    """The job on more shards: as much work for each, the same shards lost per failure, failures in proportion."""
    fewer = job.shards / shards
    return replace(job, shards=shards, mtbf_s=job.mtbf_s * fewer, told_mtbf_s=job.told_mtbf_s * fewer)
