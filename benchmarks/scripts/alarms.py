"""False alarms: all members of a node are stopped together, again and again, on a machine that has too much to do.

    .venv/bin/python benchmarks/scripts/alarms.py [--stops 100] [--busy 4] [--seed 1]

Each stop is longer than a heartbeat may be overdue and shorter than `silenceSeconds`, as a node that is slow and not
lost. The operator must replace nobody. Prints JSON. Needs what `make cluster-up` needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from cluster.harness import Cluster, Pod, until
from cluster.harness.cluster import cluster
from cluster.jobs import DATA_KEY, Run, pod_template
from support.realdata import click_log

#: Seconds of a stop: heartbeats are overdue after 3 s, and silent after 10 s by default.
SHORTEST_S, LONGEST_S = 3.5, 8.0
TRAINERS, SHARDS = 2, 4
#: More than is trained meanwhile: the most that a job may ask for.
EPOCHS = 1_000


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processors busy."""
    running = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def members(run: Run) -> list[Pod]:
    """The pods of all members."""
    return [run.pod("trainer", i) for i in range(TRAINERS)] + [run.pod("shard", i) for i in range(SHARDS)]


def overdue(run: Run, pods: list[Pod]) -> bool:
    """Whether one of these says that a heartbeat is overdue."""
    return any((run.space.report(pod) or {}).get("overdue") for pod in pods)


def stop(up: Cluster, run: Run, node: str, seconds: float) -> bool:
    """Stop the members of a node for so long; whether others reported them as overdue."""
    pods = members(run)
    mine, others = [pod for pod in pods if pod.node == node], [pod for pod in pods if pod.node != node]
    began, seen = time.monotonic(), False
    for pod in mine:
        up.nodes.signal(pod, "STOP")
    while time.monotonic() - began < seconds:
        seen = seen or overdue(run, others)
        time.sleep(0.1)
    for pod in mine:
        up.nodes.signal(pod, "CONT")
    before = run.trained()
    until("training goes on", lambda: run.trained() > before, 60)
    return seen


def false_alarms(up: Cluster, stops: int, chance: random.Random) -> dict[str, Any]:
    """Stop nodes' members at random; what was seen of it, and what the operator did."""
    space = up.space("alarms")
    up.store.put(DATA_KEY, click_log("criteo_80k.tsv.gz").read_bytes())
    try:
        run = Run.start(
            space,
            "alarms",
            data__epochs=EPOCHS,
            failurePolicy={},  # as users leave it
            trainers__template=pod_template(apart="trainer", unstable=True),
            shards__template=pod_template(apart="shard", unstable=True),
        )
        nodes = sorted({pod.node for pod in members(run)})
        seen = sum(stop(up, run, chance.choice(nodes), chance.uniform(SHORTEST_S, LONGEST_S)) for _ in range(stops))
        status = run.status()
        return {
            "stops": stops,
            "seen_overdue": seen,
            "failures": len(status.get("failures", ())),
            "phase": status["phase"],
        }
    finally:
        space.remove()
        up.store.delete(DATA_KEY)


def main() -> None:
    """Print what happened as JSON; exit with 1 if anybody was replaced."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--busy", type=int, default=4, help="processes that compute all the time beside the cluster")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with cluster() as up, load(options.busy):
        found = false_alarms(up, options.stops, random.Random(options.seed))
    Console().print_json(json.dumps(found))
    sys.exit(found["failures"] > 0)


if __name__ == "__main__":
    main()
