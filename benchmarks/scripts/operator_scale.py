"""Measure the operator with many jobs: .venv/bin/python benchmarks/scripts/operator_scale.py --jobs 1000.

    start_s                 from the start of the operator's process until it has requested the
                            leaders' reports of all running jobs
    event_to_decision_ms    from the watch event of a pod deleted by force to that of its
                            replacement, while all other jobs run
    api_server_ms           the API server's own time of the writes in between: of a job's status,
                            and of the new pod; p99 is the upper bound of a bucket
    cpu_cores, rss_mib, api_requests_per_s    of the operator in the steady state

The API server, etcd and the scheduler are real; kwok simulates the kubelets, and one server
answers for all pods. `--foreign N` then adds N running pods that belong to no job, and measures
again on the same cluster. Needs root, and Go if the servers are not built yet. Takes about 10
minutes for 1,000 jobs, and 10 more for 10,000 foreign pods. Servers and operator share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from scale.pods import SAVE_S, Key, Pods
from scale.servers import OPERATOR_USER, Control, control_plane, operator_objects

from support.apiserver import TOKEN, install_crd

ROOT = Path(__file__).resolve().parents[2]
NODES, JOBS_PER_NAMESPACE = 50, 20
CAPACITY = {"cpu": "1k", "memory": "16Ti", "pods": "10k"}
#: An image that never runs, because kwok simulates containers.
IMAGE = "localhost/cprjob-trainer:dev"
JOB = {
    "apiVersion": "cprjob.io/v1alpha1",
    "kind": "CPRJob",
    "spec": {
        "image": IMAGE,
        "accuracyBudget": {"portionOfLostSamples": 0.5},
        "model": {
            "embeddingDim": 16,
            "bottomMlp": [64, 16],
            "topMlp": [64, 1],
            "tables": [{"name": "user", "rows": 8000}],
        },
        "data": {"format": "Synthetic", "samples": 1_000_000_000, "batchSize": 1000, "seed": 1},
        "trainers": {"replicas": 2},
        "shards": {"replicas": 4},
        # The interval of the simulated pods: the operator polls shards with overdue saves in each pass.
        "snapshots": {
            "store": {"endpoint": "http://minio:9000", "bucket": "cprjob"},
            "interval": {"mode": "Fixed", "seconds": SAVE_S},
        },
    },
}

Send = Callable[..., Awaitable[Any]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--foreign", type=int, default=0, help="measure again with N running pods without a job")
    parser.add_argument("--deletions", type=int, default=200, help="pods deleted by force")
    parser.add_argument("--window", type=float, default=60, help="seconds of steady state")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as control:
        try:
            found = asyncio.run(measure(control, options, console))
        except BaseException:
            console.print(control.operator.log.read_text()[-3000:], markup=False)
            raise
    if options.json:
        print(json.dumps(found))  # noqa: T201
        return
    table = Table("metric", *(f"{run['foreign_pods']} foreign pods" for run in found["runs"]))
    for name in ("start_s", "event_to_decision_ms", "api_server_ms", "cpu_cores", "rss_mib", "api_requests_per_s"):
        table.add_row(name, *(str(run[name]) for run in found["runs"]))
    Console().print(table)


async def measure(control: Control, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Start all jobs, then measure, and again with foreign pods if requested."""
    with control.server.client() as client:
        install_crd(client, yaml.safe_load((ROOT / "crds" / "cprjobs.cprjob.io.yaml").read_text()))
    pods = Pods(control.server)
    context = ssl.create_default_context(cafile=str(control.server.ca_file))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connector = aiohttp.TCPConnector(ssl=context, limit=32)
    async with (
        pods.serve(),
        aiohttp.ClientSession(control.server.url, headers=headers, connector=connector) as session,
    ):
        await populate(session, options)
        control.operator.start()
        begun = time.monotonic()
        await until(lambda: len(pods.running) == 6 * options.jobs, 900, "all pods run")
        console.print(f"{options.jobs} jobs up after {time.monotonic() - begun:.0f} s")
        await until(lambda: phases(session, options.jobs), 300, "all jobs are Running")
        runs = [await measure_idle(control, session, pods, options, 0)]
        if options.foreign:
            await all_at_once(
                create(session, "/api/v1/namespaces/foreign/pods", foreign(i)) for i in range(options.foreign)
            )
            await until(lambda: all_run(session), 900, "all foreign pods run")
            runs.append(await measure_idle(control, session, pods, options, options.foreign))
    return {"jobs": options.jobs, "runs": runs}


