"""A job that stops, and resumes: trainers flush first, then shards, as `operator/cpr_operator/reconcile/suspend.py`.

Members that are lost meanwhile are not replaced. Once all have ended, new ones take their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpr_contract.reports import ExitCode
from cpr_trainer.shard.steps import StepService

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster


class Suspension:
    """The stop of a job, if it is under way. `anchor` is the step of the leader's last cut, 0 for none.

    `is_due`: the leader has completed a step, and is to save it. `disturbed`: a shard or the leader was lost before it
    had flushed, or the process of a shard after a trainer, so updates may be lost, and the anchor too. `incomplete`: a
    drained shard ended before the leader, and its successor does not come before the resumption. The last cut lacks it,
    and pushes that it did not acknowledge (`unacknowledged`) are lost with their trainers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.stops_trainers = self.stops_shards = False
        self.anchor = 0
        self.is_due = self.disturbed = self.incomplete = self.unacknowledged = False
        self._cluster = cluster

    def begin(self) -> None:
        """Stop the job."""
        if not self.stops_trainers:
            self._cluster.probes["the job stopped"] += 1
            self.stops_trainers, self.anchor = True, 0
            self.is_due = self.disturbed = self.incomplete = self.unacknowledged = False
            self._cluster.operator.publish_rosters()

    def poll(self) -> None:
        """Do what is due: stop the shards after the trainers, and let all come back after the shards."""
        cluster = self._cluster
        leader = cluster.trainers[cluster.operator.leader]
        self.disturbed |= leader.dead and not leader.flushed
        self.incomplete |= not leader.dead and any(pod.code is not None for pod in cluster.newest)
        self.disturbed |= any(pod.lost or pod.code not in {None, ExitCode.FLUSHED} for pod in cluster.newest)
        if not self.stops_shards and all(trainer.dead for trainer in cluster.trainers):
            self.stops_shards = True
            cluster.operator.publish_rosters()
        elif self.stops_shards and all(pod.lost or pod.code is not None for pod in cluster.newest):
            self._end()

    @property
    def lost_ranks(self) -> set[int]:
        """The trainers that ended without a flush. Those of a job that stops are not replaced."""
        return {trainer.rank for trainer in self._cluster.trainers if trainer.dead and not trainer.flushed}

    def lacks_contributions(self, done: int) -> bool:
        """Return whether a shard waits for steps up to `done` of a dead trainer that its present process never met.

        The process before had the contributions, which are in no other place until the step is applied. The shard
        waits for the trainer until it stops itself. A contribution that it holds is applied.
        """
        return any(
            service.progress is not None
            and service.progress.applied[0] < done
            and any(service._commitments[rank] is None and rank not in service._held for rank in self.lost_ranks)
            for service in self._cluster.serving_services()
            if isinstance(service, StepService)
        )

    def _end(self) -> None:
        cluster = self._cluster
        cluster.lossy |= self.disturbed or (self.incomplete and self.unacknowledged)
        cluster.probes["the job stopped at an anchor"] += self.anchor > 0
        cluster.checker.check_stopped(self)
        self.stops_trainers = self.stops_shards = False
        cluster.operator.resume()
