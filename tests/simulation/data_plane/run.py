"""Runs of one seed: faults are injected into a job, and the checker looks at it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulation.data_plane.cluster import Cluster
from simulation.data_plane.expected_table import Push
from simulation.data_plane.failpoints import Failpoints
from simulation.data_plane.workload import Workload

#: Limit of a job after the last fault; a job needs some seconds.
_END_TIMEOUT_S = 200.0
_POLL_S = 0.5
#: Seconds that parity needs to be complete once the job is idle.
_QUIET_S = 30.0


@dataclass
class RunResult:
    """The result of a seed. missing: the pushes that each shard lacks in the end, all of them reported."""

    seed: int
    probes: Counter[str]
    missing: dict[int, set[Push]] = field(default_factory=dict)
    seconds: float = 0.0
    switches: int = 0


def run_to_completion(seed: int, alter: Callable[[Workload], Workload] = lambda workload: workload) -> RunResult:
    """Inject faults for a while. Then the job must end, and it must have reported all that it misses.

    It misses nothing if every push had a copy that no fault took.
    """
    with _cluster(seed, alter) as cluster:
        faults = Failpoints(cluster, recoverable=cluster.rng.random() < 0.6)
        end = cluster.scheduler.now + cluster.rng.choice((2.0, 4.0, 8.0))
        faults.inject_until(end, cluster.rng.choice((0.2, 0.6, 2.0)))
        while cluster.scheduler.now < end and not cluster.finished:
            cluster.scheduler.run(lambda: cluster.finished, cluster.scheduler.now + _POLL_S)
            cluster.checker.check_rows()
        cluster.scheduler.run(lambda: False, end)
        faults.heal()
        done = cluster.scheduler.run(lambda: completed(cluster), cluster.scheduler.now + _END_TIMEOUT_S)
        assert done, f"the job does not end: {_state_of(cluster)}"
        result = _run(cluster)
        result.missing = cluster.checker.check_end()
        if cluster.arriving is not None:
            cluster.arriving.check_end()
        full = cluster.probes["memory for pushes was full"]
        recoverable = faults.recoverable and cluster.workload.job.replay.enabled and not cluster.lossy
        if recoverable and not full:
            assert not any(result.missing.values()), f"lost although a copy was left: {result.missing}"
        if cluster.workload.job.parity_shards:
            calm = cluster.scheduler.run(lambda: parity_complete(cluster), cluster.scheduler.now + _QUIET_S)
            assert calm, "parity does not become whole"
            cluster.checker.check_parity()
        return result


def run_under_faults(seed: int, alter: Callable[[Workload], Workload] = lambda workload: workload) -> RunResult:
    """Inject faults until the run ends. At any time the shards report all that their rows lack."""
    with _cluster(seed, alter) as cluster:
        end = cluster.scheduler.now + cluster.rng.choice((3.0, 6.0, 10.0))
        Failpoints(cluster, recoverable=cluster.rng.random() < 0.2).inject_until(
            end, cluster.rng.choice((0.1, 0.3, 1.0))
        )
        while cluster.scheduler.now < end:
            cluster.scheduler.run(lambda: False, cluster.scheduler.now + cluster.rng.uniform(0.0, _POLL_S))
            cluster.checker.check_rows()
        return _run(cluster)


def completed(cluster: Cluster) -> bool:
    """Return whether all is trained and saved, all shards serve, and no shard is behind a rollback."""
    if not cluster.finished:
        return False
    last, services = cluster.workload.last_step, cluster.serving_services()
    progress = [service.progress for service in services]
    return len(services) == len(cluster.newest) and all(
        each is not None and (each.generation, set(each.applied), each.dirty) == (cluster.generation, {last}, False)
        for each in progress
    )


def parity_complete(cluster: Cluster) -> bool:
    """Return whether all parity is there, each member has its place in it, and nothing is under way."""
    found = [cluster.redundancies[pod.server] for pod in cluster.newest if pod.serving]
    if len(found) < len(cluster.newest):
        return False
    is_quiet = all(
        each._journal.intact and not each._journal.in_flight and not each._journal.pending_bytes for each in found
    )
    return is_quiet and all(
        found[member]._journal._streams[part].settled == holder._store.points[part]
        for index, holder in enumerate(found)
        for part, member in enumerate(holder._ring.members(index))
    )


@contextmanager
def _cluster(seed: int, alter: Callable[[Workload], Workload]) -> Iterator[Cluster]:
    cluster = Cluster(seed, alter)
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with cluster.running():
            yield cluster
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        logging.disable(before)


def _run(cluster: Cluster) -> RunResult:
    return RunResult(
        cluster.seed, cluster.probes, seconds=cluster.scheduler.now - 1000.0, switches=cluster.scheduler.switches
    )


def _state_of(cluster: Cluster) -> list[str]:
    shards = [f"{pod.host}: {pod.report and (pod.report.state, pod.report.applied)}" for pod in cluster.newest]
    return [
        *shards,
        *(
            f"{each.host}: {each.trainer and (each.trainer.done, each.trainer.exchange.unavailable())}"
            for each in cluster.trainers
        ),
    ]