async def measure_idle(
    control: Control, session: aiohttp.ClientSession, pods: Pods, options: argparse.Namespace, foreign_pods: int
) -> dict[str, Any]:
    """Restart the operator, then measure it at rest and while pods are deleted."""
    start_s = await restart(control, pods)
    await asyncio.sleep(30)
    steady = await steady_state(control, session, options.window)
    before = await writes(session)
    delays = await deletions(session, pods, options.deletions)
    after = await writes(session)
    p50, p99 = (round(float(np.percentile(delays, q))) for q in (50, 99))
    return {
        "foreign_pods": foreign_pods,
        "start_s": round(start_s, 1),
        "event_to_decision_ms": {"p50": p50, "p99": p99},
        "api_server_ms": {name: after[name].since(before[name]) for name in after},
        **steady,
    }


async def populate(session: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    """Create nodes, namespaces and the jobs."""
    for body in operator_objects():
        group = str(body["apiVersion"])
        kind = str(body["kind"]).lower() + "s"
        await create(session, f"/apis/{group}/{kind}", body)
    for i in range(NODES):
        status = {"allocatable": CAPACITY, "capacity": CAPACITY}
        await create(session, "/api/v1/nodes", {"metadata": {"name": f"node-{i}"}, "status": status})
        # There is no controller to remove the taint of a new node.
        await patch(session, f"/api/v1/nodes/node-{i}", {"spec": {"taints": None}})
    spaces = -(-options.jobs // JOBS_PER_NAMESPACE)
    for name in ["foreign", *(f"team-{i}" for i in range(spaces))]:
        await create(session, "/api/v1/namespaces", {"metadata": {"name": name}})
    await all_at_once(
        create(
            session,
            f"/apis/cprjob.io/v1alpha1/namespaces/team-{i // JOBS_PER_NAMESPACE}/cprjobs",
            JOB | {"metadata": {"name": f"job-{i}"}},
        )
        for i in range(options.jobs)
    )


def foreign(number: int) -> dict[str, Any]:
    """Return a pod without a job, assigned to a node."""
    container = {"name": "main", "image": IMAGE, "env": [{"name": "FILL", "value": "x" * 2000}]}
    return {
        "metadata": {"name": f"foreign-{number}", "labels": {"app": "foreign"}},
        "spec": {"containers": [container], "nodeName": f"node-{number % NODES}"},
    }


async def all_run(session: aiohttp.ClientSession) -> bool:
    """Return whether all foreign pods are Running."""
    await asyncio.sleep(5)
    query = {"fieldSelector": "status.phase!=Running", "limit": "1"}
    async with session.get("/api/v1/namespaces/foreign/pods", params=query) as answer:
        return not (await answer.json())["items"]


async def phases(session: aiohttp.ClientSession, jobs: int) -> bool:
    """Return whether all jobs are Running."""
    await asyncio.sleep(2)
    async with session.get("/apis/cprjob.io/v1alpha1/cprjobs") as answer:
        items = (await answer.json())["items"]
    running = sum(item.get("status", {}).get("phase") == "Running" for item in items)
    return bool(running == jobs)


async def restart(control: Control, pods: Pods) -> float:
    """Return seconds from the start of the operator's process until it has requested a report of each job."""
    await asyncio.to_thread(control.operator.stop)
    begun = time.monotonic()
    control.operator.start()
    await until(lambda: all(j.polled_at > begun for j in pods.jobs.values()), 300, "all jobs asked")
    return max(job.polled_at for job in pods.jobs.values()) - begun


async def steady_state(control: Control, session: aiohttp.ClientSession, window_s: float) -> dict[str, float]:
    """Return the operator's usage in the steady state."""
    begun, cpu_s, requests = time.monotonic(), control.operator.cpu_s(), await sent(session)
    await asyncio.sleep(window_s)
    seconds = time.monotonic() - begun
    return {
        "cpu_cores": round((control.operator.cpu_s() - cpu_s) / seconds, 3),
        "rss_mib": round(control.operator.rss_mib(), 1),
        "api_requests_per_s": round((await sent(session) - requests) / seconds, 1),
    }


async def deletions(session: aiohttp.ClientSession, pods: Pods, count: int) -> list[float]:
    """Delete pods by force, two a second, each of another job; return milliseconds to each replacement."""
    deleted: dict[tuple[Key, int], float] = {}
    delays: dict[tuple[Key, int], float] = {}

    def on_event(kind: str, key: Key, incarnation: int) -> None:
        now = time.monotonic()
        if kind == "DELETED":
            deleted.setdefault((key, incarnation + 1), now)
        elif kind == "ADDED" and (key, incarnation) in deleted:
            delays[key, incarnation] = 1000 * (now - deleted[key, incarnation])

    pods.on_event = on_event
    rng = random.Random(1)
    for namespace, job in rng.sample(sorted(pods.jobs), min(count, len(pods.jobs))):
        role, index = rng.choice([("shard", 1), ("shard", 3), ("trainer", 1), ("trainer", 0)])
        pod = pods.running[namespace, job, role, index]
        stem = f"{job}-{pod.job_uid[:5]}-{role}-{index}-{pod.incarnation}"
        path = f"/api/v1/namespaces/{namespace}/pods/{stem}"
        async with session.delete(path, json={"gracePeriodSeconds": 0}) as answer:
            answer.raise_for_status()
        await asyncio.sleep(0.5)
    await until(lambda: len(deleted) > 0 and delays.keys() == deleted.keys(), 120, "all are replaced")
    return list(delays.values())


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of one kind of request so far: their sum, and the number up to each bound in seconds."""

    sum_s: float
    counts: dict[float, float]

    def since(self, before: Durations) -> dict[str, float]:
        """Return the mean of those since `before`, and the least bound that 99 % of them kept, in ms."""
        counts = {most_s: count - before.counts[most_s] for most_s, count in self.counts.items()}
        all_ = max(counts.values())
        p99_s = min(most_s for most_s, count in counts.items() if count >= 0.99 * all_)
        return {"mean": round(1e3 * (self.sum_s - before.sum_s) / all_, 1), "p99": round(1e3 * p99_s)}


async def writes(session: aiohttp.ClientSession) -> dict[str, Durations]:
    """Return the API server's own time of writes so far: of the status of jobs, and of new pods."""
    async with session.get("/metrics") as answer:
        text = await answer.text()
    kinds = {"status": ("PUT", "cprjobs", "status"), "create": ("POST", "pods", "")}
    found = {name: Durations(0.0, {}) for name in kinds}
    for family in text_string_to_metric_families(text):
        if family.name != "apiserver_request_duration_seconds":
            continue
        for sample in family.samples:
            labels = sample.labels
            for name, kind in kinds.items():
                if (labels["verb"], labels["resource"], labels["subresource"]) != kind:
                    continue
                counts = found[name].counts
                if sample.name.endswith("_sum"):
                    found[name] = replace(found[name], sum_s=found[name].sum_s + sample.value)
                elif "le" in labels:
                    counts[float(labels["le"])] = counts.get(float(labels["le"]), 0.0) + sample.value
    return found


async def sent(session: aiohttp.ClientSession) -> float:
    """Return the number of the operator's requests that the API server has answered."""
    async with session.get("/metrics") as answer:
        text = await answer.text()
    schema = f'flow_schema="{OPERATOR_USER}"'
    lines = re.findall(r"^apiserver_flowcontrol_dispatched_requests_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in lines if schema in labels)


async def create(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    """POST an object."""
    async with session.post(path, json=body) as answer:
        if answer.status != 201:  # noqa: PLR2004 -- Created
            raise RuntimeError(f"{path}: {answer.status}: {await answer.text()}")


async def patch(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    """PATCH an object by JSON merge patch."""
    headers = {"Content-Type": "application/merge-patch+json"}
    async with session.patch(path, data=json.dumps(body), headers=headers) as answer:
        answer.raise_for_status()


async def all_at_once(work: Iterator[Awaitable[None]]) -> None:
    """Run all; the session's connector limits concurrent requests."""
    await asyncio.gather(*work)


async def until(met: Callable[[], Any], within_s: float, what: str) -> None:
    """Wait until `met()` is true; it may be a coroutine function. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while True:
        answer = met()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}")
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    binaries = [str(ROOT / "tests" / "cluster" / "binaries.sh"), "kubernetes", "etcd", "kwok"]
    subprocess.run(binaries, check=True)  # noqa: S603 -- our own script
    main()
