"""`status.goodput`: the time of a job, and the part of it in which samples were trained for the first time."""

from __future__ import annotations

from typing import Literal

from cpr_operator.api.base import Count, Model, Portion, Seconds, Timestamp

#: The activities that the time of a job is attributed to. A job that has ended has none.
Activity = Literal["Queued", "Starting", "Training", "Recovering", "Suspended", "WaitingForData", "Finishing"]


class LostTime(Model):
    """The wall time without first training, by cause."""

    queued: Seconds = 0
    """The job had no pods: it waited for quota, for a condition of its start, or after a deadline for capacity."""
    starting: Seconds = 0
    """Its first pods, or those after a suspension, did not train yet."""
    saving: Seconds = 0
    """Saves stopped training or slowed it down, as the leader measured it. Saves are written while training runs."""
    recovering: Seconds = 0
    """From a failure until training continued."""
    repeated: Seconds = 0
    """Training of samples that had been trained before a rollback."""
    suspended: Seconds = 0
    """From the request for a suspension, or for another number of members, until the job started again."""
    waiting_for_data: Seconds = 0
    """All data that had arrived was trained, with spec.data.follow."""
    finishing: Seconds = 0
    """All samples were trained, and the final anchor was not committed yet."""


class Goodput(Model):
    """The wall time of a job and its parts, as of `updated`.

    Every value is a multiple of a millisecond. productiveSeconds and all parts of lost add up to wallSeconds.
    """

    ratio: Portion | None = None
    """productiveSeconds / wallSeconds; absent until time has passed."""
    wall_seconds: Seconds = 0
    """Time since the operator first saw the job, by the clocks of the operators, until it ended."""
    productive_seconds: Seconds = 0
    """Training of samples that were not trained before."""
    lost: LostTime = LostTime()
    """The rest of the wall time, by cause."""
    updated: Timestamp
    """The end of the time that is attributed. Later time is attributed when the job reports or changes."""
    activity: Activity | None = None
    """The activity of the job since then; absent once it has ended."""
    samples: Count = 0
    """Samples that were trained as of then. A rollback lowers it."""
    furthest_samples: Count = 0
    """The most samples that the job ever had trained. Training up to there is repeated."""
