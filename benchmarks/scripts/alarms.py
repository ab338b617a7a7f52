"""False alarms: repeated stops of all members of a node, on an overloaded machine.

    .venv/bin/python benchmarks/scripts/alarms.py [--stops 100] [--busy 4] [--seed 1]

During a stop heartbeats become overdue, but it is shorter than `silenceSeconds`, as of a slow node that is not lost.
The operator must replace no member. Prints JSON. Has the requirements of `make cluster-up`.
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
#: The maximum of a job, so that it does not finish.
EPOCHS = 1_000


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Run `processes` that compute all the time."""
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
    """Return whether one of these reports an overdue heartbeat."""
    return any((run.space.report(pod) or {}).get("overdue") for pod in pods)


def stop(up: Cluster, run: Run, node: str, seconds: float) -> bool:
    """Stop the members of a node for `seconds`; return whether others reported them as overdue."""
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
    until("training has resumed", lambda: run.trained() > before, 60)
    return seen


def false_alarms(up: Cluster, stops: int, chance: random.Random) -> dict[str, Any]:
    """Stop random nodes' members; return the reports of overdue heartbeats and the operator's failures."""
    space = up.space("alarms")
    up.store.put(DATA_KEY, click_log("criteo_80k.tsv.gz").read_bytes())
    try:
        run = Run.start(
            space,
            "alarms",
            data__epochs=EPOCHS,
            failurePolicy={},  # the defaults
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
    """Print the result as JSON; exit with 1 if a member was replaced."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--busy", type=int, default=4, help="processes that compute all the time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with cluster() as up, load(options.busy):
        found = false_alarms(up, options.stops, random.Random(options.seed))
    Console().print_json(json.dumps(found))
    sys.exit(found["failures"] > 0)


if __name__ == "__main__":
    main()
