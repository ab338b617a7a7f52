"""Slow steps of a large job run in a thread, or once: the event loop serves other jobs meanwhile."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.validate import parse_spec
from cpr_operator.controller import controller, job_reader
from cpr_operator.controller.controller import Controller
from cpr_operator.reconcile import Outcome, ReconcileInput, reconcile
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec


class Meanwhile:
    """A slow step of a pass, which continues only after another job did."""

    def __init__(self) -> None:
        self._began, self._others_went_on = threading.Event(), threading.Event()
        self.seen: list[bool] = []

    def wait(self) -> None:
        self._began.set()
        self.seen.append(self._others_went_on.wait())

    async def run(self, job: dict[str, Any]) -> None:
        """A pass over the job, and a concurrent other job."""
        cluster = SimulatedCluster(2000)
        cluster.add_job("job", job)

        async def another_job() -> None:
            await asyncio.to_thread(self._began.wait)
            self._others_went_on.set()

        large = Controller(cluster, lambda: cluster.now)
        await asyncio.gather(large.run_pass("default", "job"), another_job())
        assert cluster.statuses[-1]["phase"] == "Starting"
        assert self.seen == [True]


async def test_event_loop_runs_while_a_pass_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = Meanwhile()

    def slow(observed: ReconcileInput) -> Outcome:
        meanwhile.wait()
        return reconcile(observed)

    monkeypatch.setattr(controller, "reconcile", slow)
    await meanwhile.run(spec(shards__replicas=controller.FEW_PODS))


async def test_event_loop_runs_while_the_rules_of_a_large_model_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meanwhile = Meanwhile()

    def slow(given: Mapping[str, Any], *, checked: bool) -> CPRJobSpec:
        if not checked:
            meanwhile.wait()
        return parse_spec(given, checked=checked)

    monkeypatch.setattr(job_reader, "parse_spec", slow)
    tables = [{"name": f"t{number}", "rows": 10} for number in range(job_reader.FEW_TABLES + 1)]
    await meanwhile.run(spec(model=spec()["model"] | {"tables": tables}))


async def test_rules_are_evaluated_once_per_metadata_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def counted(given: Mapping[str, Any], *, checked: bool) -> CPRJobSpec:
        evaluated.append(not checked)
        return parse_spec(given, checked=checked)

    monkeypatch.setattr(job_reader, "parse_spec", counted)
    cluster = SimulatedCluster(2000)
    cluster.add_job("job", spec())
    passes = Controller(cluster, lambda: cluster.now)
    for _ in range(3):  # each writes a status, so that the next one parses the job again
        await passes.run_pass("default", "job")
        cluster.now += 1.0
    assert len(evaluated) > 1
    assert evaluated == [True] + [False] * (len(evaluated) - 1)
    cluster.set_spec("job", suspend=True)
    await passes.run_pass("default", "job")
    assert evaluated[-1]
