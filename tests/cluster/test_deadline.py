"""Starts that take longer than allowed, on the real cluster: no job that trains, or has trained, is failed for it."""

import json
import time
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import condition
from cluster.jobs import Run, failures, manifest

pytestmark = pytest.mark.timeout(240, func_only=True)

DEADLINE_S = 20
#: More than any of these tests trains.
ENDLESS = {"format": "Synthetic", "samples": 20_000_000, "batchSize": 128, "seed": 1}
SMALL: dict[str, Any] = {
    "data": ENDLESS,
    "trainers__replicas": 1,
    "shards__replicas": 2,
    "failurePolicy": {"startupDeadlineSeconds": DEADLINE_S},
}


class TestTheStartupDeadline:
    def test_an_operator_that_was_away_for_longer_fails_nobody(self, cluster: Cluster, space: Space) -> None:
        space.apply(manifest("unwatched", **SMALL))
        until("its pods are there", lambda: len(space.pods(job="unwatched")) == 3, 60)
        cluster.stop_operator()
        status = space.job("unwatched").get("status", {})
        assert status["phase"] == "Starting"
        time.sleep(DEADLINE_S + 5)
        cluster.start_operator()
        run = Run(space, "unwatched")
        run.wait("trains", lambda status: status["phase"] in {"Running", "Failed"}, within_s=90)
        status = run.wait("trains", lambda status: status.get("progress", {}).get("samples", 0) > 0)
        assert (status["phase"], failures(status)) == ("Running", [])
        space.kubectl("delete", "cprjob", "unwatched")

    def test_a_resume_without_its_store_is_given_back_and_ends_well_later(self, cluster: Cluster, space: Space) -> None:
        run = Run.start(space, "homeless", **SMALL | {"failurePolicy": {}})
        run.wait("has an anchor", lambda status: bool(status.get("anchors")), 90)
        space.patch("homeless", '{"spec":{"suspend":true}}')
        before = run.wait("is suspended", lambda status: status["phase"] == "Suspended", 60)
        with cluster.store_down():
            allowed = {"startupDeadlineSeconds": DEADLINE_S}
            space.patch("homeless", json.dumps({"spec": {"suspend": True, "failurePolicy": allowed}}))
            space.patch("homeless", '{"spec":{"suspend":false}}')
            run.wait("resumes", lambda status: status["phase"] == "Starting", 30)
            status = run.wait("is suspended again", lambda status: status["phase"] in {"Suspended", "Failed"}, 120)
            assert status["phase"] == "Suspended"
            said = condition(space.job("homeless"), "Suspended")
            assert (said["status"], said["reason"]) == ("True", "StartupDeadlineExceeded")
            assert "spec.failurePolicy.startupDeadlineSeconds" in said["message"]
            until("no pod is left", lambda: not space.pods(job="homeless"), 60)
        space.patch("homeless", '{"spec":{"suspend":true,"failurePolicy":{"startupDeadlineSeconds":120}}}')
        run.wait("stays so", lambda status: "resumeAt" not in status, 30)
        space.patch("homeless", '{"spec":{"suspend":false}}')
        trained = before["progress"]["samples"]
        status = run.wait("trains on", lambda s: s["phase"] == "Running" and s["progress"]["samples"] > trained, 90)
        assert (failures(status), status["budget"]["spent"], status["counters"]["generation"]) == ([], 0, 1)
        space.kubectl("delete", "cprjob", "homeless")
