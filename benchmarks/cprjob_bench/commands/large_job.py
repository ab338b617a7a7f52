"""The inputs of the operator for a job of many members, at the moments with the longest passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import SaveRef, ShardReport, ShardState, TrainerReport, TrainerState
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile import Job, ReconcileInput, Report, reconcile
from cprjob_bench.commands.bench_result import bench_job

JOB = JobId("default", "large", "12345678-0000-0000-0000-000000000000")
NOW = 1.7e9
STEP, BATCH, TOTAL, SAVED = 9, 100, 2000, 800


def all_report(shards: int, trainers: int) -> ReconcileInput:
    """A job in mid-training; all members answer."""
    cluster = _running(shards, trainers)
    return replace(cluster, reports=_reports(cluster.job.status))


def a_shard_is_lost(shards: int, trainers: int) -> ReconcileInput:
    """A job in mid-training with a killed first shard; all others answer."""
    cluster = _running(shards, trainers)
    status = cluster.job.status
    pods = tuple(_killed(pod) if pod.name == status.shards[0].pod else pod for pod in cluster.pods)
    return replace(cluster, pods=pods, reports=_reports(status), now=cluster.now + 5)


def _new(shards: int, trainers: int) -> ReconcileInput:
    document = bench_job(
        JOB.name,
        model={
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "tables": [{"name": "t0", "rows": 10**7}],
        },
        data={"format": "Synthetic", "samples": TOTAL, "batchSize": BATCH},
        trainers={"replicas": trainers},
        shards={"replicas": shards},
        snapshots={
            "store": {"endpoint": "file:///store", "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": 1},
        },
        failurePolicy={"restartLimit": {"count": 1000}},
    )
    return ReconcileInput(Job(JOB, 1, deleting=False, spec=parse_spec(document["spec"]), status=Status()), (), {}, NOW)


def _after(cluster: ReconcileInput, later_s: float) -> ReconcileInput:
    """The cluster `later_s` seconds later, with all effects of the last pass."""
    status = reconcile(cluster).status
    job = replace(cluster.job, status=status)
    return replace(cluster, job=job, pods=_pods(status), reports={}, now=cluster.now + later_s)


def _seen(shards: int, trainers: int) -> ReconcileInput:
    return _after(_new(shards, trainers), 5)


def _started(shards: int, trainers: int) -> ReconcileInput:
    cluster = _after(_seen(shards, trainers), 5)
    return replace(cluster, reports=_reports(cluster.job.status))


def _running(shards: int, trainers: int) -> ReconcileInput:
    cluster = _after(_started(shards, trainers), 5)
    leader = cluster.job.status.trainers[0].uid
    return replace(cluster, reports={leader: _reports(cluster.job.status)[leader]})


def _recovering(shards: int, trainers: int) -> ReconcileInput:
    cluster = _after(a_shard_is_lost(shards, trainers), 2)
    return replace(cluster, reports=_reports(cluster.job.status))


def _missed(shards: int, trainers: int) -> ReconcileInput:
    cluster = _running(shards, trainers)
    reports, silent = _reports(cluster.job.status), tuple(f"shard/{index}" for index in range(shards))
    leader = cluster.job.status.trainers[0].uid
    return replace(cluster, reports={**reports, leader: replace(reports[leader], silent=silent)})


def _deleted(shards: int, trainers: int) -> ReconcileInput:
    cluster = _running(shards, trainers)
    pods = (replace(pod, deleting_until=NOW + 60) if pod.role == "shard" else pod for pod in cluster.pods)
    return replace(cluster, pods=tuple(pods))


def _lost(shards: int, trainers: int) -> ReconcileInput:
    cluster = _running(shards, trainers)
    return replace(cluster, pods=tuple(map(_killed, cluster.pods)), reports={})


def _killed(pod: PodView) -> PodView:
    return replace(pod, phase="Failed", container=ContainerView("Terminated", "Error", exit_code=137))


def _pods(status: Status) -> tuple[PodView, ...]:
    """All members' pods, which run and have their newest rosters."""
    return tuple(
        PodView(
            member.pod,
            f"uid-{role}-{member.index}-{member.incarnation}",
            JOB.uid,
            role,
            member.index,
            member.incarnation,
            "Running",
            NOW,
            node=f"node-{member.index % 50:04}",
            host=f"10.{'1' if role == 'shard' else '2'}.{member.index // 250}.{member.index % 250}",
            port_base=7070,
            container=ContainerView("Running"),
            roster_version=member.roster,
        )
        for role, members in (("shard", status.shards), ("trainer", status.trainers))
        for member in members
    )


def _reports(status: Status) -> dict[str, Report]:
    """The reports of all members, by the uid of their pods."""
    uids = {(pod.role, pod.index): pod.uid for pod in _pods(status)}
    shards = {uids["shard", shard.index]: _shard_report(status, shard) for shard in status.shards}
    trainers = {uids["trainer", trainer.index]: _trainer_report(status, trainer) for trainer in status.trainers}
    return {**shards, **trainers}


def _shard_report(status: Status, shard: Shard) -> ShardReport:
    return ShardReport(
        contract=1,
        job_uid=JOB.uid,
        index=shard.index,
        incarnation=shard.incarnation,
        counters=status.counters.to_contract(),
        state=ShardState.READY,
        applied=(STEP,) * len(status.trainers),
        newest_save=SaveRef("k" * 80, SAVED // BATCH, SAVED),
        restored_samples=None,
        resumed_samples=None,
        lost=(),
        load_s=1.0,
        silent=(),
        problem=None,
        row_updates=RowUpdates((STEP,) * len(status.trainers), 0),
    )


def _trainer_report(status: Status, trainer: Trainer) -> TrainerReport:
    return TrainerReport(
        contract=1,
        job_uid=JOB.uid,
        index=trainer.index,
        incarnation=trainer.incarnation,
        counters=status.counters.to_contract(),
        state=TrainerState.TRAINING,
        step=STEP,
        samples=STEP * BATCH,
        samples_started=(STEP + 1) * BATCH,
        total_samples=TOTAL,
        waiting_for=(),
        silent=(),
        lost=(),
        problem=None,
        shard_saves=(SAVED,) * len(status.shards) if trainer.index == 0 else (),
        sparse_updates="PerStep",
    )


#: Inputs by situation, each for a number of shards and trainers.
MOMENTS: Mapping[str, Callable[[int, int], ReconcileInput]] = {
    "all pods are there": _seen,
    "all start and report": _started,
    "all work and the leader reports": _running,
    "a shard is lost and all report": a_shard_is_lost,
    "all report during a recovery": _recovering,
    "the leader misses all shards": _missed,
    "all shards are deleted with grace": _deleted,
    "everybody is lost": _lost,
}
