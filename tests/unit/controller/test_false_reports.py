"""Pods that answer as much as they may: they cost the operator little memory, and the status stays one that parses."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from cpr_contract.limits import MAX_MEMBERS, MAX_RANGES, MAX_SHARDS, max_report_bytes
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.views import PodView
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec

SHARDS, TRAINERS = 4, 56
PODS = SHARDS + TRAINERS
MEMORY = 64 << 20

#: A pod's report as it would be, turned into what the pod answers.
Lie = Callable[[bytes], bytes]


def longest_lists(report: bytes) -> bytes:
    """The longest lists that a reader accepts, and up to the limit the fields that take most memory to parse."""
    lied = json.loads(report)
    lied["lost"] = [[300 + 2 * n, 301 + 2 * n] for n in range(MAX_RANGES)]
    lied["silent"] = lied["overdue"] = lied["waiting_for"] = [f"no{n}" for n in range(MAX_MEMBERS)]
    lied["shard_saves"] = lied["forgotten"] = [300 + n for n in range(MAX_SHARDS)]
    text = json.dumps(lied, separators=(",", ":"))[:-1]
    more = (max_report_bytes(PODS) - len(text) - len(',"x":[[]]}')) // len(",[]")
    assert more > 0
    return f'{text},"x":[[]{",[]" * more}]}}'.encode()


def losses_alone(report: bytes) -> bytes:
    """As many losses as the longest report has bytes for: more than a reader takes."""
    lied = json.loads(report)
    lied["lost"] = [[300 + n, 301 + n] for n in range(8000)]
    text = json.dumps(lied, separators=(",", ":"))
    assert len(text) <= max_report_bytes(PODS)
    return text.encode()


@pytest.mark.timeout(600)  # memory is traced, which takes its time
@pytest.mark.parametrize("lie", [longest_lists, losses_alone])
async def test_largest_reports_take_little_memory(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Simulation(Scenario("liars", (), spec(shards__replicas=SHARDS, trainers__replicas=TRAINERS)))
    await driver.passes(10)
    assert driver.status().phase == "Running"
    cluster = driver.cluster
    lies = {pod.name: lie(cluster.report(pod) or b"{}") for pod in cluster.pods.values()}
    requested: set[str] = set()

    async def fetch(
        pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        if pod.role == "trainer" and pod.index == driver.status().leader:
            return None  # the controller polls all others then
        requested.add(pod.name)
        body = lies[pod.name]
        return bytes(bytearray(body)) if len(body) <= max_bytes else None

    monkeypatch.setattr(cluster, "fetch_report", fetch)
    tracemalloc.start()
    try:
        await driver.passes(1)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(requested) == PODS - 1
    assert most < MEMORY
    assert sum(map(len, driver.status().ledger.ranges)) <= MAX_RANGES
